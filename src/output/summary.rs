//! What a run did, for scripts: `OUT/state/summary.json`.

use serde::Serialize;

use super::JobFolder;
use super::folder::replace_durably;
use crate::error::{Error, Result};

/// Bytes and milliseconds as integers. Rows are the whole job's, everything else is this run's.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Rows of the job's input.
    pub rows_total: u64,
    /// Rows with an answer.
    pub rows_succeeded: u64,
    /// Rows with an error code instead.
    pub rows_errored: u64,
    /// Rows with an answer that `max_tokens` cut.
    pub rows_cut_by_length: u64,
    /// Prompt positions computed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// Passes through all layers.
    pub sweeps: u64,
    /// Bytes of the checkpoint that the system returned, alignment included.
    pub bytes_read: u64,
    /// Of these, trunk, embedding and head.
    pub bytes_read_trunk: u64,
    /// Of these, routed experts.
    pub bytes_read_experts: u64,
    /// Where the blocks of all sweeps came from.
    pub blocks: Blocks,
    /// Distinct (layer, expert) of the rows that were decoding, summed over sweeps.
    pub expert_loads: ExpertLoads,
    /// Rows that each block served, on average, each time a sweep needed it; left out where none was needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_per_load: Option<f64>,
    /// The ledger's ceiling.
    pub memory_budget: u64,
    /// The sum of the ledger's lines.
    pub ledger_total: u64,
    /// The process's peak resident memory, in bytes.
    pub peak_memory: u64,
    /// From the first to the last moment of the run.
    pub wall_ms: u64,
    /// Time in which at least one read was in flight.
    pub read_ms: u64,
    /// Time in which the walk through the layers waited for a read, summed over walkers.
    pub wait_ms: u64,
    /// Time in which it computed.
    pub compute_ms: u64,
    /// Instruction set of the arithmetic.
    pub kernel: String,
    /// `engine.precision`.
    pub precision: String,
    /// Whether reads bypassed the page cache, all of them.
    pub direct_io: bool,
    /// How reads reached the kernel: io_uring or threads.
    pub reads_by: String,
    /// `plan.grouping`, as it was done.
    pub grouping: String,
}

/// Expert loads of a decode schedule; what is not known, because routing was not recorded, is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ExpertLoads {
    /// Of the schedule that ran.
    pub ran: u64,
    /// The answers' tokens that needed them: all but the last of each answer.
    pub tokens: u64,
    /// If the same requests had been admitted in random order: the mean of twenty draws.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random: Option<u64>,
    /// The draws' standard deviation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_sd: Option<f64>,
    /// If all requests whose rows were replayed had been answered in one wave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lower_bound: Option<u64>,
    /// Of `tokens`, those that were replayed, of the first requests; `random` is their ratio to these requests in the order that ran,
    /// times `ran`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed_rows: Option<u64>,
}

/// Blocks by where they came from, counted once a sweep and layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Blocks {
    /// In memory already.
    pub resident: u64,
    /// Their reading had begun before they were needed.
    pub prefetched_used: u64,
    /// Read, and not needed.
    pub prefetched_wasted: u64,
    /// Their reading began when they were needed.
    pub on_demand: u64,
}

impl Summary {
    /// Writes `state/summary.json`, whole or not at all.
    ///
    /// # Errors
    /// Storage: the disk refuses.
    pub fn write(&self, folder: &JobFolder) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).map_err(|e| Error::storage(format!("cannot encode the summary: {e}")))?;
        replace_durably(&folder.state(), "summary.json", &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_meaning_is_left_out() {
        let outer = tempfile::tempdir().expect("a folder");
        let folder = JobFolder::create(outer.path()).expect("made");
        let summary = Summary { rows_total: 3, blocks: Blocks { resident: 1, on_demand: 2, ..Blocks::default() }, ..Summary::default() };
        summary.write(&folder).expect("written");
        let text = std::fs::read(folder.state().join("summary.json")).expect("a file");
        let value: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(value["rows_total"], 3);
        assert_eq!(value["blocks"]["on_demand"], 2);
        assert_eq!(value.get("rows_per_load"), None);
        assert_eq!(value["memory_budget"], 0);
    }
}
