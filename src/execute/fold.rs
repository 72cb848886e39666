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
    /// Nothing: the sequence ends with its prompt.
    Nothing,
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
