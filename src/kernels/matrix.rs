//! A weight matrix as the checkpoint stores it, and sixteen columns of one of its rows as numbers.
//!
//! Weights stay packed: an expert of 17.5 MB would be 132 MB as f32. A format is nothing but a decoder of sixteen
//! columns; every product is written once over [`Row`] and never knows which format it multiplies.
#![allow(unsafe_code)] // Rows are read without a bounds check a step; the one caller proves the bound once a row.

use std::ops::Range;

use super::lanes::{LANES, Lanes, e8m0};

/// Weights as stored: little-endian, at any alignment.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// [rows, cols], four bytes each.
    F32(&'a [u8]),
    /// [rows, cols], two bytes each.
    Bf16(&'a [u8]),
    /// Blocks of 32 columns that share a scale: E2M1 code times 2^(scale - 127).
    Mxfp4 {
        /// [rows, cols / 2], the even column in the low half of a byte.
        packed: &'a [u8],
        /// [rows, cols / 32], E8M0. 255 is NaN.
        scales: &'a [u8],
    },
}

/// Columns that share one scale.
pub(super) const BLOCK: usize = 32;

/// A row-major matrix [rows, cols].
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Outputs of a product.
    pub rows: usize,
    /// Inputs of a product.
    pub cols: usize,
    /// The weights.
    pub data: Data<'a>,
}

impl<'a> Matrix<'a> {
    /// None when the bytes are not exactly [rows, cols], or MXFP4 columns do not fill whole blocks of 32.
    pub fn new(rows: usize, cols: usize, data: Data<'a>) -> Option<Matrix<'a>> {
        let values = rows.checked_mul(cols)?;
        let fits = match data {
            Data::F32(bytes) => values.checked_mul(4)? == bytes.len(),
            Data::Bf16(bytes) => values.checked_mul(2)? == bytes.len(),
            Data::Mxfp4 { packed, scales } => cols.is_multiple_of(BLOCK) && packed.len() == values / 2 && scales.len() == values / BLOCK,
        };
        fits.then_some(Matrix { rows, cols, data })
    }

    /// Some of the rows.
    ///
    /// # Panics
    /// When the matrix has no such rows.
    pub fn slice(&self, rows: Range<usize>) -> Matrix<'a> {
        let part = |bytes: &'a [u8], row_bytes: usize| &bytes[rows.start * row_bytes..rows.end * row_bytes];
        let data = match self.data {
            Data::F32(bytes) => Data::F32(part(bytes, self.cols * 4)),
            Data::Bf16(bytes) => Data::Bf16(part(bytes, self.cols * 2)),
            Data::Mxfp4 { packed, scales } => Data::Mxfp4 { packed: part(packed, self.cols / 2), scales: part(scales, self.cols / BLOCK) },
        };
        Matrix { rows: rows.len(), cols: self.cols, data }
    }

    /// All values as f32, for vectors and small matrices: `out` is [rows, cols].
    ///
    /// # Panics
    /// When `out` has another length.
    pub fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), self.rows * self.cols, "decode: out is not [rows, cols]");
        match self.data {
            Data::F32(_) => self.decode_as(F32Rows::of(self), out),
            Data::Bf16(_) => self.decode_as(Bf16Rows::of(self), out),
            Data::Mxfp4 { .. } => self.decode_as(Mxfp4Rows::of(self), out),
        }
    }

    fn decode_as<F: Format<'a>>(&self, format: F, out: &mut [f32]) {
        use super::lanes::Portable;
        for (n, row) in out.chunks_exact_mut(self.cols.max(1)).enumerate() {
            let weights = format.row(n);
            let (whole, tail) = row.as_chunks_mut::<LANES>();
            for (i, chunk) in whole.iter_mut().enumerate() {
                weights.checked::<Portable>(i).store(chunk);
            }
            if !tail.is_empty() {
                weights.checked::<Portable>(whole.len()).store_part(tail);
            }
        }
    }
}

/// Whether an MXFP4 tensor has a NaN: a scale of 255.
pub fn mxfp4_has_nan(scales: &[u8]) -> bool {
    // Folded in blocks, so that the compiler uses vectors and a long tensor still stops early.
    scales.chunks(4096).any(|block| block.iter().fold(false, |found, &scale| found | (scale == 255)))
}

/// One row of numbers, read sixteen columns at a time.
pub(super) trait Row: Copy {
    /// Whole chunks of sixteen columns.
    fn whole(self) -> usize;
    /// Columns i * 16 and on.
    ///
    /// # Safety
    /// i < `whole()`
    unsafe fn chunk<L: Lanes>(self, i: usize) -> L;
    /// The columns after the whole chunks, the rest filled with zeros; None when there are none.
    fn tail<L: Lanes>(self) -> Option<L>;

    /// Chunk i; past the whole chunks the tail, or zeros.
    #[inline(always)]
    fn checked<L: Lanes>(self, i: usize) -> L {
        if i < self.whole() {
            // SAFETY: the line above.
            return unsafe { self.chunk(i) };
        }
        self.tail().unwrap_or(L::splat(0.0))
    }
}

/// Rows of one format.
pub(super) trait Format<'a>: Copy {
    type Row: Row + 'a;
    /// # Panics
    /// When there is no row n.
    fn row(self, n: usize) -> Self::Row;
}

/// Activations: f32 as the machine holds them.
#[derive(Clone, Copy)]
pub(super) struct Floats<'a> {
    chunks: &'a [[f32; LANES]],
    tail: &'a [f32],
}

impl<'a> Floats<'a> {
    #[inline(always)]
    pub(super) fn new(values: &'a [f32]) -> Floats<'a> {
        let (chunks, tail) = values.as_chunks();
        Floats { chunks, tail }
    }

    /// Where chunk i lies, or would lie: an address to ask for, not to read.
    #[inline(always)]
    pub(super) fn at(self, i: usize) -> *const [f32; LANES] {
        self.chunks.as_ptr().wrapping_add(i)
    }
}

impl Row for Floats<'_> {
    #[inline(always)]
    fn whole(self) -> usize {
        self.chunks.len()
    }
    #[inline(always)]
    unsafe fn chunk<L: Lanes>(self, i: usize) -> L {
        // SAFETY: the caller's promise.
        L::load(unsafe { self.chunks.get_unchecked(i) })
    }
    #[inline(always)]
    fn tail<L: Lanes>(self) -> Option<L> {
        if self.tail.is_empty() { None } else { Some(L::load_part(self.tail, 0.0)) }
    }
}

/// Rows of `SIZE / 16` bytes a column, and how sixteen columns become lanes.
macro_rules! plain_format {
    ($rows:ident, $row:ident, $variant:ident, $size:literal, $load:ident, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy)]
        pub(super) struct $rows<'a> {
            bytes: &'a [u8],
            row_bytes: usize,
        }

        #[doc = $doc]
        #[derive(Clone, Copy)]
        pub(super) struct $row<'a> {
            chunks: &'a [[u8; $size]],
            tail: &'a [u8],
        }

        impl<'a> $rows<'a> {
            #[inline(always)]
            pub(super) fn of(matrix: &Matrix<'a>) -> Self {
                let Data::$variant(bytes) = matrix.data else { unreachable!("the format was matched") };
                $rows { bytes, row_bytes: matrix.cols * $size / LANES }
            }
        }

        impl<'a> Format<'a> for $rows<'a> {
            type Row = $row<'a>;
            #[inline(always)]
            fn row(self, n: usize) -> $row<'a> {
                let (chunks, tail) = self.bytes[n * self.row_bytes..][..self.row_bytes].as_chunks();
                $row { chunks, tail }
            }
        }

        impl Row for $row<'_> {
            #[inline(always)]
            fn whole(self) -> usize {
                self.chunks.len()
            }
            #[inline(always)]
            unsafe fn chunk<L: Lanes>(self, i: usize) -> L {
                // SAFETY: the caller's promise.
                L::$load(unsafe { self.chunks.get_unchecked(i) })
            }
            #[inline(always)]
            fn tail<L: Lanes>(self) -> Option<L> {
                if self.tail.is_empty() {
                    return None;
                }
                let mut whole = [0; $size];
                whole[..self.tail.len()].copy_from_slice(self.tail);
                Some(L::$load(&whole))
            }
        }
    };
}

plain_format!(F32Rows, F32Row, F32, 64, load_f32, "Stored f32.");
plain_format!(Bf16Rows, Bf16Row, Bf16, 32, load_bf16, "Stored bf16.");

/// Stored MXFP4.
#[derive(Clone, Copy)]
pub(super) struct Mxfp4Rows<'a> {
    packed: &'a [u8],
    scales: &'a [u8],
    blocks: usize,
}

impl<'a> Mxfp4Rows<'a> {
    #[inline(always)]
    pub(super) fn of(matrix: &Matrix<'a>) -> Self {
        let Data::Mxfp4 { packed, scales } = matrix.data else { unreachable!("the format was matched") };
        Mxfp4Rows { packed, scales, blocks: matrix.cols / BLOCK }
    }
}

/// One row: two halves of eight bytes a scale.
#[derive(Clone, Copy)]
pub(super) struct Mxfp4Row<'a> {
    halves: &'a [[u8; 8]],
    scales: &'a [u8],
}

impl<'a> Format<'a> for Mxfp4Rows<'a> {
    type Row = Mxfp4Row<'a>;
    #[inline(always)]
    fn row(self, n: usize) -> Mxfp4Row<'a> {
        let bytes = self.blocks * BLOCK / 2;
        let halves = self.packed[n * bytes..][..bytes].as_chunks().0;
        Mxfp4Row { halves, scales: &self.scales[n * self.blocks..][..self.blocks] }
    }
}

impl Row for Mxfp4Row<'_> {
    #[inline(always)]
    fn whole(self) -> usize {
        self.halves.len()
    }
    #[inline(always)]
    unsafe fn chunk<L: Lanes>(self, i: usize) -> L {
        // SAFETY: the caller's promise; a row holds twice as many halves as scales.
        let (half, scale) = unsafe { (self.halves.get_unchecked(i), self.scales.get_unchecked(i >> 1)) };
        L::load_e2m1(half).mul(L::splat(e8m0(*scale)))
    }
    #[inline(always)]
    fn tail<L: Lanes>(self) -> Option<L> {
        None
    }
}
