//! Working memory that is allocated once a thread: a kernel allocates nothing a call.

use std::cell::Cell;

use super::lanes::LANES;

/// Sixteen numbers in one cache line: what a vector load takes without touching two lines.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Line(pub(super) [f32; LANES]);

thread_local! {
    static KEPT: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Lends `lines` lines with arbitrary contents. A nested loan on the same thread (a stolen task) gets memory of its own.
pub(super) fn with<T>(lines: usize, work: impl FnOnce(&mut [Line]) -> T) -> T {
    let mut memory = KEPT.take();
    if memory.len() < lines {
        memory.resize(lines, Line([0.0; LANES]));
    }
    let result = work(&mut memory[..lines]);
    KEPT.set(memory);
    result
}
