//! Reads by threads, each of which makes one positioned read at a time: where the kernel allows nothing else.

use std::sync::{Arc, PoisonError};

use super::{Bell, Shared};

/// One thread's work: the next read of a device, until the reader ends.
pub fn work(shared: &Arc<Shared>, device: usize) {
    let Bell::Threads(bell) = &shared.bells[device] else { return };
    loop {
        let mut queue = shared.lock();
        let read = loop {
            if queue.ended {
                return;
            }
            match queue.next(device) {
                Some(read) => break read,
                None => queue = bell.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(queue);
        // SAFETY: the queue gives each read a range of memory of its own, which stays until the read has come back.
        let out = unsafe { read.target.slice(read.run.len) };
        let result = shared.disk.read_at(read.run.file, read.run.offset, out);
        shared.came_back(read, result);
    }
}
