//! y = x w^T for many rows, few rows and one row, in the same bits.
//!
//! Two costs compete. With few rows each weight is used a few times and memory is the limit: decode sixteen columns into
//! registers, use them for all rows, forget them. With many rows the fused multiply-adds are the limit: `tile` decodes
//! weights once for all rows. Both end in [`dots`], which is the order of summation.
#![allow(unsafe_code)] // Loads without a bound a step, and columns of shared rows written in parallel.

use std::ops::Range;

use super::lanes::Lanes;
use super::matrix::{Bf16Rows, Data, F32Rows, Floats, Format, Matrix, Mxfp4Rows, Row};
use super::view::{Target, View, ViewMut};
use super::{Kernels, Operation, parallel, tile};

/// Up to here weights are used straight from their packed form.
const FEW_ROWS: usize = 4;

/// Outputs of the largest block of sums; tasks take multiples of it.
pub(super) const BLOCK_OUTPUTS: usize = 4;

impl Kernels {
    /// `y[r][n] = dot(x[r], w[n])` for r < rows, n < w.rows.
    ///
    /// # Panics
    /// When a view or the matrix is shorter than its shape says.
    pub fn matmul(&self, rows: usize, x: View, w: &Matrix, y: ViewMut) {
        if rows == 0 || w.rows == 0 {
            return;
        }
        assert!(rows == 1 || y.stride >= w.rows, "matmul: rows of y overlap");
        let (x, y) = (&x, &y.target());
        if rows > FEW_ROWS {
            return tile::matmul(self, rows, x, w, y);
        }
        let operations = 2 * rows * w.rows * w.cols;
        let share = w.rows.div_ceil(parallel::tasks(operations)).next_multiple_of(BLOCK_OUTPUTS);
        parallel::each(w.rows.div_ceil(share), operations, |task| {
            let outputs = task * share..w.rows.min((task + 1) * share);
            self.run(Few { x, w, y, rows, outputs });
        });
    }
}

/// Some outputs of at most [`FEW_ROWS`] rows.
struct Few<'a> {
    x: &'a View<'a>,
    w: &'a Matrix<'a>,
    y: &'a Target<'a>,
    rows: usize,
    outputs: Range<usize>,
}

impl Operation for Few<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        match self.w.data {
            Data::F32(_) => self.of::<L, F32Rows>(F32Rows::of(self.w)),
            Data::Bf16(_) => self.of::<L, Bf16Rows>(Bf16Rows::of(self.w)),
            Data::Mxfp4 { .. } => self.of::<L, Mxfp4Rows>(Mxfp4Rows::of(self.w)),
        }
    }
}

impl Few<'_> {
    #[inline(always)]
    fn of<'w, L: Lanes, F: Format<'w>>(&self, format: F) {
        if L::WIDE {
            self.outputs::<L, F, 4>(format);
        } else {
            self.outputs::<L, F, 2>(format);
        }
    }

    /// N outputs at a time.
    #[inline(always)]
    fn outputs<'w, L: Lanes, F: Format<'w>, const N: usize>(&self, format: F) {
        for n in self.outputs.clone().step_by(N) {
            let weights = rows_of::<F, N>(format, n, self.outputs.end);
            match self.rows {
                1 => self.block::<L, F::Row, 1, N>(0, weights, n),
                2 => self.block::<L, F::Row, 2, N>(0, weights, n),
                3 => self.block::<L, F::Row, 3, N>(0, weights, n),
                _ if L::WIDE => self.block::<L, F::Row, 4, N>(0, weights, n),
                _ => {
                    self.block::<L, F::Row, 2, N>(0, weights, n);
                    self.block::<L, F::Row, 2, N>(2, weights, n);
                }
            }
        }
    }

    #[inline(always)]
    fn block<L: Lanes, W: Row, const R: usize, const N: usize>(&self, first: usize, weights: [W; N], n: usize) {
        let inputs = inputs_of::<R>(self.x, first, self.w.cols);
        let sums = L::sums(dots(inputs, weights, [[L::splat(0.0); N]; R]));
        // SAFETY: these outputs belong to this task alone, and rows do not overlap.
        unsafe { write(self.y, first, n, &sums, self.outputs.end - n) };
    }
}

/// N rows of weights from n on; past `end` the last row stands in, and its sums are dropped.
#[inline(always)]
pub(super) fn rows_of<'w, F: Format<'w>, const N: usize>(format: F, n: usize, end: usize) -> [F::Row; N] {
    let mut rows = [format.row(n); N];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = format.row((n + i).min(end - 1));
    }
    rows
}

/// R rows of x from `first` on.
#[inline(always)]
pub(super) fn inputs_of<'a, const R: usize>(x: &View<'a>, first: usize, cols: usize) -> [Floats<'a>; R] {
    let mut rows = [Floats::new(&[]); R];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = Floats::new(x.row(first + i, cols));
    }
    rows
}

/// Writes the sums of a block, at most `most` outputs a row.
///
/// # Safety
/// No other thread writes these places at the same time.
#[inline(always)]
pub(super) unsafe fn write<const N: usize>(y: &Target, r: usize, n: usize, sums: &[[f32; N]], most: usize) {
    for (i, row) in sums.iter().enumerate() {
        // A length known to the compiler spares a call.
        if most >= N {
            // SAFETY: the caller's promise.
            unsafe { y.write(r + i, n, row) };
        } else {
            // SAFETY: the caller's promise.
            unsafe { y.write(r + i, n, &row[..most]) };
        }
    }
}

/// The order of every dot product: chunk after chunk into the lanes of R x N sums, a ragged end filled with zeros.
///
/// All rows must have the length of `x[0]`.
#[inline(always)]
pub(super) fn dots<L: Lanes, X: Row, W: Row, const R: usize, const N: usize>(x: [X; R], w: [W; N], mut sums: [[L; N]; R]) -> [[L; N]; R] {
    let mut whole = x[0].whole();
    for row in &x {
        whole = whole.min(row.whole());
    }
    for row in &w {
        whole = whole.min(row.whole());
    }
    for i in 0..whole {
        let mut weights = [L::splat(0.0); N];
        for n in 0..N {
            // SAFETY: i < whole, the least of all rows.
            weights[n] = unsafe { w[n].chunk(i) };
        }
        for r in 0..R {
            // SAFETY: as above.
            let input: L = unsafe { x[r].chunk(i) };
            for n in 0..N {
                sums[r][n] = input.fma(weights[n], sums[r][n]);
            }
        }
    }
    if x[0].tail::<L>().is_some() {
        for r in 0..R {
            let input = x[r].checked::<L>(whole);
            for n in 0..N {
                sums[r][n] = input.fma(w[n].checked(whole), sums[r][n]);
            }
        }
    }
    sums
}
