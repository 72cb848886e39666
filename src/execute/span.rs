//! A span's rows, and its sequence's states wherever they lie.
//!
//! A state in memory is lent as it is. One on disk is read when the model asks for it and goes back as soon as that is allowed: a fixed state
//! after it was lent once (600 KB of the largest model, so that some megabytes serve any number of sequences), an appended one, which may be asked
//! for again, at the end of its layer. What nobody will need again is made where it is used and never kept. The model sees no difference.

use std::ops::Range;

use super::Engine;
use crate::error::Result;
use crate::kernels::spread;
use crate::model::manifest::{StateId, StateSpec};
use crate::model::{Mix, StateView};
use crate::plan::Home;
use crate::scratch::Buffer;
use crate::store::{Change, StateKey};

/// A span's rows in the sweep and its sequence's states.
pub struct SpanRows<'a> {
    /// Rows of the sweep.
    pub rows: Range<usize>,
    /// Absolute position of the first one.
    pub first: usize,
    /// Their tokens.
    pub ids: Vec<u32>,
    /// Whether these rows are of an answer.
    pub of_answer: bool,
    /// Its sequence's states.
    pub states: SpanStates<'a>,
}

/// The states of a span's sequence.
pub struct SpanStates<'a> {
    /// The sequence's place.
    pub slot: usize,
    /// The span's positions, also of rows that have been left out.
    pub positions: Range<u32>,
    /// Where they lie before.
    pub from: Home,
    /// Where they are left.
    pub home: Home,
    /// Those in memory, one a state of the manifest; empty where the home is another.
    pub kept: &'a mut Vec<Vec<f32>>,
    /// Appended states of the layer at hand, where they are not kept.
    pub held: Vec<(StateId, Buffer)>,
}

impl SpanRows<'_> {
    /// Where a state is read from, if from disk.
    pub fn on_disk(&self, state: StateId) -> Option<StateKey> {
        (self.states.from == Home::Scratch).then(|| self.states.key(state))
    }

    /// Writes what was appended to the layer's states, and lets them go.
    pub fn put_appended(&mut self, states: Range<u32>, engine: &Engine<'_>) -> Result<()> {
        for (state, data) in self.states.held.drain(..) {
            assert!(states.contains(&state.0), "a state is held for its layer alone");
            if self.states.home == Home::Scratch {
                let key = StateKey { slot: self.states.slot as u32, state };
                engine.scratch_states().put(key, self.states.positions.clone(), Change::Rows(&data))?;
            }
        }
        Ok(())
    }
}

impl SpanStates<'_> {
    fn key(&self, state: StateId) -> StateKey {
        StateKey { slot: self.slot as u32, state }
    }

    /// An appended state of `width` floats a token, with room for the span's rows.
    fn appended(&mut self, state: StateId, width: usize, engine: &Engine<'_>) -> Result<&mut [f32]> {
        let (first, end) = (self.positions.start as usize * width, self.positions.end as usize * width);
        if self.home == Home::Memory {
            if self.from == Home::Scratch && !self.held.iter().any(|(held, _)| *held == state) {
                let lease = engine.scratch_states().take(self.key(state))?;
                copy(lease.data(), &mut self.kept[state.0 as usize][..first]);
                self.held.push((state, engine.scratch.take(0)));
            }
            return Ok(&mut self.kept[state.0 as usize][..end]);
        }
        if let Some(at) = self.held.iter().position(|(held, _)| *held == state) {
            return Ok(&mut self.held[at].1);
        }
        let mut data = engine.scratch.take(end);
        if self.from == Home::Scratch {
            copy(engine.scratch_states().take(self.key(state))?.data(), &mut data[..first]);
        }
        self.held.push((state, data));
        let (_, data) = self.held.last_mut().expect("pushed just now");
        Ok(data)
    }

    /// A fixed state, ready to be lent.
    fn fixed<'s>(&'s mut self, state: StateId, floats: usize, log: usize, engine: &Engine<'_>) -> Result<Lent<'s>> {
        let tokens = self.positions.len();
        let mut lent = Lent { data: Data::Own(engine.scratch.take(0)), past: engine.scratch.take(0), log: None, put: None };
        lent.data =
            if self.home == Home::Memory { Data::Kept(&mut self.kept[state.0 as usize]) } else { Data::Own(engine.scratch.take(floats)) };
        let key = StateKey { slot: self.slot as u32, state };
        match self.from {
            Home::Memory => {}
            Home::Nowhere => lent.data.all().fill(0.0),
            Home::Scratch => {
                let lease = engine.scratch_states().take(key)?;
                copy(lease.data(), lent.data.all());
                lent.past = engine.scratch.take(lease.records().count() * log);
                lease.records().zip(lent.past.chunks_exact_mut(log.max(1))).for_each(|(record, past)| copy(record, past));
            }
        }
        if self.home == Home::Scratch {
            let follows = self.from == Home::Scratch && tokens == 1 && log > 0 && engine.scratch_states().log_room(key) >= tokens;
            lent.log = follows.then(|| engine.scratch.take(tokens * log));
            lent.put = Some((key, self.positions.clone()));
        }
        Ok(lent)
    }
}

/// A fixed state while it is lent.
struct Lent<'s> {
    data: Data<'s>,
    past: Buffer,
    log: Option<Buffer>,
    /// Where it goes afterwards.
    put: Option<(StateKey, Range<u32>)>,
}

enum Data<'s> {
    Kept(&'s mut [f32]),
    Own(Buffer),
}

impl Data<'_> {
    fn all(&mut self) -> &mut [f32] {
        match self {
            Data::Kept(data) => data,
            Data::Own(data) => data,
        }
    }
}

/// Numbers as they lie on disk.
fn copy(bytes: &[u8], to: &mut [f32]) {
    assert_eq!(bytes.len(), size_of_val(to), "a state is as long as it was");
    for (to, bytes) in to.iter_mut().zip(bytes.as_chunks().0) {
        *to = f32::from_le_bytes(*bytes);
    }
}

/// How much of fixed states is worked on side by side.
#[derive(Debug, Clone, Copy)]
pub struct Beside {
    /// Bytes of those that are not in memory already.
    pub bytes: usize,
    /// Log records that come with each, at most.
    pub records: usize,
}

impl Beside {
    /// Of the first of `spans` so many.
    pub fn spans(self, spans: &[SpanRows<'_>], spec: StateSpec) -> usize {
        let StateSpec::Fixed { floats, log } = spec else { return spans.len() };
        let most = (self.bytes / ((floats + self.records * log) * size_of::<f32>()).max(1)).max(1);
        let mut passing = 0;
        let fits = |span: &&SpanRows<'_>| {
            passing += usize::from(span.states.home != Home::Memory || span.states.from == Home::Scratch);
            passing <= most
        };
        spans.iter().take_while(fits).count()
    }
}

/// Calls `f` for each of `spans` with its state; y is [rows, width] of their rows.
pub fn mix(
    spans: &mut [SpanRows<'_>],
    state: StateId,
    spec: StateSpec,
    y: &mut [f32],
    width: usize,
    engine: &Engine<'_>,
    f: &Mix<'_>,
) -> Result<()> {
    let mut rest = y;
    let mut parts = Vec::with_capacity(spans.len());
    for span in &*spans {
        let (part, behind) = rest.split_at_mut(span.rows.len() * width);
        rest = behind;
        parts.push(part);
    }
    match spec {
        StateSpec::Appended(width) => {
            let mut jobs = Vec::with_capacity(spans.len());
            for (span, part) in spans.iter_mut().zip(parts) {
                let (rows, first) = (span.rows.clone(), span.first);
                let data = &mut span.states.appended(state, width, engine)?[..(first + rows.len()) * width];
                jobs.push((rows, part, StateView { first, data, past: &[], log: None }));
            }
            spread(jobs, |(rows, part, view)| f(rows, part, view));
        }
        StateSpec::Fixed { floats, log } => {
            let mut jobs = Vec::with_capacity(spans.len());
            for (span, part) in spans.iter_mut().zip(parts) {
                let (rows, first) = (span.rows.clone(), span.first);
                jobs.push((rows, part, first, span.states.fixed(state, floats, log, engine)?));
            }
            spread(jobs.iter_mut().collect(), |(rows, part, first, lent)| {
                let view = StateView { first: *first, data: lent.data.all(), past: &lent.past, log: lent.log.as_deref_mut() };
                f(rows.clone(), part, view);
            });
            for (.., mut lent) in jobs {
                if let Some((key, positions)) = lent.put {
                    let change = match &lent.log {
                        Some(log) => Change::Log(log),
                        None => Change::Whole(lent.data.all()),
                    };
                    engine.scratch_states().put(key, positions, change)?;
                }
            }
        }
    }
    Ok(())
}
