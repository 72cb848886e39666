//! What a job would cost: the schedule driven to its end with every answer as long as it may be.

use serde::Serialize;

use super::{ModelFacts, Outcome, Schedule, Span};

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
}

/// Drives a copy of `schedule`.
pub fn forecast(mut schedule: Schedule, m: &ModelFacts) -> Forecast {
    let mut f = Forecast { rows: schedule.rows().len() as u64, ..Forecast::default() };
    for row in schedule.rows() {
        f.rows_faulty += u64::from(row.faulty);
        if !row.faulty {
            f.prompt_tokens += u64::from(row.prompt_tokens);
            f.completion_tokens_max += u64::from(row.max_tokens);
        }
    }
    let (kept_panels, kept_blocks) = (schedule.allotment().kept_panels, schedule.allotment().kept_blocks);
    let kept_panels = kept_panels as usize;
    let kept: u64 = m.panels[..kept_panels].iter().sum();
    let streamed = (kept_panels..m.panels.len()).filter(|i| !m.embedding.contains(i)).map(|i| m.panels[i]).sum::<u64>();
    let embedding_row = if m.embedding.end <= kept_panels { 0 } else { m.embedding_row_bytes };
    let mut outcome = Outcome::default();
    let mut experts = 0.0;
    while let Some(sweep) = schedule.next(&outcome) {
        let alike = 1 + schedule.skip_alike();
        f.sweeps += alike;
        f.bytes_trunk = f.bytes_trunk.saturating_add((streamed + sweep.rows() as u64 * embedding_row).saturating_mul(alike));
        experts += union_bytes(m, kept_blocks, sweep.rows() as f64) * alike as f64;
        let rows = schedule.rows();
        let done = |s: &&Span| u64::from(s.positions.end) + alike > rows[s.row as usize].positions_max();
        let ended = sweep.spans.iter().filter(done);
        outcome.ended = ended.map(|s| s.slot).collect();
    }
    if f.sweeps > 0 {
        f.bytes_trunk += kept;
        experts += m.block_bytes(kept_blocks) as f64;
    }
    f.bytes_experts = experts as u64;
    f
}

/// Expected bytes of the blocks that `rows` rows choose and that are not kept: count * (1 - (1 - chosen/count)^rows) a layer.
fn union_bytes(m: &ModelFacts, mut kept: u64, rows: f64) -> f64 {
    let mut bytes = 0.0;
    for &(count, chosen, block) in &m.blocks {
        let here = kept.min(count);
        kept -= here;
        let share = 1.0 - (1.0 - chosen as f64 / count as f64).powf(rows);
        bytes += share * ((count - here) * block) as f64;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::{Allotment, Grouping, StateBytes, Walkers};
    use super::*;
    use crate::memory::Ledger;
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
        let allotment = Allotment {
            ledger: Ledger::default(),
            wave,
            prefill_rows,
            state_bytes: u64::MAX,
            kept_panels: 0,
            kept_blocks: 0,
            walkers: Walkers { most: 1, rows: 1 },
        };
        Schedule::new(rows.iter().map(row).collect(), Grouping::Input, allotment, StateBytes::default())
    }

    #[test]
    fn billions_of_sweeps_are_counted_and_not_walked() {
        let most = i32::MAX as u32;
        let f = forecast(schedule(&[(5, most), (7, most), (3, 2)], 1, 10), &ModelFacts::default());
        assert_eq!(f.sweeps, 2 * u64::from(most) + 2);
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
            prop_assert_eq!(forecast(schedule(&rows, wave, prefill_rows), &ModelFacts::default()).sweeps, sweeps);
        }
    }
}
