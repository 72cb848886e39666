//! What each state is as of the last settled sweep, and what it becomes when this one is settled.
//!
//! A thousand slots of 800 states are 800,000 entries, so an entry is 32 bytes and a slot has them from its first put on. No lock is
//! held while anything is read or written.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::Piece;
use super::super::index::Place;
use super::super::reader::Catalogue;
use super::shape::Shape;
use super::{StateKey, table};
use crate::model::manifest::{StateId, StateSpec};

/// A state as it once was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Version {
    /// Positions that have gone into it; 0: there is none.
    pub positions: u32,
    /// Records in its log.
    pub records: u32,
    /// Which of its two extents holds it.
    pub extent: u32,
    /// CRC32 of the whole state and its records, or of all rows; padding excluded.
    pub sum: u32,
}

/// One state: as settled, and as put in this sweep.
#[derive(Clone, Copy, Default)]
struct Entry {
    settled: Version,
    put: Version,
}

const _: () = assert!(size_of::<Entry>() == 32);

#[derive(Default)]
struct Slot {
    /// Empty until the first put.
    entries: Box<[Entry]>,
    /// Which of its tables was written last.
    second: bool,
    /// Put to or released since its table was written for a sweep that was settled.
    touched: bool,
    /// Released since it was put to, so that its extents may still be written.
    ended: bool,
}

struct Slots {
    slots: Vec<Slot>,
    touched: Vec<u32>,
    /// Sweeps that were settled, or tried to be.
    sweep: u64,
}

/// The whole book.
pub struct Book {
    pub shape: Shape,
    /// The scratch file's, for messages.
    pub path: PathBuf,
    slots: Mutex<Slots>,
}

impl Slots {
    /// A slot that will need a new table.
    fn touch(&mut self, number: u32) -> &mut Slot {
        let slot = &mut self.slots[number as usize];
        if !std::mem::replace(&mut slot.touched, true) {
            self.touched.push(number);
        }
        slot
    }
}

impl Book {
    /// Of a file in which nothing is.
    pub fn new(shape: Shape, path: PathBuf) -> Self {
        let slots = std::iter::repeat_with(Slot::default).take(shape.slots()).collect();
        Book { shape, path, slots: Mutex::new(Slots { slots, touched: Vec::new(), sweep: 0 }) }
    }

    /// Most bytes of memory that the book of such a file takes.
    pub fn bytes(shape: &Shape) -> u64 {
        let slot = shape.states() * size_of::<Entry>() + size_of::<Slot>() + size_of::<u32>();
        (shape.slots() as u64).saturating_mul(slot as u64)
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A state as of the last settled sweep; of 0 positions where there is none.
    pub fn settled(&self, key: StateKey) -> Version {
        self.lock().slots[key.slot as usize].entries.get(key.state.0 as usize).map_or_else(Version::default, |entry| entry.settled)
    }

    /// The settled state that is now being advanced, once a sweep.
    pub fn begin(&self, key: StateKey) -> Version {
        let mut slots = self.lock();
        let slot = slots.touch(key.slot);
        assert!(!slot.ended, "slot {} was put to and released in this sweep, so it is free after the settle", key.slot);
        if slot.entries.is_empty() {
            slot.entries = vec![Entry::default(); self.shape.states()].into();
        }
        let entry = &slot.entries[key.state.0 as usize];
        assert!(entry.put.positions == 0, "{key:?} was put before in this sweep");
        entry.settled
    }

    /// What a state becomes when the sweep is settled.
    pub fn put(&self, key: StateKey, version: Version) {
        self.lock().slots[key.slot as usize].entries[key.state.0 as usize].put = version;
    }

    /// A slot's states are no more. All its pieces.
    pub fn release(&self, slot: u32) -> Vec<Piece> {
        let mut slots = self.lock();
        if slots.slots[slot as usize].entries.is_empty() {
            return Vec::new();
        }
        let held = slots.touch(slot);
        held.ended |= held.entries.iter().any(|entry| entry.put.positions > 0);
        held.entries.fill(Entry::default());
        (0..held.entries.len() as u32).map(|state| Piece::State { slot, state: StateId(state) }).collect()
    }

    /// Begins to settle: the slots that need a table.
    pub fn settling(&self) -> Vec<u32> {
        let mut slots = self.lock();
        slots.sweep += 1;
        slots.touched.clone()
    }

    /// A slot's next table, into `out`; where it belongs in the file.
    pub fn table(&self, slot: u32, out: &mut Vec<u8>) -> u64 {
        let slots = self.lock();
        let held = &slots.slots[slot as usize];
        let next = |entry: &Entry| if entry.put.positions > 0 { entry.put } else { entry.settled };
        table::encode(slots.sweep, slot, held.entries.iter().map(next), out);
        self.shape.table_at(slot, !held.second)
    }

    /// The sweep is settled, and what was put is what will be taken; or it failed, and nothing that was put counts.
    pub fn settle(&self, well: bool) {
        let mut slots = self.lock();
        let touched = std::mem::take(&mut slots.touched);
        for &number in &touched {
            let slot = &mut slots.slots[number as usize];
            (slot.touched, slot.ended) = (!well, false);
            slot.second ^= well;
            for entry in &mut slot.entries {
                let put = std::mem::take(&mut entry.put);
                if well && put.positions > 0 {
                    entry.settled = put;
                }
            }
        }
        if !well {
            // Some of the tables may be on disk, so the next settle writes over them.
            slots.touched = touched;
        }
    }

    /// Bytes of a state's whole part or rows, and of each record, without padding.
    pub fn sizes(&self, key: StateKey, version: Version) -> (usize, usize) {
        match self.shape.place(key).spec {
            StateSpec::Fixed { floats, log } => (floats * 4, log * 4),
            StateSpec::Appended(width) => (version.positions as usize * width * 4, 0),
        }
    }
}

impl Catalogue for Book {
    fn extents(&self, piece: Piece) -> Vec<(Place, usize)> {
        let Piece::State { slot, state } = piece else { unreachable!("a scratch file has states alone") };
        let key = StateKey { slot, state };
        let version = self.settled(key);
        let (whole, record) = self.sizes(key, version);
        let bytes = match version.records as usize {
            0 => whole,
            n => {
                let place = self.shape.place(key);
                place.whole as usize + (n - 1) * place.record as usize + record
            }
        };
        vec![(Place { file: 0, offset: self.shape.extent_at(key, version.extent) }, bytes)]
    }

    fn name(&self, piece: Piece, _: usize) -> String {
        let Piece::State { slot, state } = piece else { unreachable!("a scratch file has states alone") };
        format!("state {} of slot {slot}", state.0)
    }
}
