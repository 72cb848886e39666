//! The model and the machine in numbers, as the plan takes them.

use super::scratch;
use crate::execute;
use crate::job::EngineSection;
use crate::machine;
use crate::model::manifest::{Blocks, Manifest, Weight, WeightId};
use crate::model::nn::VOCABULARY_GRID;
use crate::output;
use crate::plan::{Limits, ModelFacts, Rates, Scratch};
use crate::request::RowFacts;
use crate::store::{self, Checkpoint, Element, Setup};
use crate::units::show_bytes;

const FLOAT: u64 = 4;
/// What most disks are read by: a row of the embedding touches one sector more than it fills.
const SECTOR: u64 = 512;
/// A tokenizer in memory, measured: 150 bytes a token of ranks, pieces and their table.
const TOKENIZER_BYTES_A_TOKEN: u64 = 160;
/// Blocks computed side by side: small ones (a demo model's have 26 kB) by the dozen, so that threads seldom wait for each other; of large
/// ones two for each thread.
const BLOCKS_BYTES: usize = 16 << 20;
const BLOCKS_MAX: usize = 64;
const BLOCKS_A_THREAD: usize = 2;
/// The parts of a machine's free memory that a job takes by default: 4 of 5.
const DEFAULT_SHARE: (u64, u64) = (4, 5);

/// What a float of a recurrent state takes a row: decayed, read for what it holds, written, read for the answer.
const STATE_FLOP: u64 = 7;

/// The model's numbers.
pub fn of_model(manifest: &Manifest, checkpoint: &Checkpoint, has_tokenizer: bool) -> ModelFacts {
    of_weights(manifest, &checkpoint.weight_bytes().collect::<Vec<_>>(), has_tokenizer)
}

/// The numbers of a model of which there is no checkpoint: weights outside blocks taken as bf16, and a tokenizer.
pub fn of_shape(manifest: &Manifest) -> ModelFacts {
    let weight_bytes: Vec<u64> = manifest.weights.iter().map(|w| (w.rows() * w.cols() * Element::Bf16.bytes()) as u64).collect();
    of_weights(manifest, &weight_bytes, true)
}

fn of_weights(manifest: &Manifest, weight_bytes: &[u64], has_tokenizer: bool) -> ModelFacts {
    let weights = || manifest.weights.iter().zip(weight_bytes);
    let panels: Vec<u64> = weights().flat_map(|(weight, bytes)| panel_bytes(weight, *bytes)).collect();
    let embedding = manifest.embedding.0 as usize;
    let panels_before = manifest.weights[..embedding].iter().map(Weight::panels).sum::<usize>();
    let expert_row = manifest.blocks().map(|(_, b)| 2 * b.width + b.inner).max().unwrap_or(0);
    ModelFacts {
        whole_bytes: weights().filter(|(weight, _)| weight.whole).map(|(_, bytes)| bytes).sum(),
        panel_room_bytes: Setup::room_bytes(panels.iter().max().copied().unwrap_or(0), 1),
        panels,
        embedding: panels_before..panels_before + manifest.weight(manifest.embedding).panels(),
        embedding_row_bytes: (weight_bytes[embedding] / manifest.vocab as u64).next_multiple_of(SECTOR) + SECTOR,
        blocks: manifest.blocks().map(|(_, b)| (b.count as u64, b.chosen as u64, b.bytes() as u64)).collect(),
        block_room_bytes: manifest.blocks().map(|(_, b)| Setup::room_bytes(b.bytes() as u64, b.tensors().len() as u64)).max().unwrap_or(0),
        uses_bytes: execute::uses_bytes(manifest),
        state: scratch::state_bytes(manifest),
        stream_row_bytes: manifest.stream_width as u64 * FLOAT + execute::row_trace_bytes(manifest),
        layer_row_bytes: manifest.row_scratch as u64 * FLOAT,
        expert_row_bytes: expert_row as u64 * FLOAT,
        head_row_bytes: (manifest.stream_width + 3 * manifest.hidden + VOCABULARY_GRID) as u64 * FLOAT,
        logits_bytes: manifest.vocab as u64 * FLOAT,
        index_bytes: store::index_bytes(manifest),
        tokenizer_bytes: if has_tokenizer { manifest.vocab as u64 * TOKENIZER_BYTES_A_TOKEN } else { 0 },
        row_flop: row_flop(manifest),
        head_flop: product_flop(manifest.weight(manifest.head)),
        pair_flop: 0, // how many heads attend is the model's own: the list of states does not tell
    }
}

/// Bytes of each panel of a weight of `bytes` bytes, 0 where it stays whole.
fn panel_bytes(weight: &Weight, bytes: u64) -> impl Iterator<Item = u64> {
    let row_bytes = if weight.whole { 0 } else { bytes / weight.rows() as u64 };
    (0..weight.panels()).map(move |p| weight.panel(p).len() as u64 * row_bytes)
}

/// FLOP of a row and a weight.
fn product_flop(weight: &Weight) -> u64 {
    2 * (weight.rows() * weight.cols()) as u64
}

/// FLOP of a row in all layers: every weight of the trunk, the experts that it chooses, the states that it changes.
fn row_flop(manifest: &Manifest) -> u64 {
    let ends = |i: usize| [manifest.embedding, manifest.head].contains(&WeightId(i as u32));
    let trunk: u64 = manifest.weights.iter().enumerate().filter(|(i, _)| !ends(*i)).map(|(_, weight)| product_flop(weight)).sum();
    let block = |b: &Blocks| b.parts.iter().map(|part| 2 * (part.rows * part.cols) as u64).sum::<u64>();
    let experts: u64 = manifest.blocks().map(|(_, b)| b.chosen as u64 * block(b)).sum();
    trunk + experts + manifest.fixed_floats() as u64 * STATE_FLOP
}

/// Threads of arithmetic.
pub fn threads(engine: &EngineSection) -> usize {
    engine.threads.unwrap_or_else(machine::threads)
}

/// The ledger's ceiling.
pub fn budget_bytes(engine: &EngineSection) -> u64 {
    engine.memory_bytes.unwrap_or_else(|| default_budget_bytes(machine::available_bytes()))
}

/// What a job takes of so much memory where nothing is set.
pub fn default_budget_bytes(available_bytes: u64) -> u64 {
    let (share, of) = DEFAULT_SHARE;
    available_bytes / of * share
}

/// What is wrong with a ledger of so many bytes on a machine that has `left_bytes` left, 0 being unknown: it is a warning, since others may
/// give memory back.
pub fn shortage(ledger_bytes: u64, left_bytes: u64) -> Option<String> {
    (1..ledger_bytes).contains(&left_bytes).then(|| format!("the machine has only {} left", show_bytes(left_bytes)))
}

/// Rows that an expert has at a time where arithmetic decides.
const EXPERT_ROWS: f64 = 64.0;

/// This machine's rates; unknown until `doctor --shape` has measured them.
pub fn machine_rates() -> Option<Rates> {
    let measured = machine::Rates::load(&machine::cache_folder()?)?;
    Some(Rates { disk_bytes_per_s: measured.disk_bytes_per_s()? as u64, flops_per_s: measured.expert_flops_per_s(EXPERT_ROWS) as u64 })
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
        scratch: Scratch::default(),
        states: engine.states,
        rates: None,
        saving: None,
        profile_bytes: 0,
        output_bytes: output::memory_bytes(rows.len() as u64, rows_per_part, longest),
    }
}

/// Blocks that are computed side by side.
fn blocks_in_flight(threads: usize, model: &ModelFacts) -> usize {
    let block = model.blocks.iter().map(|b| b.2).max().unwrap_or(1).max(1);
    (BLOCKS_BYTES / block as usize).min(BLOCKS_MAX).max(threads * BLOCKS_A_THREAD)
}

#[cfg(test)]
mod tests;
