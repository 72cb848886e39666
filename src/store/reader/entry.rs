//! One wanted piece: how far it has come, and where its bytes lie.

use std::ops::Range;

use super::super::Piece;
use super::super::bytes::Bytes;
use super::ring::Segment;
use crate::error::Error;

/// Where a piece's bytes lie.
pub enum Room {
    /// In a ring: 0 for panels and states, 1 for blocks.
    Ring(usize, Segment, Range<usize>),
    /// In memory of its own.
    Own(Bytes),
    /// Nowhere: it has none.
    Nothing,
}

/// How far a piece has come.
#[derive(PartialEq, Eq)]
pub enum Stage {
    Queued,
    Reading,
    Whole,
    Failed(Error),
}

/// One want of a piece, from when it is told until it is delivered or void.
pub struct Entry {
    pub piece: Piece,
    pub stage: Stage,
    pub room: Room,
    pub parts: Vec<Range<usize>>,
    /// Reads that have not ended.
    pub left: usize,
    /// Whether a read has gone out.
    pub begun: bool,
    /// Whether someone waits for it, and whether it had not begun when he came.
    pub claimed: bool,
    pub on_demand: bool,
    /// Nobody wants it any more; it goes when its last read has ended.
    pub forgotten: bool,
    pub error: Option<Error>,
}

impl Entry {
    /// Of a piece of which nothing has been read.
    pub fn new(piece: Piece) -> Self {
        let (stage, room, parts) = (Stage::Queued, Room::Nothing, Vec::new());
        Entry { piece, stage, room, parts, left: 0, begun: false, claimed: false, on_demand: false, forgotten: false, error: None }
    }

    /// Whether it can be delivered, as bytes or as an error.
    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Whole | Stage::Failed(_))
    }
}
