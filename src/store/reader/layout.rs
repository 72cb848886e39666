//! Extents to reads: which bytes of which file, and where each tensor lies in the buffer that they fill.
//!
//! A direct read begins and ends at multiples of the disk's alignment, and tensors do not. So reads take a little more at both ends, and
//! what touches or overlaps then is one read: a block whose six tensors lie side by side is one of 17.5 MB.

use std::ops::Range;

use super::super::index::Place;
use super::super::memory::PAGE;

/// Bytes that lie side by side in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub file: u32,
    /// Where it begins in the file, and the alignment of that, of `len` and of `at`.
    pub offset: u64,
    pub align: usize,
    /// Bytes up to the end of the last tensor; more than these need not exist.
    pub need: usize,
    /// Bytes to ask for.
    pub len: usize,
    /// Where it begins in the buffer.
    pub at: usize,
}

/// How a piece is read.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// Each extent's range of the buffer, in the order of the extents.
    pub parts: Vec<Range<usize>>,
    pub runs: Vec<Run>,
    /// Bytes of the buffer.
    pub len: usize,
}

/// How to read `extents` (where and how many bytes), `align` being the alignment of a file: a power of two, at most [`PAGE`].
pub fn lay_out(extents: &[(Place, usize)], align: impl Fn(u32) -> usize) -> Layout {
    let mut order: Vec<usize> = (0..extents.len()).filter(|&i| extents[i].1 > 0).collect();
    order.sort_unstable_by_key(|&i| (extents[i].0.file, extents[i].0.offset));
    let mut parts = vec![0..0; extents.len()];
    let mut runs: Vec<Run> = Vec::new();
    for i in order {
        let (place, len) = extents[i];
        let align = align(place.file);
        let first = place.offset - place.offset % align as u64;
        let near = runs.last().is_some_and(|run| run.file == place.file && first <= run.offset + run.len as u64);
        if !near {
            let at = runs.last().map_or(0, |run| run.at + run.len).next_multiple_of(align);
            runs.push(Run { file: place.file, offset: first, align, need: 0, len: 0, at });
        }
        let run = runs.last_mut().expect("pushed where there was none");
        let from = (place.offset - run.offset) as usize;
        run.need = run.need.max(from + len);
        run.len = run.need.next_multiple_of(align);
        parts[i] = run.at + from..run.at + from + len;
    }
    let len = runs.last().map_or(0, |run| run.at + run.len);
    Layout { parts, runs, len }
}

impl Run {
    /// The reads of at most about `most` bytes that make up the run: equal ones, but for the last.
    pub fn cut(&self, most: usize) -> impl Iterator<Item = Run> {
        let step = self.len.div_ceil(self.len.div_ceil(most).max(1)).next_multiple_of(PAGE);
        (0..self.len).step_by(step).map(move |from| Run {
            offset: self.offset + from as u64,
            at: self.at + from,
            need: (self.need - from).min(step),
            len: (self.len - from).min(step),
            ..*self
        })
    }
}

/// Bytes of memory that a piece of `bytes` in `tensors` tensors may take, alignment included.
pub fn room_bytes(bytes: u64, tensors: u64) -> u64 {
    bytes + tensors * 2 * PAGE as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(file: u32, offset: u64) -> Place {
        Place { file, offset }
    }

    #[test]
    fn neighbours_in_a_file_are_read_as_one() {
        let extents = [(at(0, 100), 10), (at(1, 10), 5), (at(0, 90), 10), (at(0, 111), 4), (at(1, 15), 1)];
        let exact = lay_out(&extents, |_| 1);
        assert_eq!(exact.parts, [10..20, 24..29, 0..10, 20..24, 29..30]);
        assert_eq!(exact.runs.iter().map(|r| (r.offset, r.at, r.len)).collect::<Vec<_>>(), [(90, 0, 20), (111, 20, 4), (10, 24, 6)]);
        let direct = lay_out(&extents, |_| 512);
        assert_eq!(direct.runs.iter().map(|r| (r.offset, r.at, r.need, r.len)).collect::<Vec<_>>(), [(0, 0, 115, 512), (0, 512, 16, 512)]);
        assert_eq!(direct.parts, [100..110, 522..527, 90..100, 111..115, 527..528]);
    }

    #[test]
    fn a_run_of_five_gigabytes_is_cut_into_reads_that_the_system_takes() {
        let layout = lay_out(&[(at(0, 1), 5_000_000_000)], |_| 4096);
        let cut: Vec<Run> = layout.runs[0].cut(1 << 30).collect();
        assert_eq!(cut.len(), 5);
        assert!(cut.iter().all(|c| c.len <= 1 << 30));
        assert_eq!(cut.iter().map(|c| c.need).sum::<usize>(), 5_000_000_001);
    }

    proptest! {
        #[test]
        fn every_tensor_lies_in_the_buffer_as_in_its_file(
            extents in prop::collection::vec((0u32..3, 0u64..60_000, 0usize..9_000), 0..8), shift in 0u32..4, most in 1usize..20_000,
        ) {
            let extents: Vec<(Place, usize)> = extents.into_iter().map(|(file, offset, len)| (at(file, offset), len)).collect();
            let align = [1, 512, 1024, 4096][shift as usize];
            let layout = lay_out(&extents, |_| align);
            let bytes: u64 = extents.iter().map(|e| e.1 as u64).sum();
            prop_assert!(layout.len as u64 <= room_bytes(bytes, extents.len() as u64));
            // Every byte of the buffer that the cut reads fill, by where it comes from.
            let mut from = vec![None; layout.len];
            for run in layout.runs.iter().flat_map(|run| run.cut(most)) {
                prop_assert!(run.offset % align as u64 == 0 && run.at % align == 0 && run.len % align == 0 && run.need >= 1);
                prop_assert!(run.need <= run.len && run.len <= most.next_multiple_of(PAGE));
                for i in 0..run.need {
                    prop_assert!(from[run.at + i].replace((run.file, run.offset + i as u64)).is_none());
                }
            }
            for ((place, len), part) in extents.iter().zip(&layout.parts) {
                prop_assert_eq!(part.len(), *len);
                for i in 0..*len {
                    prop_assert_eq!(from[part.start + i], Some((place.file, place.offset + i as u64)));
                }
            }
        }
    }
}
