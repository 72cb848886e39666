//! y = x w: a product with the rows of a matrix, to fold a projection of the keys into a query.
//!
//! Here an output runs down a column, so lanes are columns and the order is one chain of fused multiply-adds from 0 over
//! ascending rows. A strip of [`STRIP`] columns is decoded once for all rows of x.
#![allow(unsafe_code)] // Columns of shared rows are written in parallel.

use std::ops::Range;

use super::lanes::{LANES, Lanes};
use super::matrix::{Bf16Rows, Data, F32Rows, Format, Matrix, Mxfp4Rows, Row};
use super::scratch::{self, Line};
use super::view::{Steps, Target, View, ViewMut};
use super::{Kernels, Operation, parallel};

/// Chunks of sixteen columns in a strip.
const STRIP: usize = 4;

/// Most rows of x a task.
const TASK_ROWS: usize = 32;

impl Kernels {
    /// `y[r][c] = sum over n of x[r][n] * w[n][c]`, n ascending, for r < rows and c < w.cols, w being each head's in turn: what head h
    /// multiplies is at `h * steps.x` of a row of x and w.rows long, its outputs are at `h * steps.y` of a row of y. All heads have one shape.
    ///
    /// # Panics
    /// When a view or a matrix is shorter than its shape says, or outputs overlap.
    pub fn matmul_heads_transposed(&self, rows: usize, x: View, heads: &[Matrix], y: ViewMut, steps: Steps) {
        let Some(&Matrix { rows: inputs, cols, .. }) = heads.first() else { return };
        if rows == 0 || cols == 0 {
            return;
        }
        steps.check(rows, heads.len(), cols, &y);
        let strips = cols.div_ceil(STRIP * LANES);
        let row_tasks = rows.div_ceil(TASK_ROWS);
        let (x, y) = (&x, &y.target());
        parallel::each(heads.len() * strips * row_tasks, 2 * rows * heads.len() * inputs * cols, |task| {
            let (head, task) = (task / (strips * row_tasks), task % (strips * row_tasks));
            let w = &heads[head];
            assert!(w.rows == inputs && w.cols == cols, "matmul_heads_transposed: heads of several shapes");
            let (x, y) = (&x.shifted(head * steps.x), &y.shifted(head * steps.y));
            let (strip, r) = (task / row_tasks, task % row_tasks * TASK_ROWS);
            let rows = r..rows.min(r + TASK_ROWS);
            scratch::with(w.rows * STRIP, |lines| self.run(Strip { x, w, y, rows, chunk: strip * STRIP, lines }));
        });
    }
}

/// Four chunks of columns of some rows.
struct Strip<'a> {
    x: &'a View<'a>,
    w: &'a Matrix<'a>,
    y: &'a Target<'a>,
    rows: Range<usize>,
    /// The first chunk.
    chunk: usize,
    lines: &'a mut [Line],
}

impl Operation for Strip<'_> {
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

impl Strip<'_> {
    #[inline(always)]
    fn of<'w, L: Lanes, F: Format<'w>>(mut self, format: F) {
        let lines = std::mem::take(&mut self.lines);
        let (panel, _) = lines.as_chunks_mut::<STRIP>();
        for (n, row) in panel.iter_mut().enumerate() {
            let weights = format.row(n);
            for (i, line) in row.iter_mut().enumerate() {
                weights.checked::<L>(self.chunk + i).store(&mut line.0);
            }
        }
        let mut r = self.rows.start;
        while r < self.rows.end {
            r += match self.rows.end - r {
                1 => self.chains::<L, 1>(panel, r),
                2 | 3 => self.chains::<L, 2>(panel, r),
                _ if L::WIDE => self.chains::<L, 4>(panel, r),
                _ => self.chains::<L, 2>(panel, r),
            };
        }
    }

    /// All columns of the strip for R rows: two chunks at a time where registers are few. Returns R.
    #[inline(always)]
    fn chains<L: Lanes, const R: usize>(&self, panel: &[[Line; STRIP]], r: usize) -> usize {
        if L::WIDE {
            self.columns::<L, R, 4>(panel, r, 0);
        } else {
            self.columns::<L, R, 2>(panel, r, 0);
            self.columns::<L, R, 2>(panel, r, 2);
        }
        R
    }

    #[inline(always)]
    fn columns<L: Lanes, const R: usize, const W: usize>(&self, panel: &[[Line; STRIP]], r: usize, from: usize) {
        let mut x: [&[f32]; R] = [&[]; R];
        for (i, row) in x.iter_mut().enumerate() {
            *row = self.x.row(r + i, panel.len());
        }
        let mut sums = [[L::splat(0.0); W]; R];
        for (n, row) in panel.iter().enumerate() {
            for i in 0..R {
                let factor = L::splat(x[i][n]);
                for c in 0..W {
                    sums[i][c] = factor.fma(L::load(&row[from + c].0), sums[i][c]);
                }
            }
        }
        for (i, row) in sums.iter().enumerate() {
            for (c, sum) in row.iter().enumerate() {
                let column = (self.chunk + from + c) * LANES;
                let mut values = [0.0; LANES];
                sum.store(&mut values);
                let count = LANES.min(self.w.cols.saturating_sub(column));
                // SAFETY: these rows and columns belong to this task alone, and rows do not overlap.
                unsafe { self.y.write(r + i, column.min(self.w.cols), &values[..count]) };
            }
        }
    }
}
