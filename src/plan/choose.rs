//! How many sequences and prompt rows share a sweep: those with which the job costs least, of all that fit.
//!
//! State and rows compete for the same memory: at 3 GiB a sequence of the largest model takes 0.48 GB, a prompt row 0.5 MB, and one
//! sequence too many leaves so few rows that a wave's prompts come in pieces, each of which reads nearly every expert (64 prompts of 200
//! tokens: 82 TB at 5 GiB where 58.9 were read at 3). So a fixed grid of pairs is tried, the schedule driven with each. The grid does not
//! depend on the budget: what could be had with less memory can be had with more, and more memory never costs more.

use super::facts::{Limits, ModelFacts, Needs};
use super::forecast::drive;
use super::ledger::{Sizes, build};
use super::weigh::Weights;
use super::{Grouping, Schedule, States};
use crate::request::RowFacts;

/// A byte of weights that goes through the cores beside one that is read from disk: memory is about as many times faster. Without it a
/// model that nearly fits would be kept at the price of sweeps of one row.
const USED_PART: f64 = 1.0 / 16.0;
/// What rings at their least cost, in parts of all: with one expert at a time, and one read ahead, threads and disk wait for each other.
const SHORT_RINGS: f64 = 0.05;
/// Rows by which a long job is judged, at least, and in waves of how many.
const SAMPLE_ROWS: u64 = 1024;
const SAMPLE_WAVES: u64 = 2;
/// Spans that a candidate may be driven for; beyond, its lower bound is its cost.
const DRIVEN_SPANS: f64 = 1e6;
/// Spans that all candidates together may be driven for; then the best so far is it.
const DRIVEN_SPANS_ALL: f64 = 2e7;

/// Where sequences' states lie, how many decode, how many have begun, and how many prompt rows a sweep has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub wave: u64,
    pub pool: u64,
    pub prefill_rows: u64,
    pub states: States,
}

/// A wave and its prompt rows, settled, and at least so costly.
struct Candidate<'a> {
    sizes: Sizes,
    bound: f64,
    judged: &'a Judged,
}

impl Candidate<'_> {
    /// Spans that it is driven for, about.
    fn spans(&self) -> f64 {
        self.judged.sweeps(&self.sizes) * self.sizes.wave.min(self.judged.needs.runnable) as f64
    }
}

/// The rows by which waves of some widths are judged.
struct Judged {
    rows: Vec<RowFacts>,
    needs: Needs,
    /// The job's positions for each of theirs.
    scale: f64,
}

impl Judged {
    fn new(rows: &[RowFacts], m: &ModelFacts, needs: &Needs, count: u64) -> Self {
        let all: Vec<RowFacts> = rows.iter().filter(|r| !r.is_idle()).copied().collect();
        let count = count.min(needs.runnable);
        let rows: Vec<RowFacts> = (0..count).map(|i| all[(i * needs.runnable / count) as usize]).collect();
        let of_sample = Needs::of(&rows, m);
        let scale = needs.positions as f64 / of_sample.positions.max(1) as f64;
        Judged { rows, needs: of_sample, scale }
    }

    /// Sweeps that a pair takes at least.
    fn sweeps(&self, sizes: &Sizes) -> f64 {
        let answers = self.needs.positions - self.needs.prompt_tokens;
        let prompts = self.needs.prompt_tokens.div_ceil(sizes.prefill_rows);
        prompts.max(answers.div_ceil(sizes.wave)).max(self.needs.longest_answer).max(1) as f64
    }
}

/// Who is tried, by the job alone.
fn waves(needs: &Needs, max: u64) -> Vec<u64> {
    let steps = std::iter::successors(Some(1), |n| Some(n + (n / 7).max(1))).take_while(|n| *n < max);
    let even = (1..=8).map(|parts| needs.runnable.div_ceil(parts)).filter(|n| (1..max).contains(n));
    let mut waves: Vec<u64> = steps.chain(even).chain([max]).collect();
    waves.sort_unstable();
    waves.dedup();
    waves
}

/// With how many prompt rows: powers of two, and such that a wave's prompts go through in one sweep or a few.
fn rows_of(needs: &Needs, wave: u64, pool: u64, max: u64) -> Vec<u64> {
    let together = if pool > wave { 1 } else { wave };
    let whole = together.saturating_mul(needs.longest_prompt);
    let mean = (needs.prompt_tokens as f64 / needs.runnable as f64 * together as f64).ceil() as u64;
    let even = (1..=12).flat_map(|parts| [whole.div_ceil(parts), mean.div_ceil(parts), needs.prompt_tokens.div_ceil(parts)]);
    let mut rows: Vec<u64> = (0..32).map(|i| 1 << i).chain(even).filter(|n| (1..max).contains(n)).chain([max]).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// The question of which pair, and all that bears on it.
pub(super) struct Choice<'a> {
    pub rows: &'a [RowFacts],
    pub grouping: Grouping,
    pub m: &'a ModelFacts,
    pub limits: &'a Limits,
    pub needs: &'a Needs,
}

impl Choice<'_> {
    /// The sizes with which the job costs least, at most `wave_max` sequences and `rows_max` prompt rows; `settle` gives sizes
    /// if they fit.
    pub fn best(&self, wave_max: u64, rows_max: u64, settle: impl Fn(Placed) -> Option<Sizes>) -> Option<Sizes> {
        if self.needs.positions == 0 {
            return None;
        }
        let few = Judged::new(self.rows, self.m, self.needs, SAMPLE_ROWS);
        let is_wide = |wave: u64| wave * SAMPLE_WAVES > SAMPLE_ROWS;
        let many = is_wide(wave_max).then(|| Judged::new(self.rows, self.m, self.needs, wave_max * SAMPLE_WAVES));
        let mut candidates = Vec::new();
        for wave in waves(self.needs, wave_max) {
            let judged = many.as_ref().filter(|_| is_wide(wave)).unwrap_or(&few);
            for (states, pools) in self.placings(wave) {
                let fits = |pool: &u64| settle(Placed { wave, pool: *pool, prefill_rows: 1, states }).is_some();
                let Some(pool) = pools.into_iter().find(fits) else { continue };
                let at = |prefill_rows| Placed { wave, pool, prefill_rows, states };
                let fitting = rows_of(self.needs, wave, pool, rows_max).into_iter().map_while(|rows| settle(at(rows)));
                candidates.extend(fitting.map(|sizes| Candidate { sizes, bound: self.bound(judged, &sizes), judged }));
            }
        }
        candidates.sort_by(|a, b| a.bound.total_cmp(&b.bound));
        let mut best: Option<(f64, Candidate<'_>)> = None;
        let mut driven = 0.0;
        for candidate in candidates {
            if best.as_ref().is_some_and(|(cost, _)| candidate.bound >= *cost || driven > DRIVEN_SPANS_ALL) {
                break;
            }
            driven += candidate.spans().min(DRIVEN_SPANS);
            let cost = self.cost(&candidate);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, candidate));
            }
        }
        best.map(|(cost, candidate)| self.refilled(cost, candidate))
    }

    /// Where the states of so many that decode together may lie, and how many may have begun: the first that fits.
    fn placings(&self, wave: u64) -> Vec<(States, Vec<u64>)> {
        let kept = self.needs.kept.sequences.max(1);
        let mut placings = vec![(States::Memory, vec![wave])];
        if kept > wave {
            placings.push((States::Memory, vec![kept]));
        }
        if self.needs.kept.sequences == 0 {
            return placings; // nothing is left behind, wherever that would lie
        }
        let on_disk = kept.min(self.limits.scratch.slots());
        if on_disk >= wave {
            // What is known of those that wait takes memory: the largest pool that fits.
            let pools = std::iter::once(on_disk).chain([64, 16, 8, 4, 2, 1].map(|times| wave * times)).filter(|pool| *pool <= on_disk);
            let pools: Vec<u64> = pools.collect();
            let allowed = |states| self.limits.scratch.allows(self.m.state.written_in_all(states, self.needs));
            placings.extend(allowed(States::Passing).then(|| (States::Passing, pools.clone())));
            placings.extend((on_disk > wave && allowed(States::Parked)).then_some((States::Parked, pools)));
        }
        let only = self.limits.states.map(|named| if self.some_lie(named) { named } else { States::Memory });
        placings.retain(|(states, _)| only.is_none_or(|only| only == *states));
        placings
    }

    /// Whether any state could lie so: one that no row keeps needs no disk, and a row that is alone does not wait.
    fn some_lie(&self, states: States) -> bool {
        let on_disk = self.needs.kept.sequences.min(self.limits.scratch.slots());
        match states {
            States::Memory => true,
            States::Parked => on_disk > 1,
            States::Passing => on_disk > 0,
        }
    }

    /// The smallest job whose states lie where its settings say, if they say so.
    pub fn least_named(&self) -> Option<Placed> {
        self.limits.states?;
        let placings = self.placings(1).into_iter().filter_map(|(states, pools)| Some((states, *pools.last()?)));
        let (states, pool) = placings.min_by_key(|(_, pool)| *pool)?;
        Some(Placed { wave: 1, pool, prefill_rows: 1, states })
    }

    /// What is left of a decoding wave's blocks where those are chosen who share most.
    fn grouped(&self, sizes: &Sizes) -> f64 {
        if sizes.pool > sizes.wave { 1.0 - self.limits.saving.unwrap_or(0.0) } else { 1.0 }
    }

    /// Whether prompts are read when one has room, half of them, or all.
    fn refilled(&self, cost: f64, candidate: Candidate<'_>) -> Sizes {
        let Candidate { sizes, judged, .. } = candidate;
        let later = [sizes.pool.div_ceil(2), sizes.pool].map(|refill| {
            let sizes = Sizes { refill, ..sizes };
            (self.cost(&Candidate { sizes, bound: f64::INFINITY, judged }), sizes)
        });
        // Of equals the most: the sample may be smaller than the pool, and one prompt alone is never worth a sweep.
        let [half, all] = later;
        [all, half, (cost, sizes)].into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or(sizes, |(_, sizes)| sizes)
    }

    fn weights(&self, sizes: &Sizes) -> Weights {
        Weights::new(self.m, sizes.kept_panels, sizes.kept_blocks)
    }

    /// What is read once: no sample of rows tells it.
    fn once(&self, weights: &Weights) -> f64 {
        let (trunk, experts) = weights.once(self.needs.positions);
        trunk as f64 + experts
    }

    /// A cost that no schedule of these sizes is under: the union grows ever slower with rows, so that full sweeps read fewest blocks a row.
    fn bound(&self, judged: &Judged, sizes: &Sizes) -> f64 {
        let weights = self.weights(sizes);
        let (rows, sweeps) = ((sizes.prefill_rows + sizes.wave) as f64, judged.sweeps(sizes));
        let positions = judged.needs.positions as f64;
        let [streamed, kept] = weights.union(rows).map(|bytes| positions / rows * bytes * self.grouped(sizes));
        let answers = (judged.needs.positions - judged.needs.prompt_tokens) as f64;
        let states = if sizes.states == States::Passing { answers * (self.m.state.read(0.0) + self.m.state.written(1)) } else { 0.0 };
        let read = positions * weights.embedding_row as f64 + sweeps * weights.trunk(0) as f64 + streamed + states;
        let used = (sweeps * (weights.streamed + weights.kept) as f64 + streamed + kept) * USED_PART;
        let computed = judged.needs.positions as f64 * self.m.row_flop as f64 * self.bytes_a_flop();
        // Numbers that are equal but for rounding must not pass for a bound.
        (self.once(&weights) + (read.max(computed) + used) * judged.scale) * waiting(sizes) * (1.0 - 1e-9)
    }

    /// Bytes that the disk reads while one operation is computed.
    fn bytes_a_flop(&self) -> f64 {
        let rates = self.limits.weighed_by();
        rates.disk_bytes_per_s as f64 / rates.flops_per_s.max(1) as f64
    }

    fn cost(&self, candidate: &Candidate<'_>) -> f64 {
        let (sizes, judged) = (&candidate.sizes, candidate.judged);
        if candidate.bound.is_finite() && candidate.spans() > DRIVEN_SPANS {
            return candidate.bound;
        }
        let weights = self.weights(sizes);
        let allotment = build(self.m, self.limits, self.needs, *sizes);
        let mut cost = 0.0;
        let flop = self.bytes_a_flop();
        drive(Schedule::new(judged.rows.clone(), self.grouping, allotment, self.m.state), |alike| {
            let grouped = if alike.rows <= sizes.wave { self.grouped(sizes) } else { 1.0 };
            let [streamed, kept] = weights.union(alike.rows as f64).map(|bytes| bytes * grouped);
            let read = weights.trunk(alike.rows) as f64 + streamed + alike.state_read + alike.state_written;
            let used = ((weights.streamed + weights.kept) as f64 + streamed + kept) * USED_PART;
            cost += alike.sweeps as f64 * (read.max(alike.flop(self.m) * flop) + used);
        });
        (self.once(&weights) + cost * judged.scale) * waiting(sizes)
    }
}

/// How much longer a job takes for want of memory in rings.
fn waiting(sizes: &Sizes) -> f64 {
    1.0 + SHORT_RINGS * sizes.missing
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::budget::tests::{facts, limits};
    use super::*;

    fn row(&(prompt_tokens, max_tokens): &(u32, u32)) -> RowFacts {
        RowFacts { prompt_tokens, max_tokens, faulty: false, drawn: false, prompt_logprobs: false }
    }

    proptest! {
        #[test]
        fn no_schedule_costs_less_than_its_bound(
            lengths in prop::collection::vec((1u32..300, 1u32..40), 1..40),
            (wave, more, prefill_rows) in (1u64..40, 0u64..40, 1u64..2000),
            states in prop::sample::select(vec![States::Memory, States::Parked, States::Passing]),
            (kept_panels, kept_blocks) in (0u64..40, 0u64..512),
        ) {
            let (m, limits, rows) = (facts(), limits(1 << 30), lengths.iter().map(row).collect::<Vec<_>>());
            let needs = Needs::of(&rows, &m);
            let wave = wave.min(needs.runnable);
            let sizes = Sizes {
                wave,
                pool: wave + more,
                refill: 1,
                prefill_rows,
                states,
                panels: 2,
                blocks: 2,
                flight: 1,
                missing: 0.3,
                kept_panels,
                kept_blocks,
                walkers: 1,
            };
            let choice = Choice { rows: &rows, grouping: Grouping::Input, m: &m, limits: &limits, needs: &needs };
            let judged = Judged::new(&rows, &m, &needs, SAMPLE_ROWS);
            let bound = choice.bound(&judged, &sizes);
            let cost = choice.cost(&Candidate { sizes, bound, judged: &judged });
            prop_assert!(bound <= cost, "{} over {}", bound, cost);
            prop_assert!(bound > 0.0);
        }
    }

    #[test]
    fn what_is_tried_follows_from_the_job_alone() {
        let rows: Vec<_> = vec![row(&(200, 8)); 64];
        let needs = Needs::of(&rows, &facts());
        let waves = waves(&needs, 64);
        assert!([1, 2, 5, 8, 13, 16, 32, 64].iter().all(|wave| waves.contains(wave)), "{waves:?}");
        let rows = rows_of(&needs, 5, 5, 12_800);
        assert!([1, 64, 500, 1000, 1024, 12_800].iter().all(|n| rows.contains(n)), "{rows:?}");
        assert!(rows.is_sorted() && waves.is_sorted());
    }

    #[test]
    fn a_million_rows_are_judged_by_some() {
        let rows: Vec<_> = (0..1_000_000u64).map(|i| row(&((i * 7919 % 300) as u32 + 1, (i * 104_729 % 200) as u32 + 1))).collect();
        let a = super::super::allot(&rows, Grouping::Length, &facts(), &limits(100 << 20)).expect("fits");
        assert!(a.wave >= 8 && a.prefill_rows >= 32, "{a:?}");
    }
}
