//! What a run came to: counts for a screen while it runs, the summary at its end.

use std::time::Duration;

use super::prepare::{PRECISION, Prepared};
use crate::execute::Tally;
use crate::machine;
use crate::output::{Blocks, ExpertLoads, Summary, Totals};
use crate::plan::Compared;
use crate::report::Snapshot;
use crate::store::{DirectIo, Method};

/// The counts so far.
pub fn snapshot(tally: &Tally) -> Snapshot {
    Snapshot {
        rows_done: tally.rows_done,
        rows_errored: tally.rows_failed,
        tokens_done: tally.prompt_tokens + tally.completion_tokens,
        tokens_spared: tally.spared_tokens,
        generated: tally.completion_tokens,
        bytes_read: tally.read.bytes(),
        blocks_loaded: tally.read.blocks_read(),
        block_rows_served: tally.expert_rows,
        sweeps: tally.sweeps,
    }
}

/// The whole run, of which the walk through the layers took `walk` and all of it `wall`.
pub fn summary(
    prepared: &Prepared,
    tally: &Tally,
    reads: (DirectIo, Method),
    totals: &Totals,
    compared: Option<Compared>,
    [walk, wall]: [Duration; 2],
) -> Summary {
    let read = tally.read;
    Summary {
        rows_total: totals.rows_succeeded + totals.rows_errored,
        rows_succeeded: totals.rows_succeeded,
        rows_errored: totals.rows_errored,
        rows_cut_by_length: totals.rows_cut_by_length,
        prompt_tokens: tally.prompt_tokens,
        completion_tokens: tally.completion_tokens,
        sweeps: tally.sweeps,
        bytes_read: read.bytes(),
        bytes_read_trunk: read.trunk_bytes,
        bytes_read_experts: read.expert_bytes,
        bytes_state_read: tally.states.read_bytes,
        bytes_state_written: tally.states.written_bytes,
        blocks: Blocks {
            resident: tally.expert_loads.saturating_sub(read.blocks_read()),
            prefetched_used: read.blocks_used,
            prefetched_wasted: read.blocks_wasted,
            on_demand: read.blocks_on_demand,
        },
        expert_loads: expert_loads(tally, compared),
        rows_per_load: (tally.expert_loads > 0).then(|| tally.expert_rows as f64 / tally.expert_loads as f64),
        memory_budget: prepared.limits.budget_bytes,
        ledger_total: prepared.schedule.allotment().ledger.total(),
        peak_memory: machine::peak_bytes(),
        wall_ms: wall.as_millis() as u64,
        read_ms: read.read_us / 1000,
        wait_ms: read.waited_us / 1000,
        compute_ms: (walk.as_millis() as u64).saturating_sub(read.waited_us / 1000),
        kernel: prepared.kernels.path().name().into(),
        precision: PRECISION.into(),
        direct_io: reads.0 == DirectIo::All,
        reads_by: match reads.1 {
            Method::Uring => "io_uring",
            Method::Threads => "threads",
        }
        .into(),
        predictor: prepared.schedule.overlap().map(|overlap| overlap.predictor().into()),
        grouping: prepared.schedule.grouping().name().into(),
    }
}

/// What ran beside what might have run; where only the first requests were replayed, in proportion.
fn expert_loads(tally: &Tally, compared: Option<Compared>) -> ExpertLoads {
    let (ran, tokens) = (tally.answer_expert_loads, tally.answer_rows);
    let Some(compared) = compared.filter(|compared| compared.rows > 0) else {
        return ExpertLoads { ran, tokens, ..ExpertLoads::default() };
    };
    let all = tokens as f64 / compared.rows as f64;
    ExpertLoads {
        ran,
        tokens,
        random: Some((compared.random * all).round() as u64),
        random_sd: Some(compared.random_sd * all),
        perfect: Some((compared.perfect as f64 * all).round() as u64),
        lower_bound: Some(compared.lower_bound),
        replayed_rows: Some(compared.rows),
    }
}
