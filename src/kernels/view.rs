//! Rows of activations inside a wider buffer, to read and to write.
//!
//! Tasks of one product write different columns of the same rows, which no split of a slice can express. [`Target`]
//! is the one place that writes through a shared pointer; it checks every write against the buffer's end.
#![allow(unsafe_code)] // Disjoint columns are written from several threads.

use std::marker::PhantomData;

/// Rows to read: row r begins at `data[start + r * stride]`.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The buffer.
    pub data: &'a [f32],
    /// Where row 0 begins.
    pub start: usize,
    /// From one row's beginning to the next one's.
    pub stride: usize,
}

/// Rows to write: row r begins at `data[start + r * stride]`.
#[derive(Debug)]
pub struct ViewMut<'a> {
    /// The buffer.
    pub data: &'a mut [f32],
    /// Where row 0 begins.
    pub start: usize,
    /// From one row's beginning to the next one's.
    pub stride: usize,
}

/// How far one head's floats are from the next one's, in a row of inputs and in a row of outputs.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// Floats of a row of x.
    pub x: usize,
    /// Floats of a row of y.
    pub y: usize,
}

impl Steps {
    /// No two outputs are one place.
    pub(super) fn check(self, rows: usize, heads: usize, outputs: usize, y: &ViewMut) {
        assert!(heads < 2 || self.y >= outputs, "outputs of heads overlap");
        assert!(rows < 2 || y.stride >= (heads - 1) * self.y + outputs, "rows of y overlap");
    }
}

impl<'a> View<'a> {
    /// The same buffer, every row beginning so many floats later.
    pub(super) fn shifted(&self, by: usize) -> View<'a> {
        View { start: self.start + by, ..*self }
    }

    /// Rows that lie back to back: `data` is [rows, width].
    pub fn rows(data: &'a [f32], width: usize) -> View<'a> {
        View { data, start: 0, stride: width }
    }

    /// Row r.
    ///
    /// # Panics
    /// When the buffer ends before the row does.
    #[inline(always)]
    pub fn row(&self, r: usize, width: usize) -> &'a [f32] {
        &self.data[self.start + r * self.stride..][..width]
    }
}

impl<'a> ViewMut<'a> {
    /// Rows that lie back to back: `data` is [rows, width].
    pub fn rows(data: &'a mut [f32], width: usize) -> ViewMut<'a> {
        ViewMut { data, start: 0, stride: width }
    }

    /// The rows as a target of parallel writes.
    pub(super) fn target(self) -> Target<'a> {
        let ViewMut { data, start, stride } = self;
        Target { data: data.as_mut_ptr(), len: data.len(), start, stride, lent: PhantomData }
    }
}

/// A buffer whose rows several threads write, each its own columns.
pub(super) struct Target<'a> {
    data: *mut f32,
    len: usize,
    start: usize,
    stride: usize,
    lent: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is an exclusively borrowed buffer of plain numbers, and `part` alone uses it, whose callers promise
// that no place is lent twice at a time.
unsafe impl Send for Target<'_> {}
// SAFETY: as above.
unsafe impl Sync for Target<'_> {}

impl Target<'_> {
    /// The same buffer, every row beginning so many floats later.
    pub(super) fn shifted(&self, by: usize) -> Target<'_> {
        Target { start: self.start + by, ..*self }
    }

    /// Writes `values` to row r from column `from` on.
    ///
    /// # Panics
    /// When the buffer ends before the values do.
    ///
    /// # Safety
    /// No other thread uses these places at the same time.
    #[inline(always)]
    pub(super) unsafe fn write(&self, r: usize, from: usize, values: &[f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.part(r, from, values.len()) }.copy_from_slice(values);
    }

    /// `count` columns of row r from column `from` on, to write or to add to.
    ///
    /// # Panics
    /// When the buffer ends before they do.
    ///
    /// # Safety
    /// Nobody else uses these places while they are lent.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "disjoint places of one buffer")]
    pub(super) unsafe fn part(&self, r: usize, from: usize, count: usize) -> &mut [f32] {
        let at = self.start + r * self.stride + from;
        assert!(at <= self.len && count <= self.len - at, "a kernel's output ends past its buffer");
        // SAFETY: the range lies in the buffer, which is borrowed as long as self; by the caller's promise it is lent once.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(at), count) }
    }
}
