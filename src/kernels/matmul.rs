//! y = x w^T for many rows, few rows and one row, in the same bits.
//!
//! Two costs compete. With few rows each weight is used a few times: decode sixteen columns into a register, use them
//! for all rows, forget them; memory is the limit. With many rows the fused multiply-adds are the limit (240 GFLOP/s a
//! core here), and two operands a step come from memory: a block of 4 x 4 sums needs 8 loads for 16 steps, which only the
//! innermost cache delivers. So a tile of weight rows is decoded into scratch and the activations beside it,
//! [`DEPTH`] columns at a time; the lanes of unfinished sums wait in scratch, unreduced, and go on where they stopped, so
//! that blocking over columns changes no order.
#![allow(unsafe_code)] // Loads without a bound a step, and columns of shared rows written in parallel.

use std::ops::Range;

use super::lanes::{LANES, Lanes};
use super::matrix::{Bf16Rows, Data, F32Rows, Floats, Format, Matrix, Mxfp4Rows, Row};
use super::scratch::{self, Line};
use super::view::{Target, View, ViewMut};
use super::{Kernels, Operation, parallel};

/// Chunks of sixteen columns that a tile holds at once: 4 rows of weights take 16 KiB of the first cache.
const DEPTH: usize = 64;

/// Most weight rows of a tile, most activation rows beside it: scratch is (64 + 128) * 4 KiB + 512 KiB, within 2 MiB.
const TILE_OUTPUTS: usize = 64;
const TILE_ROWS: usize = 128;
const _: () = assert!((TILE_OUTPUTS + TILE_ROWS) * DEPTH + TILE_OUTPUTS * TILE_ROWS <= (2 << 20) / 64);

/// Up to here weights are used straight from their packed form.
const FEW_ROWS: usize = 4;

/// Outputs of the largest block of sums; tiles are multiples of it.
const BLOCK_OUTPUTS: usize = 4;

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
        let operations = 2 * rows * w.rows * w.cols;
        let row_tiles = rows.div_ceil(TILE_ROWS);
        let share = w.rows.div_ceil(parallel::tasks(operations).div_ceil(row_tiles));
        let outputs = share.clamp(BLOCK_OUTPUTS, TILE_OUTPUTS).next_multiple_of(BLOCK_OUTPUTS);
        let output_tiles = w.rows.div_ceil(outputs);
        let (x, y) = (&x, &y.target());
        parallel::each(row_tiles * output_tiles, operations, |task| {
            let (n, r) = (task / row_tiles * outputs, task % row_tiles * TILE_ROWS);
            let (outputs, rows) = (n..w.rows.min(n + outputs), r..rows.min(r + TILE_ROWS));
            let layout = Layout::of(rows.len(), outputs.len(), w.cols);
            scratch::with(layout.lines(), |lines| self.run(Tile { x, w, y, rows, outputs, layout, lines }));
        });
    }
}

/// How a tile lies in scratch.
#[derive(Clone, Copy)]
struct Layout {
    /// Chunks of columns in all, the ragged one included.
    chunks: usize,
    /// Chunks of columns at a time.
    depth: usize,
    /// Lines of decoded weights, of packed activations, of waiting sums.
    weights: usize,
    inputs: usize,
    sums: usize,
}

impl Layout {
    fn of(rows: usize, outputs: usize, cols: usize) -> Layout {
        let chunks = cols.div_ceil(LANES);
        if rows <= FEW_ROWS {
            return Layout { chunks, depth: chunks, weights: 0, inputs: 0, sums: 0 };
        }
        let blocks = chunks.div_ceil(DEPTH).max(1);
        let depth = chunks.div_ceil(blocks);
        let sums = if blocks > 1 { rows.next_multiple_of(4) * outputs.next_multiple_of(BLOCK_OUTPUTS) } else { 0 };
        Layout { chunks, depth, weights: outputs * depth, inputs: rows * depth, sums }
    }

    fn lines(&self) -> usize {
        self.weights + self.inputs + self.sums
    }
}

/// Some outputs of some rows.
struct Tile<'a> {
    x: &'a View<'a>,
    w: &'a Matrix<'a>,
    y: &'a Target<'a>,
    rows: Range<usize>,
    outputs: Range<usize>,
    layout: Layout,
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

impl<'a> Tile<'a> {
    #[inline(always)]
    fn of<'w, L: Lanes, F: Format<'w>>(self, format: F) {
        match (self.rows.len() <= FEW_ROWS, L::WIDE) {
            (true, true) => self.direct::<L, F, 4>(format),
            (true, false) => self.direct::<L, F, 2>(format),
            (false, true) => self.tiled::<L, F, 4, 4>(format),
            (false, false) => self.tiled::<L, F, 3, 2>(format),
        }
    }

    /// Few rows: N outputs at a time, weights decoded in registers.
    #[inline(always)]
    fn direct<'w, L: Lanes, F: Format<'w>, const N: usize>(self, format: F) {
        let last = self.outputs.end - 1;
        for n in self.outputs.clone().step_by(N) {
            let mut weights = [format.row(n); N];
            for (i, row) in weights.iter_mut().enumerate() {
                *row = format.row(last.min(n + i));
            }
            let count = N.min(self.outputs.end - n);
            match self.rows.len() {
                1 => self.direct_rows::<L, F::Row, 1, N>(0, weights, n, count),
                2 => self.direct_rows::<L, F::Row, 2, N>(0, weights, n, count),
                3 => self.direct_rows::<L, F::Row, 3, N>(0, weights, n, count),
                _ if L::WIDE => self.direct_rows::<L, F::Row, 4, N>(0, weights, n, count),
                _ => {
                    self.direct_rows::<L, F::Row, 2, N>(0, weights, n, count);
                    self.direct_rows::<L, F::Row, 2, N>(2, weights, n, count);
                }
            }
        }
    }

    #[inline(always)]
    fn direct_rows<L: Lanes, W: Row, const R: usize, const N: usize>(&self, first: usize, weights: [W; N], n: usize, count: usize) {
        let mut inputs = [Floats::new(&[]); R];
        for (r, row) in inputs.iter_mut().enumerate() {
            *row = Floats::new(self.x.row(self.rows.start + first + r, self.w.cols));
        }
        let sums = L::sums(dots(inputs, weights, [[L::splat(0.0); N]; R]));
        self.write(first, n, &sums, R, count);
    }

    /// Many rows: R x N sums at a time, from a decoded tile.
    #[inline(always)]
    fn tiled<'w, L: Lanes, F: Format<'w>, const R: usize, const N: usize>(mut self, format: F) {
        let lines = std::mem::take(&mut self.lines);
        let (weights, lines) = lines.split_at_mut(self.layout.weights);
        let (inputs, waiting) = lines.split_at_mut(self.layout.inputs);
        let mut at = 0;
        while at < self.layout.chunks.max(1) {
            let depth = self.layout.depth.min(self.layout.chunks - at);
            let stage = Stage { first: at == 0, last: at + depth == self.layout.chunks, depth };
            for (row, n) in weights.chunks_exact_mut(depth.max(1)).zip(self.outputs.clone()) {
                unpack::<L, F::Row>(format.row(n), at, row);
            }
            for (row, r) in inputs.chunks_exact_mut(depth.max(1)).zip(self.rows.clone()) {
                unpack::<L, Floats>(Floats::new(self.x.row(r, self.w.cols)), at, row);
            }
            self.multiply::<L, R, N>(stage, weights, inputs, waiting);
            at += depth.max(1);
        }
    }

    #[inline(always)]
    fn multiply<L: Lanes, const R: usize, const N: usize>(&self, stage: Stage, weights: &[Line], inputs: &[Line], waiting: &mut [Line]) {
        let rows = self.rows.len();
        for n in (0..self.outputs.len()).step_by(N) {
            for r in (0..rows).step_by(R) {
                // The sums of this block: those of whole rows of blocks lie before it.
                let from = if stage.first && stage.last { 0 } else { n * rows.next_multiple_of(4) + r * N };
                let waiting = &mut waiting[from..];
                match rows - r {
                    1 => self.block::<L, 1, N>(stage, weights, inputs, waiting, n, r),
                    2 => self.block::<L, 2, N>(stage, weights, inputs, waiting, n, r),
                    3 => self.block::<L, 3, N>(stage, weights, inputs, waiting, n, r),
                    _ => self.block::<L, R, N>(stage, weights, inputs, waiting, n, r),
                }
            }
        }
    }

    /// R x N sums: taken up from `waiting`, carried on over the stage's columns, put back or finished.
    #[inline(always)]
    fn block<L: Lanes, const R: usize, const N: usize>(
        &self,
        stage: Stage,
        weights: &[Line],
        inputs: &[Line],
        waiting: &mut [Line],
        n: usize,
        r: usize,
    ) {
        let count = N.min(self.outputs.len() - n);
        let mut w: [&[Line]; N] = [&[]; N];
        for (i, row) in w.iter_mut().enumerate() {
            // Past the tile's end the last row is computed again and dropped.
            *row = &weights[(n + i.min(count - 1)) * stage.depth..][..stage.depth];
        }
        let mut x: [&[Line]; R] = [&[]; R];
        for (i, row) in x.iter_mut().enumerate() {
            *row = &inputs[(r + i) * stage.depth..][..stage.depth];
        }
        let mut sums = [[L::splat(0.0); N]; R];
        if !stage.first {
            for (sum, line) in sums.as_flattened_mut().iter_mut().zip(waiting.iter()) {
                *sum = L::load(&line.0);
            }
        }
        let sums = dots(x, w, sums);
        if stage.last {
            self.write(r, self.outputs.start + n, &L::sums(sums), R, count);
        } else {
            for (sum, line) in sums.as_flattened().iter().zip(waiting) {
                sum.store(&mut line.0);
            }
        }
    }

    /// Writes `count` outputs of each row of a block; r counts from the tile's first row.
    #[inline(always)]
    fn write<const N: usize>(&self, r: usize, n: usize, sums: &[[f32; N]], rows: usize, count: usize) {
        for (i, row) in sums.iter().enumerate().take(rows) {
            // SAFETY: these rows and outputs belong to this tile alone, and rows do not overlap.
            unsafe { self.y.write(self.rows.start + r + i, n, &row[..count]) };
        }
    }
}

/// Which columns of a tile are in scratch.
#[derive(Clone, Copy)]
struct Stage {
    first: bool,
    last: bool,
    depth: usize,
}

/// Chunks `from..from + out.len()` of a row, zeros after its end.
#[inline(always)]
fn unpack<L: Lanes, W: Row>(row: W, from: usize, out: &mut [Line]) {
    let whole = out.len().min(row.whole().saturating_sub(from));
    let (full, rest) = out.split_at_mut(whole);
    for (i, line) in full.iter_mut().enumerate() {
        // SAFETY: from + i < from + whole <= row.whole().
        unsafe { row.chunk::<L>(from + i) }.store(&mut line.0);
    }
    for (i, line) in rest.iter_mut().enumerate() {
        row.checked::<L>(from + whole + i).store(&mut line.0);
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
