//! How do weights that lie row after row become columns of outputs?
//!
//! A product wants its lanes to be sixteen outputs, a checkpoint stores a row of columns for each. Turning numbers would
//! cost a shuffle each; so the packed bytes are turned, sixteen rows of 64 bytes at a time, as squares of 16 x 16 dwords: 64
//! shuffles for 256 numbers of f32, 512 of bf16, 2,048 of MXFP4. What a lane holds is decoded afterwards, where it lies.

use std::ops::Range;

use super::lanes::{LANES, Lanes};
use super::matrix::{BLOCK, Data, Matrix};
use super::scratch::Line;

/// Columns of a tile at most, and of a chain of the order of summation.
pub(super) const RUN: usize = 128;

/// The order of summation in words: products, scores of attention, norms. It is part of an answer's identity.
pub const ORDER: &str = "128-column chains, chained scores, 16 lanes";
const _: () = assert!(RUN == 128 && LANES == 16, "ORDER says otherwise");

/// Columns in the 64 bytes of a row that are turned at once.
const MXFP4_COLUMNS: usize = 128;
const BF16_COLUMNS: usize = 32;
// Whole groups fill a run, so that a ragged end may be decoded past the columns that are used.
const _: () = assert!(RUN.is_multiple_of(MXFP4_COLUMNS) && RUN.is_multiple_of(BF16_COLUMNS) && RUN.is_multiple_of(LANES));

/// Decodes the columns `run` of sixteen rows of weights from `n` on: column `run.start + k` to `out[k][at]`. Past the last
/// row of the matrix that row stands in. Columns past the run may be overwritten; `out` has room for [`RUN`].
#[inline(always)]
pub(super) fn pack<L: Lanes, const N: usize>(w: &Matrix, n: usize, run: Range<usize>, out: &mut [[Line; N]], at: usize) {
    match w.data {
        Data::F32(bytes) => {
            let rows = Rows::new(bytes, w, n, w.cols * 4);
            for (i, group) in groups::<N, LANES>(out, &run) {
                let columns = rows.dwords::<L>((run.start + i) * 4);
                for c in 0..LANES {
                    columns[c].store(&mut group[c][at].0);
                }
            }
        }
        Data::Bf16(bytes) => {
            let rows = Rows::new(bytes, w, n, w.cols * 2);
            for (i, group) in groups::<N, BF16_COLUMNS>(out, &run) {
                let pairs = rows.dwords::<L>((run.start + i) * 2);
                for c in 0..LANES {
                    let (even, odd) = pairs[c].bf16_pairs();
                    even.store(&mut group[2 * c][at].0);
                    odd.store(&mut group[2 * c + 1][at].0);
                }
            }
        }
        Data::Mxfp4 { packed, scales } => {
            let rows = Rows::new(packed, w, n, w.cols / 2);
            let scales = Rows::new(scales, w, n, w.cols / BLOCK);
            for (i, group) in groups::<N, MXFP4_COLUMNS>(out, &run) {
                let codes = rows.dwords::<L>((run.start + i) / 2);
                for b in 0..MXFP4_COLUMNS / BLOCK {
                    if i + b * BLOCK >= run.len() {
                        break;
                    }
                    let scale = L::load_e8m0(&scales.bytes((run.start + i) / BLOCK + b));
                    for d in 0..4 {
                        let mut codes = codes[4 * b + d];
                        for c in 0..8 {
                            codes.e2m1_lowest().mul(scale).store(&mut group[b * BLOCK + 8 * d + c][at].0);
                            codes = codes.down_four();
                        }
                    }
                }
            }
        }
    }
}

/// The groups of C columns that hold the run's, each with its first column's place in the run.
#[inline(always)]
fn groups<'a, const N: usize, const C: usize>(
    out: &'a mut [[Line; N]],
    run: &Range<usize>,
) -> impl Iterator<Item = (usize, &'a mut [[Line; N]; C])> + use<'a, N, C> {
    out.as_chunks_mut::<C>().0.iter_mut().take(run.len().div_ceil(C)).enumerate().map(|(i, group)| (i * C, group))
}

/// Sixteen rows of bytes.
struct Rows<'a> {
    bytes: &'a [u8],
    starts: [usize; LANES],
    /// How far before it is used a line is asked for: as many bytes as a run has.
    ahead: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn new(bytes: &'a [u8], w: &Matrix, n: usize, row_bytes: usize) -> Rows<'a> {
        let mut starts = [0; LANES];
        for (i, start) in starts.iter_mut().enumerate() {
            *start = (n + i).min(w.rows - 1) * row_bytes;
        }
        Rows { bytes, starts, ahead: row_bytes * RUN / w.cols.max(1) }
    }

    /// The 64 bytes from `at` on of each row, turned: lane r of member d is dword d of row r. Past a row's end comes what
    /// lies behind it, past the matrix zeros.
    #[inline(always)]
    fn dwords<L: Lanes>(&self, at: usize) -> [L; LANES] {
        let mut rows = [L::splat(0.0); LANES];
        for (row, start) in rows.iter_mut().zip(self.starts) {
            let bytes = &self.bytes[start + at..];
            L::prefetch(bytes.as_ptr().wrapping_add(self.ahead));
            *row = match bytes.first_chunk() {
                Some(bytes) => L::load_f32(bytes),
                None => L::load_f32(&filled(bytes)),
            };
        }
        L::transpose(rows)
    }

    /// Byte `at` of each row.
    #[inline(always)]
    fn bytes(&self, at: usize) -> [u8; LANES] {
        let mut out = [0; LANES];
        for (byte, start) in out.iter_mut().zip(self.starts) {
            *byte = self.bytes[start + at];
        }
        out
    }
}

/// The matrix ends before 64 bytes do.
#[cold]
fn filled(bytes: &[u8]) -> [u8; 64] {
    let mut whole = [0; 64];
    whole[..bytes.len()].copy_from_slice(bytes);
    whole
}
