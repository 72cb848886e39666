//! A product with many rows: what has to be near the multipliers, and when?
//!
//! A core makes 240 GFLOP/s here, 16 fused steps of 16 lanes in 8 cycles, and a block of 4 x 4 sums needs 8 loads for them.
//! Only the first cache gives that, so weights (decoded once for all rows) and inputs lie in scratch, [`DEPTH`] chunks of
//! columns at a time, woven: the rows of a block side by side, one stream and not eight (measured: 200 GFLOP/s woven, 165
//! row after row). The lanes of unfinished sums wait in scratch, unreduced, and go on where they stopped, so that blocking
//! over columns changes no order.
#![allow(unsafe_code)] // Loads without a bound a step, and columns of shared rows written in parallel.

use std::ops::Range;

use super::lanes::{LANES, Lanes};
use super::matmul::{BLOCK_OUTPUTS, dots, inputs_of, rows_of, write};
use super::matrix::{Bf16Rows, Data, F32Rows, Format, Matrix, Mxfp4Rows, Row, Woven};
use super::scratch::{self, Line};
use super::view::{Target, View};
use super::{Kernels, Operation, parallel};

/// Most chunks of sixteen columns in scratch at once: four rows take 16 KiB of the first cache.
const DEPTH: usize = 64;

/// Most outputs and rows of a tile.
const TILE_OUTPUTS: usize = 96;
const TILE_ROWS: usize = 128;
// Weights, inputs and waiting sums of a tile fit 2 MiB, the second cache of a server core.
const _: () = assert!(((TILE_OUTPUTS + TILE_ROWS) * DEPTH + TILE_OUTPUTS * TILE_ROWS) * size_of::<Line>() <= 2 << 20);

/// Rows that are woven by one task: a multiple of the rows of every path's block (4 and 3).
const BUNDLE: usize = 12;

/// `y[r][n] = dot(x[r], w[n])`, [`TILE_ROWS`] rows after [`TILE_ROWS`] rows, tiles of outputs in parallel.
pub(super) fn matmul(kernels: &Kernels, rows: usize, x: &View, w: &Matrix, y: &Target) {
    let chunks = w.cols.div_ceil(LANES);
    let depth = chunks.div_ceil(chunks.div_ceil(DEPTH).max(1));
    for first in (0..rows).step_by(TILE_ROWS) {
        let count = TILE_ROWS.min(rows - first);
        let operations = 2 * count * w.rows * w.cols;
        let share = w.rows.div_ceil(parallel::tasks(operations)).clamp(BLOCK_OUTPUTS, TILE_OUTPUTS);
        let share = w.rows.div_ceil(w.rows.div_ceil(share)).next_multiple_of(BLOCK_OUTPUTS);
        scratch::with_shared(count * chunks, |inputs| {
            parallel::pieces(inputs, BUNDLE * chunks, count * w.cols * 4, |bundle, out| {
                kernels.run(Weave { x, cols: w.cols, first: first + bundle * BUNDLE, depth, out });
            });
            let inputs = Inputs { lines: inputs, first, count, chunks, depth };
            parallel::each(w.rows.div_ceil(share), operations, |task| {
                let outputs = task * share..w.rows.min((task + 1) * share);
                let padded = outputs.len().next_multiple_of(BLOCK_OUTPUTS);
                let waiting = if depth < chunks { padded * count } else { 0 };
                scratch::with(padded * depth + waiting, |lines| kernels.run(Tile { inputs, w, y, outputs, lines }));
            });
        });
    }
}

/// The inputs of a tile: bundles of rows, in each the stages of columns, in each the blocks of rows, woven.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    lines: &'a [Line],
    /// The first row, and how many.
    first: usize,
    count: usize,
    /// Chunks of columns in all, and at a time.
    chunks: usize,
    depth: usize,
}

impl<'a> Inputs<'a> {
    /// R rows from r on, `depth` chunks from chunk `at` on.
    #[inline(always)]
    fn block<const R: usize>(&self, r: usize, at: usize, depth: usize) -> &'a [[Line; R]] {
        let bundle = r - r % BUNDLE;
        let from = bundle * self.chunks + BUNDLE.min(self.count - bundle) * at + (r - bundle) * depth;
        self.lines[from..][..R * depth].as_chunks().0
    }
}

/// Weaves whole bundles of rows from `first` on into `out`; the last bundle may be smaller.
struct Weave<'a> {
    x: &'a View<'a>,
    cols: usize,
    first: usize,
    depth: usize,
    out: &'a mut [Line],
}

impl Operation for Weave<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        if L::WIDE {
            self.blocks::<L, 4>();
        } else {
            self.blocks::<L, 3>();
        }
    }
}

impl Weave<'_> {
    #[inline(always)]
    fn blocks<L: Lanes, const R: usize>(self) {
        let chunks = self.cols.div_ceil(LANES);
        for (i, bundle) in self.out.chunks_mut(BUNDLE * chunks).enumerate() {
            let (first, rows) = (self.first + i * BUNDLE, bundle.len() / chunks);
            let mut rest = bundle;
            for at in (0..chunks).step_by(self.depth) {
                let depth = self.depth.min(chunks - at);
                for r in (0..rows).step_by(R) {
                    let block;
                    (block, rest) = rest.split_at_mut(R.min(rows - r) * depth);
                    match rows - r {
                        1 => weave::<L, _, 1>(inputs_of(self.x, first + r, self.cols), at, block),
                        2 => weave::<L, _, 2>(inputs_of(self.x, first + r, self.cols), at, block),
                        3 => weave::<L, _, 3>(inputs_of(self.x, first + r, self.cols), at, block),
                        _ => weave::<L, _, R>(inputs_of(self.x, first + r, self.cols), at, block),
                    }
                }
            }
        }
    }
}

/// Chunks from `from` on of N rows, zeros after their end, side by side. All rows are as long as the first.
#[inline(always)]
fn weave<L: Lanes, W: Row, const N: usize>(rows: [W; N], from: usize, out: &mut [Line]) {
    let out = out.as_chunks_mut::<N>().0;
    let mut whole = rows[0].whole();
    for row in &rows {
        whole = whole.min(row.whole());
    }
    let (full, rest) = out.split_at_mut(out.len().min(whole.saturating_sub(from)));
    let rest_from = from + full.len();
    for (i, lines) in full.iter_mut().enumerate() {
        for n in 0..N {
            // SAFETY: from + i < whole, the least of all rows.
            unsafe { rows[n].chunk::<L>(from.wrapping_add(i)) }.store(&mut lines[n].0);
        }
    }
    for (i, lines) in rest.iter_mut().enumerate() {
        for n in 0..N {
            rows[n].checked::<L>(rest_from + i).store(&mut lines[n].0);
        }
    }
}

/// Some outputs of all rows of the inputs.
struct Tile<'a> {
    inputs: Inputs<'a>,
    w: &'a Matrix<'a>,
    y: &'a Target<'a>,
    outputs: Range<usize>,
    lines: &'a mut [Line],
}

impl Operation for Tile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let w = self.w;
        match w.data {
            Data::F32(_) => self.of::<L, F32Rows>(F32Rows::of(w)),
            Data::Bf16(_) => self.of::<L, Bf16Rows>(Bf16Rows::of(w)),
            Data::Mxfp4 { .. } => self.of::<L, Mxfp4Rows>(Mxfp4Rows::of(w)),
        }
    }
}

/// The columns at hand: from which chunk, how many, whether they are the last, and their weights, blocks of rows woven.
struct Stage<'a> {
    at: usize,
    depth: usize,
    last: bool,
    weights: &'a [Line],
}

impl Tile<'_> {
    #[inline(always)]
    fn of<'w, L: Lanes, F: Format<'w>>(self, format: F) {
        if L::WIDE {
            self.stages::<L, F, 4, 4>(format);
        } else {
            self.stages::<L, F, 3, 2>(format);
        }
    }

    /// Blocks of R x N sums, stage after stage.
    #[inline(always)]
    fn stages<'w, L: Lanes, F: Format<'w>, const R: usize, const N: usize>(mut self, format: F) {
        let lines = std::mem::take(&mut self.lines);
        let padded = self.outputs.len().next_multiple_of(BLOCK_OUTPUTS);
        let (weights, waiting) = lines.split_at_mut(padded * self.inputs.depth);
        let mut at = 0;
        loop {
            let depth = self.inputs.depth.min(self.inputs.chunks - at);
            for n in (0..self.outputs.len()).step_by(N) {
                let rows = rows_of::<F, N>(format, self.outputs.start + n, self.outputs.end);
                weave::<L, F::Row, N>(rows, at, &mut weights[n * depth..][..N * depth]);
            }
            let last = at + depth == self.inputs.chunks;
            self.multiply::<L, R, N>(&Stage { at, depth, last, weights }, waiting);
            at += depth;
            if last {
                return;
            }
        }
    }

    #[inline(always)]
    fn multiply<L: Lanes, const R: usize, const N: usize>(&self, stage: &Stage, waiting: &mut [Line]) {
        let rows = self.inputs.count;
        for n in (0..self.outputs.len()).step_by(N) {
            for r in (0..rows).step_by(R) {
                // Where this block's sums wait: after those of the blocks before it.
                let from = if stage.at == 0 && stage.last { 0 } else { n * rows + r * N };
                let waiting = &mut waiting[from..];
                match rows - r {
                    1 => self.block::<L, 1, N>(stage, waiting, n, r),
                    2 => self.block::<L, 2, N>(stage, waiting, n, r),
                    3 => self.block::<L, 3, N>(stage, waiting, n, r),
                    _ => self.block::<L, R, N>(stage, waiting, n, r),
                }
            }
        }
    }

    /// R x N sums: begun or taken up from `waiting`, carried on over the stage's columns, put back or finished.
    #[inline(always)]
    fn block<L: Lanes, const R: usize, const N: usize>(&self, stage: &Stage, waiting: &mut [Line], n: usize, r: usize) {
        let weights = stage.weights[n * stage.depth..][..N * stage.depth].as_chunks::<N>().0;
        let inputs = self.inputs.block::<R>(r, stage.at, stage.depth);
        let (x, w) = (Woven::rows(inputs), Woven::rows(weights));
        // Two calls: sums that begin in registers need not pass through memory.
        let sums = if stage.at == 0 {
            dots(x, w, [[L::splat(0.0); N]; R])
        } else {
            let mut sums = [[L::splat(0.0); N]; R];
            for (sums, lines) in sums.iter_mut().zip(waiting.as_chunks::<N>().0) {
                for n in 0..N {
                    sums[n] = L::load(&lines[n].0);
                }
            }
            dots(x, w, sums)
        };
        if stage.last {
            let n = self.outputs.start + n;
            // SAFETY: these outputs belong to this tile alone, and rows do not overlap.
            unsafe { write(self.y, self.inputs.first + r, n, &L::sums(sums), self.outputs.end - n) };
        } else {
            for (sums, lines) in sums.iter().zip(waiting.as_chunks_mut::<N>().0) {
                for n in 0..N {
                    sums[n].store(&mut lines[n].0);
                }
            }
        }
    }
}
