//! Byte buffers that go back to a pool when their last user is done.
//!
//! First touch of fresh memory is slower than the disk on some machines, so buffers are reused. The ledger counts what is in flight, so
//! the pool never holds more, lent and free together, than was once lent at the same time.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use super::memory::Memory;

/// Free buffers.
#[derive(Default)]
pub struct Pool {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<Memory>,
    free_bytes: usize,
    lent_bytes: usize,
    lent_bytes_max: usize,
}

/// An owned buffer, aligned for direct reads, of which the first `len` bytes count.
pub struct Bytes {
    /// There until it goes home.
    data: Option<Memory>,
    len: usize,
    home: Arc<Pool>,
}

impl Pool {
    /// A buffer of `len` bytes with unspecified contents, to be returned here.
    pub fn take(self: &Arc<Self>, len: usize) -> Bytes {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let data = state.take_free(len).unwrap_or_else(|| {
            state.make_room(len);
            Memory::zeroed(len)
        });
        state.lent_bytes += data.len();
        state.lent_bytes_max = state.lent_bytes_max.max(state.lent_bytes);
        Bytes { data: Some(data), len, home: Arc::clone(self) }
    }

    /// Most bytes that were lent at the same time.
    pub fn lent_bytes_max(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).lent_bytes_max
    }
}

impl State {
    /// The smallest free buffer that fits and is not far too large.
    fn take_free(&mut self, len: usize) -> Option<Memory> {
        let fits = |v: &Memory| (len..=len.saturating_mul(4)).contains(&v.len());
        let (fit, _) = self.free.iter().enumerate().filter(|(_, v)| fits(v)).min_by_key(|(_, v)| v.len())?;
        let data = self.free.swap_remove(fit);
        self.free_bytes -= data.len();
        Some(data)
    }

    /// Drops free buffers until another `len` bytes may be lent.
    fn make_room(&mut self, len: usize) {
        let lent = self.lent_bytes + len;
        let ceiling = self.lent_bytes_max.max(lent);
        while lent + self.free_bytes > ceiling
            && let Some(dropped) = self.free.pop()
        {
            self.free_bytes -= dropped.len();
        }
    }
}

impl Bytes {
    /// All of it, to be filled.
    pub fn whole(&mut self) -> &mut [u8] {
        let data = self.data.as_mut().expect("there until it is dropped");
        &mut data.bytes_mut()[..self.len]
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.data.as_ref().expect("there until it is dropped").bytes()[..self.len]
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Some(data) = self.data.take() {
            let mut state = self.home.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.lent_bytes -= data.len();
            state.free_bytes += data.len();
            state.free.push(data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::PAGE;
    use super::*;

    fn held(pool: &Arc<Pool>) -> (usize, usize) {
        let state = pool.state.lock().expect("no test panics while it holds it");
        assert_eq!(state.free_bytes, state.free.iter().map(Memory::len).sum::<usize>());
        (state.lent_bytes, state.free_bytes)
    }

    #[test]
    fn as_many_buffers_as_were_lent_at_once_are_used_again() {
        let pool = Arc::new(Pool::default());
        let first: Vec<Bytes> = (0..40).map(|_| pool.take(10_000)).collect();
        let mut places: Vec<_> = first.iter().map(|b| b.as_ptr()).collect();
        drop(first);
        assert_eq!(held(&pool), (0, 40 * 12_288));
        let again: Vec<Bytes> = (0..40).map(|_| pool.take(9_000)).collect();
        let mut places_again: Vec<_> = again.iter().map(|b| b.as_ptr()).collect();
        places.sort_unstable();
        places_again.sort_unstable();
        assert_eq!(places, places_again);
        assert!(again.iter().all(|b| b.len() == 9_000));
    }

    #[test]
    fn buffers_of_growing_sizes_do_not_pile_up() {
        let pool = Arc::new(Pool::default());
        let (pair, mut most) = ((pool.take(10_000), pool.take(5_000)), 15_000_usize);
        drop(pair);
        for len in (1_000..30_000).step_by(70) {
            drop(pool.take(len));
            most = most.max(len);
            let (lent, free) = held(&pool);
            assert!(lent + free <= most.next_multiple_of(PAGE).max(5 * PAGE), "{len}: {lent} lent, {free} free");
        }
    }
}
