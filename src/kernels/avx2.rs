//! Sixteen lanes as two registers of eight: AVX2 with FMA.
#![allow(unsafe_code)] // Every instruction of the set is an unsafe call outside a function that enables it.

use std::arch::x86_64::*;

use super::lanes::{E2M1, LANES, Lanes, ROUND, Real};

/// Lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256, __m256);

/// An instruction of the set.
macro_rules! set {
    ($call:expr) => {{
        // SAFETY: `Kernels::run` alone names this type, in an arm that is reached only when the machine has AVX2
        // and FMA; pointers come from arrays of exactly the size that is read or written, at any alignment.
        unsafe { $call }
    }};
}

/// The same instruction on both halves.
macro_rules! both {
    ($name:ident($($arg:expr),*)) => { set!(Avx2($name($($arg.0),*), $name($($arg.1),*))) };
}

#[inline(always)]
fn sign() -> Avx2 {
    Avx2::splat(-0.0)
}

/// 2^n for each integer n.
#[inline(always)]
fn power(n: __m256i) -> __m256 {
    set!(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127)))))
}

#[inline(always)]
fn half_powers(t: __m256) -> (__m256, __m256) {
    let n = set!(_mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(ROUND.to_bits() as i32)));
    let half = set!(_mm256_srai_epi32::<1>(n));
    (power(half), power(set!(_mm256_sub_epi32(n, half))))
}

#[inline(always)]
fn choose(a: __m256, bound: __m256, yes: __m256, no: __m256) -> __m256 {
    set!(_mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_GT_OQ>(a, bound)))
}

impl Real for Avx2 {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        let all = set!(_mm256_set1_ps(value));
        Avx2(all, all)
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        both!(_mm256_add_ps(self, other))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        both!(_mm256_sub_ps(self, other))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        both!(_mm256_mul_ps(self, other))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        both!(_mm256_div_ps(self, other))
    }
    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        both!(_mm256_fmadd_ps(self, factor, addend))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // The instruction gives its second operand when the first is not greater, as the definition does.
        both!(_mm256_max_ps(self, other))
    }
    #[inline(always)]
    fn above(self, bound: Self, yes: Self, no: Self) -> Self {
        Avx2(choose(self.0, bound.0, yes.0, no.0), choose(self.1, bound.1, yes.1, no.1))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        both!(_mm256_andnot_ps(sign(), self))
    }
    #[inline(always)]
    fn with_sign_of(self, other: Self) -> Self {
        let (magnitude, sign) = (self.abs(), both!(_mm256_and_ps(sign(), other)));
        both!(_mm256_or_ps(magnitude, sign))
    }
    #[inline(always)]
    fn powers(self) -> (Self, Self) {
        let (low, high) = (half_powers(self.0), half_powers(self.1));
        (Avx2(low.0, high.0), Avx2(low.1, high.1))
    }
    #[inline(always)]
    fn power(self) -> Self {
        Avx2(power(set!(_mm256_castps_si256(self.0))), power(set!(_mm256_castps_si256(self.1))))
    }
}

/// Eight bf16 to f32.
#[inline(always)]
fn widen(bf16: __m128i) -> __m256 {
    set!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bf16))))
}

/// The E2M1 codes in the lowest bits of eight lanes to f32: the table looks at three bits, the fourth becomes the sign.
#[inline(always)]
fn decode(codes: __m256i) -> __m256 {
    let magnitude = set!(_mm256_permutevar8x32_ps(_mm256_loadu_ps(E2M1.as_ptr()), codes));
    let sign = set!(_mm256_slli_epi32::<28>(_mm256_and_si256(codes, _mm256_set1_epi32(8))));
    set!(_mm256_or_ps(magnitude, _mm256_castsi256_ps(sign)))
}

/// Eight E8M0 scales, one a byte, to f32. Both 0 (2^-127, a subnormal) and 255 (NaN) have the mantissa's highest bit.
#[inline(always)]
fn scales(bytes: __m128i) -> __m256 {
    set!({
        let scales = _mm256_cvtepu8_epi32(bytes);
        let low = _mm256_cmpeq_epi32(scales, _mm256_setzero_si256());
        let odd = _mm256_or_si256(low, _mm256_cmpeq_epi32(scales, _mm256_set1_epi32(255)));
        let mantissa = _mm256_and_si256(odd, _mm256_set1_epi32(1 << 22));
        _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32::<23>(scales), mantissa))
    })
}

/// Columns 4h to 4h + 3 of four rows: half h of the result's member c is column 4h + c.
#[inline(always)]
fn columns(rows: [__m256; 4]) -> [__m256; 4] {
    set!({
        let (low, high) = (_mm256_unpacklo_ps(rows[0], rows[1]), _mm256_unpackhi_ps(rows[0], rows[1]));
        let (low2, high2) = (_mm256_unpacklo_ps(rows[2], rows[3]), _mm256_unpackhi_ps(rows[2], rows[3]));
        let first = [_mm256_shuffle_ps::<0x44>(low, low2), _mm256_shuffle_ps::<0xee>(low, low2)];
        let last = [_mm256_shuffle_ps::<0x44>(high, high2), _mm256_shuffle_ps::<0xee>(high, high2)];
        [first[0], first[1], last[0], last[1]]
    })
}

/// Lane c of row r becomes lane r of row c.
#[inline(always)]
fn transpose(rows: [__m256; 8]) -> [__m256; 8] {
    let top = columns([rows[0], rows[1], rows[2], rows[3]]);
    let bottom = columns([rows[4], rows[5], rows[6], rows[7]]);
    let mut out = rows;
    for c in 0..4 {
        out[c] = set!(_mm256_permute2f128_ps::<0x20>(top[c], bottom[c]));
        out[c + 4] = set!(_mm256_permute2f128_ps::<0x31>(top[c], bottom[c]));
    }
    out
}

impl Lanes for Avx2 {
    const WIDE: bool = false;

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        let at = from.as_ptr();
        set!(Avx2(_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))))
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        let at = to.as_mut_ptr();
        set!({
            _mm256_storeu_ps(at, self.0);
            _mm256_storeu_ps(at.add(8), self.1);
        });
    }
    #[inline(always)]
    fn load_f32(from: &[u8; 64]) -> Self {
        let at = from.as_ptr().cast::<f32>();
        set!(Avx2(_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))))
    }
    #[inline(always)]
    fn load_bf16(from: &[u8; 32]) -> Self {
        let at = from.as_ptr().cast::<__m128i>();
        set!(Avx2(widen(_mm_loadu_si128(at)), widen(_mm_loadu_si128(at.add(1)))))
    }
    #[inline(always)]
    fn load_e2m1(from: &[u8; 8]) -> Self {
        let bytes = set!(_mm_cvtsi64_si128(i64::from_le_bytes(*from)));
        let nibble = set!(_mm_set1_epi8(15));
        let even = set!(_mm_and_si128(bytes, nibble));
        let odd = set!(_mm_and_si128(_mm_srli_epi16::<4>(bytes), nibble));
        let codes = set!(_mm_unpacklo_epi8(even, odd));
        let high = set!(_mm_srli_si128::<8>(codes));
        Avx2(decode(set!(_mm256_cvtepu8_epi32(codes))), decode(set!(_mm256_cvtepu8_epi32(high))))
    }
    #[inline(always)]
    fn load_e8m0(from: &[u8; LANES]) -> Self {
        let at = from.as_ptr();
        Avx2(scales(set!(_mm_loadu_si64(at))), scales(set!(_mm_loadu_si64(at.add(8)))))
    }
    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let (mut left, mut right) = ([[rows[0].0; 8]; 2], [[rows[0].1; 8]; 2]);
        for r in 0..LANES {
            (left[r / 8][r % 8], right[r / 8][r % 8]) = (rows[r].0, rows[r].1);
        }
        // Not by `map`, which would call a function compiled without the set.
        let (left, right) = ([transpose(left[0]), transpose(left[1])], [transpose(right[0]), transpose(right[1])]);
        let mut out = rows;
        for c in 0..8 {
            out[c] = Avx2(left[0][c], left[1][c]);
            out[c + 8] = Avx2(right[0][c], right[1][c]);
        }
        out
    }
    #[inline(always)]
    fn bf16_pairs(self) -> (Self, Self) {
        let low = |v: __m256| set!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(v))));
        let high = set!(_mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000_u32 as i32)));
        (Avx2(low(self.0), low(self.1)), Avx2(set!(_mm256_and_ps(self.0, high)), set!(_mm256_and_ps(self.1, high))))
    }
    #[inline(always)]
    fn e2m1_lowest(self) -> Self {
        Avx2(decode(set!(_mm256_castps_si256(self.0))), decode(set!(_mm256_castps_si256(self.1))))
    }
    #[inline(always)]
    fn down_four(self) -> Self {
        let down = |v: __m256| set!(_mm256_castsi256_ps(_mm256_srli_epi32::<4>(_mm256_castps_si256(v))));
        Avx2(down(self.0), down(self.1))
    }
    #[inline(always)]
    fn prefetch(from: *const u8) {
        set!(_mm_prefetch::<_MM_HINT_T1>(from.cast()));
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        set!({
            let eight = _mm256_add_ps(self.0, self.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        set!({
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }
}
