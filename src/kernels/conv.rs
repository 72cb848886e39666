//! A short causal convolution along time, one filter a channel, with SiLU.
//!
//! Lanes are channels; an output is one chain of fused multiply-adds over its taps, oldest input first. The last K - 1
//! inputs are carried in `tail`, so that any cut of the rows gives the same bits.

use super::lanes::{LANES, Lanes};
use super::math::sigmoid_of;
use super::scratch::{self, Line};
use super::{Kernels, Operation, parallel};

impl Kernels {
    /// x, y [T, C]; weight [C, K]; tail [K - 1, C]: the inputs before x, oldest first, replaced by the last K - 1 inputs.
    /// `y = silu(sum over taps of weight * input)`.
    ///
    /// # Panics
    /// When the lengths do not fit these shapes.
    pub fn short_conv_silu(&self, x: &[f32], weight: &[f32], tail: &mut [f32], y: &mut [f32]) {
        let channels = weight.len().saturating_sub(tail.len());
        assert!(channels > 0 && weight.len().is_multiple_of(channels), "short_conv_silu: weight [C, K] and tail [K - 1, C] disagree");
        assert!(x.len() == y.len() && x.len().is_multiple_of(channels), "short_conv_silu: x and y are not [T, C]");
        let taps = weight.len() / channels;
        let operations = x.len() * (16 + 2 * taps);
        scratch::with_shared(taps * channels.div_ceil(LANES), |filters| {
            transpose(weight, taps, filters);
            let (filters, before) = (&*filters, &*tail);
            parallel::pieces(y, channels, operations, |first, y| self.run(Conv { x, before, filters, channels, first, y }));
        });
        let keep = tail.len();
        if x.len() >= keep {
            tail.copy_from_slice(&x[x.len() - keep..]);
        } else {
            tail.copy_within(x.len().., 0);
            tail[keep - x.len()..].copy_from_slice(x);
        }
    }
}

/// weight [C, K] to filters [C / 16, K] lines of sixteen channels.
fn transpose(weight: &[f32], taps: usize, filters: &mut [Line]) {
    for (lines, block) in filters.chunks_exact_mut(taps).zip(weight.chunks(taps * LANES)) {
        for (k, line) in lines.iter_mut().enumerate() {
            line.0 = [0.0; LANES];
            for (value, filter) in line.0.iter_mut().zip(block.chunks_exact(taps)) {
                *value = filter[k];
            }
        }
    }
}

/// Outputs of the tokens from `first` on.
struct Conv<'a> {
    x: &'a [f32],
    before: &'a [f32],
    filters: &'a [Line],
    channels: usize,
    first: usize,
    y: &'a mut [f32],
}

impl Operation for Conv<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let channels = self.channels;
        let taps = self.before.len() / channels + 1;
        for (t, y) in self.y.chunks_exact_mut(channels).enumerate() {
            for (c, (out, filter)) in y.chunks_mut(LANES).zip(self.filters.chunks_exact(taps)).enumerate() {
                let mut sum = L::splat(0.0);
                for (k, weight) in filter.iter().enumerate() {
                    let at = (self.first + t + k) * channels + c * LANES; // in tail and x as one sequence
                    let input = match at.checked_sub(self.before.len()) {
                        Some(at) => &self.x[at..][..out.len()],
                        None => &self.before[at..][..out.len()],
                    };
                    sum = L::load(&weight.0).fma(load::<L>(input), sum);
                }
                let value = sum.mul(sigmoid_of(sum));
                match out.as_mut_array::<LANES>() {
                    Some(out) => value.store(out),
                    None => value.store_part(out),
                }
            }
        }
    }
}

#[inline(always)]
fn load<L: Lanes>(values: &[f32]) -> L {
    match values.as_array::<LANES>() {
        Some(values) => L::load(values),
        None => L::load_part(values, 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::math;
    use super::super::tests::{all, noise, same};

    #[test]
    fn matches_the_sum_and_any_cut_gives_the_same_bits() {
        for (tokens, channels, taps) in [(9, 40, 4), (2, 16, 4), (6, 5, 2), (4, 33, 1)] {
            let (x, weight, before) = (noise(1, tokens * channels), noise(2, channels * taps), noise(3, (taps - 1) * channels));
            let input = [before.clone(), x.clone()].concat();
            for kernels in all() {
                for cut in 0..=tokens {
                    let (mut tail, mut y) = (before.clone(), vec![0.0; x.len()]);
                    let (head, rest) = y.split_at_mut(cut * channels);
                    kernels.short_conv_silu(&x[..cut * channels], &weight, &mut tail, head);
                    kernels.short_conv_silu(&x[cut * channels..], &weight, &mut tail, rest);
                    assert!(same(&tail, &input[tokens * channels..]));
                    for (i, got) in y.iter().enumerate() {
                        let (t, c) = (i / channels, i % channels);
                        let sum = (0..taps).fold(0.0f32, |s, k| weight[c * taps + k].mul_add(input[(t + k) * channels + c], s));
                        assert_eq!(*got, sum * math::sigmoid(sum));
                    }
                }
            }
        }
    }
}
