//! Who runs together, who comes next, in how much memory, and what will it cost?
//!
//! Numbers in, numbers out: the plan reads no file and no clock, so the same job plans the same, and a test or a replay drives it
//! without a model. `execute/` asks for one [`Sweep`] after another and reports what became of it.

mod budget;
mod choose;
mod facts;
mod footprint;
mod forecast;
mod group;
mod ledger;
mod overlap;
mod predict;
mod replay;
mod schedule;
mod states;
mod table;
mod unions;
mod weigh;

pub use budget::{Refusal, allot, misfits};
pub use facts::{Limits, ModelFacts, Rates};
pub use footprint::{BLOCKS_MAX, FOOTPRINT_ENTRIES, Footprint, LAST_TOKENS, PromptUse};
pub use forecast::{Forecast, forecast, states_written};
pub use group::{Wave, order};
pub use ledger::{Allotment, SIDE_BY_SIDE_BYTES, Walkers, expert_rows, need_all, reading_room};
pub use overlap::{Foresight, Overlap};
pub use predict::{Kind as PredictorKind, Known, Predictor, Size as FootprintSize};
pub use replay::{Compared, Loads, Routed, compare, footprint, loads, lower_bound, prompt_use};
pub use schedule::{Grouping, Schedule};
pub use states::{Scratch, StateBytes, States};

pub use table::{Table, TableShape};
pub use unions::{Unions, unions};

use std::ops::Range;

/// Some consecutive positions of one sequence in a sweep: many of a prompt, one of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The place in memory that the sequence holds; free when its span begins at position 0.
    pub slot: usize,
    /// The request.
    pub row: u64,
    /// Absolute positions.
    pub positions: Range<u32>,
    /// Where the sequence's states lie before; nowhere when it begins.
    pub from: Home,
    /// Where they are left. Nowhere when nothing follows.
    pub home: Home,
}

/// Where a sequence's states lie between two sweeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Home {
    /// There are none.
    Nowhere,
    /// In memory.
    Memory,
    /// In the scratch file: a layer's states are in memory while that layer is swept.
    Scratch,
}

/// One pass of rows through all layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    /// Its spans, by ascending slot.
    pub spans: Vec<Span>,
}

impl Sweep {
    /// Rows of all spans.
    pub fn rows(&self) -> usize {
        self.spans.iter().map(|s| s.positions.len()).sum()
    }
}

/// What became of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Slots whose sequences have ended, ascending.
    pub ended: Vec<usize>,
    /// Slots of the prompts that are complete with this sweep and whose sequences go on, and what they used.
    pub read: Vec<(usize, PromptUse)>,
    /// Of the ended, those of whose answer a token was itself computed, and what these tokens used.
    pub answered: Vec<(usize, Footprint)>,
}
