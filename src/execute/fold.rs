//! Logits, folded slice by slice of the vocabulary, so that a whole row of them exists only where a token is drawn.

use std::ops::Range;

use crate::kernels::{Folded, Kernels, math, spread};

/// What a row's logits are wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantKind {
    /// The most probable next token.
    Greedy,
    /// A token drawn from the whole row.
    Drawn,
    /// The log-probability of a token that is known.
    Given(u32),
}

/// A row of the sweep whose logits matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// Row of the sweep.
    pub row: usize,
    /// Its sequence.
    pub slot: usize,
    /// What for.
    pub kind: WantKind,
}

/// What is known of a row's logits so far.
pub struct Fold {
    /// The row.
    pub want: Want,
    max: f32,
    sum: f32,
    /// The most probable token; the lowest id of equals.
    pub best: u32,
    /// The logit of the token whose log-probability is wanted.
    pub target: Option<f32>,
    /// All logits, where a token is drawn.
    pub logits: Vec<f32>,
}

impl Fold {
    /// Nothing seen yet.
    pub fn new(want: Want, vocab: usize) -> Self {
        let logits = if want.kind == WantKind::Drawn { Vec::with_capacity(vocab) } else { Vec::new() };
        Fold { want, max: f32::NEG_INFINITY, sum: 0.0, best: 0, target: None, logits }
    }

    /// Adds the next slice: a running maximum and a sum scaled to it, in the grid's order.
    fn add(&mut self, kernels: Kernels, range: Range<usize>, logits: &[f32]) {
        let Folded { max, arg, sum } = kernels.fold_logits(logits);
        if range.start == 0 || max > self.max {
            self.best = range.start as u32 + arg;
        }
        let joint = if range.start == 0 || max > self.max { max } else { self.max };
        let old = if range.start == 0 { 0.0 } else { self.sum * math::exp(self.max - joint) };
        self.sum = old + sum * math::exp(max - joint);
        self.max = joint;
        match self.want.kind {
            WantKind::Drawn => self.logits.extend_from_slice(logits),
            WantKind::Given(id) if range.contains(&(id as usize)) => self.target = Some(logits[id as usize - range.start]),
            _ => {}
        }
    }

    /// Whether the row's probabilities are numbers.
    pub fn is_finite(&self) -> bool {
        self.max.is_finite() && self.sum.is_finite() && self.sum > 0.0
    }

    /// Log-probability of `token`: the best one, or the one that `target` is of.
    pub fn logprob(&self, token: u32) -> f32 {
        let logit = if token == self.best { self.max } else { self.target.unwrap_or(f32::NAN) };
        (logit - self.max) - math::ln(self.sum)
    }
}

/// Adds a slice [rows, range] to every row's fold.
pub fn fold(kernels: Kernels, folds: &mut [Fold], range: Range<usize>, logits: &[f32]) {
    let width = range.len();
    let rows: Vec<_> = folds.iter_mut().zip(logits.chunks_exact(width)).collect();
    spread(rows, |(fold, logits)| fold.add(kernels, range.clone(), logits));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits whose largest one lies in a later slice each time, then in an earlier one.
    fn logits(peak: usize) -> Vec<f32> {
        (0..5000).map(|i| (i as f32 * 0.37).sin() * 3.0 + if i == peak { 40.0 } else { i as f32 * 1e-3 }).collect()
    }

    #[test]
    fn slices_fold_to_the_log_softmax_of_the_whole() {
        let kernels = Kernels::detect();
        for (peak, token) in [(0, 4999), (4999, 3), (1500, 1500), (2047, 2048), (9999, 77)] {
            let logits = logits(peak);
            let mut folds = [Fold::new(Want { row: 0, slot: 0, kind: WantKind::Given(token) }, logits.len())];
            for start in (0..logits.len()).step_by(1024) {
                let range = start..logits.len().min(start + 1024);
                fold(kernels, &mut folds, range.clone(), &logits[range]);
            }
            let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
            let expected = f64::from(logits[token as usize]) - sum.ln();
            let got = f64::from(folds[0].logprob(token));
            assert!((got - expected).abs() < 1e-5 * expected.abs().max(1.0), "{peak} {token}: {got} {expected}");
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("logits");
            assert_eq!(folds[0].best as usize, best);
        }
    }

    #[test]
    fn of_equal_logits_the_lowest_id_is_best_and_nan_shows() {
        let mut logits = vec![1.0; 3000];
        let folded = |logits: &[f32]| {
            let mut folds = [Fold::new(Want { row: 0, slot: 0, kind: WantKind::Greedy }, logits.len())];
            for start in (0..logits.len()).step_by(1024) {
                let range = start..logits.len().min(start + 1024);
                fold(Kernels::detect(), &mut folds, range.clone(), &logits[range]);
            }
            (folds[0].best, folds[0].is_finite())
        };
        assert_eq!(folded(&logits), (0, true));
        logits[700..].fill(2.0);
        assert_eq!(folded(&logits), (700, true));
        for at in [0, 1500, 2999] {
            let mut damaged = logits.clone();
            damaged[at] = f32::NAN;
            assert!(!folded(&damaged).1, "NaN at {at}");
        }
    }
}
