//! Byte buffers that go back to a pool when their last user is done.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

/// Free buffers; first touch of fresh memory is slower than the disk on some machines.
#[derive(Default)]
pub struct Pool {
    free: Mutex<Vec<Vec<u8>>>,
}

/// Most free buffers kept; beyond the few that are in flight together a free one is waste.
const FREE_MAX: usize = 16;

/// An owned buffer of which the first `len` bytes count.
pub struct Bytes {
    data: Vec<u8>,
    len: usize,
    home: Option<Arc<Pool>>,
}

impl Pool {
    /// A buffer of `len` bytes with unspecified contents, to be returned here.
    pub fn take(self: &Arc<Self>, len: usize) -> Bytes {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |v: &Vec<u8>| (len..=len.saturating_mul(4)).contains(&v.len());
        let fit = free.iter().enumerate().filter(|(_, v)| fits(v)).min_by_key(|(_, v)| v.len()).map(|(i, _)| i);
        let data = fit.map(|i| free.swap_remove(i)).unwrap_or_else(|| vec![0; len]);
        Bytes { data, len, home: Some(Arc::clone(self)) }
    }
}

impl Bytes {
    /// A buffer that belongs to no pool.
    pub fn of(data: Vec<u8>) -> Self {
        Bytes { len: data.len(), data, home: None }
    }

    /// All of it, to be filled.
    pub fn whole(&mut self) -> &mut [u8] {
        &mut self.data[..self.len]
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.data[..self.len]
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            let mut free = home.free.lock().unwrap_or_else(PoisonError::into_inner);
            if free.len() < FREE_MAX {
                free.push(std::mem::take(&mut self.data));
            }
        }
    }
}
