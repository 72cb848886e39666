//! The one list of a model's tensors and states: what opening checks, readers follow, the plan weighs, and a synthetic checkpoint is made of.
//!
//! Half a million expert tensors are not listed one by one (their names alone would be 50 MB): a layer's blocks are one
//! [`Blocks`] entry, from which every name follows.

use std::ops::Range;

/// A weight of the trunk, the embedding or the head: index into [`Manifest::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// A state that a sequence leaves behind: index into [`Manifest::states`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateId(pub u32);

/// One tensor outside the routed experts, read as a matrix [rows, cols] of bf16 or f32.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its shape in the checkpoint; the first dimension is the matrix's rows, the rest its columns.
    pub shape: Vec<usize>,
    /// Output rows of a panel; the last panel may be shorter.
    pub panel_rows: usize,
    /// Asked for whole (a norm's gain, a bias, a convolution): so small that it stays in memory once read.
    pub whole: bool,
}

impl Weight {
    /// Output rows.
    pub fn rows(&self) -> usize {
        self.shape[0]
    }

    /// Columns, the product of all dimensions but the first.
    pub fn cols(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// Number of panels.
    pub fn panels(&self) -> usize {
        self.rows().div_ceil(self.panel_rows)
    }

    /// The output rows of panel `panel`.
    pub fn panel(&self, panel: usize) -> Range<usize> {
        panel * self.panel_rows..((panel + 1) * self.panel_rows).min(self.rows())
    }
}

/// How a block's matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartFormat {
    /// `NAME.weight_packed` u8 [rows, cols/2] and `NAME.weight_scale` u8 [rows, cols/32].
    Mxfp4,
}

/// One matrix of every block of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its name under the expert's prefix.
    pub name: &'static str,
    /// Output rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// How it is stored.
    pub format: PartFormat,
}

/// One stored tensor of a block, relative to the expert's prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartTensor {
    /// Name under the expert's prefix.
    pub suffix: String,
    /// Shape, in bytes (u8 elements).
    pub shape: [usize; 2],
}

/// The routed experts of one layer; expert `e`'s tensors are named `PREFIX` `e` `.` part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    /// What stands before the expert's number.
    pub prefix: String,
    /// Number of experts.
    pub count: usize,
    /// Experts that a row chooses.
    pub chosen: usize,
    /// Floats a row that go into a block, and that come out.
    pub width: usize,
    /// Most floats a row that the block's function needs beside these.
    pub inner: usize,
    /// A block's matrices.
    pub parts: Vec<Part>,
}

impl Blocks {
    /// The stored tensors of a block, in the parts' order; they lie in this order in a lease.
    pub fn tensors(&self) -> Vec<PartTensor> {
        self.parts
            .iter()
            .flat_map(|part| match part.format {
                PartFormat::Mxfp4 => [
                    PartTensor { suffix: format!("{}.weight_packed", part.name), shape: [part.rows, part.cols / 2] },
                    PartTensor { suffix: format!("{}.weight_scale", part.name), shape: [part.rows, part.cols / 32] },
                ],
            })
            .collect()
    }

    /// Bytes of one block.
    pub fn bytes(&self) -> usize {
        self.tensors().iter().map(|t| t.shape[0] * t.shape[1]).sum()
    }
}

/// What a sequence leaves behind in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateSpec {
    /// So much, whatever the sequence's length.
    Fixed {
        /// Floats of all of it, zero before the first token.
        floats: usize,
        /// Floats of a token's record; the records of the tokens since bring an older state to a later one, bit for bit. 0: it keeps none.
        log: usize,
    },
    /// So many floats appended a token.
    Appended(usize),
}

/// One layer: which entries of the lists are its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Its trunk weights, in order of use.
    pub weights: Range<u32>,
    /// Its states.
    pub states: Range<u32>,
    /// Its routed experts, if it has any.
    pub blocks: Option<Blocks>,
}

/// A model's tensors, states and widths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Width of an embedding.
    pub hidden: usize,
    /// Rows of embedding and head.
    pub vocab: usize,
    /// Floats a row between layers.
    pub stream_width: usize,
    /// Most floats a row that a layer needs beside the stream, experts' own scratch excluded.
    pub row_scratch: usize,
    /// Every weight but routed experts: layers in order, then what follows the last layer.
    pub weights: Vec<Weight>,
    /// The embedding, gathered row by row.
    pub embedding: WeightId,
    /// The head, streamed by panels of whole grid slices of the vocabulary.
    pub head: WeightId,
    /// What the names of tensors that do not matter here begin with.
    pub ignored: Vec<&'static str>,
    /// Every state of a sequence, in order of use.
    pub states: Vec<StateSpec>,
    /// Layers in order.
    pub layers: Vec<Layer>,
}

/// The largest panel, where every element takes four bytes.
pub const PANEL_BYTES: usize = 32 << 20;

/// Output rows of a panel of a matrix with `cols` columns: whole multiples of `granule`, at most `panel_bytes`, at least one granule.
pub fn panel_rows(panel_bytes: usize, cols: usize, granule: usize) -> usize {
    (panel_bytes / (4 * cols * granule)).max(1) * granule
}

impl Manifest {
    /// The weight `id`.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    /// Floats of a sequence's states that do not depend on its length.
    pub fn fixed_floats(&self) -> usize {
        self.states.iter().map(|s| if let StateSpec::Fixed { floats, .. } = s { *floats } else { 0 }).sum()
    }

    /// Floats that a token adds to its sequence's states.
    pub fn token_floats(&self) -> usize {
        self.states.iter().map(|s| if let StateSpec::Appended(n) = s { *n } else { 0 }).sum()
    }

    /// The layers that have routed experts.
    pub fn blocks(&self) -> impl Iterator<Item = (usize, &Blocks)> {
        self.layers.iter().enumerate().filter_map(|(i, layer)| layer.blocks.as_ref().map(|b| (i, b)))
    }
}
