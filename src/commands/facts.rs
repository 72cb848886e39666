//! The model and the machine in numbers, as the plan takes them.

use crate::job::EngineSection;
use crate::machine;
use crate::model::manifest::{Manifest, Weight};
use crate::model::nn::VOCABULARY_GRID;
use crate::output;
use crate::plan::{Limits, ModelFacts, StateBytes};
use crate::request::RowFacts;
use crate::store::{Checkpoint, Setup};

const FLOAT: u64 = 4;
/// A tokenizer in memory, measured: 150 bytes a token of ranks, pieces and their table.
const TOKENIZER_BYTES_A_TOKEN: u64 = 160;
/// Blocks computed side by side: small ones (a demo model's have 26 kB) by the dozen, so that threads seldom wait for each other; of large
/// ones two for each thread.
const BLOCKS_BYTES: usize = 16 << 20;
const BLOCKS_MAX: usize = 64;
const BLOCKS_A_THREAD: usize = 2;
/// The parts of a machine's free memory that a job takes by default: 4 of 5.
const DEFAULT_SHARE: (u64, u64) = (4, 5);

/// The model's numbers.
pub fn of_model(manifest: &Manifest, checkpoint: &Checkpoint, has_tokenizer: bool) -> ModelFacts {
    let weight_bytes: Vec<u64> = checkpoint.weight_bytes().collect();
    let panels = manifest.weights.iter().zip(&weight_bytes).flat_map(|(weight, bytes)| {
        let row_bytes = bytes / weight.rows() as u64;
        (0..weight.panels()).map(move |p| weight.panel(p).len() as u64 * row_bytes)
    });
    let embedding = manifest.embedding.0 as usize;
    let panels_before = manifest.weights[..embedding].iter().map(Weight::panels).sum::<usize>();
    let expert_row = manifest.blocks().map(|(_, b)| 2 * b.width + b.inner).max().unwrap_or(0);
    ModelFacts {
        panels: panels.collect(),
        embedding: panels_before..panels_before + manifest.weight(manifest.embedding).panels(),
        embedding_row_bytes: weight_bytes[embedding] / manifest.vocab as u64,
        blocks: manifest.blocks().map(|(_, b)| (b.count as u64, b.chosen as u64, b.bytes() as u64)).collect(),
        state: StateBytes { fixed: manifest.fixed_floats() as u64 * FLOAT, a_token: manifest.token_floats() as u64 * FLOAT },
        stream_row_bytes: manifest.stream_width as u64 * FLOAT,
        layer_row_bytes: manifest.row_scratch as u64 * FLOAT,
        expert_row_bytes: expert_row as u64 * FLOAT,
        head_row_bytes: (manifest.stream_width + 3 * manifest.hidden + VOCABULARY_GRID) as u64 * FLOAT,
        logits_bytes: manifest.vocab as u64 * FLOAT,
        index_bytes: checkpoint.index_bytes(),
        tokenizer_bytes: if has_tokenizer { manifest.vocab as u64 * TOKENIZER_BYTES_A_TOKEN } else { 0 },
    }
}

/// Threads of arithmetic.
pub fn threads(engine: &EngineSection) -> usize {
    engine.threads.unwrap_or_else(machine::threads)
}

/// The ledger's ceiling.
pub fn budget_bytes(engine: &EngineSection) -> u64 {
    let (share, of) = DEFAULT_SHARE;
    engine.memory_bytes.unwrap_or_else(|| machine::available_bytes() / of * share)
}

/// What the job and the machine allow.
pub fn limits(engine: &EngineSection, budget_bytes: u64, rows_per_part: u64, rows: &[RowFacts], model: &ModelFacts) -> Limits {
    let longest = rows.iter().map(RowFacts::positions_max).max().unwrap_or(0);
    Limits {
        budget_bytes,
        wave: engine.wave,
        prefill_rows: engine.prefill_rows,
        resident_bytes: engine.resident_bytes,
        blocks_in_flight: blocks_in_flight(threads(engine), model) as u64,
        threads: threads(engine),
        reading_bytes: 0,
        output_bytes: output::memory_bytes(rows.len() as u64, rows_per_part, longest),
    }
}

/// The rings through which weights stream.
pub fn rings(model: &ModelFacts, limits: &Limits) -> Setup {
    let panel = Setup::room_bytes(model.panels.iter().max().copied().unwrap_or(0), 1);
    let block = Setup::room_bytes(model.blocks.iter().map(|b| b.2).max().unwrap_or(0), 6);
    Setup::new(2 * panel as usize, (limits.blocks_in_flight * block) as usize)
}

/// Blocks that are computed side by side.
fn blocks_in_flight(threads: usize, model: &ModelFacts) -> usize {
    let block = model.blocks.iter().map(|b| b.2).max().unwrap_or(1).max(1);
    (BLOCKS_BYTES / block as usize).min(BLOCKS_MAX).max(threads * BLOCKS_A_THREAD)
}
