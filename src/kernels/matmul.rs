//! y = x w^T: what has to be near the multipliers, and in which order are they fed?
//!
//! A core makes 240 GFLOP/s here: sixteen lanes, two fused steps a cycle. Lanes along the columns need a tree of additions a
//! sum, which costs as much as the product itself where a row has 256 columns (measured: 110 GFLOP/s). So the lanes are
//! sixteen OUTPUTS, and the order is this: columns are taken in runs of 256; within a run an output is one chain of fused
//! multiply-adds from 0 over ascending columns; the output is the first run's chain, to which the others are added in
//! ascending order. Runs keep the error small (256 + K / 256 roundings, not K) and let y itself hold what is unfinished.
//!
//! A task decodes a tile of outputs x 256 columns once (`tile`) and sends all its rows through. Inputs are used where they
//! lie, a number of them being broadcast a step. Tasks share nothing and wait for nobody.
#![allow(unsafe_code)] // Loads without a bound a step, and columns of shared rows written in parallel.

use std::ops::Range;

use super::lanes::{LANES, Lanes};
use super::matrix::Matrix;
use super::scratch::{self, Line};
use super::tile::{RUN, pack};
use super::view::{Target, View, ViewMut};
use super::{Kernels, Operation, parallel};

/// Vectors of sixteen outputs in the widest tile: decoded it takes 64 KiB, a small part of the second cache.
const VECTORS: usize = 4;
const TILE: usize = VECTORS * LANES;

/// Rows of a block of sums: 6 x 4 vectors fill the registers of AVX-512, 6 x 1 double ones those of AVX2.
const BLOCK_ROWS: usize = 6;

/// Columns of a tile that few rows share: 32 KiB, for the first cache.
const STAGE: usize = RUN / 2;

/// Rows that a tile must serve for its decoding, once a task, to be a trifle (5 % at 128).
const TASK_ROWS: usize = 126;
const _: () = assert!(TASK_ROWS.is_multiple_of(BLOCK_ROWS));

impl Kernels {
    /// `y[r][n] = sum over k of x[r][k] * w[n][k]` for r < rows, n < w.rows.
    ///
    /// The order: runs of 256 columns, each one chain of fused multiply-adds from 0, k ascending; then the chains are added
    /// from the first to the last.
    ///
    /// # Panics
    /// When a view or the matrix is shorter than its shape says.
    pub fn matmul(&self, rows: usize, x: View, w: &Matrix, y: ViewMut) {
        if rows == 0 || w.rows == 0 {
            return;
        }
        assert!(rows == 1 || y.stride >= w.rows, "matmul: rows of y overlap");
        let (x, y) = (&x, &y.target());
        let operations = 2 * rows * w.rows * w.cols;
        let (task_rows, task_outputs) = shares(rows, w.rows, parallel::tasks(operations));
        let across = w.rows.div_ceil(task_outputs);
        parallel::each(rows.div_ceil(task_rows) * across, operations, |task| {
            let (r, n) = (task / across * task_rows, task % across * task_outputs);
            let (rows, outputs) = (r..rows.min(r + task_rows), n..w.rows.min(n + task_outputs));
            scratch::with(RUN * VECTORS, |lines| self.run(Task { x, w, y, rows, outputs, lines }));
        });
    }
}

/// Rows and outputs of a task. Outputs are cut first, since a cut through the rows decodes weights twice.
fn shares(rows: usize, outputs: usize, tasks: usize) -> (usize, usize) {
    // Too few rows to be cut, then narrower tiles.
    let unit = if rows < 2 * TASK_ROWS { TILE / 2 } else { TILE };
    let share = outputs.div_ceil(tasks).next_multiple_of(unit);
    let cuts = (tasks / outputs.div_ceil(share)).clamp(1, rows.div_ceil(TASK_ROWS));
    (rows.div_ceil(cuts).next_multiple_of(BLOCK_ROWS), share)
}

/// Some outputs of some rows.
struct Task<'a> {
    x: &'a View<'a>,
    w: &'a Matrix<'a>,
    y: &'a Target<'a>,
    rows: Range<usize>,
    outputs: Range<usize>,
    lines: &'a mut [Line],
}

impl Operation for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        let lines = std::mem::take(&mut self.lines);
        let mut n = self.outputs.start;
        while n < self.outputs.end {
            n += LANES
                * match (self.outputs.end - n).div_ceil(LANES) {
                    1 => self.tile::<L, 1>(lines, n),
                    _ if !L::WIDE => self.tile::<L, 1>(lines, n),
                    2 => self.tile::<L, 2>(lines, n),
                    3 => self.tile::<L, 3>(lines, n),
                    _ => self.tile::<L, 4>(lines, n),
                };
        }
    }
}

impl Task<'_> {
    /// N vectors of outputs from `n` on for few rows, which is one block: the chains stay in registers while a
    /// part of their columns is decoded, so that these stay in the first cache. Returns N.
    #[inline(always)]
    fn few<L: Lanes, const R: usize, const N: usize>(&self, lines: &mut [Line], n: usize) -> usize {
        let tile = &mut lines.as_chunks_mut::<N>().0[..STAGE];
        let cols = self.w.cols;
        let mut from = 0;
        loop {
            let end = cols.min(from + RUN);
            let mut sums = [[L::splat(0.0); N]; R];
            for at in (from..end).step_by(STAGE) {
                let stage = at..end.min(at + STAGE);
                for v in 0..N {
                    pack::<L, N>(self.w, n + v * LANES, stage.clone(), tile, v);
                }
                sums = self.chains(self.rows.start, stage.clone(), &tile[..stage.len()], sums);
            }
            self.finish(self.rows.start, n, from, sums);
            from = end;
            if from == cols {
                return N;
            }
        }
    }

    /// N vectors of outputs from `n` on, for all rows, run after run. Returns N.
    #[inline(always)]
    fn tile<L: Lanes, const N: usize>(&self, lines: &mut [Line], n: usize) -> usize {
        match self.rows.len() {
            1 => return self.few::<L, 1, N>(lines, n),
            2 => return self.few::<L, 2, N>(lines, n),
            3 => return self.few::<L, 3, N>(lines, n),
            4 => return self.few::<L, 4, N>(lines, n),
            _ => {}
        }
        let tile = &mut lines.as_chunks_mut::<N>().0[..RUN];
        let cols = self.w.cols;
        let mut from = 0;
        loop {
            let run = from..cols.min(from + RUN);
            for v in 0..N {
                pack::<L, N>(self.w, n + v * LANES, run.clone(), tile, v);
            }
            let weights = &tile[..run.len()];
            let mut r = self.rows.start;
            while r < self.rows.end {
                r += match self.rows.end - r {
                    1 => self.block::<L, 1, N>(weights, r, n, from),
                    2 => self.block::<L, 2, N>(weights, r, n, from),
                    3 => self.block::<L, 3, N>(weights, r, n, from),
                    4 => self.block::<L, 4, N>(weights, r, n, from),
                    5 => self.block::<L, 5, N>(weights, r, n, from),
                    _ => self.block::<L, BLOCK_ROWS, N>(weights, r, n, from),
                };
            }
            from = run.end;
            if from == cols {
                return N;
            }
        }
    }

    /// The chains of R rows over the run from `from` on, written or added to y. Returns R.
    #[inline(always)]
    fn block<L: Lanes, const R: usize, const N: usize>(&self, weights: &[[Line; N]], r: usize, n: usize, from: usize) -> usize {
        let sums = self.chains(r, from..from + weights.len(), weights, [[L::splat(0.0); N]; R]);
        self.finish(r, n, from, sums);
        R
    }

    /// Carries R x N vectors of chains on over some columns, decoded in `weights`.
    #[inline(always)]
    fn chains<L: Lanes, const R: usize, const N: usize>(
        &self,
        r: usize,
        columns: Range<usize>,
        weights: &[[Line; N]],
        mut sums: [[L; N]; R],
    ) -> [[L; N]; R] {
        let mut x: [&[f32]; R] = [&[]; R];
        for (i, row) in x.iter_mut().enumerate() {
            *row = &self.x.row(r + i, self.w.cols)[columns.clone()][..weights.len()];
        }
        for (i, columns) in weights.chunks(LANES).enumerate() {
            for row in &x {
                // The block after this one reads the same columns of the next rows.
                L::prefetch(row[i * LANES..].as_ptr().wrapping_add(R * self.x.stride).cast());
            }
            for (k, column) in columns.iter().enumerate() {
                let k = (i * LANES).wrapping_add(k);
                let mut vectors = [L::splat(0.0); N];
                for n in 0..N {
                    vectors[n] = L::load(&column[n].0);
                }
                for r in 0..R {
                    // SAFETY: k < weights.len(), the length of each row.
                    let input = L::splat(unsafe { *x[r].get_unchecked(k) });
                    for n in 0..N {
                        sums[r][n] = input.fma(vectors[n], sums[r][n]);
                    }
                }
            }
        }
        sums
    }

    /// Writes the first run's chains to y, or adds a later run's.
    #[inline(always)]
    fn finish<L: Lanes, const R: usize, const N: usize>(&self, r: usize, n: usize, from: usize, sums: [[L; N]; R]) {
        let count = (self.outputs.end - n).min(N * LANES);
        for (i, sums) in sums.iter().enumerate() {
            // SAFETY: these outputs of these rows belong to this task alone, and rows do not overlap.
            let out = unsafe { self.y.part(r + i, n, count) };
            let (whole, rest) = out.as_chunks_mut::<LANES>();
            for (out, &sum) in whole.iter_mut().zip(sums) {
                let sum = if from == 0 { sum } else { L::load(out).add(sum) };
                sum.store(out);
            }
            if !rest.is_empty() {
                let sum = sums[whole.len()];
                let sum = if from == 0 { sum } else { L::load_part(rest, 0.0).add(sum) };
                sum.store_part(rest);
            }
        }
    }
}
