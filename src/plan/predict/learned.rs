//! What answers to like prompts used, together with what the prompt itself used.
//!
//! The regression alone says what an answer uses on average; that two requests are like each other in ways it does not foresee shows in what
//! their prompts used. Of that the less is taken, the more rows have finished.

use super::super::footprint::Footprint;
use super::mix::{cut, dense};
use super::prefill::Prefill;
use super::regress::Regression;
use super::{Known, Predict, Size};

/// The prompt's weight beside the regression's is `PROMPT + PROMPT_ROWS / rows`.
const PROMPT: f32 = 0.1;
const PROMPT_ROWS: f32 = 15.0;

/// The regression, with or without the prompt's own use.
#[derive(Debug, Clone)]
pub(super) struct Learned {
    regression: Regression,
    size: Size,
    /// Looks at first layers only, so that the prompt's own use says nothing of the others.
    probe: bool,
}

impl Learned {
    pub(super) fn new(size: Size) -> Self {
        Learned { regression: Regression::new(size, size.blocks), size, probe: false }
    }

    /// One that looks at blocks below `looked` of prompts.
    pub(super) fn of_first(size: Size, looked: u32) -> Self {
        Learned { regression: Regression::new(size, looked.min(size.blocks)), size, probe: true }
    }
}

impl Predict for Learned {
    fn name(&self) -> &'static str {
        if self.probe { "probe" } else { "learned" }
    }

    fn predict(&self, known: &Known<'_>) -> Footprint {
        let Some(prompt) = known.prompt else { return Footprint::default() };
        let Some(mut shares) = self.regression.predict(prompt) else {
            return if self.probe { cut(&prompt.all, self.size.most) } else { Prefill::of(prompt, self.size.most) };
        };
        if !self.probe {
            let weight = PROMPT + PROMPT_ROWS / self.regression.fitted() as f32;
            shares.iter_mut().for_each(|share| *share /= 1.0 + weight);
            for (block, share) in Prefill::of(prompt, usize::MAX).iter().filter(|&(block, _)| block < self.size.blocks as usize) {
                shares[block] += weight / (1.0 + weight) * share;
            }
        }
        dense(&shares, self.size.most)
    }

    fn learn(&mut self, known: &Known<'_>, answer: &Footprint, _: u32) {
        self.regression.learn(known, answer);
    }

    fn boxed(&self) -> Box<dyn Predict> {
        Box::new(self.clone())
    }
}
