//! Norms of rows, and a mix of a row's sources weighted by their normed scores.
//!
//! A sum of squares is a dot product in the common order. The root is IEEE's; its reciprocal is taken once and multiplied.

use super::lanes::{LANES, Lanes};
use super::math::exp;
use super::scratch::{self, Line};
use super::view::View;
use super::{Kernels, Operation, parallel};

/// Rows whose sums run at the same time: one chain alone waits four cycles a step.
const TOGETHER: usize = 4;

/// Sums of products of R pairs of rows of one length, each in the common order.
#[inline(always)]
fn dots<L: Lanes, const R: usize>(a: [&[f32]; R], b: [&[f32]; R]) -> [f32; R] {
    let width = a[0].len();
    let mut chunks: [[&[[f32; LANES]]; 2]; R] = [[&[]; 2]; R];
    for r in 0..R {
        chunks[r] = [&a[r].as_chunks().0[..width / LANES], &b[r].as_chunks().0[..width / LANES]];
    }
    let mut sums = [L::splat(0.0); R];
    let mut i = 0;
    while i < width / LANES {
        for r in 0..R {
            sums[r] = L::load(&chunks[r][0][i]).fma(L::load(&chunks[r][1][i]), sums[r]);
        }
        i += 1;
    }
    let tail = width / LANES * LANES;
    let mut out = [0.0; R];
    for r in 0..R {
        if tail < width {
            sums[r] = L::load_part(&a[r][tail..], 0.0).fma(L::load_part(&b[r][tail..], 0.0), sums[r]);
        }
        out[r] = sums[r].sum();
    }
    out
}

/// The sums of squares of the first [`TOGETHER`] rows; 0 for those that are not there.
#[inline(always)]
fn squares<'a, L: Lanes>(rows: impl Iterator<Item = &'a [f32]>) -> [f32; TOGETHER] {
    let (mut all, mut count): ([&[f32]; TOGETHER], usize) = ([&[]; TOGETHER], 0);
    for (place, row) in all.iter_mut().zip(rows) {
        *place = row;
        count += 1;
    }
    if count == TOGETHER {
        return dots::<L, TOGETHER>(all, all);
    }
    let mut out = [0.0; TOGETHER];
    for r in 0..count {
        [out[r]] = dots::<L, 1>([all[r]], [all[r]]);
    }
    out
}

/// `y = (x * factor) * gain`
#[inline(always)]
fn scale_into<L: Lanes>(x: &[f32], factor: f32, gain: &[f32], y: &mut [f32]) {
    let factor = L::splat(factor);
    let ((xs, x_tail), (gains, gain_tail)) = (x.as_chunks::<LANES>(), gain.as_chunks::<LANES>());
    let (ys, y_tail) = y.as_chunks_mut::<LANES>();
    for ((x, gain), y) in xs.iter().zip(gains).zip(ys) {
        L::load(x).mul(factor).mul(L::load(gain)).store(y);
    }
    if !y_tail.is_empty() {
        L::load_part(x_tail, 0.0).mul(factor).mul(L::load_part(gain_tail, 0.0)).store_part(y_tail);
    }
}

/// Rows from `first` on, normed into y.
struct RmsNorm<'a> {
    x: &'a View<'a>,
    first: usize,
    gain: &'a [f32],
    eps: f32,
    y: &'a mut [f32],
}

impl Operation for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let width = self.gain.len();
        for (i, ys) in self.y.chunks_mut(TOGETHER * width).enumerate() {
            let first = self.first + i * TOGETHER;
            let rows = first..first + ys.len() / width;
            let squares = squares::<L>(rows.clone().map(|r| self.x.row(r, width)));
            for ((r, y), squares) in rows.zip(ys.chunks_exact_mut(width)).zip(squares) {
                let factor = 1.0 / (squares / width as f32 + self.eps).sqrt();
                scale_into::<L>(self.x.row(r, width), factor, self.gain, y);
            }
        }
    }
}

/// Rows of `width`, normed in place.
struct L2Norm<'a> {
    x: &'a mut [f32],
    width: usize,
    eps: f32,
    scale: f32,
}

impl Operation for L2Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let scale = L::splat(self.scale);
        for rows in self.x.chunks_mut(TOGETHER * self.width) {
            let squares = squares::<L>(rows.chunks_exact(self.width));
            for (x, squares) in rows.chunks_exact_mut(self.width).zip(squares) {
                let factor = L::splat(1.0 / (squares + self.eps).sqrt());
                let (xs, tail) = x.as_chunks_mut::<LANES>();
                for x in xs {
                    L::load(x).mul(factor).mul(scale).store(x);
                }
                if !tail.is_empty() {
                    L::load_part(tail, 0.0).mul(factor).mul(scale).store_part(tail);
                }
            }
        }
    }
}

/// Rows from `first` on, each a mix of its sources.
struct ResidualMix<'a> {
    sources: usize,
    x: &'a View<'a>,
    first: usize,
    width: usize,
    weight: &'a [f32],
    eps: f32,
    /// Scores of one row, sixteen a line; then their exponentials.
    scores: &'a mut [Line],
    out: &'a mut [f32],
}

impl Operation for ResidualMix<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let width = self.width;
        for (r, out) in self.out.chunks_exact_mut(width).enumerate() {
            let row = self.x.row(self.first + r, self.sources * width);
            let mut most = f32::NEG_INFINITY;
            for (s, x) in row.chunks_exact(width).enumerate() {
                let [squares, product] = dots::<L, 2>([x, x], [x, self.weight]);
                let length = (squares / width as f32 + self.eps).sqrt();
                let score = product * (1.0 / length);
                self.scores[s / LANES].0[s % LANES] = score;
                most = if score > most { score } else { most };
            }
            let mut total = 0.0;
            for s in 0..self.sources {
                let score = &mut self.scores[s / LANES].0[s % LANES];
                *score = exp(*score - most);
                total += *score;
            }
            out.fill(0.0);
            for (s, x) in row.chunks_exact(width).enumerate() {
                add_scaled::<L>(out, x, self.scores[s / LANES].0[s % LANES] / total);
            }
        }
    }
}

/// `y = scale * x + y`, rounded once.
#[inline(always)]
fn add_scaled<L: Lanes>(y: &mut [f32], x: &[f32], scale: f32) {
    let scale = L::splat(scale);
    let ((xs, x_tail), (ys, y_tail)) = (x.as_chunks::<LANES>(), y.as_chunks_mut::<LANES>());
    for (x, y) in xs.iter().zip(ys) {
        scale.fma(L::load(x), L::load(y)).store(y);
    }
    if !y_tail.is_empty() {
        scale.fma(L::load_part(x_tail, 0.0), L::load_part(y_tail, 0.0)).store_part(y_tail);
    }
}

impl Kernels {
    /// `y = x * (1 / sqrt(mean of x^2 + eps)) * gain`, row by row; y [rows, width], width = gain.len().
    ///
    /// # Panics
    /// When y is not whole rows or x is shorter.
    pub fn rms_norm(&self, x: View, gain: &[f32], eps: f32, y: &mut [f32]) {
        let width = gain.len();
        assert!(width > 0 && y.len().is_multiple_of(width), "rms_norm: y is not [rows, width]");
        let operations = y.len() * 4;
        parallel::pieces(y, width, operations, |first, y| self.run(RmsNorm { x: &x, first, gain, eps, y }));
    }

    /// `x = x * (1 / sqrt(sum of x^2 + eps)) * scale`, for each row of `width`.
    ///
    /// # Panics
    /// When x is not whole rows.
    pub fn l2_norm(&self, x: &mut [f32], width: usize, eps: f32, scale: f32) {
        assert!(width > 0 && x.len().is_multiple_of(width), "l2_norm: x is not [rows, width]");
        let operations = x.len() * 4;
        parallel::pieces(x, width, operations, |_, x| self.run(L2Norm { x, width, eps, scale }));
    }

    /// Row r of x holds `sources` vectors of `width` back to back; out row r is their sum, weighted by the softmax of
    /// `dot(x_s, weight) * (1 / sqrt(mean of x_s^2 + eps))`. out [rows, width].
    ///
    /// # Panics
    /// When out is not whole rows, x is shorter, or weight is not `[width]`.
    pub fn residual_mix(&self, sources: usize, x: View, width: usize, weight: &[f32], eps: f32, out: &mut [f32]) {
        assert!(width > 0 && weight.len() == width && out.len().is_multiple_of(width), "residual_mix: out is not [rows, width]");
        let operations = out.len() * sources * 12;
        parallel::pieces(out, width, operations, |first, out| {
            scratch::with(sources.div_ceil(LANES), |scores| {
                self.run(ResidualMix { sources, x: &x, first, width, weight, eps, scores, out });
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{all, noise, same};
    use super::*;

    #[test]
    fn rms_norm_is_close_and_equal_on_all_paths() {
        for width in [1, 15, 16, 100, 512, 7168] {
            let (x, gain) = (noise(1, 7 * (width + 5)), noise(2, width));
            let view = View { data: &x, start: 2, stride: width + 5 };
            let mut first: Option<Vec<f32>> = None;
            for kernels in all() {
                let mut y = vec![0.0; 6 * width];
                kernels.rms_norm(view, &gain, 1e-5, &mut y);
                for (i, &y) in y.iter().enumerate() {
                    let row = view.row(i / width, width);
                    let mean = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / width as f64;
                    let want = f64::from(row[i % width]) / (mean + 1e-5).sqrt() * f64::from(gain[i % width]);
                    assert!((f64::from(y) - want).abs() <= 1e-6 * want.abs().max(1.0));
                }
                let mut alone = vec![0.0; width];
                for (r, y) in y.chunks(width).enumerate() {
                    kernels.rms_norm(View { start: view.start + r * view.stride, ..view }, &gain, 1e-5, &mut alone);
                    assert!(same(&alone, y), "row {r} alone");
                }
                assert!(same(first.get_or_insert(y.clone()), &y));
            }
        }
    }

    #[test]
    fn l2_norm_makes_unit_rows() {
        for width in [3, 16, 128, 130] {
            let mut first: Option<Vec<f32>> = None;
            for kernels in all() {
                let (mut x, mut alone) = (noise(3, 7 * width), noise(3, 7 * width));
                kernels.l2_norm(&mut x, width, 0.0, 0.5);
                alone.chunks_mut(width).for_each(|row| kernels.l2_norm(row, width, 0.0, 0.5));
                assert!(same(&alone, &x), "rows alone");
                for row in x.chunks(width) {
                    let length = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
                    assert!((length - 0.5).abs() < 1e-6);
                }
                assert!(same(first.get_or_insert(x.clone()), &x));
            }
        }
    }

    #[test]
    fn residual_mix_is_the_softmax_of_scores() {
        for (sources, width) in [(1, 7), (3, 64), (8, 130)] {
            let (x, weight) = (noise(4, 2 * sources * width), noise(5, width));
            let mut first: Option<Vec<f32>> = None;
            for kernels in all() {
                let mut out = vec![9.0; 2 * width];
                kernels.residual_mix(sources, View::rows(&x, sources * width), width, &weight, 1e-6, &mut out);
                for r in 0..2 {
                    let want = mixed(&x[r * sources * width..][..sources * width], &weight);
                    for (got, want) in out[r * width..][..width].iter().zip(want) {
                        assert!((f64::from(*got) - want).abs() < 1e-5);
                    }
                }
                let mut row = vec![0.0; width];
                let second = View { data: &x, start: sources * width, stride: 0 };
                kernels.residual_mix(sources, second, width, &weight, 1e-6, &mut row);
                assert!(same(&row, &out[width..]), "a row alone");
                assert!(same(first.get_or_insert(out.clone()), &out));
            }
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let (rows, width) = (2_003, 144);
        let (x, gain) = (noise(6, rows * 2 * width), noise(7, width));
        let kernels = Kernels::detect();
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            let [mut normed, mut mix] = [vec![0.0; rows * width], vec![0.0; rows * width]];
            let mut unit = x.clone();
            pool.install(|| {
                kernels.rms_norm(View { data: &x, start: 0, stride: 2 * width }, &gain, 1e-5, &mut normed);
                kernels.residual_mix(2, View::rows(&x, 2 * width), width, &gain, 1e-5, &mut mix);
                kernels.l2_norm(&mut unit, width, 1e-6, 0.5);
            });
            [normed, mix, unit].concat()
        };
        assert!(same(&run(1), &run(3)));
    }

    fn mixed(row: &[f32], weight: &[f32]) -> Vec<f64> {
        let width = weight.len();
        let score = |x: &[f32]| {
            let dot: f64 = x.iter().zip(weight).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / width as f64;
            (dot / (mean + 1e-6).sqrt()).exp()
        };
        let total: f64 = row.chunks(width).map(score).sum();
        let mut out = vec![0.0; width];
        for x in row.chunks(width) {
            for (o, &v) in out.iter_mut().zip(x) {
                *o += score(x) / total * f64::from(v);
            }
        }
        out
    }
}
