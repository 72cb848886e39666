//! What a job would cost: the schedule driven to its end with every answer as long as it may be.

use serde::Serialize;

use super::facts::Needs;
use super::weigh::Weights;
use super::{Home, Limits, ModelFacts, Outcome, Rates, Schedule, Span, States};

/// Counts and bytes of a job before it runs; an upper bound, since answers may end early.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Forecast {
    /// Rows of the input.
    pub rows: u64,
    /// Rows that are reported as errors without being computed.
    pub rows_faulty: u64,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Most tokens of all answers.
    pub completion_tokens_max: u64,
    /// Passes through all layers.
    pub sweeps: u64,
    /// Bytes of trunk, embedding and head that are read.
    pub bytes_trunk: u64,
    /// Bytes of experts that are read, if rows chose them evenly.
    pub bytes_experts: u64,
    /// Bytes of states that are read from disk.
    pub bytes_state_read: u64,
    /// Bytes of states that are written to disk.
    pub bytes_state_written: u64,
    /// Arithmetic, in thousand millions of FLOP: a product of two numbers and its addition are two.
    pub gflop: u64,
    /// Time of all sweeps, milliseconds, each as long as its reading or its arithmetic, whichever takes longer; none where the machine's
    /// rates are unknown.
    pub wall_ms: Option<u64>,
}

impl Forecast {
    /// All bytes that go between disk and memory.
    pub fn bytes(&self) -> u64 {
        [self.bytes_experts, self.bytes_state_read, self.bytes_state_written].into_iter().fold(self.bytes_trunk, u64::saturating_add)
    }
}

/// Sweeps that differ in little but their positions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alike {
    pub sweeps: u64,
    /// Rows of each.
    pub rows: u64,
    /// Of these, rows whose logits are wanted.
    wanted: u64,
    /// Pairs of a row and a position that it attends to, in the mean.
    pairs: f64,
    /// Bytes of states read from disk in each, and written there.
    pub state_read: f64,
    pub state_written: f64,
}

impl Alike {
    /// Arithmetic of each.
    pub fn flop(&self, m: &ModelFacts) -> f64 {
        self.rows as f64 * m.row_flop as f64 + self.wanted as f64 * m.head_flop as f64 + self.pairs * m.pair_flop as f64
    }
}

/// Drives `schedule` to its end, every answer as long as it may be.
pub(super) fn drive(mut schedule: Schedule, mut each: impl FnMut(Alike)) {
    let mut outcome = Outcome::default();
    while let Some(sweep) = schedule.next(&outcome) {
        let more = schedule.skip_alike();
        let mut alike = Alike {
            sweeps: 1 + more,
            rows: 0,
            wanted: 0,
            pairs: more as f64 / 2.0 * sweep.spans.len() as f64,
            state_read: 0.0,
            state_written: 0.0,
        };
        let state = schedule.state();
        let rows = schedule.rows();
        for span in &sweep.spans {
            let (row, len) = (&rows[span.row as usize], u64::from(span.positions.end - span.positions.start));
            alike.rows += len;
            alike.wanted += if row.prompt_logprobs { len } else { u64::from(span.positions.end >= row.prompt_tokens) };
            match (span.from, span.home) {
                (Home::Scratch, Home::Scratch) => alike.state_read += state.read(f64::from(span.positions.start) + more as f64 / 2.0),
                (Home::Scratch, _) => alike.state_read += state.read(f64::from(span.positions.start)) / alike.sweeps as f64,
                _ => {}
            }
            if span.home == Home::Scratch {
                alike.state_written += state.written(len);
            }
            alike.pairs += len as f64 * (f64::from(span.positions.start) + f64::from(span.positions.end) + 1.0) / 2.0;
        }
        each(alike);
        let done = |s: &&Span| u64::from(s.positions.end) + alike.sweeps > rows[s.row as usize].positions_max();
        outcome.ended = sweep.spans.iter().filter(done).map(|s| s.slot).collect();
    }
}

/// Drives a copy of `schedule`.
pub fn forecast(schedule: Schedule, m: &ModelFacts, rates: Option<Rates>) -> Forecast {
    let mut f = Forecast { rows: schedule.rows().len() as u64, ..Forecast::default() };
    let mut positions: u64 = 0;
    for row in schedule.rows() {
        f.rows_faulty += u64::from(row.faulty);
        if !row.faulty {
            f.prompt_tokens += u64::from(row.prompt_tokens);
            f.completion_tokens_max += u64::from(row.max_tokens);
        }
        positions += if row.is_idle() { 0 } else { row.positions_max() };
    }
    let weights = Weights::new(m, schedule.allotment().kept_panels, schedule.allotment().kept_blocks);
    let (trunk_once, experts_once) = weights.once(positions);
    let (mut experts, mut flop, mut seconds, mut state_read, mut state_written) = (0.0, 0.0, 0.0, 0.0, 0.0);
    drive(schedule, |alike| {
        let sweeps = alike.sweeps as f64;
        let first = f.sweeps == 0; // which reads what stays
        let trunk = weights.trunk(alike.rows);
        let [union, _] = weights.union(alike.rows as f64);
        let work = alike.flop(m);
        let states = alike.state_read + alike.state_written;
        state_read += alike.state_read * sweeps;
        state_written += alike.state_written * sweeps;
        f.sweeps += alike.sweeps;
        f.bytes_trunk = f.bytes_trunk.saturating_add(trunk.saturating_mul(alike.sweeps)).saturating_add(if first { trunk_once } else { 0 });
        experts += union * sweeps + if first { experts_once } else { 0.0 };
        flop += work * sweeps;
        if let Some(rates) = rates {
            let reading = |bytes: f64| bytes / rates.disk_bytes_per_s.max(1) as f64;
            let computing = work / rates.flops_per_s.max(1) as f64;
            let streamed = reading(trunk as f64 + union + states).max(computing);
            let alone =
                if first { reading(trunk as f64 + union + states + trunk_once as f64 + experts_once).max(computing) } else { streamed };
            seconds += alone + streamed * (sweeps - 1.0);
        }
    });
    f.bytes_experts = experts as u64;
    (f.bytes_state_read, f.bytes_state_written) = (state_read as u64, state_written as u64);
    f.gflop = (flop / 1e9) as u64;
    f.wall_ms = rates.map(|_| (seconds * 1e3) as u64);
    f
}

/// Bytes of states that a job writes at most: as it is planned, or as its settings name it where no plan may.
pub fn states_written(schedule: &Schedule, m: &ModelFacts, limits: &Limits) -> u64 {
    match (schedule.allotment().states, limits.states) {
        (States::Memory, Some(named)) => m.state.written_in_all(named, &Needs::of(schedule.rows(), m)) as u64,
        (States::Memory, None) => 0,
        _ => forecast(schedule.clone(), m, limits.rates).bytes_state_written,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Allotment, Grouping, StateBytes};
    use super::*;
    use crate::request::RowFacts;
    use proptest::prelude::*;

    fn schedule(rows: &[(u32, u32)], wave: usize, prefill_rows: usize) -> Schedule {
        let row = |&(prompt_tokens, max_tokens): &(u32, u32)| RowFacts {
            prompt_tokens,
            max_tokens,
            faulty: false,
            drawn: false,
            prompt_logprobs: true,
        };
        let allotment = Allotment::bare(wave, wave, prefill_rows);
        Schedule::new(rows.iter().map(row).collect(), Grouping::Input, allotment, StateBytes::default())
    }

    #[test]
    fn billions_of_sweeps_are_counted_and_not_walked() {
        let most = i32::MAX as u32;
        let f = forecast(schedule(&[(5, most), (7, most), (3, 2)], 1, 10), &ModelFacts::default(), None);
        assert_eq!(f.sweeps, 2 * u64::from(most) + 2);
    }

    #[test]
    fn a_sweep_takes_as_long_as_its_reading_or_its_arithmetic() {
        let m = ModelFacts { panels: vec![600, 400], embedding: 1..2, row_flop: 50, head_flop: 8, pair_flop: 1, ..ModelFacts::default() };
        let rates = Rates { disk_bytes_per_s: 100, flops_per_s: 10 };
        let of = |rows: &[(u32, u32)]| {
            let mut all = schedule(rows, 1, 10);
            all.rows_mut().iter_mut().for_each(|row| row.prompt_logprobs = false);
            forecast(all, &m, Some(rates)).wall_ms
        };
        // Read: 600 bytes in 6 s. One row: 50 + 8 + 1 FLOP in 5.9 s. Two: 100 + 8 + 3 in 11.1 s.
        assert_eq!((of(&[(1, 1)]), of(&[(2, 1)])), (Some(6_000), Some(11_100)));
        // And then a token alone, which attends to three: 6.1 s.
        assert_eq!(of(&[(2, 2)]), Some(17_200));
        assert_eq!(forecast(schedule(&[(1, 1)], 1, 10), &m, None).wall_ms, None);
    }

    #[test]
    fn arithmetic_is_counted_by_rows_logits_and_pairs() {
        let giga = |row, head, pair| ModelFacts { row_flop: row, head_flop: head, pair_flop: pair, ..ModelFacts::default() };
        let rows = [(5, 4), (7, 1), (3, 9)];
        let count = |m: &ModelFacts| forecast(schedule(&rows, 2, 6), m, None).gflop;
        assert_eq!(count(&giga(1_000_000_000, 0, 0)), 8 + 7 + 11);
        assert_eq!(count(&giga(0, 1_000_000_000, 0)), 8 + 7 + 11, "every position is scored");
        assert_eq!(count(&giga(0, 0, 1_000_000_000)), 8 * 9 / 2 + 7 * 8 / 2 + 11 * 12 / 2);
    }

    #[test]
    fn what_stays_is_read_once() {
        let m = ModelFacts {
            panels: vec![600, 70, 400],
            whole_bytes: 5,
            embedding: 2..3,
            embedding_row_bytes: 2,
            blocks: vec![(1, 1, 1000); 3],
            ..ModelFacts::default()
        };
        let mut all = schedule(&[(2, 3)], 1, 10);
        all.keep(1, 2);
        let f = forecast(all, &m, None);
        assert_eq!((f.sweeps, f.bytes_trunk, f.bytes_experts), (3, 605 + 3 * 70 + 4 * 2, 2000 + 3 * 1000));
    }

    proptest! {
        #[test]
        fn sweeps_are_those_of_the_schedule_walked_one_by_one(
            rows in prop::collection::vec((1u32..30, 0u32..20), 1..20),
            wave in 1usize..6,
            prefill_rows in 1usize..40,
        ) {
            let mut walked = schedule(&rows, wave, prefill_rows);
            let (mut outcome, mut sweeps) = (Outcome::default(), 0);
            while let Some(sweep) = walked.next(&outcome) {
                sweeps += 1;
                let last = |s: &&Span| u64::from(s.positions.end) >= walked.rows()[s.row as usize].positions_max();
                outcome.ended = sweep.spans.iter().filter(last).map(|s| s.slot).collect();
            }
            prop_assert_eq!(forecast(schedule(&rows, wave, prefill_rows), &ModelFacts::default(), None).sweeps, sweeps);
        }
    }
}
