//! Temporary rows, allocated once and reused: first touch of fresh memory is slower than the disk on some machines.
//!
//! The ledger counts what is lent at once, so the pool never allocates beyond that: before it would, it lets free buffers go.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// A loan takes a buffer up to so many times its size...
const OVERSIZE: usize = 4;
/// ...and one of fewer floats than this takes what such a one might.
const SMALL_FLOATS: usize = 1024;

/// A pool of f32 buffers; clones share it.
#[derive(Clone, Default)]
pub struct Scratch {
    pool: Arc<Mutex<Pool>>,
}

#[derive(Default)]
struct Pool {
    free: Vec<Vec<f32>>,
    free_floats: usize,
    /// Lent, whole buffers.
    lent_floats: usize,
    /// Lent, as asked for; a buffer may be larger.
    asked_floats: usize,
    asked_floats_max: usize,
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
        pool.asked_floats += len;
        pool.asked_floats_max = pool.asked_floats_max.max(pool.asked_floats);
        let data = pool.take_free(len).unwrap_or_else(|| {
            pool.make_room(len);
            vec![0.0; len]
        });
        pool.lent_floats += data.len();
        pool.peak_floats = pool.peak_floats.max(pool.lent_floats + pool.free_floats);
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
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.free.clear();
        pool.free_floats = 0;
    }
}

impl Buffer {
    /// Leaves only some rows of so many floats, which are named in ascending order; they move to the front.
    pub fn keep_rows(&mut self, width: usize, rows: &[usize]) {
        for (to, &from) in rows.iter().enumerate() {
            self.data.copy_within(from * width..(from + 1) * width, to * width);
        }
        let len = rows.len() * width;
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).asked_floats -= self.len - len;
        self.len = len;
    }
}

impl Pool {
    /// The smallest free buffer that fits; a far larger one is left for a larger loan.
    fn take_free(&mut self, len: usize) -> Option<Vec<f32>> {
        let fits = |v: &Vec<f32>| v.len() >= len && v.len() / OVERSIZE <= len.max(SMALL_FLOATS);
        let (fit, _) = self.free.iter().enumerate().filter(|(_, v)| fits(v)).min_by_key(|(_, v)| v.len())?;
        let data = self.free.swap_remove(fit);
        self.free_floats -= data.len();
        Some(data)
    }

    /// Lets free buffers go, small ones first, until another one of `len` floats is no more than was once lent at the same time.
    fn make_room(&mut self, len: usize) {
        while self.lent_floats + self.free_floats + len > self.asked_floats_max
            && let Some((least, _)) = self.free.iter().enumerate().min_by_key(|(_, v)| v.len())
        {
            self.free_floats -= self.free.swap_remove(least).len();
        }
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
        pool.asked_floats -= self.len;
        pool.lent_floats -= data.len();
        pool.free_floats += data.len();
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

    #[test]
    fn rows_that_are_kept_move_to_the_front() {
        let scratch = Scratch::default();
        let mut buffer = scratch.take(8);
        buffer.copy_from_slice(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        buffer.keep_rows(2, &[1, 3]);
        assert_eq!(buffer[..], [2.0, 3.0, 6.0, 7.0]);
        buffer.keep_rows(2, &[]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn buffers_of_growing_sizes_do_not_pile_up() {
        let scratch = Scratch::default();
        (5000..9000).step_by(11).for_each(|len| drop(scratch.take(len)));
        assert!(scratch.peak_bytes() <= 9000 * 4, "{}", scratch.peak_bytes());
    }
}
