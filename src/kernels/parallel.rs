//! When do more threads help? Handing work to another thread costs about ten microseconds; a core does 2 MFLOP in that
//! time. Below [`WORTH`] all stays on the calling thread. Tasks never share an output element, so threads cannot change a bit.

use rayon::prelude::*;

/// Operations from which a kernel is spread over threads.
const WORTH: usize = 1_000_000;

/// Tasks a thread, so that one slow core does not hold up the rest.
const TASKS_A_THREAD: usize = 4;

/// Whether work of so many operations is worth spreading.
pub(super) fn worth(operations: usize) -> bool {
    operations >= WORTH && rayon::current_num_threads() > 1
}

/// Into how many tasks work of so many operations is best cut.
pub(super) fn tasks(operations: usize) -> usize {
    if worth(operations) { rayon::current_num_threads() * TASKS_A_THREAD } else { 1 }
}

/// Runs tasks 0..count, in any order when the work is worth spreading.
pub(super) fn each(count: usize, operations: usize, task: impl Fn(usize) + Send + Sync) {
    if count > 1 && worth(operations) {
        (0..count).into_par_iter().with_max_len(1).for_each(task);
    } else {
        (0..count).for_each(task);
    }
}

/// Calls `f` for every item, on any thread, in any order; a single item stays on the caller's.
pub fn spread<T: Send>(items: Vec<T>, f: impl Fn(T) + Sync + Send) {
    if items.len() == 1 {
        items.into_iter().for_each(f);
    } else {
        items.into_par_iter().with_max_len(1).for_each(f);
    }
}

/// Cuts `data` into pieces of whole units (the last may be smaller) and runs `task(index of the piece's first unit, piece)` on each.
pub(super) fn pieces<T: Send>(data: &mut [T], unit: usize, operations: usize, task: impl Fn(usize, &mut [T]) + Send + Sync) {
    if data.is_empty() {
        return;
    }
    let units = data.len().div_ceil(unit);
    let piece = units.div_ceil(tasks(operations));
    if piece >= units {
        task(0, data);
    } else {
        data.par_chunks_mut(piece * unit).enumerate().for_each(|(i, part)| task(i * piece, part));
    }
}
