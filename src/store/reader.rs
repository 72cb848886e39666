//! Pieces read ahead of their use, at the disk's speed, in memory that was allocated once.
//!
//! A streamed sweep reads up to 134.6 GB; at 1.5 GB/s that is a minute and a half in which the disk must never wait for the arithmetic. So what will
//! be needed is wanted early ([`Reader::want`]), several reads of 2 MiB are in flight on every device, and [`Reader::take`] mostly finds
//! its piece whole. How reads reach the kernel (a ring shared with it, or threads) is chosen at run time; neither changes a byte.
//!
//! - `queue` is the book: what is wanted, in flight, whole; `entry` is one line of it. `ring` is the book of memory, `layout` that of extents, `read` that of one read.
//! - `uring` and `threads` take reads from the book and bring them back. They decide nothing.

#![allow(unsafe_code)] // a lease is a range of a ring; who may touch which range is in `queue`

mod entry;
pub mod layout;
mod queue;
mod read;
mod ring;
mod threads;
mod uring;

use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::bytes::Pool;
use super::disk::Disk;
use super::index::Place;
use super::memory::Arena;
use super::{Lease, Piece};
use crate::error::{Error, Result};
use entry::Room;
use queue::Queue;
use read::Read;
use uring::Doorbell;

/// Where pieces lie. It must not call the reader.
pub trait Catalogue: Send + Sync {
    /// The stored tensors of a piece: where, and how many bytes.
    fn extents(&self, piece: Piece) -> Vec<(Place, usize)>;

    /// The name of a piece's tensor `i`, for messages.
    fn name(&self, piece: Piece, i: usize) -> String;
}

/// How reads reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// io_uring: one thread a device.
    Uring,
    /// Positioned reads: a thread for each read in flight.
    Threads,
}

/// What a reader may use.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Bytes of the ring of panels, or of states; it must hold two of the largest, each with [`Setup::room_bytes`].
    pub panel_ring_bytes: usize,
    /// Bytes of the ring of blocks; likewise, and all that are in use at the same time.
    pub block_ring_bytes: usize,
    /// How to read; `None` for what is best here.
    pub method: Option<Method>,
    /// Reads in flight on a device.
    pub depth: usize,
    /// Bytes of a read, at most 1 GiB.
    pub chunk_bytes: usize,
}

impl Setup {
    /// Two rings, and reads as they were found best (benches/README.md).
    pub fn new(panel_ring_bytes: usize, block_ring_bytes: usize) -> Self {
        Setup { panel_ring_bytes, block_ring_bytes, method: None, depth: 4, chunk_bytes: 2 << 20 }
    }

    /// Most bytes that a piece of `bytes` bytes in `tensors` tensors takes in its ring.
    pub fn room_bytes(bytes: u64, tensors: u64) -> u64 {
        layout::room_bytes(bytes, tensors)
    }
}

/// What has been read so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadCounters {
    /// Bytes of panels, of states, and of what was copied, as the system returned them: alignment included.
    pub panel_bytes: u64,
    /// Likewise of blocks.
    pub block_bytes: u64,
    /// Blocks whose reading had begun when they were asked for.
    pub blocks_used: u64,
    /// Blocks of which something was read and that nobody asked for.
    pub blocks_wasted: u64,
    /// Blocks whose reading had not begun when they were asked for.
    pub blocks_on_demand: u64,
    /// Time in which at least one read was in flight.
    pub busy: Duration,
    /// Time in which someone waited for a piece.
    pub waited: Duration,
    /// Most bytes that were in use at the same time: of the panels' ring, of the blocks'.
    pub ring_bytes_max: [u64; 2],
    /// The same of memory outside the rings, for pieces that were asked for while their ring was full.
    pub own_bytes_max: u64,
}

/// What threads and leases share with the reader.
struct Shared {
    queue: Mutex<Queue>,
    /// A piece has become whole.
    arrived: Condvar,
    disk: Arc<dyn Disk>,
    /// One a device: there are reads.
    bells: Vec<Bell>,
}

/// Wakes who reads from a device.
enum Bell {
    Threads(Condvar),
    Uring(Doorbell),
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins what can begin after the book has changed, and wakes who reads it.
    fn go_on(&self, queue: &mut Queue) {
        queue.advance();
        for (device, bell) in self.bells.iter().enumerate() {
            match bell {
                _ if !queue.ended && !queue.has_reads(device) => {}
                Bell::Threads(bell) => bell.notify_all(),
                Bell::Uring(bell) => bell.ring(),
            }
        }
    }

    /// A read came back from the kernel.
    fn came_back(&self, read: Read, result: io::Result<usize>) {
        if let Ok(n) = result {
            self.disk.done_with(read.run.file, read.run.offset, n);
        }
        let mut queue = self.lock();
        if queue.came_back(read, result) {
            self.go_on(&mut queue);
            self.arrived.notify_all();
        }
    }
}

/// Told when a thread that reads ends: if by a fault of the program, nobody may wait for it.
struct Alive<'a>(&'a Shared);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().broken = true;
            self.0.arrived.notify_all();
        }
    }
}

/// A range of a ring, lent.
struct Loan {
    shared: Arc<Shared>,
    memory: Arc<Arena>,
    shelf: usize,
    segment: ring::Segment,
    range: Range<usize>,
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: all reads into the range had ended when it was lent, and none begins before it is given back.
        unsafe { self.memory.lent(self.range.clone()) }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.give_back(self.shelf, self.segment);
        self.shared.go_on(&mut queue);
    }
}

/// Reads pieces ahead of their use.
pub struct Reader {
    shared: Arc<Shared>,
    method: Method,
    /// For rows that are copied.
    rows: Arc<Pool>,
    threads: Vec<JoinHandle<()>>,
}

impl Reader {
    /// A reader of the pieces in `catalogue`, whose files are those of `disk`.
    ///
    /// # Errors
    /// Refused: the system gives no threads, or `Method::Uring` is asked for and it does not allow it.
    pub fn open(disk: Arc<dyn Disk>, catalogue: Arc<dyn Catalogue>, setup: &Setup) -> Result<Self> {
        assert!(setup.depth > 0 && (1..=1 << 30).contains(&setup.chunk_bytes), "reads of some bytes, some of them in flight");
        let devices = disk.devices();
        let rings: io::Result<Vec<uring::Ring>> = match setup.method {
            Some(Method::Threads) => Err(io::Error::from(io::ErrorKind::Unsupported)),
            Some(Method::Uring) | None => (0..devices).map(|_| uring::Ring::new(setup.depth)).collect(),
        };
        let (bells, rings): (Vec<Bell>, _) = match rings {
            Ok(rings) => (rings.iter().map(|ring| Bell::Uring(ring.doorbell())).collect(), Some(rings)),
            Err(e) if setup.method == Some(Method::Uring) => return Err(Error::refused(format!("io_uring is not allowed here: {e}"))),
            Err(_) => ((0..devices).map(|_| Bell::Threads(Condvar::new())).collect(), None),
        };
        let method = if rings.is_some() { Method::Uring } else { Method::Threads };
        let queue = Queue::new(Arc::clone(&disk), catalogue, [setup.panel_ring_bytes, setup.block_ring_bytes], setup.chunk_bytes);
        let shared = Arc::new(Shared { queue: Mutex::new(queue), arrived: Condvar::new(), disk, bells });
        let mut reader = Reader { shared, method, rows: Arc::default(), threads: Vec::new() };
        let started = match rings {
            Some(rings) => rings.into_iter().enumerate().try_for_each(|(device, ring)| reader.start(move |s| uring::work(s, device, ring))),
            None => (0..devices * setup.depth).try_for_each(|i| reader.start(move |s| threads::work(s, i % devices))),
        };
        started.map_err(|e| Error::refused(format!("cannot start threads that read: {e}")))?;
        Ok(reader)
    }

    fn start(&mut self, work: impl FnOnce(&Arc<Shared>) + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let run = move || {
            let _alive = Alive(&shared);
            work(&shared);
        };
        self.threads.push(std::thread::Builder::new().name("reader".into()).spawn(run)?);
        Ok(())
    }

    /// How reads reach the kernel.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Says that pieces will be needed, in this order, at `turn`; smaller turns are read first. Returns at once.
    pub fn want(&self, turn: u64, pieces: &[Piece]) {
        let mut queue = self.shared.lock();
        pieces.iter().for_each(|&piece| queue.want(turn, piece));
        self.shared.go_on(&mut queue);
    }

    /// Waits for a piece; each want is taken once. A piece that nobody wanted is read now, before all others.
    ///
    /// # Errors
    /// Storage: file, byte, tensor and cause.
    pub fn take(&self, piece: Piece) -> Result<Lease> {
        let started = Instant::now();
        let mut queue = self.shared.lock();
        let key = queue.claim(piece);
        self.shared.go_on(&mut queue);
        let delivered = loop {
            if let Some(delivered) = queue.deliver(key) {
                break delivered;
            }
            if queue.broken {
                return Err(Error::storage("a thread that reads has failed; this is a fault of the program, please report it"));
            }
            queue = self.shared.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
        };
        queue.waited(started.elapsed());
        let (room, parts) = delivered?;
        Ok(match room {
            Room::Ring(shelf, segment, range) => {
                let (shared, memory) = (Arc::clone(&self.shared), queue.memory(shelf));
                Lease { bytes: Arc::new(Loan { shared, memory, shelf, segment, range }), parts: parts.into() }
            }
            Room::Own(bytes) => Lease { bytes: Arc::new(bytes), parts: parts.into() },
            Room::Nothing => Lease::of(Vec::new(), parts),
        })
    }

    /// Whether a wanted piece can be taken without waiting.
    pub fn ready(&self, piece: Piece) -> bool {
        self.shared.lock().ready(piece)
    }

    /// All wants of these pieces are void.
    pub fn forget(&self, pieces: &[Piece]) {
        let mut queue = self.shared.lock();
        pieces.iter().for_each(|&piece| queue.forget(piece));
        self.shared.go_on(&mut queue);
    }

    /// All wants are void.
    pub fn forget_all(&self) {
        let mut queue = self.shared.lock();
        queue.forget_all();
        self.shared.go_on(&mut queue);
    }

    /// Copies the bytes at `place` into `out`, on this thread: a few rows of an embedding. They count as a panel's.
    ///
    /// # Errors
    /// The system's, after a second try; `UnexpectedEof` where the file has shrunk.
    pub fn copy(&self, place: Place, out: &mut [u8]) -> io::Result<()> {
        let layout = layout::lay_out(&[(place, out.len())], |file| self.shared.disk.alignment(file));
        let mut memory = self.rows.take(layout.len);
        for run in layout.runs {
            let mut read = Read::alone(run, memory.whole());
            loop {
                let run = &read.run;
                let result = self.shared.disk.read_at(run.file, run.offset, &mut memory.whole()[run.at..run.at + run.len]);
                if let Ok(n) = result {
                    self.shared.disk.done_with(run.file, run.offset, n);
                    self.shared.lock().count_copied(n as u64);
                }
                if matches!(result, Ok(n) if n >= run.need) {
                    break;
                }
                read.goes_on(result, &*self.shared.disk)?;
            }
        }
        out.copy_from_slice(&memory[layout.parts[0].clone()]);
        Ok(())
    }

    /// What has been read so far.
    pub fn counters(&self) -> ReadCounters {
        self.shared.lock().counters()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.ended = true;
        self.shared.go_on(&mut queue);
        drop(queue);
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // one that has failed was reported to whoever waited
        }
    }
}

#[cfg(test)]
mod tests;
