//! The numbers that a plan is made of: of the model, of the job, of the machine.

use std::ops::Range;

use super::states::{Scratch, StateBytes, States};
use crate::request::RowFacts;

/// Numbers of a model, in bytes, and its arithmetic in FLOP.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// Every panel in the manifest's order, embedding and head included. Of a weight that stays in memory whole it is 0 here.
    pub panels: Vec<u64>,
    /// All weights that stay in memory whole.
    pub whole_bytes: u64,
    /// Of the panels, the embedding's: read row by row, unless they are kept.
    pub embedding: Range<usize>,
    /// A row of the embedding.
    pub embedding_row_bytes: u64,
    /// What the largest panel takes while it streams, alignment included.
    pub panel_room_bytes: u64,
    /// A layer with routed experts each: experts, experts a row, bytes of a block.
    pub blocks: Vec<(u64, u64, u64)>,
    /// What the largest block takes while it streams, alignment included.
    pub block_room_bytes: u64,
    /// A sequence's states.
    pub state: StateBytes,
    /// What is known of which experts a sequence has used.
    pub uses_bytes: u64,
    /// A row between layers, and whom it chose.
    pub stream_row_bytes: u64,
    /// A row inside a layer, at most, experts left out.
    pub layer_row_bytes: u64,
    /// A row that an expert computes.
    pub expert_row_bytes: u64,
    /// A row at the head, at most.
    pub head_row_bytes: u64,
    /// One row of logits.
    pub logits_bytes: u64,
    /// The checkpoint's index.
    pub index_bytes: u64,
    /// The tokenizer.
    pub tokenizer_bytes: u64,
    /// FLOP of a row in all layers, attention to other positions left out.
    pub row_flop: u64,
    /// FLOP of a row at the head.
    pub head_flop: u64,
    /// FLOP of a row and one position that it attends to, in all layers.
    pub pair_flop: u64,
}

impl ModelFacts {
    /// Bytes of the first `count` blocks, layer by layer.
    pub(super) fn block_bytes(&self, mut count: u64) -> u64 {
        let mut bytes = 0;
        for &(n, _, size) in &self.blocks {
            let here = n.min(count);
            bytes += here * size;
            count -= here;
        }
        bytes
    }

    /// Bytes of a block, the mean over all.
    pub fn block_bytes_mean(&self) -> u64 {
        self.block_bytes(u64::MAX).checked_div(self.block_count()).unwrap_or(0)
    }

    /// The number of blocks.
    pub(super) fn block_count(&self) -> u64 {
        self.blocks.iter().map(|b| b.0).sum()
    }

    /// Bytes of all weights that need not stay in memory.
    pub(super) fn streamable_bytes(&self) -> u64 {
        self.panels.iter().sum::<u64>() + self.block_bytes(u64::MAX)
    }

    /// Most experts that a row chooses in a layer.
    pub(super) fn chosen(&self) -> u64 {
        self.blocks.iter().map(|b| b.1).max().unwrap_or(0)
    }
}

/// What the job and the machine allow.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// The ledger's ceiling.
    pub budget_bytes: u64,
    /// Most sequences that decode together.
    pub wave: Option<usize>,
    /// Most prompt rows in a sweep.
    pub prefill_rows: Option<usize>,
    /// Most bytes of weights kept.
    pub resident_bytes: Option<u64>,
    /// Blocks that are computed side by side, where memory allows it.
    pub blocks_in_flight: u64,
    /// Threads of arithmetic.
    pub threads: usize,
    /// Most that the reading of one row took.
    pub reading_bytes: u64,
    /// Answers under construction.
    pub output_bytes: u64,
    /// The disk that states may wait on.
    pub scratch: Scratch,
    /// Where states must lie; the plan's choice where unset.
    pub states: Option<States>,
    /// This machine's rates, where they were measured.
    pub rates: Option<Rates>,
    /// The part of a decoding wave's blocks that grouping is expected to save; none where rows are not grouped by overlap.
    pub saving: Option<f64>,
    /// What the job may learn of the tokens that it sees, and what was learned before.
    pub profile_bytes: u64,
}

/// How fast this machine reads and computes: measured once and recorded, never the time of a run that the plan is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// Bytes of weights read in a second.
    pub disk_bytes_per_s: u64,
    /// FLOP of products with weights in a second, all threads together.
    pub flops_per_s: u64,
}

/// What is taken of a machine that was never measured: a disk of 1.5 GB/s, 100 GFLOP/s a thread.
const ASSUMED: Rates = Rates { disk_bytes_per_s: 1_500_000_000, flops_per_s: 100_000_000_000 };

impl Limits {
    /// The rates that sizes are weighed by.
    pub(super) fn weighed_by(&self) -> Rates {
        self.rates.unwrap_or(Rates { flops_per_s: ASSUMED.flops_per_s * self.threads as u64, ..ASSUMED })
    }
}

/// The job's rows in a few numbers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Needs {
    pub rows: u64,
    pub runnable: u64,
    pub prompt_tokens: u64,
    /// Positions of the longest sequence, of the longest prompt, tokens of the longest answer.
    pub longest: u64,
    pub longest_prompt: u64,
    pub longest_answer: u64,
    pub shortest_prompt: u64,
    /// Positions of all sequences.
    pub positions: u64,
    pub drawn: bool,
    /// Some row wants the logits of all its positions.
    pub scores_prompts: bool,
    /// Of those whose answers are longer than a token: they leave states behind.
    pub kept: Kept,
    /// Of all.
    pub all: Kept,
    /// The longest prompt of the others: they need none once it has been through in one sweep.
    pub longest_passing: u64,
}

/// Some of the sequences.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Kept {
    pub sequences: u64,
    pub longest: u64,
    /// States of all of them.
    pub state_bytes: u64,
}

impl Kept {
    fn add(&mut self, row: &RowFacts, m: &ModelFacts) {
        self.sequences += 1;
        self.longest = self.longest.max(row.positions_max());
        // Many rows of absurd lengths are refused, not a fault of the program.
        self.state_bytes = self.state_bytes.saturating_add(m.state.of(row.positions_max()));
    }

    /// States of so many of the longest sequences, or of all there are.
    pub fn bytes(&self, m: &ModelFacts, sequences: u64) -> u64 {
        if self.sequences == 0 {
            return 0;
        }
        let one = m.state.of(self.longest);
        one.saturating_mul(sequences).min(self.state_bytes).max(one)
    }
}

impl Needs {
    /// Those of `rows`.
    pub fn of(rows: &[RowFacts], m: &ModelFacts) -> Self {
        let mut n = Needs { rows: rows.len() as u64, shortest_prompt: u64::MAX, ..Needs::default() };
        for row in rows.iter().filter(|r| !r.is_idle()) {
            let prompt = u64::from(row.prompt_tokens);
            n.runnable += 1;
            n.prompt_tokens += prompt;
            n.longest = n.longest.max(row.positions_max());
            n.longest_prompt = n.longest_prompt.max(prompt);
            n.shortest_prompt = n.shortest_prompt.min(prompt);
            n.longest_answer = n.longest_answer.max(u64::from(row.max_tokens));
            n.positions += row.positions_max();
            n.drawn |= row.drawn;
            n.scores_prompts |= row.prompt_logprobs;
            n.all.add(row, m);
            if row.max_tokens > 1 {
                n.kept.add(row, m);
            } else {
                n.longest_passing = n.longest_passing.max(prompt);
            }
        }
        n
    }

    /// Sequences that leave states behind where prompts of up to `prefill_rows` tokens go through in one sweep.
    pub fn kept_beside(&self, prefill_rows: u64) -> &Kept {
        if self.longest_passing <= prefill_rows { &self.kept } else { &self.all }
    }
}
