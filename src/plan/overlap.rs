//! Who decodes together, by the experts that they are expected to share.
//!
//! What a request will use is foretold when its prompt is through, so the order of those that wait is made when prompts have been read, and again
//! as the foretelling gets better. When a place in the wave is free, the next in that order are looked at, and the one joins that adds fewest
//! blocks. Who is passed over too often goes first, whatever it adds.

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;

use super::Outcome;
use super::footprint::{Footprint, PromptUse};
use super::group::{self, Wave};
use super::predict::{Known, Predictor};

/// How many of those that wait are looked at when a place is free: so many times the wave, at least, and at most.
const LOOKED_AT_WAVES: usize = 2;
const LOOKED_AT: std::ops::RangeInclusive<usize> = 32..=256;
/// So many times in a row the first in order may be passed over.
const PATIENCE: usize = 64;
/// The order is made anew when so many requests have ended, and each time when there are four times as many.
const REORDERED_AT: u64 = 64;
const REORDERED_TIMES: u64 = 4;

/// Where footprints come from.
#[derive(Debug, Clone)]
pub enum Foresight {
    /// From what prompts use; `tables` holds what was known of each row before, if anything.
    Predicted {
        /// Who foretells.
        predictor: Predictor,
        /// A row each, or none at all.
        tables: Arc<[Footprint]>,
    },
    /// They are known: a row each.
    Known(Arc<[Footprint]>),
}

/// A request whose prompt is through.
#[derive(Debug, Clone)]
struct Seen {
    prompt: PromptUse,
    expected: Footprint,
}

/// The wave at hand, and what is expected of those that wait.
#[derive(Debug, Clone)]
pub struct Overlap {
    foresight: Foresight,
    seen: BTreeMap<u32, Seen>,
    wave: Wave,
    looked_at: usize,
    passed_over: usize,
    ended: u64,
    reordered_at: u64,
}

impl Overlap {
    /// For waves of so many.
    pub fn new(foresight: Foresight, wave: usize) -> Self {
        let looked_at = (wave * LOOKED_AT_WAVES).clamp(*LOOKED_AT.start(), *LOOKED_AT.end());
        Overlap { foresight, seen: BTreeMap::new(), wave: Wave::default(), looked_at, passed_over: 0, ended: 0, reordered_at: REORDERED_AT }
    }

    /// The name of the predictor that is believed most now.
    pub fn predictor(&self) -> &'static str {
        match &self.foresight {
            Foresight::Predicted { predictor, .. } => predictor.name(),
            Foresight::Known(_) => "known",
        }
    }

    /// All predictors that may be believed; none where footprints are known.
    pub fn candidates(&self) -> Vec<&'static str> {
        match &self.foresight {
            Foresight::Predicted { predictor, .. } => predictor.candidates(),
            Foresight::Known(_) => Vec::new(),
        }
    }

    /// What was known of each row before its prompt was read: a row each, or none at all.
    pub fn tables(&self) -> Arc<[Footprint]> {
        match &self.foresight {
            Foresight::Predicted { tables, .. } => Arc::clone(tables),
            Foresight::Known(_) => Arc::default(),
        }
    }

    /// Takes what a sweep has shown; `of` gives a slot's row and the tokens that it has made.
    pub fn hear(&mut self, outcome: &Outcome, of: impl Fn(usize) -> Option<(u32, u32)>) {
        for (slot, prompt) in &outcome.read {
            let Some((row, _)) = of(*slot) else { continue };
            let expected = self.expected(row, prompt);
            self.seen.insert(row, Seen { prompt: prompt.clone(), expected });
        }
        for (slot, answer) in &outcome.answered {
            let Some((row, tokens)) = of(*slot) else { continue };
            let Some(seen) = self.seen.get(&row) else { continue };
            if let Foresight::Predicted { predictor, tables } = &mut self.foresight {
                predictor.learn(&Known { prompt: Some(&seen.prompt), table: tables.get(row as usize) }, answer, tokens);
            }
        }
    }

    fn expected(&self, row: u32, prompt: &PromptUse) -> Footprint {
        match &self.foresight {
            Foresight::Predicted { predictor, tables } => {
                predictor.predict(&Known { prompt: Some(prompt), table: tables.get(row as usize) })
            }
            Foresight::Known(footprints) => footprints.get(row as usize).cloned().unwrap_or_default(),
        }
    }

    /// A request joins the wave.
    pub fn joins(&mut self, row: u32) {
        if let Some(seen) = self.seen.get(&row) {
            self.wave.add(&seen.expected);
        }
    }

    /// A request of the wave has ended.
    pub fn leaves(&mut self, row: u32) {
        self.ended += 1;
        if let Some(seen) = self.seen.remove(&row) {
            self.wave.remove(&seen.expected);
        }
    }

    /// Which of those that wait, in order, is next; None if nobody waits.
    pub fn pick(&mut self, waiting: impl Iterator<Item = (u64, u32)>) -> Option<u64> {
        let none = Footprint::default();
        let footprint = |row| self.seen.get(&row).map_or(&none, |seen| &seen.expected);
        let mut candidates = waiting.take(self.looked_at).map(|(rank, row)| (rank, footprint(row))).peekable();
        let (first, _) = *candidates.peek()?;
        let best = if self.passed_over < PATIENCE { self.wave.pick(candidates) } else { None }.unwrap_or(first);
        self.passed_over = if best == first { 0 } else { self.passed_over + 1 };
        Some(best)
    }

    /// Whether those that wait should be put in order again, since more is known than when they were.
    pub fn is_stale(&self) -> bool {
        self.ended >= self.reordered_at && matches!(self.foresight, Foresight::Predicted { .. })
    }

    /// The order of `rows`, which wait, for waves of so many; `tokens` is what each may generate at most.
    pub fn order(&mut self, rows: &[u32], tokens: &[u32], wave: usize) -> Vec<u32> {
        while self.reordered_at <= self.ended {
            self.reordered_at *= REORDERED_TIMES;
        }
        let again = |row: &u32| self.seen.get(row).map(|seen| self.expected(*row, &seen.prompt));
        let expected: Vec<Option<Footprint>> = rows.par_iter().map(again).collect();
        for (row, expected) in rows.iter().zip(expected) {
            if let (Some(seen), Some(expected)) = (self.seen.get_mut(row), expected) {
                seen.expected = expected;
            }
        }
        let none = Footprint::default();
        let footprints: Vec<&Footprint> = rows.iter().map(|row| self.seen.get(row).map_or(&none, |seen| &seen.expected)).collect();
        group::order(&footprints, tokens, wave).into_iter().map(|i| rows[i as usize]).collect()
    }
}
