//! One sequence in flight: its tokens, its states, and whether it has ended.

use super::fold::{Fold, WantKind};
use super::trace::Uses;
use crate::event::{End, Event, Stamp};
use crate::model::manifest::{Manifest, StateSpec};
use crate::request::{Fault, Request, RowFacts};
use crate::sample::{self, Ending, Vocabulary};

/// A request on its way.
pub struct Sequence<'v> {
    request: Request,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    prompt_logprobs: Vec<f32>,
    ending: Ending<'v, dyn Vocabulary + 'v>,
    /// One a state of the manifest.
    pub states: Vec<Vec<f32>>,
    /// Set once no further token is wanted.
    pub end: Option<End>,
    /// Positions that have been through the model.
    pub done: usize,
    /// Rows of the last sweep.
    pub sweep_rows: i32,
    /// A row's share of the last sweep's bytes.
    pub sweep_share: i64,
    /// What it has cost.
    pub stamp: Stamp,
    /// Which experts it has used.
    pub uses: Uses,
}

impl<'v> Sequence<'v> {
    /// A sequence at position 0, without states.
    pub fn new(request: Request, vocabulary: Option<&'v (dyn Vocabulary + 'v)>) -> Self {
        Sequence {
            states: Vec::new(),
            ending: Ending::new(&request, vocabulary),
            request,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            prompt_logprobs: Vec::new(),
            end: None,
            done: 0,
            sweep_rows: 0,
            sweep_share: 0,
            stamp: Stamp::default(),
            uses: Uses::default(),
        }
    }

    /// Makes room for its states in memory; what they hold is unspecified. `spare` are fixed states of an ended sequence, to be used again.
    pub fn keep_states(&mut self, manifest: &Manifest, spare: Option<Vec<Vec<f32>>>) {
        let positions = RowFacts::of(&self.request).positions_max() as usize;
        let mut spare = spare.unwrap_or_default().into_iter();
        let state = |spec: &StateSpec| match *spec {
            StateSpec::Fixed { floats, .. } => spare.next().unwrap_or_else(|| vec![0.0; floats]),
            StateSpec::Appended(width) => vec![0.0; positions * width],
        };
        self.states = manifest.states.iter().map(state).collect();
    }

    /// Tokens of the prompt.
    pub fn prompt_len(&self) -> usize {
        self.request.prompt.len()
    }

    /// The token at an absolute position.
    pub fn token(&self, position: usize) -> u32 {
        match position.checked_sub(self.request.prompt.len()) {
            None => self.request.prompt[position],
            Some(generated) => self.tokens[generated],
        }
    }

    /// What the logits after `position` are wanted for.
    pub fn want(&self, position: usize) -> Option<WantKind> {
        let sampling = &self.request.sampling;
        match self.request.prompt.get(position + 1) {
            Some(&next) => sampling.prompt_logprobs.then_some(WantKind::Given(next)),
            None if sampling.max_tokens == 0 => None,
            None if sampling.temperature > 0.0 => Some(WantKind::Drawn),
            None => Some(WantKind::Greedy),
        }
    }

    /// Takes the folded logits of one of its rows; whether a token was generated.
    pub fn take(&mut self, mut fold: Fold, now_us: i64, scratch: &mut sample::Scratch) -> bool {
        if self.end.is_some() {
            return false;
        }
        let position = (self.prompt_len() + self.tokens.len()) as u32;
        let chosen = match fold.want.kind {
            _ if !fold.is_finite() => None,
            WantKind::Given(id) => {
                self.prompt_logprobs.push(fold.logprob(id));
                return false;
            }
            WantKind::Drawn => sample::draw(&fold.logits, scratch, &self.request.sampling, &self.request.id, position),
            WantKind::Greedy => Some(fold.best),
        };
        let Some(token) = chosen else {
            let message = format!("the logits before position {position} are no finite numbers: the model's weights are damaged");
            self.end = Some(End::Failed(Fault::new("not_finite", message)));
            return false;
        };
        if let Some(&logit) = fold.logits.get(token as usize) {
            fold.target = Some(logit);
        }
        self.logprobs.push(fold.logprob(token));
        self.tokens.push(token);
        let elapsed = now_us - self.stamp.started_us;
        if self.tokens.len() == 1 {
            self.stamp.first_token_us = elapsed;
        }
        self.stamp.token_us.push(elapsed);
        self.stamp.token_bytes_read.push(self.sweep_share);
        self.stamp.token_rows.push(self.sweep_rows);
        self.end = self.ending.push(token);
        true
    }

    /// Whether no further position is wanted: it has its last token, or its prompt is done and no token is asked for.
    pub fn has_ended(&mut self) -> bool {
        if self.request.sampling.max_tokens == 0 && self.done == self.prompt_len() {
            self.end.get_or_insert(End::Length);
        }
        self.end.is_some()
    }

    /// Positions that it was allowed beyond those it took.
    pub fn spared_positions(&self) -> u64 {
        RowFacts::of(&self.request).positions_max().saturating_sub(self.done as u64)
    }

    /// Its fixed states, for the next sequence.
    pub fn fixed_states(&mut self, manifest: &Manifest) -> Vec<Vec<f32>> {
        let states = std::mem::take(&mut self.states).into_iter().zip(&manifest.states);
        states.filter(|(_, spec)| matches!(spec, StateSpec::Fixed { .. })).map(|(state, _)| state).collect()
    }

    /// Its result.
    pub fn finish(mut self, now_us: i64) -> (Event, Stamp) {
        self.stamp.finished_us = now_us - self.stamp.started_us;
        let event = Event {
            index: self.request.index,
            tokens: self.tokens,
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            end: self.end.expect("only an ended sequence is finished"),
        };
        (event, self.stamp)
    }
}
