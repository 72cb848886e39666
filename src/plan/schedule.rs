//! The sequence of sweeps: rows are admitted in the grouping's order as others end.

use super::{Allotment, Outcome, Span, StateBytes, Sweep};
use crate::request::RowFacts;

/// In which order requests are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// As the rows come.
    Input,
    /// Longest first: a wave's sequences end together, and no long row is left for the end.
    Length,
    /// Shuffled by a fixed seed.
    Random,
}

/// A sequence in flight.
#[derive(Debug, Clone)]
struct Active {
    slot: usize,
    row: u32,
    /// Positions that have been through the model.
    done: u32,
    state_bytes: u64,
}

/// Hands out sweeps until every request has ended.
#[derive(Debug, Clone)]
pub struct Schedule {
    rows: Vec<RowFacts>,
    grouping: Grouping,
    order: Vec<u32>,
    next: usize,
    /// In order of admission.
    active: Vec<Active>,
    free: Vec<usize>,
    allotment: Allotment,
    state: StateBytes,
    state_used: u64,
}

impl Schedule {
    /// A schedule of all rows that need computing; `state` is what a sequence of the model leaves behind.
    pub fn new(rows: Vec<RowFacts>, grouping: Grouping, allotment: Allotment, state: StateBytes) -> Self {
        let mut order: Vec<u32> = (0..rows.len() as u32).filter(|&i| !rows[i as usize].is_idle()).collect();
        match grouping {
            Grouping::Input => {}
            Grouping::Length => order.sort_by_key(|&i| std::cmp::Reverse(rows[i as usize].positions_max())),
            Grouping::Random => order.sort_by_cached_key(|&i| mix(u64::from(i))),
        }
        let free = (0..allotment.wave).rev().collect();
        Schedule { rows, grouping, order, next: 0, active: Vec::new(), free, allotment, state, state_used: 0 }
    }

    /// The first `requests` of its requests from the start again, admitted in its own order or in one that `seed` draws.
    pub fn afresh(&self, requests: usize, seed: Option<u64>) -> Schedule {
        let mut fresh = Schedule::new(self.rows[..requests].to_vec(), self.grouping, self.allotment.clone(), self.state);
        if let Some(seed) = seed {
            fresh.grouping = Grouping::Random;
            fresh.order.sort_by_cached_key(|&i| mix(u64::from(i) ^ mix(seed)));
        }
        fresh
    }

    /// How memory is shared out.
    pub fn allotment(&self) -> &Allotment {
        &self.allotment
    }

    /// In which order requests are admitted.
    pub fn grouping(&self) -> Grouping {
        self.grouping
    }

    /// The facts of all rows.
    pub fn rows(&self) -> &[RowFacts] {
        &self.rows
    }

    #[cfg(test)]
    pub(super) fn rows_mut(&mut self) -> &mut [RowFacts] {
        &mut self.rows
    }

    #[cfg(test)]
    pub(super) fn keep(&mut self, panels: u64, blocks: u64) {
        (self.allotment.kept_panels, self.allotment.kept_blocks) = (panels, blocks);
    }

    /// The next sweep, given what became of the last one; `None` when every request has ended.
    pub fn next(&mut self, last: &Outcome) -> Option<Sweep> {
        self.release(&last.ended);
        let mut room = self.allotment.prefill_rows as u32;
        let mut spans = Vec::with_capacity(self.active.len());
        for active in &mut self.active {
            let prompt = self.rows[active.row as usize].prompt_tokens;
            let count = if active.done >= prompt { 1 } else { (prompt - active.done).min(room) };
            if active.done < prompt {
                room -= count;
            }
            if count > 0 {
                spans.push(advance(active, count));
            }
        }
        while room > 0
            && let Some(mut active) = self.admit()
        {
            let count = self.rows[active.row as usize].prompt_tokens.min(room);
            room -= count;
            spans.push(advance(&mut active, count));
            self.active.push(active);
        }
        spans.sort_unstable_by_key(|span| span.slot);
        (!spans.is_empty()).then_some(Sweep { spans })
    }

    /// Passes over the sweeps that would be like the last one, a token of every answer, until one of them may end; returns how many.
    pub(super) fn skip_alike(&mut self) -> u64 {
        let rows = &self.rows;
        let answering = |a: &Active| a.done > rows[a.row as usize].prompt_tokens;
        if self.has_room() || !self.active.iter().all(answering) {
            return 0;
        }
        let left = self.active.iter().map(|a| rows[a.row as usize].positions_max().saturating_sub(u64::from(a.done))).min();
        let left = left.unwrap_or(0);
        for active in &mut self.active {
            active.done += left as u32;
        }
        left
    }

    fn release(&mut self, ended: &[usize]) {
        if ended.is_empty() {
            return;
        }
        self.active.retain(|active| {
            let stays = ended.binary_search(&active.slot).is_err();
            if !stays {
                self.state_used -= active.state_bytes;
                self.free.push(active.slot);
            }
            stays
        });
        self.free.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Whether the next request in order could be admitted.
    fn has_room(&self) -> bool {
        let next = self.order.get(self.next);
        next.is_some_and(|&row| !self.free.is_empty() && self.state_used + self.state_bytes(row) <= self.allotment.state_bytes)
    }

    fn state_bytes(&self, row: u32) -> u64 {
        self.state.of(self.rows[row as usize].positions_max())
    }

    /// The next request in order, if a slot and state memory are free.
    fn admit(&mut self) -> Option<Active> {
        if !self.has_room() {
            return None;
        }
        let &row = self.order.get(self.next)?;
        let state_bytes = self.state_bytes(row);
        let slot = self.free.pop()?;
        self.next += 1;
        self.state_used += state_bytes;
        Some(Active { slot, row, done: 0, state_bytes })
    }
}

fn advance(active: &mut Active, count: u32) -> Span {
    let positions = active.done..active.done + count;
    active.done += count;
    Span { slot: active.slot, row: u64::from(active.row), positions }
}

/// A fixed permutation-like hash (the finaliser of SplitMix64, Steele et al. 2014).
fn mix(i: u64) -> u64 {
    let mut z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::super::Walkers;
    use super::*;
    use crate::memory::Ledger;
    use proptest::prelude::*;

    fn allotment(wave: usize, prefill_rows: usize, state_bytes: u64) -> Allotment {
        Allotment {
            ledger: Ledger::default(),
            wave,
            prefill_rows,
            state_bytes,
            panel_ring_bytes: 0,
            block_ring_bytes: 0,
            blocks_in_flight: 1,
            kept_panels: 0,
            kept_blocks: 0,
            walkers: Walkers { most: 1, rows: 1 },
        }
    }

    const ONE: StateBytes = StateBytes { fixed: 1, a_token: 1 };

    fn row(prompt_tokens: u32, max_tokens: u32) -> RowFacts {
        RowFacts { prompt_tokens, max_tokens, faulty: false, drawn: false, prompt_logprobs: true }
    }

    /// Runs a schedule to its end; every row ends after `max_tokens` tokens.
    fn drive(mut schedule: Schedule) -> Vec<Sweep> {
        let (mut outcome, mut sweeps) = (Outcome::default(), Vec::new());
        while let Some(sweep) = schedule.next(&outcome) {
            outcome.ended = (sweep.spans.iter())
                .filter(|s| u64::from(s.positions.end) == schedule.rows()[s.row as usize].positions_max())
                .map(|s| s.slot)
                .collect();
            sweeps.push(sweep);
        }
        sweeps
    }

    proptest! {
        #[test]
        fn every_position_is_computed_once_and_in_order(
            lengths in prop::collection::vec((1u32..40, 0u32..12), 1..40),
            wave in 1usize..9,
            prefill_rows in 1usize..50,
            grouping in prop::sample::select(vec![Grouping::Input, Grouping::Length, Grouping::Random]),
        ) {
            let rows: Vec<_> = lengths.iter().map(|&(p, n)| row(p, n)).collect();
            let sweeps = drive(Schedule::new(rows.clone(), grouping, allotment(wave, prefill_rows, 60), ONE));
            let mut done = vec![0; rows.len()];
            for sweep in &sweeps {
                prop_assert!(sweep.spans.len() <= wave);
                prop_assert!(sweep.spans.is_sorted_by(|a, b| a.slot < b.slot));
                let mut prompt_rows = 0;
                for span in &sweep.spans {
                    let at = span.row as usize;
                    prop_assert_eq!(span.positions.start, done[at]);
                    done[at] = span.positions.end;
                    prompt_rows += span.positions.clone().filter(|&p| p < rows[at].prompt_tokens).count();
                }
                prop_assert!(prompt_rows <= prefill_rows);
            }
            for (row, done) in rows.iter().zip(done) {
                prop_assert_eq!(u64::from(done), row.positions_max());
            }
        }
    }

    #[test]
    fn groupings_order_admission() {
        let rows = vec![row(3, 1), row(9, 1), row(5, 1), row(1, 1)];
        let first = |grouping| -> Vec<u64> {
            let sweeps = drive(Schedule::new(rows.clone(), grouping, allotment(1, 100, 100), ONE));
            sweeps.iter().map(|s| s.spans[0].row).collect()
        };
        assert_eq!(first(Grouping::Input), [0, 1, 2, 3]);
        assert_eq!(first(Grouping::Length), [1, 2, 0, 3]);
        assert_eq!(first(Grouping::Random), first(Grouping::Random));
    }
}
