//! The ledger: what each size that the plan settles costs in bytes, line by line.
//!
//! Every byte that a job holds is in one of these lines, so that their sum is a ceiling; a line says what it buys, so that a person sees
//! what more memory would be for.

use super::facts::{Limits, ModelFacts, Needs};
use super::footprint::FOOTPRINT_ENTRIES;
use super::predict::predictor_bytes;
use super::states::States;
use crate::memory::Ledger;
use crate::units::{show_bytes, show_count};

/// How memory is shared out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allotment {
    /// All lines; their sum is at most the budget.
    pub ledger: Ledger,
    /// Most sequences that decode together.
    pub wave: usize,
    /// Most sequences that have begun and not ended, those that wait included; those that end with their prompt do not count.
    pub pool: usize,
    /// So many prompts, or all that are left, must have room before some are read again.
    pub refill: usize,
    /// So many places, or all of them, must be free before sequences are admitted that wait: answers that begin together are alike longest.
    pub cohort: usize,
    /// Most prompt rows in a sweep.
    pub prefill_rows: usize,
    /// Where states lie.
    pub states: States,
    /// Ceiling of all states in memory between sweeps.
    pub state_bytes: u64,
    /// Memory through which states on disk are read, and through which they are written; 0 where none are on disk.
    pub state_ring_bytes: [u64; 2],
    /// Memory through which panels stream.
    pub panel_ring_bytes: u64,
    /// Memory through which blocks stream.
    pub block_ring_bytes: u64,
    /// Blocks that are computed side by side; the ring holds one more at least.
    pub blocks_in_flight: u64,
    /// Panels kept, in the manifest's order; weights that stay whole count among them.
    pub kept_panels: u64,
    /// Blocks kept, layer by layer.
    pub kept_blocks: u64,
    /// Who walks the layers.
    pub walkers: Walkers,
}

/// How many threads walk a sweep through the layers, each with rows of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walkers {
    /// At most so many.
    pub most: usize,
    /// Each with at least so many rows.
    pub rows: usize,
}

impl Allotment {
    /// So many sequences that decode together, so many that have begun, so many prompt rows, and nothing said of memory: what drives a schedule
    /// where no model runs.
    pub fn bare(wave: usize, pool: usize, prefill_rows: usize) -> Self {
        Allotment {
            ledger: Ledger::default(),
            wave,
            pool,
            refill: 1,
            cohort: 1,
            prefill_rows,
            states: States::Memory,
            state_bytes: u64::MAX,
            state_ring_bytes: [0; 2],
            panel_ring_bytes: 0,
            block_ring_bytes: 0,
            blocks_in_flight: 1,
            kept_panels: 0,
            kept_blocks: 0,
            walkers: Walkers { most: 1, rows: 1 },
        }
    }
}

/// The process itself: code, stacks, the allocator's slack, Parquet's dictionaries.
const PROCESS_BYTES: u64 = 48 << 20;
/// Of these, what the reading of a row may take.
const PROCESS_READING_BYTES: u64 = 26 << 20;
/// Of what the reading of a row took, the part that its answer may take again: its id, its message, its kept columns.
const ANSWERED_PART: u64 = 3;
/// What a job may hold for each of its rows: facts, order, the journal's offset.
const ROW_BYTES: u64 = 32;
/// Rows of experts that are computed side by side at least: few rows would leave threads without work...
const EXPERT_ROWS: u64 = 4096;
/// ...but no more of them than these bytes hold: of a wide model a row takes 53 kB.
const EXPERT_BYTES: u64 = 32 << 20;
/// Parts in a hundred that buffers of changing sizes leave unused.
const SLACK_PERCENT: u64 = 10;
/// What a sequence in flight takes beside its states: itself, and for each token its id, its log-probabilities and its timing.
const SEQUENCE_BYTES: u64 = 1024;
const TOKEN_BYTES: u64 = 40;
/// A block of a footprint.
const ENTRY_BYTES: u64 = 4;
/// Footprints of one that waits: of its prompt, of the prompt's end, what is expected of it, and what is while that is made anew.
const FOOTPRINTS: u64 = 4;
/// States on disk that are on their way at once, either way.
const PASSING_PIECES: u64 = 8;
/// Fixed states that are worked on side by side take so much, or as much as one of them.
pub const SIDE_BY_SIDE_BYTES: u64 = 16 << 20;
/// What a piece on disk takes more than its bytes, at most: two sectors.
const SECTORS_BYTES: u64 = 8192;
/// Rows of a walker at least: each decodes every weight for itself, a trifle from here on.
const WALKER_ROWS: u64 = 256;

/// (row, expert) pairs that memory for `row_bytes` each is worth spending on, whatever the number of rows.
fn expert_rows_min(row_bytes: u64) -> u64 {
    EXPERT_ROWS.min(EXPERT_BYTES / row_bytes.max(1))
}

/// Most (row, expert) pairs that are computed side by side by a walker of so many rows, a pair taking `row_bytes`.
pub fn expert_rows(rows: u64, chosen: u64, row_bytes: u64) -> u64 {
    rows.max(expert_rows_min(row_bytes).min(rows.saturating_mul(chosen)))
}

/// Whether so many rows, of which each chooses `chosen` of `experts` at random, leave out less than half an expert on average.
pub fn need_all(rows: u64, chosen: u64, experts: u64) -> bool {
    let left_out = 1.0 - chosen as f64 / experts.max(1) as f64;
    experts as f64 * left_out.powf(rows as f64) < 0.5
}

/// The same of all walkers of a sweep.
fn expert_rows_of(walkers: u64, rows: u64, chosen: u64, row_bytes: u64) -> u64 {
    match walkers.min(rows / WALKER_ROWS) {
        0 | 1 => expert_rows(rows, chosen, row_bytes),
        walkers => rows.saturating_mul(chosen).min(rows + walkers * expert_rows_min(row_bytes)),
    }
}

/// What a budget leaves for the reading of a row: all that is not in use by then.
pub fn reading_room(budget_bytes: u64, m: &ModelFacts) -> u64 {
    PROCESS_READING_BYTES + budget_bytes.saturating_sub(PROCESS_BYTES + m.index_bytes + m.tokenizer_bytes)
}

/// What a ledger follows from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub wave: u64,
    pub pool: u64,
    pub refill: u64,
    pub prefill_rows: u64,
    pub states: States,
    /// Panels and blocks that their rings hold, and blocks that are computed side by side.
    pub panels: u64,
    pub blocks: u64,
    pub flight: u64,
    /// The part of what the rings want that they do not have.
    pub missing: f64,
    pub kept_panels: u64,
    pub kept_blocks: u64,
    pub walkers: usize,
}

/// Rows of a sweep whose next token is wanted: of answers, and the last ones of prompts.
fn wanted(needs: &Needs, sizes: &Sizes) -> u64 {
    let through = sizes.prefill_rows / needs.shortest_prompt.max(1) + 1;
    sizes.wave.saturating_add(through).min(needs.runnable)
}

/// Bytes of all rows in a sweep, inside a layer or at the head, whichever takes more.
fn activation_bytes(m: &ModelFacts, needs: &Needs, rows: u64, sizes: &Sizes) -> u64 {
    let pairs = expert_rows_of(sizes.walkers as u64, rows, m.chosen(), m.expert_row_bytes);
    let layer = rows.saturating_mul(m.layer_row_bytes).saturating_add(pairs.saturating_mul(m.expert_row_bytes));
    let wanted = if needs.scores_prompts { rows } else { rows.min(wanted(needs, sizes)) };
    let inside = layer.max(wanted.saturating_mul(m.head_row_bytes));
    let bytes = rows.saturating_mul(m.stream_row_bytes).saturating_add(inside);
    bytes.saturating_add((bytes / 100).saturating_mul(SLACK_PERCENT))
}

/// Bytes of states in memory between sweeps.
fn state_bytes(m: &ModelFacts, needs: &Needs, sizes: &Sizes) -> u64 {
    let most = match sizes.states {
        States::Memory => needs.kept_beside(sizes.prefill_rows).bytes(m, sizes.pool),
        States::Parked => needs.kept_beside(sizes.prefill_rows).bytes(m, sizes.wave),
        States::Passing => 0,
    };
    if needs.runnable == 0 { 0 } else { most }
}

/// What states that are not in memory between sweeps take while they are.
#[derive(Debug, Clone, Copy, Default)]
struct Transit {
    /// Of reads, of writes.
    rings: [u64; 2],
    /// Fixed states side by side.
    side_by_side: u64,
    /// States of one layer that are asked for several times.
    layer: u64,
    /// Where each lies.
    book: u64,
}

impl Transit {
    fn of(m: &ModelFacts, limits: &Limits, needs: &Needs, sizes: &Sizes) -> Self {
        let (on_disk, passing) = (sizes.states != States::Memory, needs.longest_passing > 0);
        if !on_disk && !passing {
            return Transit::default();
        }
        let records = m.state.whole_every() - 1;
        let longest = if on_disk { needs.longest } else { 0 };
        let one = m.state.piece + records * m.state.piece_log;
        // Each record begins at a sector of its own.
        let piece = m.state.piece + SECTORS_BYTES + records * (m.state.piece_log + SECTORS_BYTES);
        let room = piece.max(longest.saturating_mul(m.state.layer_token).saturating_add(SECTORS_BYTES));
        let decoding = if sizes.states == States::Passing { sizes.wave.saturating_mul(needs.longest) } else { 0 };
        // Of prompts in a sweep one was begun before, and one will go on.
        let prompts = sizes.prefill_rows.saturating_add(if on_disk { needs.longest_prompt } else { 0 });
        Transit {
            rings: if on_disk { [room.saturating_mul(PASSING_PIECES); 2] } else { [0; 2] },
            side_by_side: (one.saturating_mul(sizes.walkers as u64))
                .max(SIDE_BY_SIDE_BYTES.min(one.saturating_mul(sizes.prefill_rows.max(sizes.wave)))),
            layer: prompts.saturating_add(decoding).saturating_mul(m.state.layer_token),
            book: if on_disk { sizes.pool.saturating_mul(limits.scratch.slot_memory_bytes) } else { 0 },
        }
    }

    fn bytes(&self) -> u64 {
        [self.side_by_side, self.layer, self.book].iter().chain(&self.rings).fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// What sequences take that have begun: their states, their tokens, what is known of their experts.
fn reserve_sequences(ledger: &mut Ledger, m: &ModelFacts, limits: &Limits, needs: &Needs, sizes: &Sizes) {
    let Sizes { wave, pool, prefill_rows, .. } = *sizes;
    let in_memory = match sizes.states {
        States::Memory => pool,
        States::Parked => wave,
        States::Passing => 0,
    };
    let (sequences, tokens) = (show_count(in_memory), show_count(needs.longest));
    ledger.reserve(
        "sequence state",
        state_bytes(m, needs, sizes),
        format!("up to {sequences} sequences in memory, each up to {tokens} tokens"),
    );
    let buys = format!("states of {} sequences pass through on their way from and to the disk", show_count(pool));
    ledger.reserve("states in transit", Transit::of(m, limits, needs, sizes).bytes(), buys);
    let begun = pool.saturating_add(if needs.longest_passing > 0 { prefill_rows } else { 0 }).min(needs.runnable);
    let one = needs.longest.saturating_mul(TOKEN_BYTES).saturating_add(SEQUENCE_BYTES);
    let all = needs.positions.saturating_mul(TOKEN_BYTES).saturating_add(needs.runnable * SEQUENCE_BYTES);
    let tokens = format!("tokens of up to {} sequences that have begun", show_count(begun));
    ledger.reserve("sequences", begun.saturating_mul(one).min(all), tokens);
    let counted = wave.saturating_add(2); // the answers, a prompt that is being read on, and one that is begun
    let waiting = if limits.saving.is_some() && pool > wave { pool } else { 0 };
    let footprint = (m.block_count() * ENTRY_BYTES).min(FOOTPRINT_ENTRIES as u64 * ENTRY_BYTES);
    let learning = if waiting > 0 { predictor_bytes(footprint) } else { 0 };
    // A sweep's prompts are told of in two footprints each.
    let told = if waiting > 0 { wanted(needs, sizes).saturating_mul(2 * footprint) } else { 0 };
    let footprints = told
        .saturating_add(counted.saturating_mul(m.uses_bytes))
        .saturating_add(waiting.saturating_mul(FOOTPRINTS * footprint))
        .saturating_add(learning);
    ledger.reserve("footprints", footprints, "which experts each sequence has used that decodes, or is expected to use that waits");
    ledger.reserve("profile", limits.profile_bytes, "which experts tokens use, for later jobs");
}

/// The ledger of these sizes.
pub(super) fn build(m: &ModelFacts, limits: &Limits, needs: &Needs, sizes: Sizes) -> Allotment {
    let Sizes { wave, pool, prefill_rows, panels, blocks, flight, kept_panels, kept_blocks, walkers, .. } = sizes;
    let mut ledger = Ledger::default();
    let rows = prefill_rows.saturating_add(if needs.longest_answer > 1 { wave } else { 0 });
    let panel = m.panels.iter().max().copied().unwrap_or(0);
    let block = m.blocks.iter().map(|b| b.2).max().unwrap_or(0);
    let (panel_ring_bytes, block_ring_bytes) = (panels * m.panel_room_bytes, blocks * m.block_room_bytes);
    ledger.reserve("process", PROCESS_BYTES, "code, stacks, the allocator's slack");
    ledger.reserve("index", m.index_bytes, "where every tensor lies");
    ledger.reserve("tokenizer", m.tokenizer_bytes, "text to ids and back");
    ledger.reserve("rows", needs.rows * ROW_BYTES, format!("{ROW_BYTES} bytes for each of {} rows", show_count(needs.rows)));
    let reading = limits.reading_bytes.saturating_sub(PROCESS_READING_BYTES);
    let output = limits.output_bytes.saturating_add(reading / ANSWERED_PART);
    let read = ledger.total().saturating_add(reading);
    ledger.reserve("output", output, "answers of a row group under construction");
    ledger.reserve("small weights", m.whole_bytes, "norms, biases and the like are read once");
    let ring = format!("{panels} panels of at most {}: the next are read while one is multiplied", show_bytes(panel));
    ledger.reserve("panel ring", panel_ring_bytes, ring);
    let ring = format!("{} experts of {}, {} of them computed side by side", show_count(blocks), show_bytes(block), show_count(flight));
    ledger.reserve("block ring", block_ring_bytes, ring);
    reserve_sequences(&mut ledger, m, limits, needs, &sizes);
    let activations = activation_bytes(m, needs, rows, &sizes);
    ledger.reserve("activations", activations, format!("{} tokens in a sweep", show_count(rows)));
    let drawn = if needs.drawn { m.logits_bytes.saturating_mul(wanted(needs, &sizes) + 1) } else { 0 };
    ledger.reserve("logits", drawn, "whole rows of logits, for rows that draw their tokens");
    let (kept, rest) = m.panels.split_at(kept_panels as usize);
    let streamed = |panels: &[u64]| panels.iter().filter(|bytes| **bytes > 0).count() as u64;
    let of = show_count(streamed(kept) + streamed(rest));
    ledger.reserve(
        "resident trunk",
        kept.iter().sum(),
        format!("{} of {of} panels stay; the others are read in every sweep", show_count(streamed(kept))),
    );
    let of = show_count(m.block_count());
    ledger.reserve(
        "resident experts",
        m.block_bytes(kept_blocks),
        format!("{} of {of} experts stay; others are read when they are chosen", show_count(kept_blocks)),
    );
    let more = read.saturating_sub(ledger.total());
    ledger.reserve("long rows", more, "reading the longest row, before other memory is taken");
    Allotment {
        ledger,
        wave: wave as usize,
        pool: pool as usize,
        refill: sizes.refill as usize,
        cohort: 1,
        prefill_rows: prefill_rows as usize,
        states: sizes.states,
        state_bytes: state_bytes(m, needs, &sizes),
        state_ring_bytes: Transit::of(m, limits, needs, &sizes).rings,
        panel_ring_bytes,
        block_ring_bytes,
        blocks_in_flight: flight,
        kept_panels,
        kept_blocks,
        walkers: Walkers { most: walkers, rows: WALKER_ROWS as usize },
    }
}
