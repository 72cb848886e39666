//! Predictors that go by one request alone.

use super::super::footprint::{Footprint, PromptUse};
use super::mix::{cut, mixed};
use super::{Known, Predict, Size};

/// The weight of a prompt's last tokens beside that of all its tokens. Measured: beside 1, 0.1 groups best, and 1 no better than none.
const LAST: f32 = 0.1;

/// What the prompt used.
#[derive(Debug, Clone)]
pub(super) struct Prefill {
    most: usize,
}

impl Prefill {
    pub(super) fn new(size: Size) -> Self {
        Prefill { most: size.most }
    }

    /// All of a prompt's tokens and its last ones in one.
    pub(super) fn of(prompt: &PromptUse, most: usize) -> Footprint {
        mixed(&[(1.0 / (1.0 + LAST), &prompt.all), (LAST / (1.0 + LAST), &prompt.last)], most)
    }
}

impl Predict for Prefill {
    fn name(&self) -> &'static str {
        "prefill"
    }

    fn predict(&self, known: &Known<'_>) -> Footprint {
        known.prompt.map_or_else(Footprint::default, |prompt| Prefill::of(prompt, self.most))
    }

    fn learn(&mut self, _: &Known<'_>, _: &Footprint, _: u32) {}

    fn boxed(&self) -> Box<dyn Predict> {
        Box::new(self.clone())
    }
}

/// What the token table says.
#[derive(Debug, Clone)]
pub(super) struct Tabled {
    most: usize,
}

impl Tabled {
    pub(super) fn new(size: Size) -> Self {
        Tabled { most: size.most }
    }
}

impl Predict for Tabled {
    fn name(&self) -> &'static str {
        "table"
    }

    fn predict(&self, known: &Known<'_>) -> Footprint {
        known.table.map_or_else(Footprint::default, |table| cut(table, self.most))
    }

    fn learn(&mut self, _: &Known<'_>, _: &Footprint, _: u32) {}

    fn boxed(&self) -> Box<dyn Predict> {
        Box::new(self.clone())
    }
}
