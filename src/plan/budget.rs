//! In how much memory does the job run: what must fit, what can shrink, and what is done with the rest.
//!
//! At 3 GiB the largest model has a thousandth of its weights in memory, and the same bytes buy sequences, rows, reads that go ahead of
//! the arithmetic, or weights that need no reading. What a sequence and a row save is counted ([`super::choose`]); what they leave goes, in
//! this order, to experts computed side by side, to rings that read further ahead, to trunk and to experts. So what is given up first as
//! memory shrinks is what costs least, and the smallest budget is that of one sequence, one row, and two pieces of each kind.

use super::choose::{Choice, Placed};
use super::facts::{Limits, ModelFacts, Needs};
use super::ledger::{Allotment, Sizes, build};
use super::schedule::Grouping;
use super::states::States;
use super::weigh::Weights;
use crate::memory::Ledger;
use crate::request::RowFacts;

/// The budget is too small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The smallest budget that works.
    pub smallest_bytes: u64,
    /// The line that asks for most.
    pub blame: &'static str,
    /// All lines at their least.
    pub ledger: Ledger,
}

/// The widest wave by default: beyond it a sweep's overhead is spread thin enough.
const WAVE_MAX: u64 = 4096;
/// Prompt rows of a walker by default: where all weights stay in memory, rows that fit a core's cache are computed fastest.
const PREFILL_ROWS_RESIDENT: u64 = 1024;
/// Prompt rows of a sweep by default where weights stream.
const PREFILL_ROWS_STREAMED: u64 = 16_384;
/// Rows that come before sequences where nothing streams.
const FEW_ROWS: u64 = 256;
/// The part of its blocks that a wave saves whose answers begin together, and the part of its places that are busy then, about.
const TOGETHER_SAVES: f64 = 0.12;
const TOGETHER_BUSY: f64 = 0.75;
/// In wider waves nothing is gained: some answers of any kind are at hand.
const TOGETHER_MOST: u64 = 32;
/// Panels and blocks that a ring holds at least: one in use, one on its way.
const RING_MIN: u64 = 2;
/// Panels that it holds where memory allows it: reads of two devices go on while two panels are in use.
const RING_PANELS: u64 = 4;

/// Shares memory out, or says what the least would be; rows are admitted in the order of `grouping`.
///
/// # Errors
/// The least that the job can run in exceeds the budget.
pub fn allot(rows: &[RowFacts], grouping: Grouping, m: &ModelFacts, limits: &Limits) -> Result<Allotment, Box<Refusal>> {
    let needs = Needs::of(rows, m);
    let share = Share { m, limits, needs: &needs };
    let choice = Choice { rows, grouping, m, limits, needs: &needs };
    let smallest = choice.least_named().map_or_else(|| share.smallest(), |at| share.least(at));
    let least = share.build(smallest);
    if least.ledger.total() > limits.budget_bytes {
        let blame = least.ledger.lines.iter().max_by_key(|l| l.bytes).map_or("", |l| l.name);
        return Err(Box::new(Refusal { smallest_bytes: least.ledger.total(), blame, ledger: least.ledger }));
    }
    if let Some(resident) = share.resident() {
        return Ok(share.build(resident));
    }
    let rows_max = share.rows_max(PREFILL_ROWS_STREAMED);
    let best = choice.best(share.wave_max(), rows_max, |at| share.settle(at)).unwrap_or(smallest);
    let cohort = if grouping == Grouping::Overlap && best.pool > best.wave { cohort(m, &best) } else { 1 };
    Ok(Allotment { cohort: cohort as usize, ..share.build(best) })
}

/// The rows that the budget cannot hold even alone, longest first: they fit nowhere. `alone` gives what holds for a job of one row, whose output
/// and scratch are no other's. Where a row fits, shorter ones of its kind do: those that
/// leave states behind are a kind, those that end with their prompt another.
pub fn misfits(rows: &[RowFacts], m: &ModelFacts, alone: impl Fn(&[RowFacts]) -> Limits) -> Vec<u32> {
    let too_large = |&i: &u32| {
        let row = &rows[i as usize..=i as usize];
        let (needs, limits) = (Needs::of(row, m), alone(row));
        let share = Share { m, limits: &limits, needs: &needs };
        share.build(share.smallest()).ledger.total() > limits.budget_bytes
    };
    let longest_first = |&i: &u32| (std::cmp::Reverse(rows[i as usize].positions_max()), i);
    let mut found = Vec::new();
    for answered in [true, false] {
        let of_kind = |row: &RowFacts| !row.is_idle() && (row.max_tokens > 1) == answered;
        let mut kind: Vec<u32> = (0..rows.len() as u32).filter(|&i| of_kind(&rows[i as usize])).collect();
        kind.sort_unstable_by_key(longest_first);
        found.extend(kind.into_iter().take_while(too_large));
    }
    found.sort_unstable_by_key(longest_first);
    found
}

/// How many places must be free before others are admitted. Answers that begin together share more experts, since alike ones go on in
/// step: a tenth of a wave's loads and more (benches/README.md). But places stay free until the last of them has ended, so that the trunk
/// is read for fewer rows. Whichever costs fewer bytes.
fn cohort(m: &ModelFacts, sizes: &Sizes) -> u64 {
    let weights = Weights::new(m, sizes.kept_panels, sizes.kept_blocks);
    let [blocks, _] = weights.union(sizes.wave as f64);
    let idle = weights.streamed as f64 * (1.0 / TOGETHER_BUSY - 1.0);
    if sizes.wave <= TOGETHER_MOST && blocks * TOGETHER_SAVES > idle { sizes.wave } else { 1 }
}

/// Memory, and who asks for it.
struct Share<'a> {
    m: &'a ModelFacts,
    limits: &'a Limits,
    needs: &'a Needs,
}

impl Share<'_> {
    fn build(&self, sizes: Sizes) -> Allotment {
        build(self.m, self.limits, self.needs, sizes)
    }

    /// What the budget leaves beside these sizes, if it holds them.
    fn spare(&self, sizes: Sizes) -> Option<u64> {
        self.limits.budget_bytes.checked_sub(self.build(sizes).ledger.total())
    }

    fn wave_max(&self) -> u64 {
        self.limits.wave.map_or(WAVE_MAX, |n| n as u64).clamp(1, self.needs.kept.sequences.max(1))
    }

    fn rows_max(&self, default: u64) -> u64 {
        self.limits.prefill_rows.map_or(default, |n| n as u64).clamp(1, self.needs.prompt_tokens.max(1))
    }

    /// All that can shrink at its least.
    fn least(&self, at: Placed) -> Sizes {
        let Placed { wave, pool, prefill_rows, states } = at;
        let (panels, blocks) = (RING_MIN, RING_MIN);
        Sizes {
            wave,
            pool,
            refill: 1,
            prefill_rows,
            states,
            panels,
            blocks,
            flight: 1,
            missing: 1.0,
            kept_panels: 0,
            kept_blocks: 0,
            walkers: 1,
        }
    }

    /// The smallest of all: one sequence, its states in memory or, if that takes less and there is room, on disk.
    fn smallest(&self) -> Sizes {
        let of = |states| self.least(Placed { wave: 1, pool: 1, prefill_rows: 1, states });
        let memory = of(States::Memory);
        let passing = (self.needs.kept.sequences > 0 && self.limits.scratch.slots() > 0).then(|| of(States::Passing));
        let both = [Some(memory), passing].into_iter().flatten();
        both.min_by_key(|sizes| (self.limits.states.is_some_and(|only| only != sizes.states), self.build(*sizes).ledger.total()))
            .unwrap_or(memory)
    }

    /// What is asked for, and what it leaves shared out; none if it does not fit. No stage gets anything before the one ahead of it has
    /// all that it wants, so that more memory never means less of anything.
    fn settle(&self, at: Placed) -> Option<Sizes> {
        let mut sizes = self.least(at);
        let mut spare = self.spare(sizes)?;
        let wanted = self.limits.blocks_in_flight.max(1);
        let mut grow = |from: u64, to: u64, piece: u64| {
            let more = to.saturating_sub(from).min(spare / piece.max(1));
            spare -= more * piece;
            (from + more, from + more >= to)
        };
        let (panel, block) = (self.m.panel_room_bytes, self.m.block_room_bytes);
        let mut full;
        (sizes.blocks, full) = grow(RING_MIN, wanted + 1, block);
        sizes.flight = sizes.blocks - 1;
        if full {
            (sizes.panels, full) = grow(RING_MIN, RING_PANELS, panel);
        }
        if full {
            (sizes.blocks, full) = grow(sizes.blocks, 2 * wanted, block);
        }
        let all = RING_PANELS + 2 * wanted - 2 * RING_MIN;
        sizes.missing = 1.0 - (sizes.panels + sizes.blocks - 2 * RING_MIN) as f64 / all as f64;
        if full {
            let weights = spare.min(self.limits.resident_bytes.unwrap_or(u64::MAX));
            (sizes.kept_panels, sizes.kept_blocks) = kept(self.m, self.needs.positions, weights);
        }
        Some(sizes)
    }

    /// Everything kept, where that leaves half of the memory: then each thread walks with rows of its own, and the more sequences, the better.
    fn resident(&self) -> Option<Sizes> {
        let most = self.limits.resident_bytes.unwrap_or(u64::MAX).min(self.limits.budget_bytes / 2);
        if self.m.streamable_bytes() > most || self.limits.states.is_some_and(|states| states != States::Memory) {
            return None;
        }
        let (walkers, flight) = (self.limits.threads, self.limits.blocks_in_flight.max(1));
        let with = |wave: u64, pool: u64, prefill_rows: u64| Sizes {
            wave,
            pool,
            refill: 1,
            prefill_rows,
            states: States::Memory,
            panels: RING_PANELS,
            blocks: RING_MIN.max(2 * flight),
            flight,
            missing: 0.0,
            kept_panels: self.m.panels.len() as u64,
            kept_blocks: self.m.block_count(),
            walkers,
        };
        let fits = |wave: u64, pool: u64, rows: u64| self.spare(with(wave, pool, rows)).is_some();
        if !fits(1, 1, 1) {
            return None;
        }
        let rows_max = self.rows_max(PREFILL_ROWS_RESIDENT * walkers as u64);
        let first = largest(rows_max.min(FEW_ROWS), |rows| fits(1, 1, rows));
        let wave = largest(self.wave_max(), |wave| fits(wave, wave, first));
        let rows = largest(rows_max, |rows| fits(wave, wave, rows.max(first))).max(first);
        let pool = wave - 1 + largest(self.needs.kept.sequences.max(wave) - wave + 1, |more| fits(wave, wave - 1 + more, rows));
        Some(with(wave, pool, rows))
    }
}

/// The largest n in 1..=max for which `fits` holds; 1 is known to fit.
fn largest(max: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (1, max);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// Panels and then blocks that `spare` bytes hold. An embedding of which the job reads less row by row is left out, where it is the last weight.
fn kept(m: &ModelFacts, positions: u64, mut spare: u64) -> (u64, u64) {
    let embedding: u64 = m.panels[m.embedding.clone()].iter().sum();
    let gathered = positions.saturating_mul(m.embedding_row_bytes) < embedding && m.embedding.end == m.panels.len();
    let most = if gathered { m.embedding.start } else { m.panels.len() };
    for (panel, &bytes) in m.panels[..most].iter().enumerate() {
        if bytes > spare {
            return (panel as u64, 0);
        }
        spare -= bytes;
    }
    let mut blocks = 0;
    for &(count, _, bytes) in &m.blocks {
        let n = count.min(spare / bytes.max(1));
        spare -= n * bytes;
        blocks += n;
        if n < count {
            break;
        }
    }
    (most as u64, blocks)
}

#[cfg(test)]
pub(super) mod tests;
