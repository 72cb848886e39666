//! Working memory that is allocated once a thread and kept: a kernel allocates nothing a call.
#![allow(unsafe_code)] // Lines are seen as numbers.

use std::cell::Cell;

use super::lanes::LANES;

/// Sixteen numbers in one cache line: what a vector load takes without touching two lines.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [f32; LANES]);
const _: () = assert!(size_of::<Line>() == LANES * size_of::<f32>());

/// The numbers of some lines, one after the other.
#[inline(always)]
pub(super) fn numbers(lines: &[Line]) -> &[f32] {
    // SAFETY: a line is sixteen numbers and nothing else.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LANES) }
}

thread_local! {
    static OWN: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    static SHARED: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Lends `lines` lines with arbitrary contents to a task.
pub(super) fn with<T>(lines: usize, work: impl FnOnce(&mut [Line]) -> T) -> T {
    lend(&OWN, lines, work)
}

/// Lends `lines` lines with arbitrary contents to a call whose tasks borrow from [`with`].
pub(super) fn with_shared<T>(lines: usize, work: impl FnOnce(&mut [Line]) -> T) -> T {
    lend(&SHARED, lines, work)
}

fn lend<T>(kept: &'static std::thread::LocalKey<Cell<Vec<Line>>>, lines: usize, work: impl FnOnce(&mut [Line]) -> T) -> T {
    // Taken, not borrowed: a loan inside a loan (a task stolen while waiting) gets memory of its own.
    let mut memory = kept.take();
    if memory.len() < lines {
        memory.resize(lines, Line([0.0; LANES]));
    }
    let result = work(&mut memory[..lines]);
    kept.set(memory);
    result
}
