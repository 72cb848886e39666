//! Runs a sweep: gathers rows, feeds the model its weights and states, and hands tokens on.
//!
//! It never decides who runs together: it asks the plan. It does not know whether a span is a prompt or an answer: a span has
//! positions, and a row wants the next token or it does not.

mod feed;
mod fold;
mod order;
mod sequence;
mod share;
mod span;
mod trace;

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::error::Result;
use crate::event::{End, Event, Sink, Stamp};
use crate::kernels::Kernels;
use crate::model::Model;
use crate::plan::{self, Home, Outcome, Schedule, Sweep, Walkers};
use crate::sample::{self, Vocabulary};
use crate::scratch::Scratch;
use crate::spool::Spool;
use crate::store::{Counters, Piece, StateCounters, States, Store};
use fold::{Fold, Want};
use order::{Order, Turns};
use sequence::Sequence;
use span::{Beside, SpanRows, SpanStates};
use trace::{Counter, Trace, Uses};

pub use trace::{Recorder, routing_widths, row_trace_bytes, uses_bytes};

/// Layers are streamed whole as long as at most one block of so many was read for nobody.
const WASTED_PART: u64 = 100;

/// Tells the time and is told of progress; a test's watch ticks.
pub trait Watch: Sync {
    /// Microseconds since the epoch.
    fn now_us(&self) -> i64;
    /// Called after each sweep.
    fn swept(&self, tally: &Tally);
}

/// What has been done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Rows that have ended, failed ones included.
    pub rows_done: u64,
    /// Rows that have failed.
    pub rows_failed: u64,
    /// Positions that ended rows were allowed beyond what they took.
    pub spared_tokens: u64,
    /// Prompt positions computed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// Passes through all layers.
    pub sweeps: u64,
    /// (row, expert) pairs served, over all sweeps and layers.
    pub expert_rows: u64,
    /// Distinct (layer, expert) of a sweep, summed over sweeps.
    pub expert_loads: u64,
    /// Of these, those that rows of answers chose.
    pub answer_expert_loads: u64,
    /// Positions of answers computed: all tokens generated but the last of each.
    pub answer_rows: u64,
    /// What was read.
    pub read: Counters,
    /// States that were read and written.
    pub states: StateCounters,
}

/// All that a run needs beside its plan.
pub struct Engine<'a> {
    /// The equations.
    pub model: &'a dyn Model,
    /// The weights.
    pub store: &'a dyn Store,
    /// States on disk, where the plan leaves any there.
    pub states: Option<&'a dyn States>,
    /// The arithmetic.
    pub kernels: Kernels,
    /// Temporary rows.
    pub scratch: Scratch,
    /// Blocks that are computed side by side.
    pub blocks_in_flight: usize,
    /// The requests.
    pub spool: &'a Spool,
    /// Ids and text; absent where the model's folder has none.
    pub vocabulary: Option<&'a dyn Vocabulary>,
    /// Time and progress.
    pub watch: &'a dyn Watch,
}

impl Engine<'_> {
    fn scratch_states(&self) -> &dyn States {
        self.states.expect("a plan that leaves states on disk is run with a disk")
    }
}

/// Runs sweeps until the plan has no more; every request's result goes to `sink`, and what its rows chose to `recorder`.
///
/// # Errors
/// A weight cannot be read, or a result cannot be kept.
pub fn run(schedule: &mut Schedule, engine: &Engine<'_>, sink: &mut dyn Sink, recorder: &mut dyn Recorder) -> Result<Tally> {
    let mut run = Run::new(engine, schedule)?;
    for index in 0..schedule.rows().len() {
        if schedule.rows()[index].is_idle() {
            run.report_idle(index as u64, sink)?;
        }
    }
    let mut outcome = Outcome::default();
    while let Some(sweep) = schedule.next(&std::mem::take(&mut outcome)) {
        outcome = run.sweep(&sweep, sink, recorder)?;
    }
    Ok(run.tally)
}

struct Run<'a> {
    engine: &'a Engine<'a>,
    walkers: Walkers,
    order: Order,
    started_us: i64,
    /// By slot.
    sequences: BTreeMap<usize, Sequence<'a>>,
    /// Fixed states of ended sequences, for the next ones.
    spare: Vec<Vec<Vec<f32>>>,
    drawing: sample::Scratch,
    counter: Counter,
    /// The plan wants to know what prompts and answers use.
    foretells: bool,
    /// Log records that a state on disk may have behind it.
    records: usize,
    /// Of the last sweep.
    trace: Trace,
    tally: Tally,
}

impl<'a> Run<'a> {
    fn new(engine: &'a Engine<'a>, schedule: &Schedule) -> Result<Self> {
        Ok(Run {
            engine,
            walkers: schedule.allotment().walkers,
            order: Order::of(engine.model, engine.kernels)?,
            started_us: engine.watch.now_us(),
            sequences: BTreeMap::new(),
            spare: Vec::new(),
            drawing: sample::Scratch::default(),
            counter: Counter::new(engine.model.manifest()),
            foretells: schedule.overlap().is_some(),
            records: schedule.state().whole_every() as usize - 1,
            trace: Trace::default(),
            tally: Tally::default(),
        })
    }

    /// A row that needs no computing: faulty, or nothing was asked for.
    fn report_idle(&mut self, index: u64, sink: &mut dyn Sink) -> Result<()> {
        let request = self.engine.spool.get(index)?;
        let now = self.engine.watch.now_us();
        let end = request.fault.map_or(End::Length, End::Failed);
        let stamp = Stamp { started_us: now, queue_us: now - self.started_us, ..Stamp::default() };
        let event = Event { index, tokens: Vec::new(), logprobs: Vec::new(), prompt_logprobs: Vec::new(), end };
        self.count_end(&event.end);
        sink.push(event, stamp)
    }

    fn count_end(&mut self, end: &End) {
        self.tally.rows_done += 1;
        self.tally.rows_failed += u64::from(matches!(end, End::Failed(_)));
    }

    fn sweep(&mut self, sweep: &Sweep, sink: &mut dyn Sink, recorder: &mut dyn Recorder) -> Result<Outcome> {
        let (before, loads) = (self.engine.store.counters(), self.tally.expert_loads);
        self.admit(sweep)?;
        let wants = self.wants(sweep);
        let folded = self.compute(sweep, wants)?;
        let now = self.engine.watch.now_us();
        let read = self.engine.store.counters();
        self.tally.read = read;
        self.tally.sweeps += 1;
        self.charge(sweep, before, read, self.tally.expert_loads - loads);
        for fold in folded {
            let sequence = self.sequences.get_mut(&fold.want.slot).expect("a row belongs to a sequence");
            let fresh = sequence.take(fold, now, &mut self.drawing);
            self.tally.completion_tokens += u64::from(fresh);
        }
        let uses = self.count_uses(sweep, recorder);
        let outcome = Outcome { ended: self.end(sweep, now, sink)?.ended, ..uses };
        self.engine.watch.swept(&self.tally);
        Ok(outcome)
    }

    /// Brings in the sequences whose first span this is, and makes room for states that come to stay.
    fn admit(&mut self, sweep: &Sweep) -> Result<()> {
        let manifest = self.engine.model.manifest();
        for span in &sweep.spans {
            if span.positions.start == 0 {
                let request = self.engine.spool.get(span.row)?;
                let mut sequence = Sequence::new(request, self.engine.vocabulary);
                sequence.stamp.started_us = self.engine.watch.now_us();
                sequence.stamp.queue_us = sequence.stamp.started_us - self.started_us;
                self.sequences.insert(span.slot, sequence);
            }
            if span.home == Home::Memory && span.from != Home::Memory {
                let spare = self.spare.pop();
                self.sequence_mut(span.slot).keep_states(manifest, spare);
            }
        }
        Ok(())
    }

    fn sequence(&self, slot: usize) -> &Sequence<'a> {
        self.sequences.get(&slot).expect("the plan's spans are of sequences that it admitted")
    }

    fn sequence_mut(&mut self, slot: usize) -> &mut Sequence<'a> {
        self.sequences.get_mut(&slot).expect("the plan's spans are of sequences that it admitted")
    }

    /// The rows whose logits matter, in the sweep's order.
    fn wants(&self, sweep: &Sweep) -> Vec<Want> {
        let mut wants = Vec::new();
        let mut row = 0;
        for span in &sweep.spans {
            let sequence = self.sequence(span.slot);
            for position in span.positions.clone() {
                wants.extend(sequence.want(position as usize).map(|kind| Want { row, slot: span.slot, kind }));
                row += 1;
            }
        }
        wants
    }

    /// Tells the disk all that the sweep will surely take, so that it never waits to be asked.
    fn want(&self, turns: Turns, nothing_wanted: bool) {
        let panels = if nothing_wanted { &self.order.panels[..self.order.unwanted] } else { &self.order.panels };
        for of_turn in panels.chunk_by(|a, b| a.0 == b.0) {
            let pieces: Vec<Piece> = of_turn.iter().map(|panel| panel.1).collect();
            self.engine.store.want(turns.first + of_turn[0].0, &pieces);
        }
    }

    /// Whether so many rows will need all experts of a layer, so that nobody waits for the router. Not if that has been a mistake before.
    fn streams_whole_layers(&self, rows: usize) -> bool {
        let read = self.tally.read;
        self.walkers.most == 1
            && read.blocks_wasted * WASTED_PART <= read.blocks_used
            && self.engine.model.manifest().blocks().all(|(_, b)| plan::need_all(rows as u64, b.chosen as u64, b.count as u64))
    }

    /// All layers and the head.
    fn compute(&mut self, sweep: &Sweep, wants: Vec<Want>) -> Result<Vec<Fold>> {
        let turns = Turns { first: self.tally.sweeps * self.order.turns, whole_layers: self.streams_whole_layers(sweep.rows()) };
        self.want(turns, wants.is_empty());
        let mut flying: Vec<Sequence<'_>> = Vec::with_capacity(sweep.spans.len());
        for span in &sweep.spans {
            flying.push(self.sequences.remove(&span.slot).expect("the plan's spans are of sequences that it admitted"));
        }
        let spans = spans_of(sweep, &mut flying);
        let beside = Beside { bytes: plan::SIDE_BY_SIDE_BYTES as usize / self.walkers.most, records: self.records };
        let shares = share::cut(spans, wants, self.walkers);
        let walked: Result<Vec<_>> = shares.into_par_iter().with_max_len(1).map(|share| share.walk(self.engine, turns, beside)).collect();
        self.sequences.extend(sweep.spans.iter().map(|span| span.slot).zip(flying));
        let walked = walked?;
        if let Some(states) = self.engine.states {
            states.settle()?;
            for span in sweep.spans.iter().filter(|span| span.from == Home::Scratch && span.home != Home::Scratch) {
                states.release(span.slot as u32);
            }
            self.tally.states = states.counters();
        }
        let mut walked = walked.into_iter();
        let (mut folds, mut used) = walked.next().expect("a sweep has a span");
        for (part, of_part) in walked {
            folds.extend(part);
            used.join(of_part);
        }
        self.tally.expert_rows += used.pairs;
        self.tally.expert_loads += used.loads();
        self.tally.answer_expert_loads += used.answer_loads();
        self.trace = used.trace;
        Ok(folds)
    }

    /// Counts what the rows of the sweep chose: what prompts used that are complete now and go on, and answers that have ended.
    fn count_uses(&mut self, sweep: &Sweep, recorder: &mut dyn Recorder) -> Outcome {
        let mut outcome = Outcome::default();
        let trace = std::mem::take(&mut self.trace);
        let traced = trace.spans(sweep.spans.iter().map(|span| span.positions.len()));
        for (span, ids) in sweep.spans.iter().zip(traced) {
            let sequence = self.sequences.get_mut(&span.slot).expect("the plan's spans are of sequences that it admitted");
            let (prompt_len, first) = (sequence.prompt_len(), span.positions.start as usize);
            if self.foretells {
                self.counter.add(&mut sequence.uses, prompt_len, first, ids);
            }
            self.counter.record(recorder, span.row, prompt_len, first, ids, |position| sequence.token(position));
            if sequence.has_ended() {
                outcome.answered.extend(self.counter.answer(&mut sequence.uses).map(|uses| (span.slot, uses)));
                sequence.uses = Uses::default();
            } else if self.foretells && first < prompt_len && span.positions.end as usize >= prompt_len {
                let next = Some(sequence.token(prompt_len)); // it has not ended, so there is one
                outcome.read.push((span.slot, self.counter.prompt(&mut sequence.uses, next)));
            }
        }
        outcome
    }

    /// Shares the sweep's bytes out evenly over its rows.
    fn charge(&mut self, sweep: &Sweep, before: Counters, after: Counters, loads: u64) {
        let bytes = after.bytes() - before.bytes();
        let share = bytes as i64 / sweep.rows().max(1) as i64;
        let misses = after.blocks_read() - before.blocks_read();
        for span in &sweep.spans {
            let sequence = self.sequence_mut(span.slot);
            let prompt = (sequence.prompt_len() as u32).clamp(span.positions.start, span.positions.end) - span.positions.start;
            sequence.done = span.positions.end as usize;
            sequence.sweep_rows = sweep.rows() as i32;
            sequence.sweep_share = share;
            sequence.stamp.bytes_read += share * span.positions.len() as i64;
            sequence.stamp.expert_hits += loads.saturating_sub(misses) as i64; // walkers read for themselves what is not kept
            sequence.stamp.expert_misses += misses as i64;
            self.tally.prompt_tokens += u64::from(prompt);
            self.tally.answer_rows += span.positions.len() as u64 - u64::from(prompt);
        }
    }

    /// Hands over the sequences that have ended.
    fn end(&mut self, sweep: &Sweep, now_us: i64, sink: &mut dyn Sink) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for span in &sweep.spans {
            if !self.sequence_mut(span.slot).has_ended() {
                continue;
            }
            let mut sequence = self.sequences.remove(&span.slot).expect("it was looked at just now");
            match span.home {
                Home::Memory => self.spare.push(sequence.fixed_states(self.engine.model.manifest())),
                Home::Scratch => self.engine.scratch_states().release(span.slot as u32),
                Home::Nowhere => {}
            }
            self.tally.spared_tokens += sequence.spared_positions();
            let (event, stamp) = sequence.finish(now_us);
            self.count_end(&event.end);
            sink.push(event, stamp)?;
            outcome.ended.push(span.slot);
        }
        Ok(outcome)
    }
}

/// The spans of a sweep with the sequences they are of.
fn spans_of<'s>(sweep: &Sweep, flying: &'s mut [Sequence<'_>]) -> Vec<SpanRows<'s>> {
    let mut row = 0;
    let spans = sweep.spans.iter().zip(flying).map(|(span, sequence)| {
        let rows = row..row + span.positions.len();
        row = rows.end;
        SpanRows {
            rows,
            first: span.positions.start as usize,
            ids: span.positions.clone().map(|position| sequence.token(position as usize)).collect(),
            of_answer: span.positions.start as usize >= sequence.prompt_len(),
            states: SpanStates {
                slot: span.slot,
                positions: span.positions.clone(),
                from: span.from,
                home: span.home,
                kept: &mut sequence.states,
                held: Vec::new(),
            },
        }
    });
    spans.collect()
}

#[cfg(test)]
mod tests;
