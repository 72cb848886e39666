//! Temporary rows, allocated once and reused: first touch of fresh memory is slower than the disk on some machines.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// A pool of f32 buffers; clones share it.
#[derive(Clone, Default)]
pub struct Scratch {
    pool: Arc<Mutex<Pool>>,
}

#[derive(Default)]
struct Pool {
    free: Vec<Vec<f32>>,
    lent_floats: usize,
    peak_floats: usize,
}

/// A buffer on loan; its contents are whatever the last borrower left.
pub struct Buffer {
    data: Vec<f32>,
    len: usize,
    pool: Arc<Mutex<Pool>>,
}

impl Scratch {
    /// `len` floats of unspecified (but initialised) contents.
    pub fn take(&self, len: usize) -> Buffer {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let fit = pool.free.iter().enumerate().filter(|(_, v)| v.len() >= len).min_by_key(|(_, v)| v.len()).map(|(i, _)| i);
        // A far larger buffer is left for a larger loan.
        let data = match fit {
            Some(i) if pool.free[i].len() / 4 <= len.max(1024) => pool.free.swap_remove(i),
            _ => vec![0.0; len],
        };
        pool.lent_floats += data.len();
        let held = pool.lent_floats + pool.free.iter().map(Vec::len).sum::<usize>();
        pool.peak_floats = pool.peak_floats.max(held);
        Buffer { data, len, pool: Arc::clone(&self.pool) }
    }

    /// `len` zeros.
    pub fn zeros(&self, len: usize) -> Buffer {
        let mut buffer = self.take(len);
        buffer.fill(0.0);
        buffer
    }

    /// Most bytes that the pool has held at once, lent and free.
    pub fn peak_bytes(&self) -> u64 {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).peak_floats as u64 * 4
    }

    /// Gives free buffers back to the system; worthwhile where the size of loans changes for good.
    pub fn trim(&self) {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).free.clear();
    }
}

impl Deref for Buffer {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.data[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let data = std::mem::take(&mut self.data);
        pool.lent_floats -= data.len();
        pool.free.push(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_and_counted() {
        let scratch = Scratch::default();
        let first = scratch.take(5000).as_ptr();
        assert_eq!(scratch.take(4000).as_ptr(), first, "the freed buffer serves again");
        let (a, b) = (scratch.take(5000), scratch.zeros(5000));
        assert_eq!((a.len(), b.len()), (5000, 5000));
        assert_eq!(scratch.peak_bytes(), 40_000);
        drop((a, b));
        scratch.trim();
        assert_eq!(scratch.take(10).len(), 10);
    }
}
