//! How well has a predictor done?
//!
//! All answers share the popular blocks, and foretelling those groups nothing. So what counts is the correlation of prediction and truth, each
//! about its own mean so far. A job's documents may change on its way, so old rows fade.

use super::super::footprint::Footprint;
use super::mix::Popular;

/// What a row's weight has become a row later.
const FADE: f64 = 0.99;
/// What is believed before a row has ended, and the rows' weight of that belief.
const PRIOR: f64 = 0.2;
const PRIOR_ROWS: f64 = 8.0;

/// A predictor's running score.
#[derive(Debug, Clone)]
pub(super) struct Score {
    /// The mean of what it foretold.
    usual: Popular,
    both: f64,
    guessed: f64,
    used: f64,
    rows: f64,
}

impl Score {
    pub(super) fn new(blocks: u32) -> Self {
        Score { usual: Popular::new(blocks), both: 0.0, guessed: 0.0, used: 0.0, rows: 0.0 }
    }

    /// A row of which `guess` was foretold and which used `answer`; `popular` is the mean of the rows before it.
    pub(super) fn add(&mut self, guess: &Footprint, answer: &Footprint, popular: &Popular) {
        let common = |block| (-self.usual.share(block), -popular.share(block));
        let mut deviations: Vec<(f64, f64)> = (0..popular.blocks()).map(common).collect();
        for (block, share) in guess.iter().filter(|&(block, _)| block < popular.blocks()) {
            deviations[block].0 += f64::from(share);
        }
        for (block, share) in answer.iter().filter(|&(block, _)| block < popular.blocks()) {
            deviations[block].1 += f64::from(share);
        }
        let sum = |f: fn(&(f64, f64)) -> f64| deviations.iter().map(f).sum::<f64>();
        // Without a guess nothing was foretold: a deviation of nothing from the mean.
        let spoke = f64::from(!guess.is_empty());
        self.both = FADE * self.both + spoke * sum(|d| d.0 * d.1);
        self.guessed = FADE * self.guessed + spoke * sum(|d| d.0 * d.0);
        self.used = FADE * self.used + sum(|d| d.1 * d.1);
        self.rows = FADE * self.rows + 1.0;
        if !guess.is_empty() {
            self.usual.add(guess);
        }
    }

    /// In 0 to 1, drawn to a low guess while rows are few.
    pub(super) fn correlation(&self) -> f64 {
        let size = (self.guessed * self.used).sqrt();
        let found = if size > 0.0 { (self.both / size).clamp(0.0, 1.0) } else { 0.0 };
        (found * self.rows + PRIOR * PRIOR_ROWS) / (self.rows + PRIOR_ROWS)
    }
}
