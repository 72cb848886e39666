//! Where does a byte lie, and how does it come and go?
//!
//! A checkpoint is read in place, ahead of its use (`reader`), into memory that is allocated once: never through
//! a mapping, since a fault stalls a core and a file cut short would kill the process. The index holds, for each weight and each
//! block, the extents of its tensors; 500,000 tensors take 8 MB.

mod bytes;
mod checkpoint;
mod checksums;
mod disk;
mod extras;
pub(crate) mod header;
mod index;
mod memory;
mod reader;
mod states;
mod verify;
mod weights;

pub use checkpoint::{Checkpoint, index_bytes};
pub use checksums::{Checksums, Counted, Mismatch, Pieces};
pub use disk::{DirectIo, Disk, Files, PageCache};
pub use extras::{Extras, Names};
pub use index::Place;
pub use reader::{Catalogue, Method, ReadCounters, Reader, Setup};
pub use states::{Change, ScratchFile, StateCounters, StateKey, StateLease, StateSpace, States, free_bytes};
pub use verify::{Verified, faults, verify};
pub use weights::Weights;

use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::model::manifest::{StateId, WeightId};

/// The unit in which weights and states come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Piece {
    /// Some output rows of a weight.
    Panel {
        /// Which weight.
        weight: WeightId,
        /// Which panel of it.
        panel: u32,
    },
    /// One routed expert of one layer.
    Block {
        /// Which layer.
        layer: u32,
        /// Which expert.
        expert: u32,
    },
    /// One state of one sequence.
    State {
        /// The sequence's place in the scratch file.
        slot: u32,
        /// Which state.
        state: StateId,
    },
}

/// A piece's bytes while in use.
#[derive(Clone)]
pub struct Lease {
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
    /// The piece's tensors in the manifest's order, as ranges of `bytes`.
    parts: Arc<[Range<usize>]>,
}

impl Lease {
    /// A lease of bytes that lie in memory; a fake store makes them.
    pub fn of(bytes: Vec<u8>, parts: Vec<Range<usize>>) -> Self {
        Lease { bytes: Arc::new(bytes), parts: parts.into() }
    }

    /// The same bytes in memory of their own.
    fn owned(&self) -> Self {
        let mut bytes = Vec::with_capacity(self.parts.iter().map(Range::len).sum());
        let mut parts = Vec::with_capacity(self.parts.len());
        for i in 0..self.parts.len() {
            let start = bytes.len();
            bytes.extend_from_slice(self.part(i));
            parts.push(start..bytes.len());
        }
        Lease::of(bytes, parts)
    }

    /// The bytes of tensor `i` of the piece.
    pub fn part(&self, i: usize) -> &[u8] {
        &(*self.bytes).as_ref()[self.parts[i].clone()]
    }
}

/// How a weight's elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// Little-endian f32.
    F32,
    /// Little-endian bf16.
    Bf16,
}

impl Element {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::Bf16 => 2,
        }
    }
}

/// What has been read so far, in bytes as the system returned them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Trunk, embedding and head.
    pub trunk_bytes: u64,
    /// Routed experts.
    pub expert_bytes: u64,
    /// Blocks whose reading had begun when they were asked for.
    pub blocks_used: u64,
    /// Blocks that were read and that nobody asked for.
    pub blocks_wasted: u64,
    /// Blocks whose reading began when they were asked for.
    pub blocks_on_demand: u64,
    /// Time in which at least one read was in flight, microseconds.
    pub read_us: u64,
    /// Time in which someone waited for a piece, microseconds.
    pub waited_us: u64,
}

impl Counters {
    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.trunk_bytes + self.expert_bytes
    }

    /// Blocks that were read for someone.
    pub fn blocks_read(&self) -> u64 {
        self.blocks_used + self.blocks_on_demand
    }
}

/// Which pieces stay in memory once read, as the plan decided; weights that are asked for whole always do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// The first so many panels, in the manifest's order.
    pub panels: u64,
    /// The first so many blocks, layer by layer.
    pub blocks: u64,
}

/// Gives weights by piece. A test's fake is a few lines.
pub trait Store: Sync {
    /// Says that pieces will be taken, in this order, at `turn`; smaller turns are read first. Returns at once.
    fn want(&self, turn: u64, pieces: &[Piece]);

    /// Whether a piece can be taken without waiting.
    fn ready(&self, piece: Piece) -> bool;

    /// These pieces are not wanted any more.
    fn forget(&self, pieces: &[Piece]);

    /// Waits for a piece.
    ///
    /// # Errors
    /// Storage: file, tensor and cause.
    fn take(&self, piece: Piece) -> Result<Lease>;

    /// Copies one row of a weight, as stored, into `out`.
    ///
    /// # Errors
    /// Storage: file, tensor and cause.
    fn row(&self, weight: WeightId, row: usize, out: &mut [u8]) -> Result<()>;

    /// How `weight` is stored.
    fn element(&self, weight: WeightId) -> Element;

    /// The name of a piece's tensor `i`, for messages.
    fn name(&self, piece: Piece, i: usize) -> String;

    /// What has been read so far.
    fn counters(&self) -> Counters;
}
