//! How can three instruction sets give the same bits?
//!
//! Floating point addition is not associative, so a result is defined by its order. All arithmetic here is written
//! once, over sixteen virtual lanes, and an instruction set only says how sixteen lanes are added, multiplied or
//! fused: sixteen scalars, two registers of eight, one register of sixteen. Every operation is correctly rounded
//! IEEE or a pure bit operation, so lane for lane the results agree. [`Portable`] is the definition.

/// Columns that one step takes; the number of virtual lanes of every sum.
pub(super) const LANES: usize = 16;

/// 1.5 * 2^23: added to a small number it leaves the nearest integer in the low bits of the sum.
pub(super) const ROUND: f32 = 12_582_912.0;

/// Magnitudes of the eight E2M1 codes.
pub(super) const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// A number or sixteen of them: what the functions in `math` need.
pub(super) trait Real: Copy {
    /// The same value everywhere.
    fn splat(value: f32) -> Self;
    /// `self + other`
    fn add(self, other: Self) -> Self;
    /// `self - other`
    fn sub(self, other: Self) -> Self;
    /// `self * other`
    fn mul(self, other: Self) -> Self;
    /// `self / other`
    fn div(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once.
    fn fma(self, factor: Self, addend: Self) -> Self;
    /// `if self > other { self } else { other }`: the second one when either is NaN, or for zeros of two signs.
    fn max(self, other: Self) -> Self;
    /// `if self > bound { yes } else { no }`
    fn above(self, bound: Self, yes: Self, no: Self) -> Self;
    /// The magnitude.
    fn abs(self) -> Self;
    /// The magnitude of `self` with the sign of `other`.
    fn with_sign_of(self, other: Self) -> Self;
    /// `self` is n + [`ROUND`]: two powers of two whose product is 2^n. Two, since 2^n may be subnormal or past the top.
    fn powers(self) -> (Self, Self);
    /// `self` is n + [`ROUND`], -126 <= n <= 127: 2^n.
    fn power(self) -> Self;
}

/// Sixteen lanes of f32, with what loads and sums need beyond [`Real`].
pub(super) trait Lanes: Real {
    /// Whether a block of 6 x 4 sums fits the registers.
    const WIDE: bool;

    fn load(from: &[f32; LANES]) -> Self;
    fn store(self, to: &mut [f32; LANES]);
    /// Sixteen little-endian f32.
    fn load_f32(from: &[u8; 64]) -> Self;
    /// Sixteen little-endian bf16.
    fn load_bf16(from: &[u8; 32]) -> Self;
    /// Sixteen E2M1 codes, the even column in the low half of a byte.
    fn load_e2m1(from: &[u8; 8]) -> Self;
    /// 2^(scale - 127) of sixteen scales, exact: 0 is a subnormal, 255 is NaN.
    fn load_e8m0(from: &[u8; LANES]) -> Self;
    /// Lane c of row r becomes lane r of row c: bits are moved, whatever they mean.
    fn transpose(rows: [Self; LANES]) -> [Self; LANES];
    /// Each lane holds two bf16: those in the low halves, then those in the high ones.
    fn bf16_pairs(self) -> (Self, Self);
    /// Each lane holds eight E2M1 codes: the values of the lowest ones.
    fn e2m1_lowest(self) -> Self;
    /// The bits of each lane moved down by four.
    fn down_four(self) -> Self;
    /// Asks for the cache line at `from`, which may be any address, to come near.
    fn prefetch(from: *const u8);
    /// The fixed tree: l += l+8, l += l+4, l += l+2, l += l+1.
    fn sum(self) -> f32;
    /// The same tree with [`Real::max`].
    fn largest(self) -> f32;

    /// At most sixteen values, the rest filled with `fill`.
    #[inline(always)]
    fn load_part(from: &[f32], fill: f32) -> Self {
        let mut whole = [fill; LANES];
        whole[..from.len()].copy_from_slice(from);
        Self::load(&whole)
    }

    /// The first `to.len()` lanes.
    #[inline(always)]
    fn store_part(self, to: &mut [f32]) {
        let mut whole = [0.0; LANES];
        self.store(&mut whole);
        to.copy_from_slice(&whole[..to.len()]);
    }
}

impl Real for f32 {
    #[inline(always)]
    fn splat(value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn add(self, other: f32) -> f32 {
        self + other
    }
    #[inline(always)]
    fn sub(self, other: f32) -> f32 {
        self - other
    }
    #[inline(always)]
    fn mul(self, other: f32) -> f32 {
        self * other
    }
    #[inline(always)]
    fn div(self, other: f32) -> f32 {
        self / other
    }
    #[inline(always)]
    fn fma(self, factor: f32, addend: f32) -> f32 {
        self.mul_add(factor, addend)
    }
    #[inline(always)]
    fn max(self, other: f32) -> f32 {
        self.above(other, self, other)
    }
    #[inline(always)]
    fn above(self, bound: f32, yes: f32, no: f32) -> f32 {
        if self > bound { yes } else { no }
    }
    #[inline(always)]
    fn abs(self) -> f32 {
        f32::abs(self)
    }
    #[inline(always)]
    fn with_sign_of(self, other: f32) -> f32 {
        self.copysign(other)
    }
    #[inline(always)]
    fn powers(self) -> (f32, f32) {
        // Wrapping: a NaN has no exponent, and whatever comes out is multiplied by that NaN.
        let n = self.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
        let half = n >> 1;
        let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
        (power(half), power(n.wrapping_sub(half)))
    }
    #[inline(always)]
    fn power(self) -> f32 {
        f32::from_bits(self.to_bits().wrapping_add(127) << 23)
    }
}

/// The bits of [`ROUND`] end in zeros, so n + 127 stands where a shift makes it the exponent.
const _: () = assert!(ROUND.to_bits().trailing_zeros() >= 9);

/// Sixteen scalars: the definition that the vector paths must match, and the path of machines without them.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; LANES]);

/// A [`Real`] method of sixteen lanes is that of f32, lane by lane.
macro_rules! lanewise {
    ($($name:ident($($arg:ident),*);)*) => {
        $(#[inline(always)]
        fn $name(self, $($arg: Self),*) -> Self {
            let mut out = self;
            for l in 0..LANES {
                out.0[l] = Real::$name(self.0[l], $($arg.0[l]),*);
            }
            out
        })*
    };
}

impl Real for Portable {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Portable([value; LANES])
    }
    lanewise! {
        add(other); sub(other); mul(other); div(other); fma(factor, addend); max(other);
        above(bound, yes, no); abs(); with_sign_of(other); power();
    }
    #[inline(always)]
    fn powers(self) -> (Self, Self) {
        let mut out = (self, self);
        for l in 0..LANES {
            (out.0.0[l], out.1.0[l]) = self.0[l].powers();
        }
        out
    }
}

impl Portable {
    /// A binary tree over the lanes: sixteen, eight, four, two, one.
    #[inline(always)]
    fn tree(mut self, join: fn(f32, f32) -> f32) -> f32 {
        for half in [8, 4, 2, 1] {
            for l in 0..half {
                self.0[l] = join(self.0[l], self.0[l + half]);
            }
        }
        self.0[0]
    }
}

impl Lanes for Portable {
    const WIDE: bool = false;

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        Portable(*from)
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }
    #[inline(always)]
    fn load_f32(from: &[u8; 64]) -> Self {
        let mut out = [0.0; LANES];
        for (value, bytes) in out.iter_mut().zip(from.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        Portable(out)
    }
    #[inline(always)]
    fn load_bf16(from: &[u8; 32]) -> Self {
        let mut out = [0.0; LANES];
        for (value, bytes) in out.iter_mut().zip(from.as_chunks::<2>().0) {
            *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
        }
        Portable(out)
    }
    #[inline(always)]
    fn load_e2m1(from: &[u8; 8]) -> Self {
        let mut out = [0.0; LANES];
        for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(from) {
            *pair = [e2m1(byte & 15), e2m1(byte >> 4)];
        }
        Portable(out)
    }
    #[inline(always)]
    fn load_e8m0(from: &[u8; LANES]) -> Self {
        Portable(from.map(e8m0))
    }
    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let mut out = rows;
        for (c, out) in out.iter_mut().enumerate() {
            for (r, row) in rows.iter().enumerate() {
                out.0[r] = row.0[c];
            }
        }
        out
    }
    #[inline(always)]
    fn bf16_pairs(self) -> (Self, Self) {
        let low = self.0.map(|v| f32::from_bits(v.to_bits() << 16));
        (Portable(low), Portable(self.0.map(|v| f32::from_bits(v.to_bits() & 0xffff_0000))))
    }
    #[inline(always)]
    fn e2m1_lowest(self) -> Self {
        Portable(self.0.map(|v| e2m1(v.to_bits() as u8 & 15)))
    }
    #[inline(always)]
    fn down_four(self) -> Self {
        Portable(self.0.map(|v| f32::from_bits(v.to_bits() >> 4)))
    }
    #[inline(always)]
    fn prefetch(_: *const u8) {}
    #[inline(always)]
    fn sum(self) -> f32 {
        self.tree(|a, b| a + b)
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        self.tree(Real::max)
    }
}

/// The value of one E2M1 code of four bits.
#[inline(always)]
fn e2m1(code: u8) -> f32 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// 2^(scale - 127), exact: scale 0 is a subnormal, 255 is NaN.
#[inline(always)]
pub(super) fn e8m0(scale: u8) -> f32 {
    match scale {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(scale) << 23),
    }
}
