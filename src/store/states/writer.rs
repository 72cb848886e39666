//! Writes behind the work: who puts a state copies it and goes on, threads write.
//!
//! A sweep writes some hundred MB a sequence, as fast as the disk takes it. So there are buffers of equal size, all of them allocated at the
//! beginning, and whoever finds none free waits until one has been written. Two threads keep two writes in flight, with which blocks of
//! 256 KiB and more fill a disk of 1.5 GB/s.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::super::disk::Disk;
use super::super::memory::{Memory, PAGE};
use crate::error::{Error, Result};

/// The largest write, bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// Buffers that there are where memory is too little for so many of the largest.
const BUFFERS: usize = 8;
const THREADS: usize = 2;
/// Tries of a write before it fails.
const TRIES: u8 = 2;

/// Bytes on their way to the file.
struct Write {
    offset: u64,
    bytes: Memory,
    len: usize,
}

/// What is to be written, and what is free.
#[derive(Default)]
struct Queue {
    free: Vec<Memory>,
    writes: VecDeque<Write>,
    in_flight: usize,
    written_bytes: u64,
    waited: Duration,
    /// The first failure since it was last asked for.
    error: Option<Error>,
    ended: bool,
    /// A thread that writes has come to an end that it should not have.
    broken: bool,
}

struct Shared {
    disk: Arc<dyn Disk>,
    queue: Mutex<Queue>,
    /// There are writes.
    bell: Condvar,
    /// A write has ended.
    done: Condvar,
}

/// Threads that write to file 0 of a disk.
pub struct Writer {
    shared: Arc<Shared>,
    /// Bytes of a buffer, whole pages.
    pub chunk_bytes: usize,
    threads: Vec<JoinHandle<()>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `found` gives something.
    fn wait<T>(&self, found: impl Fn(&mut Queue) -> Option<T>) -> Result<T> {
        let mut queue = self.lock();
        let mut since = None;
        loop {
            if queue.broken {
                return Err(Error::storage("a thread that writes states has failed; this is a fault of the program, please report it"));
            }
            if let Some(t) = found(&mut queue) {
                queue.waited += since.map_or(Duration::ZERO, |since: Instant| since.elapsed());
                return Ok(t);
            }
            since.get_or_insert_with(Instant::now);
            queue = self.done.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes all of it, going on where less was written than was given, trying once more where that fails. Bytes written, and the fault.
    fn write(&self, write: &Write) -> (u64, Result<()>) {
        let (mut done, mut tries, mut written) = (0, 0, 0);
        while done < write.len {
            let at = write.offset + done as u64;
            let cause = match self.disk.write_at(0, at, &write.bytes.bytes()[done..write.len]) {
                Ok(n) => {
                    written += n as u64;
                    self.disk.done_with(0, at, n);
                    // A direct write goes on at a multiple of the alignment.
                    let step = if n == write.len - done { n } else { n - n % self.disk.alignment(0) };
                    done += step;
                    if step > 0 {
                        tries = 0;
                        continue;
                    }
                    io::Error::new(io::ErrorKind::WriteZero, "the system takes no bytes")
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::InvalidInput && self.disk.refused(0) => continue,
                Err(e) => e,
            };
            tries += 1;
            if tries == TRIES {
                let path = self.disk.path(0).display();
                let advice = "free some space there, or choose another folder with engine.scratch";
                return (written, Err(Error::storage(format!("cannot write {path} at byte {at}: {cause}; {advice}"))));
            }
        }
        (written, Ok(()))
    }

    /// One thread's work, until the writer ends.
    fn work(&self) {
        loop {
            let mut queue = self.lock();
            let write = loop {
                if queue.ended {
                    return;
                }
                match queue.writes.pop_front() {
                    Some(write) => break write,
                    None => queue = self.bell.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            queue.in_flight += 1;
            drop(queue);
            let (written, result) = self.write(&write);
            let mut queue = self.lock();
            queue.in_flight -= 1;
            queue.written_bytes += written;
            queue.free.push(write.bytes);
            if let Err(error) = result {
                queue.error.get_or_insert(error);
                // Nothing that was put in this sweep will count.
                let void = std::mem::take(&mut queue.writes);
                queue.free.extend(void.into_iter().map(|write| write.bytes));
            }
            drop(queue);
            self.done.notify_all();
        }
    }
}

/// Told when a thread that writes ends: if by a fault of the program, nobody may wait for it.
struct Alive<'a>(&'a Shared);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().broken = true;
            self.0.done.notify_all();
        }
    }
}

impl Writer {
    /// A writer to file 0 of `disk`, with buffers of at most `bytes` in all, at least one page.
    ///
    /// # Errors
    /// Refused: the system gives no threads.
    pub fn open(disk: Arc<dyn Disk>, bytes: usize) -> Result<Self> {
        let chunk_bytes = (bytes / BUFFERS / PAGE * PAGE).clamp(PAGE, CHUNK_BYTES);
        let touched = |_| {
            let mut memory = Memory::zeroed(chunk_bytes);
            memory.bytes_mut().fill(0);
            memory
        };
        let free = (0..(bytes / chunk_bytes).max(1)).map(touched).collect();
        let queue = Mutex::new(Queue { free, ..Queue::default() });
        let shared = Arc::new(Shared { disk, queue, bell: Condvar::new(), done: Condvar::new() });
        let mut writer = Writer { shared, chunk_bytes, threads: Vec::new() };
        for _ in 0..THREADS {
            let shared = Arc::clone(&writer.shared);
            let work = move || {
                let _alive = Alive(&shared);
                shared.work();
            };
            let thread = std::thread::Builder::new().name("writer".into()).spawn(work);
            writer.threads.push(thread.map_err(|e| Error::refused(format!("cannot start threads that write: {e}")))?);
        }
        Ok(writer)
    }

    /// A buffer of `chunk_bytes`, once one is free; its contents are those of an earlier write.
    ///
    /// # Errors
    /// Storage: a write has failed.
    pub fn buffer(&self) -> Result<Memory> {
        self.shared.wait(|queue| match &queue.error {
            Some(error) => Some(Err(error.clone())),
            None => queue.free.pop().map(Ok),
        })?
    }

    /// The first `len` bytes of a buffer, whole pages, are to be written at `offset`.
    pub fn send(&self, offset: u64, bytes: Memory, len: usize) {
        self.shared.lock().writes.push_back(Write { offset, bytes, len });
        self.shared.bell.notify_one();
    }

    /// Waits until all has been written.
    ///
    /// # Errors
    /// Storage: the first write that failed since this was last asked; it is told once.
    pub fn finish(&self) -> Result<()> {
        self.shared.wait(|queue| (queue.writes.is_empty() && queue.in_flight == 0).then(|| queue.error.take().map_or(Ok(()), Err)))?
    }

    /// Bytes written so far, as the system returned them, and the time in which someone waited for a write.
    pub fn counters(&self) -> (u64, Duration) {
        let queue = self.shared.lock();
        (queue.written_bytes, queue.waited)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.bell.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // one that has failed was reported to whoever waited
        }
    }
}
