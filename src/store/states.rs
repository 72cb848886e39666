//! States of sequences on disk: read before a layer is computed, written back behind it.
//!
//! At the size this is made for a sequence leaves 464 MB of states that do not depend on its length, so 8 GB hold fifteen sequences, and a
//! sweep whose weights are worth reading needs hundreds. A layer's states are needed only while that layer is swept. So they lie in
//! one scratch file and come and go with the layers, at the price of their bytes; and these are few where a log of small records stands for
//! a state that is written whole every so many tokens.
//!
//! What a sweep puts never overwrites what the last one settled: a fixed state has two extents in turn, a log and rows grow behind what counts.
//! So a sweep that fails has changed nothing. All bytes have a sum that is compared when they are taken.
//!
//! - `shape` says where a state lies, `space` that the disk has room for it, `book` what each state is, `table` how a slot tells that on disk.
//! - Reads are the reader's, as those of weights are, with a ring of their own; `writer` writes.

mod book;
mod shape;
mod space;
mod table;
mod writer;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crc32fast::Hasher;

use super::disk::{DirectIo, Disk, Files, PageCache};
use super::memory::PAGE;
use super::reader::{Catalogue, Reader, Setup};
use super::{Lease, Piece};
use crate::error::{Error, Result};
use crate::model::manifest::{StateId, StateSpec};
use book::{Book, Version};
use shape::Shape;
use space::Removed;
use writer::Writer;

pub use space::free_bytes;

/// Which state of which sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateKey {
    /// The sequence's place in the scratch file.
    pub slot: u32,
    /// Which state of the manifest.
    pub state: StateId,
}

impl StateKey {
    fn piece(self) -> Piece {
        Piece::State { slot: self.slot, state: self.state }
    }
}

/// What becomes of a state when its sequence has advanced.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// A fixed state as of the last position.
    Whole(&'a [f32]),
    /// What a fixed state follows from: [tokens, log], a record a token.
    Log(&'a [f32]),
    /// An appended state: all its rows from position 0 on, of which those of the new positions are written.
    Rows(&'a [f32]),
}

/// What has been read and written so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateCounters {
    /// Bytes as the system returned them, alignment included.
    pub read_bytes: u64,
    /// Bytes as the system took them, alignment and tables included.
    pub written_bytes: u64,
    /// Time in which at least one read was in flight, microseconds.
    pub read_us: u64,
    /// Time in which someone waited for a state, or for room among those to be written, microseconds.
    pub waited_us: u64,
}

/// Keeps states from sweep to sweep. In a sweep a state is put at most once, and taken before that; several threads may do so with
/// different states at the same time.
pub trait States: Sync {
    /// Says that states will be taken, in this order; smaller turns come first. Those that were never put are passed over. Returns at once.
    fn want(&self, turn: u64, keys: &[StateKey]);

    /// Waits for a state that was put in an earlier sweep.
    ///
    /// # Errors
    /// Storage: file, byte, state and cause; or its bytes are not those that were written.
    fn take(&self, key: StateKey) -> Result<StateLease>;

    /// How many records may still be put to a state's log before it has to be put whole; 0 where it never was, or has no log.
    fn log_room(&self, key: StateKey) -> usize;

    /// What becomes of a state, which is as of `positions.start`, when it is as of `positions.end`. It is copied; waits for a free buffer.
    ///
    /// # Errors
    /// Storage: this or an earlier write failed: file, byte and cause.
    fn put(&self, key: StateKey, positions: Range<u32>, change: Change<'_>) -> Result<()>;

    /// Ends a sweep: waits for all writes. From here on what was put is taken, and what was wanted before is void.
    ///
    /// # Errors
    /// Storage: a write failed. Then nothing that was put since the last settle counts, and what was settled before is taken.
    fn settle(&self) -> Result<()>;

    /// A slot's sequence has ended; the next one's first put begins at position 0. A slot that was put to in this sweep is free after the settle.
    fn release(&self, slot: u32);

    /// What has been read and written so far.
    fn counters(&self) -> StateCounters;
}

/// A state's bytes while in use: little-endian f32, at an address that is a multiple of a page.
#[derive(Clone)]
pub struct StateLease {
    lease: Lease,
    /// Bytes of the whole state or of its rows.
    bytes: usize,
    /// Where its records begin, one behind the other by `record_step`; bytes.
    records_at: usize,
    record_step: usize,
    record_bytes: usize,
    records: usize,
}

impl StateLease {
    /// The state when it was last put whole, or all rows so far.
    pub fn data(&self) -> &[u8] {
        &self.lease.part(0)[..self.bytes]
    }

    /// The records put since, in order.
    pub fn records(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let record = |i: usize| &self.lease.part(0)[self.records_at + i * self.record_step..][..self.record_bytes];
        (0..self.records).map(record)
    }
}

/// How large a scratch file is, and how much memory its use may take.
#[derive(Debug, Clone, Copy)]
pub struct StateSpace {
    /// Sequences that have states at the same time.
    pub slots: u32,
    /// Most positions of any of them.
    pub positions: u32,
    /// A state with a log is put whole at least every so many tokens, at least 1; its log holds one record less.
    pub whole_every: u32,
    /// Bytes of the ring in which states come; it should hold two of the largest with their logs.
    pub ring_bytes: usize,
    /// Bytes of the buffers in which states go, at least a page.
    pub write_bytes: usize,
}

/// States in a file of their own, which goes when this is dropped.
pub struct ScratchFile {
    /// First, while the file is still locked.
    _removed: Option<Removed>,
    book: Arc<Book>,
    disk: Arc<dyn Disk>,
    reader: Reader,
    writer: Writer,
}

impl ScratchFile {
    /// A new file `states.scratch` in `folder`, all its space taken, for slots of states of these forms.
    ///
    /// # Errors
    /// Refused: the disk has too little space, the folder cannot be written, or another process has its states there.
    pub fn open(folder: &Path, specs: &[StateSpec], space: &StateSpace, cache: PageCache) -> Result<Self> {
        let shape = Shape::new(specs, space);
        let (file, removed) = space::create(folder, shape.bytes())?;
        let disk = Files::new(vec![file], vec![removed.0.clone()], cache)?;
        let mut states = ScratchFile::over(Arc::new(disk), shape, &Setup::new(space.ring_bytes, 0), space.write_bytes)?;
        states._removed = Some(removed);
        Ok(states)
    }

    /// States in file 0 of a disk.
    fn over(disk: Arc<dyn Disk>, shape: Shape, setup: &Setup, write_bytes: usize) -> Result<Self> {
        let book = Arc::new(Book::new(shape, disk.path(0).to_path_buf()));
        let reader = Reader::open(Arc::clone(&disk), Arc::clone(&book) as Arc<dyn Catalogue>, setup)?;
        let writer = Writer::open(Arc::clone(&disk), write_bytes)?;
        Ok(ScratchFile { _removed: None, book, disk, reader, writer })
    }

    /// Bytes that the file takes on its disk.
    pub fn bytes(specs: &[StateSpec], space: &StateSpace) -> u64 {
        Shape::new(specs, space).bytes()
    }

    /// Most bytes of memory that its use takes, states in use excluded for which the ring had no room.
    pub fn memory_bytes(specs: &[StateSpec], space: &StateSpace) -> u64 {
        let shape = Shape::new(specs, space);
        (space.ring_bytes as u64).saturating_add(space.write_bytes.max(PAGE) as u64).saturating_add(Book::bytes(&shape))
    }

    /// Whether the file is read and written past the page cache.
    pub fn direct(&self) -> DirectIo {
        self.disk.direct()
    }

    /// Writes floats to `offset`, a multiple of a page, as many pages as they need, and sums their bytes but for the first `known`.
    fn write(&self, offset: u64, floats: &[f32], known: usize, sum: &mut Hasher) -> Result<()> {
        let mut skip = known;
        for (chunk, offset) in floats.chunks(self.writer.chunk_bytes / 4).zip((offset..).step_by(self.writer.chunk_bytes)) {
            let mut buffer = self.writer.buffer()?;
            let (bytes, behind) = buffer.bytes_mut().split_at_mut(chunk.len() * 4);
            bytes.as_chunks_mut().0.iter_mut().zip(chunk).for_each(|(out, x)| *out = x.to_le_bytes());
            sum.update(&bytes[std::mem::take(&mut skip)..]);
            let len = bytes.len().next_multiple_of(PAGE);
            behind[..len - bytes.len()].fill(0);
            self.writer.send(offset, buffer, len);
        }
        Ok(())
    }

    /// Writes the tables of the slots that have changed.
    fn write_tables(&self) -> Result<()> {
        let mut table = Vec::new();
        for slot in self.book.settling() {
            let offset = self.book.table(slot, &mut table);
            for (chunk, offset) in table.chunks(self.writer.chunk_bytes).zip((offset..).step_by(self.writer.chunk_bytes)) {
                let mut buffer = self.writer.buffer()?;
                let len = chunk.len().next_multiple_of(PAGE);
                buffer.bytes_mut()[..chunk.len()].copy_from_slice(chunk);
                buffer.bytes_mut()[chunk.len()..len].fill(0);
                self.writer.send(offset, buffer, len);
            }
        }
        self.writer.finish()
    }

    /// Writes records behind those of the state's log.
    fn append_log(&self, key: StateKey, was: Version, records: &[f32], tokens: usize) -> Result<Version> {
        let shape = &self.book.shape;
        let place = shape.place(key);
        assert!(was.positions > 0, "{key:?} has no state that records could follow");
        assert!(was.records as usize + tokens <= shape.records as usize, "the log of {key:?} is full");
        let first = shape.extent_at(key, was.extent) + place.whole + place.record * u64::from(was.records);
        let mut sum = Hasher::new_with_initial(was.sum);
        for (record, offset) in records.chunks_exact(records.len() / tokens).zip((first..).step_by(place.record as usize)) {
            self.write(offset, record, 0, &mut sum)?;
        }
        Ok(Version { records: was.records + tokens as u32, sum: sum.finalize(), ..was })
    }

    /// A state's sum as it was read.
    fn sum(lease: &StateLease) -> u32 {
        let mut sum = Hasher::new();
        sum.update(lease.data());
        lease.records().for_each(|record| sum.update(record));
        sum.finalize()
    }
}

impl States for ScratchFile {
    fn want(&self, turn: u64, keys: &[StateKey]) {
        let there = keys.iter().filter(|key| self.book.settled(**key).positions > 0);
        self.reader.want(turn, &there.map(|key| key.piece()).collect::<Vec<_>>());
    }

    fn take(&self, key: StateKey) -> Result<StateLease> {
        let version = self.book.settled(key);
        assert!(version.positions > 0, "{key:?} was never put, so it cannot be taken");
        let (bytes, record_bytes) = self.book.sizes(key, version);
        let place = self.book.shape.place(key);
        let (records_at, record_step) = (place.whole as usize, place.record as usize);
        let lease = self.reader.take(key.piece())?;
        let lease = StateLease { lease, bytes, records_at, record_step, record_bytes, records: version.records as usize };
        let found = ScratchFile::sum(&lease);
        if found != version.sum {
            return Err(Error::storage(format!(
                "{}: state {} of slot {}, as of position {}: its bytes are not those that were written (CRC32 {found:08x}, not {:08x}): \
                 the disk is failing; choose another with engine.scratch",
                self.book.path.display(),
                key.state.0,
                key.slot,
                version.positions,
                version.sum
            )));
        }
        Ok(lease)
    }

    fn log_room(&self, key: StateKey) -> usize {
        let version = self.book.settled(key);
        let has_log = matches!(self.book.shape.place(key).spec, StateSpec::Fixed { log: 1.., .. });
        if version.positions == 0 || !has_log { 0 } else { (self.book.shape.records - version.records) as usize }
    }

    fn put(&self, key: StateKey, positions: Range<u32>, change: Change<'_>) -> Result<()> {
        let shape = &self.book.shape;
        let was = self.book.begin(key);
        let tokens = positions.len();
        assert!(tokens > 0 && positions.start == was.positions, "{key:?} goes on at position {}, not with {positions:?}", was.positions);
        assert!(positions.end <= shape.positions, "{key:?} has room for {} positions, not for {positions:?}", shape.positions);
        let now = match (shape.place(key).spec, change) {
            (StateSpec::Fixed { floats, .. }, Change::Whole(data)) if data.len() == floats => {
                let extent = if was.positions == 0 { 0 } else { 1 - was.extent };
                let mut sum = Hasher::new();
                self.write(shape.extent_at(key, extent), data, 0, &mut sum)?;
                Version { extent, sum: sum.finalize(), ..Version::default() }
            }
            (StateSpec::Fixed { log: log @ 1.., .. }, Change::Log(records)) if records.len() == tokens * log => {
                self.append_log(key, was, records, tokens)?
            }
            (StateSpec::Appended(width), Change::Rows(rows)) if rows.len() == positions.end as usize * width => {
                let old = positions.start as usize * width * 4;
                let from = old / PAGE * PAGE;
                let mut sum = Hasher::new_with_initial(was.sum);
                self.write(shape.extent_at(key, 0) + from as u64, &rows[from / 4..], old - from, &mut sum)?;
                Version { sum: sum.finalize(), ..was }
            }
            (spec, _) => panic!("{key:?} is {spec:?}, and its change for {positions:?} has another form"),
        };
        self.book.put(key, Version { positions: positions.end, ..now });
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        self.reader.forget_all();
        let done = self.writer.finish().and_then(|()| self.write_tables());
        if done.is_err() {
            // What is on its way is nobody's concern any more, but must not be written over what comes next; its failure was told.
            let _ = self.writer.finish();
        }
        self.book.settle(done.is_ok());
        done
    }

    fn release(&self, slot: u32) {
        self.reader.forget(&self.book.release(slot));
    }

    fn counters(&self) -> StateCounters {
        let read = self.reader.counters();
        let (written_bytes, waited) = self.writer.counters();
        StateCounters {
            read_bytes: read.panel_bytes,
            written_bytes,
            read_us: read.busy.as_micros() as u64,
            waited_us: (read.waited + waited).as_micros() as u64,
        }
    }
}

#[cfg(test)]
mod tests;
