//! Reads by a ring shared with the kernel: one thread a device keeps several in flight.
//!
//! The thread sleeps in the kernel until a read has ended or the doorbell rings, a descriptor that the ring watches like a read. Memory
//! that the kernel may still write into outlives the thread, whatever ends it.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};

use super::Shared;
use super::read::Read;

/// What a completion says that is none of a read.
const BELL: u64 = u64::MAX;
/// Readable, of poll(2).
const POLLIN: u32 = 1;

/// Wakes a ring's thread.
pub struct Doorbell(Arc<OwnedFd>);

impl Doorbell {
    /// Rings.
    pub fn ring(&self) {
        // It is full only after 2^64 rings that nobody heard, and then it can be heard.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// A ring that works.
pub struct Ring {
    ring: IoUring,
    bell: Arc<OwnedFd>,
    depth: usize,
}

impl Ring {
    /// A ring for `depth` reads in flight.
    ///
    /// # Errors
    /// The system has none, or does not let this process use it.
    pub fn new(depth: usize) -> io::Result<Self> {
        let mut ring = IoUring::new(depth as u32 + 1)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::PollAdd::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // Setting up may be allowed where entering is not.
        push(&mut ring, &opcode::Nop::new().build());
        ring.submit_and_wait(1)?;
        ring.completion().for_each(drop);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Ring { ring, bell: Arc::new(bell), depth })
    }

    /// What wakes the thread that works on it.
    pub fn doorbell(&self) -> Doorbell {
        Doorbell(Arc::clone(&self.bell))
    }
}

fn push(ring: &mut IoUring, entry: &squeue::Entry) {
    // SAFETY: callers push entries without memory (a poll, nothing), or reads whose memory stays until they have ended (`Worker`).
    let pushed = unsafe { ring.submission().push(entry) };
    pushed.expect("no more entries are pushed than the ring was made for");
}

/// What the kernel works on.
struct Worker<'a> {
    shared: &'a Arc<Shared>,
    ring: Ring,
    /// Reads in flight; a completion says which.
    reads: Vec<Option<Read>>,
    free: Vec<usize>,
    bell_is_watched: bool,
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        if self.free.len() < self.reads.len() {
            // Cut short by a fault while the kernel may still write: that memory is never freed.
            let _ = ManuallyDrop::new(Arc::clone(self.shared));
        }
    }
}

/// One device's work, until the reader ends.
pub fn work(shared: &Arc<Shared>, device: usize, ring: Ring) {
    let depth = ring.depth;
    let mut worker = Worker { shared, ring, reads: (0..depth).map(|_| None).collect(), free: (0..depth).collect(), bell_is_watched: false };
    loop {
        worker.fill(device);
        if shared.lock().ended && worker.free.len() == depth {
            return;
        }
        worker.wait();
    }
}

impl Worker<'_> {
    /// Hands reads to the kernel until enough are in flight.
    fn fill(&mut self, device: usize) {
        while let Some(&slot) = self.free.last() {
            let Some(read) = self.shared.lock().next(device) else { break };
            let Some(file) = self.shared.disk.descriptor(read.run.file) else {
                // SAFETY: as in `threads`: the queue gives each read memory of its own.
                let out = unsafe { read.target.slice(read.run.len) };
                let result = self.shared.disk.read_at(read.run.file, read.run.offset, out);
                self.shared.came_back(read, result);
                continue;
            };
            let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), read.target.address(), read.run.len as u32)
                .offset(read.run.offset)
                .build()
                .user_data(slot as u64);
            self.free.pop();
            self.reads[slot] = Some(read);
            push(&mut self.ring.ring, &entry);
        }
        if !self.bell_is_watched {
            self.bell_is_watched = true;
            let entry = opcode::PollAdd::new(types::Fd(self.ring.bell.as_fd().as_raw_fd()), POLLIN).build().user_data(BELL);
            push(&mut self.ring.ring, &entry);
        }
    }

    /// Sleeps until a read has ended or the bell rings.
    fn wait(&mut self) {
        match self.ring.ring.submit_and_wait(1) {
            Ok(_) => {}
            // Interrupted, or the kernel is short of something for now: what has ended is collected, and it is tried again.
            Err(e) if [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock, io::ErrorKind::ResourceBusy].contains(&e.kind()) => {}
            Err(e) => panic!("a ring that worked refuses to be entered: {e}"),
        }
        let ended: Vec<(u64, i32)> = self.ring.ring.completion().map(|c| (c.user_data(), c.result())).collect();
        for (number, result) in ended {
            if number == BELL {
                self.bell_is_watched = false;
                // Before the queue is looked at, so that a later ring is heard. There may be none left to clear.
                let _ = rustix::io::read(&*self.ring.bell, &mut [0u8; 8]);
                continue;
            }
            let slot = number as usize;
            let read = self.reads[slot].take().expect("a read ends once");
            self.free.push(slot);
            let result = if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) };
            self.shared.came_back(read, result);
        }
    }
}
