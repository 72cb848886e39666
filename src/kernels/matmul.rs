//! y = x w^T: what has to be near the multipliers, and in which order are they fed?
//!
//! A core makes 240 GFLOP/s here: sixteen lanes, two fused steps a cycle. Lanes along the columns need a tree of additions a
//! sum, which costs as much as the product itself where a row has 256 columns (measured: 110 GFLOP/s). So the lanes are
//! sixteen OUTPUTS, and the order is this: columns are taken in runs of 128; within a run an output is one chain of fused
//! multiply-adds from 0 over ascending columns; the output is the first run's chain, to which the others are added in
//! ascending order. Runs keep the error small (128 + K / 128 roundings, not K) and let y itself hold what is unfinished.
//!
//! A tile of outputs x one run is decoded once (`tile`) and stays in the first cache while all rows of a task pass. Inputs
//! are used where they lie, a number of them being broadcast a step. Tasks share nothing and wait for nobody.
#![allow(unsafe_code)] // Loads without a bound a step, and columns of shared rows written in parallel.

use std::ops::Range;

use super::lanes::{LANES, Lanes};
use super::matrix::Matrix;
use super::scratch::{self, Line};
use super::tile::{RUN, pack};
use super::view::{Steps, Target, View, ViewMut};
use super::{Kernels, Operation, parallel};

/// Vectors of sixteen outputs in the widest tile.
const VECTORS: usize = 4;
// A tile leaves a third of a first cache of 48 KiB to the inputs.
const _: () = assert!(VECTORS * RUN * size_of::<Line>() <= 32 << 10);

/// Rows of a block of sums: 6 x 4 vectors fill the registers of AVX-512, 6 x 1 double ones those of AVX2.
const BLOCK_ROWS: usize = 6;

/// Up to here decoding is what costs, and narrow tiles do it faster.
const FEW_ROWS: usize = 4;
const FEW_VECTORS: usize = 2;

/// Outputs that pass through a run of columns before the next run comes.
const GROUP: usize = 256;

/// Rows of a task: enough that decoding, once a task, is a trifle (5 % at 126), so few that the inputs of a run and the
/// group's outputs lie in the second cache.
const TASK_ROWS: usize = 126;
const TASK_ROWS_MOST: usize = 516;
const _: () = assert!(TASK_ROWS.is_multiple_of(BLOCK_ROWS) && TASK_ROWS_MOST.is_multiple_of(BLOCK_ROWS));
const _: () = assert!(TASK_ROWS_MOST * (GROUP + RUN) * size_of::<f32>() <= 1 << 20);

impl Kernels {
    /// `y[r][n] = sum over k of x[r][k] * w[n][k]` for r < rows, n < w.rows.
    ///
    /// The order: runs of 128 columns, each one chain of fused multiply-adds from 0, k ascending; then the chains are added
    /// from the first to the last.
    ///
    /// # Panics
    /// When a view or the matrix is shorter than its shape says.
    pub fn matmul(&self, rows: usize, x: View, w: &Matrix, y: ViewMut) {
        self.matmul_heads(rows, x, std::slice::from_ref(w), y, Steps { x: 0, y: w.rows });
    }

    /// A product for each head: `heads[h]` multiplies what is at `h * steps.x` of a row of x, its outputs are at `h * steps.y` of a row
    /// of y. All heads have one shape. Small products are handed over together, since a hand-over costs as much as one of them.
    ///
    /// # Panics
    /// When a view or a matrix is shorter than its shape says, or outputs overlap.
    pub fn matmul_heads(&self, rows: usize, x: View, heads: &[Matrix], y: ViewMut, steps: Steps) {
        let Some(&Matrix { rows: outputs, cols, .. }) = heads.first() else { return };
        if rows == 0 || outputs == 0 {
            return;
        }
        steps.check(rows, heads.len(), outputs, &y);
        let (x, y) = (&x, &y.target());
        let operations = 2 * rows * heads.len() * outputs * cols;
        let (task_rows, task_outputs) = shares(rows, outputs, parallel::tasks(operations).div_ceil(heads.len()));
        let across = outputs.div_ceil(task_outputs);
        let tasks = rows.div_ceil(task_rows) * across;
        parallel::each(heads.len() * tasks, operations, |task| {
            let (head, task) = (task / tasks, task % tasks);
            let w = &heads[head];
            assert!(w.rows == outputs && w.cols == cols, "matmul: heads of several shapes");
            let (x, y) = (&x.shifted(head * steps.x), &y.shifted(head * steps.y));
            let (r, n) = (task / across * task_rows, task % across * task_outputs);
            let (rows, outputs) = (r..rows.min(r + task_rows), n..outputs.min(n + task_outputs));
            scratch::with(RUN * VECTORS, |lines| self.run(Task { x, w, y, rows, outputs, lines }));
        });
    }
}

/// Rows and outputs of a task. Outputs are cut first, since a cut through the rows decodes weights twice.
fn shares(rows: usize, outputs: usize, tasks: usize) -> (usize, usize) {
    // Too few rows to be cut, then narrower tiles.
    let unit = if rows < 2 * TASK_ROWS { 2 * LANES } else { VECTORS * LANES };
    let share = outputs.div_ceil(tasks).next_multiple_of(unit);
    let cuts = (tasks / outputs.div_ceil(share)).min(rows / TASK_ROWS).max(rows.div_ceil(TASK_ROWS_MOST));
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
        let group = if self.rows.len() <= FEW_ROWS { FEW_VECTORS * LANES } else { GROUP };
        for n in self.outputs.clone().step_by(group) {
            let outputs = n..self.outputs.end.min(n + group);
            // A matrix without columns has one run, which is empty.
            for from in (0..self.w.cols.max(1)).step_by(RUN) {
                self.tiles::<L>(lines, outputs.clone(), from);
            }
        }
    }
}

impl Task<'_> {
    /// Some outputs over the run from column `from` on.
    #[inline(always)]
    fn tiles<L: Lanes>(&self, lines: &mut [Line], outputs: Range<usize>, from: usize) {
        let mut n = outputs.start;
        while n < outputs.end {
            n += LANES
                * match (outputs.end - n).div_ceil(LANES) {
                    1 => self.tile::<L, 1>(lines, n, from),
                    _ if !L::WIDE => self.tile::<L, 1>(lines, n, from),
                    2 => self.tile::<L, 2>(lines, n, from),
                    3 => self.tile::<L, 3>(lines, n, from),
                    _ => self.tile::<L, VECTORS>(lines, n, from),
                };
        }
    }

    /// N vectors of outputs from `n` on, decoded once for all rows. Returns N.
    #[inline(always)]
    fn tile<L: Lanes, const N: usize>(&self, lines: &mut [Line], n: usize, from: usize) -> usize {
        let run = from..self.w.cols.min(from + RUN);
        let tile = &mut lines.as_chunks_mut::<N>().0[..RUN];
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
        N
    }

    /// The chains of R rows over the run from `from` on, written to y or, of a later run, added to it. Returns R.
    #[inline(always)]
    fn block<L: Lanes, const R: usize, const N: usize>(&self, weights: &[[Line; N]], r: usize, n: usize, from: usize) -> usize {
        let mut x: [&[f32]; R] = [&[]; R];
        for (i, row) in x.iter_mut().enumerate() {
            *row = &self.x.row(r + i, self.w.cols)[from..][..weights.len()];
        }
        let sums = chains::<L, R, N>(x, weights, [[L::splat(0.0); N]; R]);
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
        R
    }
}

/// R x N vectors of chains carried on over all columns of `weights`.
///
/// # Panics
/// When a row of x is shorter.
#[inline(always)]
pub(super) fn chains<L: Lanes, const R: usize, const N: usize>(
    x: [&[f32]; R],
    weights: &[[Line; N]],
    mut sums: [[L; N]; R],
) -> [[L; N]; R] {
    for row in &x {
        assert!(row.len() >= weights.len(), "a row of inputs is shorter than its columns");
    }
    for (k, column) in weights.iter().enumerate() {
        let mut vectors = [L::splat(0.0); N];
        for n in 0..N {
            vectors[n] = L::load(&column[n].0);
        }
        for r in 0..R {
            // SAFETY: k < weights.len(), at most the length of each row.
            let input = L::splat(unsafe { *x[r].get_unchecked(k) });
            for n in 0..N {
                sums[r][n] = input.fma(vectors[n], sums[r][n]);
            }
        }
    }
    sums
}
