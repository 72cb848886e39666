//! A slice of the vocabulary becomes three numbers: the largest logit, where it stands, and the sum of exponentials.
//!
//! A model of 160 k tokens makes 640 KB of logits a row; folded by slices of a fixed grid they need not be kept.

use super::lanes::{LANES, Lanes};
use super::math::exp_of;
use super::{Kernels, Operation};

/// What a slice of logits comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Folded {
    /// The largest logit.
    pub max: f32,
    /// Its index in the slice, the first one of equals.
    pub arg: u32,
    /// Sum of exp(logit - max). NaN when a logit is NaN.
    pub sum: f32,
}

impl Kernels {
    /// Folds a slice of logits; an empty one gives -inf, 0, 0.
    ///
    /// # Panics
    /// When the slice holds more than 2^32 logits.
    pub fn fold_logits(&self, logits: &[f32]) -> Folded {
        if logits.is_empty() {
            return Folded { max: f32::NEG_INFINITY, arg: 0, sum: 0.0 };
        }
        let most = self.run(Largest(logits));
        let arg = logits.iter().position(|&l| l == most).unwrap_or(0);
        let max = logits[arg];
        Folded { max, arg: u32::try_from(arg).expect("a vocabulary has fewer than 2^32 tokens"), sum: self.run(SumExp { logits, max }) }
    }
}

/// The largest number that is not NaN, -inf when there is none.
struct Largest<'a>(&'a [f32]);

impl Operation for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self) -> f32 {
        let (chunks, tail) = self.0.as_chunks::<LANES>();
        // The new one stands first: when it is NaN, the old one stays.
        let mut most = L::splat(f32::NEG_INFINITY);
        for chunk in chunks {
            most = L::load(chunk).max(most);
        }
        L::load_part(tail, f32::NEG_INFINITY).max(most).largest()
    }
}

struct SumExp<'a> {
    logits: &'a [f32],
    max: f32,
}

impl Operation for SumExp<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self) -> f32 {
        let (chunks, tail) = self.logits.as_chunks::<LANES>();
        let max = L::splat(self.max);
        let mut sum = L::splat(0.0);
        for chunk in chunks {
            sum = sum.add(exp_of(L::load(chunk).sub(max)));
        }
        if !tail.is_empty() {
            // What fills the tail up is as far below as can be: exp gives 0.
            sum = sum.add(exp_of(L::load_part(tail, f32::NEG_INFINITY).sub(max)));
        }
        sum.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{all, noise};

    #[test]
    fn folds_any_length_alike_on_all_paths() {
        for length in [1, 2, 15, 16, 17, 64, 1000] {
            let logits: Vec<f32> = noise(length as u64, length).iter().map(|v| v * 20.0).collect();
            let first = all()[0].fold_logits(&logits);
            let want: f64 = logits.iter().map(|&l| (f64::from(l) - f64::from(first.max)).exp()).sum();
            assert!((f64::from(first.sum) - want).abs() < 1e-5 * want);
            assert!(logits.iter().all(|&l| l <= first.max) && logits[first.arg as usize] == first.max);
            for kernels in all() {
                let got = kernels.fold_logits(&logits);
                assert_eq!((got.max.to_bits(), got.arg, got.sum.to_bits()), (first.max.to_bits(), first.arg, first.sum.to_bits()));
            }
        }
    }

    #[test]
    fn ties_take_the_first_and_nan_shows() {
        for kernels in all() {
            let mut logits = vec![0.0; 40];
            (logits[23], logits[39]) = (7.0, 7.0);
            assert_eq!(kernels.fold_logits(&logits).arg, 23);
            for at in [0, 23, 39] {
                let mut bad = logits.clone();
                bad[at] = f32::NAN;
                let folded = kernels.fold_logits(&bad);
                assert!(folded.sum.is_nan() && folded.max == 7.0, "{folded:?}");
            }
            assert!(kernels.fold_logits(&[f32::NAN; 5]).sum.is_nan());
            assert_eq!(kernels.fold_logits(&[f32::NEG_INFINITY, 1.0]).sum, 1.0);
        }
    }

    #[test]
    fn nothing_folds_to_nothing() {
        assert_eq!(all()[0].fold_logits(&[]).sum, 0.0);
    }
}
