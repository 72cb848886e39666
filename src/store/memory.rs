//! Memory that a disk can write into directly.
//!
//! Reads past the page cache want addresses that are multiples of the disk's sector, 512 or 4,096 bytes; a `Vec<u8>` promises 1.
//! So all that is read into is allocated here, in whole pages, zeroed, so that no byte of it is ever uninitialised.

#![allow(unsafe_code)] // an allocation with an alignment of its own, and ranges of it that are lent while others are filled

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;

/// What addresses and lengths are multiples of, bytes: no disk asks for more.
pub const PAGE: usize = 4096;

/// One allocation, aligned to [`PAGE`].
pub struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation belongs to this value alone, as a `Vec<u8>`'s does.
unsafe impl Send for Memory {}
// SAFETY: through a shared `Memory` bytes are only read; `Arena` says what it adds to that.
unsafe impl Sync for Memory {}

impl Memory {
    /// `len` zeroed bytes, rounded up to whole pages. Pages are taken from the system when they are first written.
    pub fn zeroed(len: usize) -> Self {
        let len = len.max(1).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(len, PAGE).expect("the ledger asks for less than half the address space");
        // SAFETY: the layout's size is not 0.
        let start = unsafe { alloc_zeroed(layout) };
        Memory { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation is this long, initialised, and lives as long as `self`; nothing writes while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len()) }
    }

    /// All of it, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by `zeroed` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Memory of which some ranges are lent while others are being filled. Who holds which range is its owner's book.
pub struct Arena(Memory);

impl Arena {
    /// `len` bytes, rounded up to whole pages.
    pub fn new(len: usize) -> Self {
        Arena(Memory::zeroed(len))
    }

    /// Where byte `at` lies.
    pub fn target(&self, at: usize) -> Target {
        assert!(at <= self.0.len());
        // SAFETY: `at` was just checked to lie within the allocation.
        Target(unsafe { self.0.start.as_ptr().add(at) })
    }

    /// Some bytes to be read.
    ///
    /// # Safety
    /// Nothing may write into the range while it is borrowed.
    pub unsafe fn lent(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.0.len());
        // SAFETY: within the allocation, initialised, and by the caller's promise not written.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().add(range.start), range.len()) }
    }
}

/// Where a read puts its bytes.
#[derive(Clone, Copy)]
pub struct Target(*mut u8);

// SAFETY: an address; what it points to may be used from any thread, and using it is unsafe.
unsafe impl Send for Target {}

impl Target {
    /// The beginning of memory that is borrowed alone.
    pub fn of(bytes: &mut [u8]) -> Self {
        Target(bytes.as_mut_ptr())
    }

    /// `by` bytes further on.
    pub fn after(self, by: usize) -> Self {
        Target(self.0.wrapping_add(by))
    }

    /// The address, for the kernel.
    pub fn address(self) -> *mut u8 {
        self.0
    }

    /// The bytes to be filled.
    ///
    /// # Safety
    /// `len` bytes from here belong to one live allocation, and nobody else reads or writes them meanwhile.
    pub unsafe fn slice<'a>(self, len: usize) -> &'a mut [u8] {
        // SAFETY: the caller's promise; all memory of this module is initialised.
        unsafe { std::slice::from_raw_parts_mut(self.0, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_at_least_as_long_as_asked() {
        for len in [0, 1, PAGE - 1, PAGE, PAGE + 1, 1 << 20] {
            let mut memory = Memory::zeroed(len);
            assert_eq!(memory.bytes().as_ptr() as usize % PAGE, 0);
            assert!(memory.len() >= len && memory.len().is_multiple_of(PAGE));
            assert!(memory.bytes().iter().all(|&b| b == 0));
            memory.bytes_mut().fill(7);
        }
    }
}
