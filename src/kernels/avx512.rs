//! Sixteen lanes as one register: AVX-512 (F, BW, DQ, VL).
#![allow(unsafe_code)] // Every instruction of the set is an unsafe call outside a function that enables it.

use std::arch::x86_64::*;

use super::lanes::{E2M1, LANES, Lanes, ROUND, Real};

/// Sixteen lanes.
#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512);

/// An instruction of the set.
macro_rules! set {
    ($call:expr) => {{
        // SAFETY: `Kernels::run` alone names this type, in an arm that is reached only when the machine has the
        // set; pointers come from arrays of exactly the size that is read or written, at any alignment.
        unsafe { $call }
    }};
}

/// The sixteen E2M1 values, in order of their codes.
const VALUES: [f32; LANES] = {
    let mut values = [0.0; LANES];
    let mut code = 0;
    while code < 8 {
        values[code] = E2M1[code];
        values[code + 8] = -E2M1[code];
        code += 1;
    }
    values
};

/// 2^n for each integer n.
#[inline(always)]
fn power(n: __m512i) -> Avx512 {
    set!(Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(n, _mm512_set1_epi32(127))))))
}

impl Real for Avx512 {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        set!(Avx512(_mm512_set1_ps(value)))
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        set!(Avx512(_mm512_add_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        set!(Avx512(_mm512_sub_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        set!(Avx512(_mm512_mul_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        set!(Avx512(_mm512_div_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        set!(Avx512(_mm512_fmadd_ps(self.0, factor.0, addend.0)))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // The instruction gives its second operand when the first is not greater, as the definition does.
        set!(Avx512(_mm512_max_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn above(self, bound: Self, yes: Self, no: Self) -> Self {
        set!(Avx512(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, bound.0), no.0, yes.0)))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        set!(Avx512(_mm512_andnot_ps(_mm512_set1_ps(-0.0), self.0)))
    }
    #[inline(always)]
    fn with_sign_of(self, other: Self) -> Self {
        set!(Avx512(_mm512_or_ps(self.abs().0, _mm512_and_ps(_mm512_set1_ps(-0.0), other.0))))
    }
    #[inline(always)]
    fn powers(self) -> (Self, Self) {
        let n = set!(_mm512_sub_epi32(_mm512_castps_si512(self.0), _mm512_set1_epi32(ROUND.to_bits() as i32)));
        let half = set!(_mm512_srai_epi32::<1>(n));
        (power(half), power(set!(_mm512_sub_epi32(n, half))))
    }
    #[inline(always)]
    fn power(self) -> Self {
        power(set!(_mm512_castps_si512(self.0)))
    }
}

/// Columns 4q to 4q + 3 of four rows: quarter q of the result's member c is column 4q + c.
#[inline(always)]
fn columns(rows: &[Avx512]) -> [__m512; 4] {
    set!({
        let (low, high) = (_mm512_unpacklo_ps(rows[0].0, rows[1].0), _mm512_unpackhi_ps(rows[0].0, rows[1].0));
        let (low2, high2) = (_mm512_unpacklo_ps(rows[2].0, rows[3].0), _mm512_unpackhi_ps(rows[2].0, rows[3].0));
        let first = [_mm512_shuffle_ps::<0x44>(low, low2), _mm512_shuffle_ps::<0xee>(low, low2)];
        let last = [_mm512_shuffle_ps::<0x44>(high, high2), _mm512_shuffle_ps::<0xee>(high, high2)];
        [first[0], first[1], last[0], last[1]]
    })
}

/// The even quarters of two registers, then the odd ones.
#[inline(always)]
fn quarters(a: __m512, b: __m512) -> (__m512, __m512) {
    set!((_mm512_shuffle_f32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b)))
}

impl Lanes for Avx512 {
    const WIDE: bool = true;

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        set!(Avx512(_mm512_loadu_ps(from.as_ptr())))
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        set!(_mm512_storeu_ps(to.as_mut_ptr(), self.0));
    }
    #[inline(always)]
    fn load_f32(from: &[u8; 64]) -> Self {
        set!(Avx512(_mm512_loadu_ps(from.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_bf16(from: &[u8; 32]) -> Self {
        let words = set!(_mm256_loadu_si256(from.as_ptr().cast()));
        set!(Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(words)))))
    }
    #[inline(always)]
    fn load_e2m1(from: &[u8; 8]) -> Self {
        let bytes = set!(_mm_cvtsi64_si128(i64::from_le_bytes(*from)));
        // The table looks at the low four bits of an index, so the even codes need no mask.
        let codes = set!(_mm_unpacklo_epi8(bytes, _mm_srli_epi16::<4>(bytes)));
        set!(Avx512(_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), _mm512_loadu_ps(VALUES.as_ptr()))))
    }
    #[inline(always)]
    fn load_e8m0(from: &[u8; LANES]) -> Self {
        let scales = set!(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast())));
        // Both 0 (2^-127, a subnormal) and 255 (NaN) have the mantissa's highest bit.
        let next = set!(_mm512_add_epi32(scales, _mm512_set1_epi32(1)));
        let odd = set!(_mm512_testn_epi32_mask(next, _mm512_set1_epi32(254)));
        let bits = set!(_mm512_slli_epi32::<23>(scales));
        set!(Avx512(_mm512_castsi512_ps(_mm512_mask_or_epi32(bits, odd, bits, _mm512_set1_epi32(1 << 22)))))
    }
    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let fours = [columns(&rows[0..4]), columns(&rows[4..8]), columns(&rows[8..12]), columns(&rows[12..16])];
        let mut out = rows;
        for c in 0..4 {
            let (top_even, top_odd) = quarters(fours[0][c], fours[1][c]);
            let (bottom_even, bottom_odd) = quarters(fours[2][c], fours[3][c]);
            let (first, third) = quarters(top_even, bottom_even);
            let (second, fourth) = quarters(top_odd, bottom_odd);
            for (q, quarter) in [first, second, third, fourth].into_iter().enumerate() {
                out[4 * q + c] = Avx512(quarter);
            }
        }
        out
    }
    #[inline(always)]
    fn bf16_pairs(self) -> (Self, Self) {
        let both = set!(_mm512_castps_si512(self.0));
        let low = set!(Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both))));
        let high = set!(_mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32)));
        (low, set!(Avx512(_mm512_castsi512_ps(high))))
    }
    #[inline(always)]
    fn e2m1_lowest(self) -> Self {
        // The table looks at the low four bits of an index.
        set!(Avx512(_mm512_permutexvar_ps(_mm512_castps_si512(self.0), _mm512_loadu_ps(VALUES.as_ptr()))))
    }
    #[inline(always)]
    fn down_four(self) -> Self {
        set!(Avx512(_mm512_castsi512_ps(_mm512_srli_epi32::<4>(_mm512_castps_si512(self.0)))))
    }
    #[inline(always)]
    fn prefetch(from: *const u8) {
        set!(_mm_prefetch::<_MM_HINT_T1>(from.cast()));
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        set!({
            let eight = _mm256_add_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        set!({
            let eight = _mm256_max_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }
}
