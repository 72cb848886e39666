//! Which blocks will a request's answer use?
//!
//! Requests that use the same blocks are to run together, and what an answer uses is known when it has been made. Before, there is what its
//! prompt used, what its tokens used in earlier jobs, and what answers to like prompts used in this one: taken alone they correlate with the
//! truth at 0.2 to 0.5. So there are several predictors behind one trait, and each is scored on every finished row before it learns
//! from it; `auto` goes by that score. A predictor holds at most some tens of megabytes whatever the model, and what it costs a row is
//! milliseconds.

mod learned;
mod mix;
mod prefill;
mod regress;
mod score;

use std::fmt;

use super::footprint::{Footprint, PromptUse};
use learned::Learned;
use mix::Popular;
use prefill::{Prefill, Tabled};
use score::Score;

/// All that may be known of a request before its answer is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known<'a> {
    /// What its prompt used.
    pub prompt: Option<&'a PromptUse>,
    /// What the token table says of its prompt's ids.
    pub table: Option<&'a Footprint>,
}

/// A way to foretell what an answer uses.
pub trait Predict: Send + Sync {
    /// The word by which a job names it.
    fn name(&self) -> &'static str;

    /// Expected shares of the answer's tokens; empty where nothing is known that it could go by.
    fn predict(&self, known: &Known<'_>) -> Footprint;

    /// A request has ended, and its answer of `tokens` tokens used `answer`.
    fn learn(&mut self, known: &Known<'_>, answer: &Footprint, tokens: u32);

    /// A copy that learns by itself from here on.
    fn boxed(&self) -> Box<dyn Predict>;
}

/// Sizes that bound a predictor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Blocks of the model.
    pub blocks: u32,
    /// Most blocks of a footprint that is made or kept.
    pub most: usize,
}

/// Which predictor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What the prompt used, its end counting more.
    Prefill,
    /// What the prompt's tokens used in earlier jobs.
    Table,
    /// What answers to like prompts used in this job, together with what the prompt used.
    Learned,
    /// As `Learned`, from what the prompt used of blocks below `blocks`, its first layers' alone.
    Probe {
        /// Blocks of those layers.
        blocks: u32,
    },
    /// The one that has been best so far.
    Auto,
}

/// One predictor or several, scored as the job runs.
pub struct Predictor {
    candidates: Vec<(Box<dyn Predict>, Score)>,
    popular: Popular,
    most: usize,
}

impl Predictor {
    /// A predictor that has seen nothing yet.
    pub fn new(kind: Kind, size: Size) -> Self {
        let candidates: Vec<Box<dyn Predict>> = match kind {
            Kind::Prefill => vec![Box::new(Prefill::new(size))],
            Kind::Table => vec![Box::new(Tabled::new(size))],
            Kind::Learned => vec![Box::new(Learned::new(size))],
            Kind::Probe { blocks } => vec![Box::new(Learned::of_first(size, blocks))],
            // Of equals the first: it needs no finished row.
            Kind::Auto => vec![Box::new(Prefill::new(size)), Box::new(Learned::new(size)), Box::new(Tabled::new(size))],
        };
        Predictor {
            candidates: candidates.into_iter().map(|predictor| (predictor, Score::new(size.blocks))).collect(),
            popular: Popular::new(size.blocks),
            most: size.most,
        }
    }

    /// The candidate that is believed most now.
    pub fn name(&self) -> &'static str {
        self.ranked()[0].0.name()
    }

    /// All candidates, the one believed most now first.
    pub fn candidates(&self) -> Vec<&'static str> {
        self.ranked().iter().map(|(predictor, _)| predictor.name()).collect()
    }

    /// The expected correlation of [`Predictor::predict`] with the truth, about what all requests have in common, in 0 to 1. Until rows have
    /// ended it is a guess on the low side.
    pub fn confidence(&self) -> f32 {
        self.ranked()[0].1.correlation() as f32
    }

    /// Expected shares of the answer's tokens: by the candidate believed most that knows something; failing all, what answers have used so
    /// far; empty before there is any.
    pub fn predict(&self, known: &Known<'_>) -> Footprint {
        let first = self.ranked().into_iter().map(|(predictor, _)| predictor.predict(known)).find(|footprint| !footprint.is_empty());
        first.unwrap_or_else(|| self.popular.footprint(self.most))
    }

    /// A request has ended, and its answer of `tokens` tokens used `answer`. Candidates are scored on it before they learn from it.
    pub fn learn(&mut self, known: &Known<'_>, answer: &Footprint, tokens: u32) {
        if answer.is_empty() || tokens == 0 {
            return;
        }
        for (predictor, score) in &mut self.candidates {
            score.add(&predictor.predict(known), answer, &self.popular);
            predictor.learn(known, answer, tokens);
        }
        self.popular.add(answer);
    }

    /// Candidates, the best first.
    fn ranked(&self) -> Vec<&(Box<dyn Predict>, Score)> {
        let mut ranked: Vec<_> = self.candidates.iter().collect();
        ranked.sort_by(|a, b| b.1.correlation().total_cmp(&a.1.correlation()));
        ranked
    }
}

/// Most bytes that a predictor takes, a footprint taking so many.
pub(super) fn predictor_bytes(footprint_bytes: u64) -> u64 {
    let rows = regress::ROWS_MAX as u64;
    rows * 3 * footprint_bytes + rows * rows * (size_of::<[f32; 3]>() + 2 * size_of::<f64>()) as u64
}

impl Clone for Predictor {
    fn clone(&self) -> Self {
        let candidates = self.candidates.iter().map(|(predictor, score)| (predictor.boxed(), score.clone())).collect();
        Predictor { candidates, popular: self.popular.clone(), most: self.most }
    }
}

impl fmt::Debug for Predictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Predictor({} at {:.3})", self.name(), self.confidence())
    }
}

#[cfg(test)]
mod tests;
