//! What is wanted, what is being read, what lies ready: the reader's book, which no thread holds while it reads.
//!
//! Pieces begin in ascending order of (turn, order given) as soon as their ring has room, and a begun piece's reads go out in that order
//! too. Panels and blocks have a ring each, so neither can starve the other. A piece that is asked for goes before all that are only
//! wanted, in memory of its own where its ring has no room, so that nobody ever waits for memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::Piece;
use super::super::bytes::Pool;
use super::super::disk::Disk;
use super::super::memory::{Arena, PAGE, Target};
use super::entry::{Entry, Room, Stage};
use super::layout::{Layout, lay_out};
use super::read::{Key, Read, Spot, fault, take_out};
use super::ring::{Ring, Segment};
use super::{Catalogue, ReadCounters};
use crate::error::Result;

/// One ring: its memory, its book, and who waits for room in it.
struct Shelf {
    memory: Arc<Arena>,
    ring: Ring,
    waiting: BTreeSet<Key>,
}

/// The whole book.
pub struct Queue {
    disk: Arc<dyn Disk>,
    catalogue: Arc<dyn Catalogue>,
    chunk_bytes: usize,
    shelves: [Shelf; 2],
    own: Arc<Pool>,
    entries: BTreeMap<Key, Entry>,
    unclaimed: HashMap<Piece, BTreeSet<Key>>,
    /// By device: reads that have not gone out.
    reads: Vec<BTreeMap<Spot, Read>>,
    last_number: u64,
    in_flight: usize,
    busy_since: Option<Instant>,
    counters: ReadCounters,
    /// No read begins any more.
    pub ended: bool,
    /// A thread that reads has come to an end that it should not have.
    pub broken: bool,
}

fn shelf_of(piece: Piece) -> usize {
    match piece {
        Piece::Panel { .. } | Piece::State { .. } => 0,
        Piece::Block { .. } => 1,
    }
}

impl Queue {
    /// An empty book over two rings of so many bytes.
    pub fn new(disk: Arc<dyn Disk>, catalogue: Arc<dyn Catalogue>, ring_bytes: [usize; 2], chunk_bytes: usize) -> Self {
        let shelf = |bytes| Shelf { memory: Arc::new(Arena::new(bytes)), ring: Ring::new(bytes), waiting: BTreeSet::new() };
        Queue {
            reads: (0..disk.devices()).map(|_| BTreeMap::new()).collect(),
            disk,
            catalogue,
            chunk_bytes,
            shelves: ring_bytes.map(shelf),
            own: Arc::default(),
            entries: BTreeMap::new(),
            unclaimed: HashMap::new(),
            last_number: 0,
            in_flight: 0,
            busy_since: None,
            counters: ReadCounters::default(),
            ended: false,
            broken: false,
        }
    }

    /// The memory of a ring.
    pub fn memory(&self, shelf: usize) -> Arc<Arena> {
        Arc::clone(&self.shelves[shelf].memory)
    }

    /// Enters a piece that will be needed at `turn`. [`Queue::advance`] begins what can begin.
    pub fn want(&mut self, turn: u64, piece: Piece) {
        let key = self.enter(turn, piece);
        self.unclaimed.entry(piece).or_default().insert(key);
        self.shelves[shelf_of(piece)].waiting.insert(key);
    }

    fn enter(&mut self, turn: u64, piece: Piece) -> Key {
        self.last_number += 1;
        let key = (turn, self.last_number);
        self.entries.insert(key, Entry::new(piece));
        key
    }

    /// Begins all pieces for which there is room.
    pub fn advance(&mut self) {
        for shelf in 0..self.shelves.len() {
            while !self.ended
                && let Some(&key) = self.shelves[shelf].waiting.first()
            {
                let layout = self.layout(self.entries[&key].piece);
                let ring = &mut self.shelves[shelf].ring;
                let room = match layout.len.next_multiple_of(PAGE) {
                    0 => Some(Room::Nothing),
                    // Larger than the ring: it waits, in nobody's way, until it is asked for.
                    len if !ring.could_hold(len) => None,
                    len => match ring.carve(len) {
                        Some((segment, range)) => Some(Room::Ring(shelf, segment, range)),
                        None => break,
                    },
                };
                self.shelves[shelf].waiting.remove(&key);
                if let Some(room) = room {
                    self.begin(key, layout, room);
                }
            }
        }
    }

    fn layout(&self, piece: Piece) -> Layout {
        lay_out(&self.catalogue.extents(piece), |file| self.disk.alignment(file))
    }

    /// Puts a piece's reads into the devices' queues.
    fn begin(&mut self, key: Key, layout: Layout, mut room: Room) {
        let start = match &mut room {
            Room::Ring(shelf, _, range) => self.shelves[*shelf].memory.target(range.start),
            Room::Own(bytes) => Target::of(bytes.whole()),
            Room::Nothing => Target::of(&mut []),
        };
        let entry = self.entries.get_mut(&key).expect("begins once, while it is in the book");
        for run in layout.runs.iter().flat_map(|run| run.cut(self.chunk_bytes)) {
            let spot = (u8::from(!entry.claimed), key, entry.left as u32);
            let target = start.after(run.at);
            self.reads[self.disk.device(run.file)].insert(spot, Read { spot, run, target, tries: 0 });
            entry.left += 1;
        }
        entry.room = room;
        entry.parts = layout.parts;
        entry.stage = if entry.left == 0 { Stage::Whole } else { Stage::Reading };
    }

    /// Someone waits for a piece: the one wanted first, or a new one. It goes before all others.
    pub fn claim(&mut self, piece: Piece) -> Key {
        let first = self.unclaimed.get(&piece).and_then(|keys| keys.first().copied());
        let key = first.unwrap_or_else(|| self.enter(0, piece));
        self.strike(piece, key);
        let entry = self.entries.get_mut(&key).expect("in the book until it is delivered");
        entry.claimed = true;
        entry.on_demand = !entry.begun && entry.stage != Stage::Whole;
        if entry.stage == Stage::Queued {
            let layout = self.layout(piece);
            let (shelf, len) = (shelf_of(piece), layout.len.next_multiple_of(PAGE));
            self.shelves[shelf].waiting.remove(&key);
            let room = match self.shelves[shelf].ring.carve(len.max(PAGE)) {
                Some((segment, range)) => Room::Ring(shelf, segment, range),
                None => Room::Own(self.own.take(len)),
            };
            self.begin(key, layout, room);
        } else {
            for reads in &mut self.reads {
                for (_, mut read) in take_out(reads, key) {
                    read.spot.0 = 0;
                    reads.insert(read.spot, read);
                }
            }
        }
        key
    }

    fn strike(&mut self, piece: Piece, key: Key) {
        if let Some(keys) = self.unclaimed.get_mut(&piece) {
            keys.remove(&key);
            if keys.is_empty() {
                self.unclaimed.remove(&piece);
            }
        }
    }

    /// Whether the wanted piece would be taken without waiting.
    pub fn ready(&self, piece: Piece) -> bool {
        let first = self.unclaimed.get(&piece).and_then(|keys| keys.first());
        first.is_some_and(|key| self.entries[key].is_done())
    }

    /// A claimed piece's bytes, once it is whole.
    pub fn deliver(&mut self, key: Key) -> Option<Result<(Room, Vec<Range<usize>>)>> {
        if !self.entries[&key].is_done() {
            return None;
        }
        let entry = self.entries.remove(&key).expect("looked at just now");
        if let Stage::Failed(error) = entry.stage {
            return Some(Err(error));
        }
        if matches!(entry.piece, Piece::Block { .. }) {
            let counter = if entry.on_demand { &mut self.counters.blocks_on_demand } else { &mut self.counters.blocks_used };
            *counter += 1;
        }
        Some(Ok((entry.room, entry.parts)))
    }

    /// All wants of a piece are void.
    pub fn forget(&mut self, piece: Piece) {
        for key in self.unclaimed.remove(&piece).unwrap_or_default() {
            self.shelves[shelf_of(piece)].waiting.remove(&key);
            self.drop_reads(key);
            let entry = self.entries.get_mut(&key).expect("in the book until it is delivered");
            entry.forgotten = true;
            if entry.left == 0 {
                self.settle(key);
            }
        }
    }

    /// All wants are void.
    pub fn forget_all(&mut self) {
        let pieces: Vec<Piece> = self.unclaimed.keys().copied().collect();
        pieces.into_iter().for_each(|piece| self.forget(piece));
    }

    /// Takes a segment of a ring back.
    pub fn give_back(&mut self, shelf: usize, segment: Segment) {
        self.shelves[shelf].ring.give_back(segment);
    }

    /// Reads that have not gone out never will.
    fn drop_reads(&mut self, key: Key) {
        let dropped: usize = self.reads.iter_mut().map(|reads| take_out(reads, key).len()).sum();
        self.entries.get_mut(&key).expect("in the book").left -= dropped;
    }

    /// The next read of a device; it counts as in flight until [`Queue::came_back`].
    pub fn next(&mut self, device: usize) -> Option<Read> {
        if self.ended {
            return None;
        }
        let (_, read) = self.reads[device].pop_first()?;
        self.entries.get_mut(&read.spot.1).expect("its reads have not ended").begun = true;
        if self.in_flight == 0 {
            self.busy_since = Some(Instant::now());
        }
        self.in_flight += 1;
        Some(read)
    }

    /// Whether a device has reads that could go out.
    pub fn has_reads(&self, device: usize) -> bool {
        !self.reads[device].is_empty()
    }

    /// A read came back: it has ended, or goes on, or the piece fails. True if a piece became whole or failed.
    pub fn came_back(&mut self, mut read: Read, result: io::Result<usize>) -> bool {
        self.in_flight -= 1;
        if self.in_flight == 0
            && let Some(since) = self.busy_since.take()
        {
            self.counters.busy += since.elapsed();
        }
        let key = read.spot.1;
        let entry = self.entries.get_mut(&key).expect("its reads have not ended");
        if let Ok(n) = result {
            let counter = match entry.piece {
                Piece::Panel { .. } | Piece::State { .. } => &mut self.counters.panel_bytes,
                Piece::Block { .. } => &mut self.counters.block_bytes,
            };
            *counter += n as u64;
        }
        let whole = matches!(result, Ok(n) if n >= read.run.need);
        if !whole && !entry.forgotten && entry.error.is_none() {
            match read.goes_on(result, &*self.disk) {
                Ok(()) => {
                    self.reads[self.disk.device(read.run.file)].insert(read.spot, read);
                    return false;
                }
                Err(cause) => {
                    entry.error = Some(fault(&*self.disk, &*self.catalogue, entry.piece, &read.run, &cause));
                    self.drop_reads(key);
                }
            }
        }
        let entry = self.entries.get_mut(&key).expect("its reads have not ended");
        entry.left -= 1;
        entry.left == 0 && self.settle(key)
    }

    /// All reads of a piece have ended. True if someone may be waiting for it.
    fn settle(&mut self, key: Key) -> bool {
        let entry = self.entries.get_mut(&key).expect("in the book");
        if entry.error.is_none() && !entry.forgotten {
            entry.stage = Stage::Whole;
            return true;
        }
        if let Room::Ring(shelf, segment, _) = std::mem::replace(&mut entry.room, Room::Nothing) {
            self.shelves[shelf].ring.give_back(segment);
        }
        if let Some(error) = entry.error.take() {
            entry.stage = Stage::Failed(error);
        }
        if entry.forgotten {
            self.counters.blocks_wasted += u64::from(entry.begun && matches!(entry.piece, Piece::Block { .. }));
            self.entries.remove(&key);
        }
        true
    }

    /// Time that someone waited for a piece.
    pub fn waited(&mut self, time: Duration) {
        self.counters.waited += time;
    }

    /// Bytes that a read outside the book got.
    pub fn count_copied(&mut self, bytes: u64) {
        self.counters.panel_bytes += bytes;
    }

    /// What has been counted so far.
    pub fn counters(&self) -> ReadCounters {
        ReadCounters {
            busy: self.counters.busy + self.busy_since.map_or(Duration::ZERO, |since| since.elapsed()),
            ring_bytes_max: [0, 1].map(|shelf: usize| self.shelves[shelf].ring.used_bytes_max() as u64),
            own_bytes_max: self.own.lent_bytes_max() as u64,
            ..self.counters
        }
    }

    #[cfg(test)]
    pub fn has_reads_asked_for(&self) -> bool {
        self.reads.iter().flat_map(|reads| reads.first_key_value()).any(|(spot, _)| spot.0 == 0)
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.unclaimed.is_empty() && self.in_flight == 0 && self.shelves.iter().all(|s| s.ring.is_empty())
    }
}
