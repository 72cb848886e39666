//! The dot product of two vectors that both run along the lanes: a query and a key.
//!
//! Lane l takes columns l, l + 16, ... by fused multiply-add from 0; the caller joins the lanes by the fixed tree of
//! `Lanes::sums`. R x N products at once read R + N vectors for R x N steps.
#![allow(unsafe_code)] // Loads without a bound a step.

use super::lanes::Lanes;
use super::matrix::Row;

/// R x N sums carried on in this order: chunk after chunk into the lanes, a ragged end filled with zeros.
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
