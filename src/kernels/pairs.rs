//! What do the two products of attention have in common, and what lies between them?
//!
//! In both some (row, head) pairs meet one tile: queries that of turned keys, probabilities that of values. Six pairs at a
//! time run the inner loop of `matmul`. Near the diagonal a later row has more positions than an earlier one; those few are
//! added one pair at a time, since a zero times what a row must not see need not be zero.

use std::ops::Range;

use super::lanes::{LANES, Lanes};
use super::math::weight_of;
use super::matmul::chains;
use super::scratch::Line;

/// Where the inputs of a product lie, pair by pair; a later pair has as many or more.
pub(super) trait Inputs {
    /// The inputs of one pair, in the tile's order.
    fn of(&self, pair: usize) -> &[f32];
}

/// Carries on the chains of some pairs over all their inputs; pair p's N sums are lines `p * stride` and on.
#[inline(always)]
pub(super) fn carry<L: Lanes, const N: usize>(
    inputs: &impl Inputs,
    pairs: Range<usize>,
    tile: &[[Line; N]],
    sums: &mut [Line],
    stride: usize,
) {
    let mut p = pairs.start;
    while p < pairs.end {
        p += match pairs.end - p {
            1 => group::<L, 1, N>(inputs, p, tile, sums, stride),
            2 => group::<L, 2, N>(inputs, p, tile, sums, stride),
            3 => group::<L, 3, N>(inputs, p, tile, sums, stride),
            4 => group::<L, 4, N>(inputs, p, tile, sums, stride),
            5 => group::<L, 5, N>(inputs, p, tile, sums, stride),
            _ => group::<L, 6, N>(inputs, p, tile, sums, stride),
        };
    }
}

/// R pairs together as far as the first one's inputs go, then the few that a later row has more. Returns R.
#[inline(always)]
fn group<L: Lanes, const R: usize, const N: usize>(
    inputs: &impl Inputs,
    p: usize,
    tile: &[[Line; N]],
    sums: &mut [Line],
    stride: usize,
) -> usize {
    let mut x: [&[f32]; R] = [&[]; R];
    let mut carried = [[L::splat(0.0); N]; R];
    for i in 0..R {
        x[i] = inputs.of(p + i);
        let lines = &sums[(p + i) * stride..][..N];
        for n in 0..N {
            carried[i][n] = L::load(&lines[n].0);
        }
    }
    let shared = x[0].len();
    let carried = chains::<L, R, N>(x, &tile[..shared], carried);
    for i in 0..R {
        let lines = &mut sums[(p + i) * stride..][..N];
        for n in 0..N {
            carried[i][n].store(&mut lines[n].0);
        }
        for (x, row) in x[i][shared..].iter().zip(&tile[shared..]) {
            for n in 0..N {
                L::splat(*x).fma(L::load(&row[n].0), L::load(&lines[n].0)).store(&mut lines[n].0);
            }
        }
    }
    R
}

/// The first `count` of a block's products become exp(scale * product - max), 0 below e^-64, the rest of the last line 0.
/// Returns the largest score, `old` included, and the sum.
#[inline(always)]
pub(super) fn exponentials<L: Lanes>(lines: &mut [Line], count: usize, scale: f32, old: f32) -> (f32, f32) {
    let mut most = L::splat(f32::NEG_INFINITY);
    for (c, line) in lines.iter_mut().enumerate() {
        let mut score = L::load(&line.0).mul(L::splat(scale));
        if count < (c + 1) * LANES {
            let seen = L::splat((count - c * LANES) as f32);
            score = seen.above(L::load(&PLACES), score, L::splat(f32::NEG_INFINITY));
        }
        score.store(&mut line.0);
        most = most.max(score);
    }
    let block = most.largest();
    let next = if block > old { block } else { old };
    let mut sum = L::splat(0.0);
    for line in lines {
        let p = weight_of(L::load(&line.0).sub(L::splat(next)));
        p.store(&mut line.0);
        sum = sum.add(p);
    }
    (next, sum.sum())
}

/// The lanes' own numbers.
const PLACES: [f32; LANES] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
