//! Which bytes of the scratch file belong to which state.
//!
//! A slot is two tables, written in turn, then its states in the manifest's order. A fixed state has two extents, each the whole state and
//! behind it the places of its log; what is settled lies in one of them while the other is written. An appended state has room for all
//! its rows once: what is settled is never written over by other bytes. All begins at multiples of a page, so that a write never has to
//! read first.

use super::super::memory::PAGE;
use super::table;
use super::{StateKey, StateSpace};
use crate::model::manifest::StateSpec;

/// One state's place in a slot.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub spec: StateSpec,
    /// From the slot's beginning, bytes.
    at: u64,
    /// The whole state, or all rows that it may have, in whole pages; bytes.
    pub whole: u64,
    /// One record of the log, in whole pages; bytes.
    pub record: u64,
    /// Whole and log; bytes.
    extent: u64,
}

/// The scratch file.
#[derive(Debug, Clone)]
pub struct Shape {
    places: Vec<Place>,
    /// Bytes of one of a slot's two tables.
    pub table: u64,
    slot: u64,
    slots: u32,
    pub positions: u32,
    /// Records that a log holds.
    pub records: u32,
}

/// Bytes of so many floats in whole pages. What exceeds 64 bits stays near their largest number, which no disk has free.
fn pages(floats: u64) -> u64 {
    to_page(floats.saturating_mul(4))
}

fn to_page(bytes: u64) -> u64 {
    let mask = PAGE as u64 - 1;
    bytes.saturating_add(mask) & !mask
}

impl Shape {
    /// The file for states of these forms.
    pub fn new(specs: &[StateSpec], space: &StateSpace) -> Self {
        assert!(space.whole_every > 0, "a state is written whole at some time");
        let records = space.whole_every - 1;
        let table = to_page(table::bytes(specs.len()) as u64);
        let mut slot = 2 * table;
        let place = |&spec: &StateSpec| {
            let (whole, record, copies) = match spec {
                StateSpec::Fixed { floats, log } => (pages(floats as u64), pages(log as u64), 2),
                StateSpec::Appended(width) => (pages((width as u64).saturating_mul(space.positions.into())), 0, 1),
            };
            let extent = whole.saturating_add(record.saturating_mul(records.into()));
            let at = slot;
            slot = slot.saturating_add(extent.saturating_mul(copies));
            Place { spec, at, whole, record, extent }
        };
        let places = specs.iter().map(place).collect();
        Shape { places, table, slot, slots: space.slots, positions: space.positions, records }
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.slot.saturating_mul(self.slots.into())
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.slots as usize
    }

    /// The number of states in a slot.
    pub fn states(&self) -> usize {
        self.places.len()
    }

    /// A state's place in its slot.
    pub fn place(&self, key: StateKey) -> &Place {
        &self.places[key.state.0 as usize]
    }

    /// Where one of a slot's two tables begins.
    pub fn table_at(&self, slot: u32, second: bool) -> u64 {
        self.slot * u64::from(slot) + if second { self.table } else { 0 }
    }

    /// Where a state's extent begins; an appended one has extent 0 alone.
    pub fn extent_at(&self, key: StateKey, extent: u32) -> u64 {
        let place = self.place(key);
        self.slot * u64::from(key.slot) + place.at + place.extent * u64::from(extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::manifest::StateId;

    fn space() -> StateSpace {
        StateSpace { slots: 3, positions: 10, whole_every: 4, ring_bytes: 1 << 20, write_bytes: 1 << 20 }
    }

    #[test]
    fn extents_fill_the_file_and_none_meets_another() {
        let specs = [StateSpec::Fixed { floats: 3_000, log: 7 }, StateSpec::Appended(500), StateSpec::Fixed { floats: 1, log: 0 }];
        let shape = Shape::new(&specs, &space());
        let mut ranges = Vec::new();
        for slot in 0..3 {
            ranges.extend([false, true].map(|second| (shape.table_at(slot, second), shape.table)));
            for (state, copies, bytes) in [(0, 2, 3 * 4_096 + 3 * 4_096), (1, 1, 5 * 4_096), (2, 2, 4_096)] {
                let key = StateKey { slot, state: StateId(state) };
                ranges.extend((0..copies).map(|extent| (shape.extent_at(key, extent), bytes)));
            }
        }
        let mut end = 0;
        for (at, bytes) in ranges {
            assert_eq!(at, end);
            end += bytes;
        }
        assert_eq!(end, shape.bytes());
    }

    #[test]
    fn sizes_beyond_all_disks_are_no_overflow() {
        for spec in [StateSpec::Fixed { floats: usize::MAX, log: usize::MAX }, StateSpec::Appended(usize::MAX)] {
            let space = StateSpace { slots: u32::MAX, positions: u32::MAX, whole_every: u32::MAX, ..space() };
            assert!(Shape::new(&[spec, spec], &space).bytes() > 1 << 63);
        }
    }
}
