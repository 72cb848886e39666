//! All that a model may ask for, answered from the store, the sequences' states and the kernels.

use std::ops::Range;

use super::Engine;
use super::order::Turns;
use super::span::{self, Beside, SpanRows};
use super::trace::Trace;
use crate::error::{Error, Result};
use crate::kernels::spread;
use crate::kernels::{Data, Kernels, Matrix, View, ViewMut, mxfp4_has_nan};
use crate::model::manifest::{Blocks, Manifest, Part, PartFormat, StateId, WeightId};
use crate::model::{Block, Expert, Feed, Mix, Routing, Stream};
use crate::plan::expert_rows;
use crate::scratch::{Buffer, Scratch};
use crate::store::{Element, Lease, Piece};

/// One sweep's feed.
pub struct SweepFeed<'a> {
    engine: &'a Engine<'a>,
    spans: Vec<SpanRows<'a>>,
    /// Spans that have no rows left; their states are not all back yet.
    narrowed: Vec<SpanRows<'a>>,
    /// Bytes of states that are worked on side by side.
    beside: Beside,
    /// A row each: whether it is of an answer.
    of_answers: Vec<bool>,
    turns: Turns,
    /// The rows whose logits are wanted, ascending; None once the others have been left out.
    wanted: Option<Vec<usize>>,
    layer: usize,
    /// The panel asked for last: attention wants one before and after it looks at its states, and it is read once.
    last: Option<(Piece, Lease)>,
    /// Who was chosen.
    pub used: Used,
}

/// Which experts the rows of a sweep chose.
#[derive(Clone, Default)]
pub struct Used {
    /// (row, expert) pairs served.
    pub pairs: u64,
    /// A (layer, expert) each, layer by layer.
    chosen: Vec<ChosenBy>,
    /// Where each layer begins.
    base: Vec<usize>,
    /// Row by row.
    pub trace: Trace,
}

/// By whom an expert was chosen.
#[derive(Clone, Copy, Default)]
struct ChosenBy {
    any: bool,
    answer: bool,
}

impl Used {
    fn none(manifest: &Manifest, rows: usize) -> Self {
        let counts = manifest.layers.iter().map(|layer| layer.blocks.as_ref().map_or(0, |blocks| blocks.count));
        let base = counts.clone().scan(0, |sum, n| Some(std::mem::replace(sum, *sum + n))).collect();
        Used { pairs: 0, chosen: vec![ChosenBy::default(); counts.sum()], base, trace: Trace::new(manifest, rows) }
    }

    fn count(&mut self, layer: usize, routing: &Routing, of_answers: &[bool]) {
        self.pairs += routing.ids.len() as u64;
        self.trace.note(layer, routing);
        for (ids, &of_answer) in routing.ids.chunks_exact(routing.chosen).zip(of_answers) {
            for &id in ids {
                let chosen = &mut self.chosen[self.base[layer] + id as usize];
                *chosen = ChosenBy { any: true, answer: chosen.answer || of_answer };
            }
        }
    }

    /// Together with what the rows behind these chose in the same sweep.
    pub fn join(&mut self, other: Used) {
        self.pairs += other.pairs;
        for (chosen, other) in self.chosen.iter_mut().zip(&other.chosen) {
            *chosen = ChosenBy { any: chosen.any || other.any, answer: chosen.answer || other.answer };
        }
        self.trace.append(other.trace);
    }

    /// Distinct (layer, expert).
    pub fn loads(&self) -> u64 {
        self.chosen.iter().filter(|chosen| chosen.any).count() as u64
    }

    /// Of these, those that rows of answers chose.
    pub fn answer_loads(&self) -> u64 {
        self.chosen.iter().filter(|chosen| chosen.answer).count() as u64
    }
}

/// Rows whose sums are taken by one task.
const SUMMED_ROWS: usize = 64;

/// Rows that chose an expert, ascending, and with what weight.
type Chosen = Vec<(u32, f32)>;

impl<'a> SweepFeed<'a> {
    /// A feed for the sweep whose rows are those of `spans`, one behind the other; `wanted` are those whose logits matter, of a span a
    /// row and all that follow up to another.
    pub fn new(engine: &'a Engine<'a>, spans: Vec<SpanRows<'a>>, wanted: Vec<usize>, turns: Turns, beside: Beside) -> Self {
        let of_answers: Vec<bool> = spans.iter().flat_map(|s| std::iter::repeat_n(s.of_answer, s.rows.len())).collect();
        let wanted = Some(wanted);
        let used = Used::none(engine.model.manifest(), of_answers.len());
        SweepFeed { engine, spans, narrowed: Vec::new(), beside, of_answers, turns, wanted, layer: 0, last: None, used }
    }

    /// States of all layers are where they belong.
    ///
    /// # Errors
    /// They cannot be put there.
    pub fn leave(&mut self) -> Result<()> {
        let states = self.engine.model.manifest().layers[self.layer].states.clone();
        for span in self.narrowed.iter_mut().chain(&mut self.spans) {
            span.put_appended(states.clone(), self.engine)?;
        }
        Ok(())
    }

    /// Says which layer comes next. Its states on disk and the next layer's are wanted from now on, and where layers stream whole, their blocks: a wanted piece takes
    /// half a kilobyte, too much for all layers at once.
    pub fn enter(&mut self, layer: usize) {
        self.layer = layer;
        let manifest = self.engine.model.manifest();
        let layers = manifest.layers.len();
        let new = if layer == 0 { 0..layers.min(2) } else { layer + 1..layers.min(layer + 2) };
        for layer in new {
            self.want_states(layer);
            if self.turns.whole_layers && layer + 1 < layers {
                let count = manifest.layers[layer].blocks.as_ref().map_or(0, |blocks| blocks.count);
                let pieces: Vec<Piece> = (0..count as u32).map(|expert| Piece::Block { layer: layer as u32, expert }).collect();
                self.engine.store.want(self.turns.of_blocks(layer), &pieces);
            }
        }
    }

    fn want_states(&self, layer: usize) {
        let Some(store) = self.engine.states else { return };
        let states = self.engine.model.manifest().layers[layer].states.clone();
        let keys = states.flat_map(|state| self.spans.iter().filter_map(move |span| span.on_disk(StateId(state)))).collect::<Vec<_>>();
        store.want(self.turns.of_blocks(layer), &keys);
    }

    /// Leaves only the rows `wanted` in the spans.
    fn narrow_spans(&mut self, wanted: &[usize]) {
        let mut behind = 0;
        let gone = self.spans.extract_if(.., |span| {
            let of_span = wanted[behind..].iter().take_while(|row| **row < span.rows.end);
            let (first, count) = (wanted.get(behind).map_or(0, |row| row.saturating_sub(span.rows.start)), of_span.count());
            let kept = &wanted[behind..behind + count];
            assert!(kept.iter().zip(span.rows.start + first..).all(|(row, next)| *row == next), "a span's wanted rows follow each other");
            span.first += first;
            span.rows = behind..behind + count;
            behind += count;
            count == 0
        });
        self.narrowed.extend(gone);
    }

    fn is_last_layer(&self) -> bool {
        self.layer + 1 == self.engine.model.manifest().layers.len()
    }

    fn rows(&self) -> usize {
        self.of_answers.len()
    }

    fn take(&mut self, weight: WeightId, panel: usize) -> Result<Lease> {
        let piece = Piece::Panel { weight, panel: panel as u32 };
        if let Some((_, lease)) = self.last.take_if(|(last, _)| *last == piece) {
            return Ok(lease);
        }
        self.last = None; // its memory takes the next one
        let lease = self.engine.store.take(piece)?;
        self.last = Some((piece, lease.clone()));
        Ok(lease)
    }

    fn matrix<'l>(&self, weight: WeightId, rows: usize, lease: &'l Lease) -> Matrix<'l> {
        let data = match self.engine.store.element(weight) {
            Element::F32 => Data::F32(lease.part(0)),
            Element::Bf16 => Data::Bf16(lease.part(0)),
        };
        Matrix { rows, cols: self.engine.model.manifest().weight(weight).cols(), data }
    }

    /// Sorts rows by expert.
    fn by_expert(routing: &Routing, experts: usize) -> Vec<Chosen> {
        let mut chosen: Vec<Chosen> = vec![Vec::new(); experts];
        for (i, (&id, &weight)) in routing.ids.iter().zip(&routing.weights).enumerate() {
            chosen[id as usize].push(((i / routing.chosen) as u32, weight));
        }
        chosen
    }

    /// Computes some experts side by side and adds their outputs in ascending id.
    fn expert_batch(&self, batch: &[(usize, Chosen)], blocks: &Blocks, z: &[f32], y: &mut [f32], f: &Expert<'_>) -> Result<()> {
        let (width, scratch, kernels) = (blocks.width, &self.engine.scratch, self.engine.kernels);
        let mut jobs = Vec::with_capacity(batch.len());
        for (expert, chosen) in batch {
            let piece = Piece::Block { layer: self.layer as u32, expert: *expert as u32 };
            let lease = self.engine.store.take(piece)?;
            self.check_scales(piece, blocks, &lease)?;
            jobs.push((lease, chosen, scratch.take(chosen.len() * width)));
        }
        spread(jobs.iter_mut().collect(), |(lease, chosen, out)| {
            let mut gathered = scratch.take(chosen.len() * width);
            for (to, &(row, _)) in gathered.chunks_exact_mut(width).zip(chosen.iter()) {
                to.copy_from_slice(&z[row as usize * width..(row as usize + 1) * width]);
            }
            let part = |(i, part): (usize, &Part)| match part.format {
                PartFormat::Mxfp4 => {
                    let data = Data::Mxfp4 { packed: lease.part(2 * i), scales: lease.part(2 * i + 1) };
                    Matrix { rows: part.rows, cols: part.cols, data }
                }
            };
            let parts: Vec<Matrix<'_>> = blocks.parts.iter().enumerate().map(part).collect();
            f(&Block { parts: &parts }, &gathered, out);
        });
        // By ranges of rows, so that a row's sum has one owner; in each, experts in ascending id.
        spread(y.chunks_mut(SUMMED_ROWS * width).enumerate().collect(), |(range, y)| {
            let first = (range * SUMMED_ROWS) as u32;
            for (_, chosen, out) in &jobs {
                let from = chosen.partition_point(|&(row, _)| row < first);
                for (&(row, weight), out) in chosen[from..].iter().zip(out[from * width..].chunks_exact(width)) {
                    let at = (row - first) as usize * width;
                    if at >= y.len() {
                        break;
                    }
                    kernels.add_scaled(&mut y[at..at + width], out, weight);
                }
            }
        });
        Ok(())
    }

    /// A scale of 255 is no number.
    fn check_scales(&self, piece: Piece, blocks: &Blocks, lease: &Lease) -> Result<()> {
        for (i, part) in blocks.parts.iter().enumerate() {
            match part.format {
                PartFormat::Mxfp4 if mxfp4_has_nan(lease.part(2 * i + 1)) => {
                    let name = self.engine.store.name(piece, 2 * i + 1);
                    return Err(Error::refused(format!("tensor `{name}` holds a scale of 255 (not a number); download the model again")));
                }
                PartFormat::Mxfp4 => {}
            }
        }
        Ok(())
    }
}

impl Feed for SweepFeed<'_> {
    fn kernels(&self) -> Kernels {
        self.engine.kernels
    }

    fn scratch(&self) -> Scratch {
        self.engine.scratch.clone()
    }

    fn matmul(&mut self, w: WeightId, outputs: Range<usize>, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        if self.rows() == 0 {
            return Ok(()); // and nothing is read
        }
        let weight = self.engine.model.manifest().weight(w);
        let panels = outputs.start / weight.panel_rows..outputs.end.div_ceil(weight.panel_rows);
        let rows = (x.data.len() - x.start).div_ceil(x.stride);
        for panel in panels {
            let held = weight.panel(panel);
            assert!(held.start >= outputs.start && held.end <= outputs.end, "a model asks for whole panels");
            let lease = self.take(w, panel)?;
            let part = ViewMut { data: &mut *y.data, start: y.start + held.start - outputs.start, stride: y.stride };
            self.engine.kernels.matmul(rows, x, &self.matrix(w, held.len(), &lease), part);
        }
        Ok(())
    }

    fn panel(&mut self, w: WeightId, outputs: Range<usize>, f: &mut dyn FnMut(Matrix<'_>)) -> Result<()> {
        if self.rows() == 0 {
            return Ok(());
        }
        let weight = self.engine.model.manifest().weight(w);
        let panel = outputs.start / weight.panel_rows;
        assert_eq!(weight.panel(panel), outputs, "a model asks for whole panels");
        let lease = self.take(w, panel)?;
        f(self.matrix(w, outputs.len(), &lease));
        Ok(())
    }

    fn vector(&mut self, w: WeightId) -> Result<Buffer> {
        let weight = self.engine.model.manifest().weight(w);
        assert_eq!(weight.panels(), 1, "a vector is one panel");
        if self.rows() == 0 {
            return Ok(self.engine.scratch.zeros(weight.rows() * weight.cols()));
        }
        let lease = self.take(w, 0)?;
        let mut out = self.engine.scratch.take(weight.rows() * weight.cols());
        self.matrix(w, weight.rows(), &lease).decode(&mut out);
        Ok(out)
    }

    fn mix(&mut self, state: StateId, y: &mut [f32], f: &Mix<'_>) -> Result<()> {
        if self.rows() == 0 {
            return Ok(());
        }
        let width = y.len() / self.rows();
        let spec = self.engine.model.manifest().states[state.0 as usize];
        let mut rest = y;
        let mut spans = &mut self.spans[..];
        while !spans.is_empty() {
            let (now, later) = spans.split_at_mut(self.beside.spans(spans, spec));
            let (part, behind) = rest.split_at_mut(now.iter().map(|span| span.rows.len()).sum::<usize>() * width);
            span::mix(now, state, spec, part, width, self.engine, f)?;
            (spans, rest) = (later, behind);
        }
        Ok(())
    }

    fn narrow(&mut self, x: &mut Stream, beside: &mut [&mut Buffer]) {
        if !self.is_last_layer() {
            return;
        }
        let Some(wanted) = self.wanted.take() else { return };
        let rows = self.rows();
        self.narrow_spans(&wanted);
        self.of_answers = wanted.iter().map(|&row| self.of_answers[row]).collect();
        x.data.keep_rows(x.width, &wanted);
        for buffer in beside {
            buffer.keep_rows(buffer.len() / rows, &wanted);
        }
        self.used.trace.narrow(wanted);
    }

    fn queue(&mut self, routing: &Routing) {
        let blocks = self.engine.model.manifest().layers[self.layer].blocks.as_ref().expect("a layer that routes has blocks");
        let mut chosen = vec![false; blocks.count];
        routing.ids.iter().for_each(|&id| chosen[id as usize] = true);
        let of = |wanted: bool| {
            let experts = (0u32..).zip(&chosen).filter(move |(_, chosen)| **chosen == wanted);
            experts.map(|(expert, _)| Piece::Block { layer: self.layer as u32, expert }).collect::<Vec<_>>()
        };
        if self.turns.whole_layers && !self.is_last_layer() {
            self.engine.store.forget(&of(false));
        } else {
            self.engine.store.want(self.turns.of_blocks(self.layer), &of(true));
        }
    }

    fn experts(&mut self, routing: &Routing, z: &[f32], y: &mut [f32], f: &Expert<'_>) -> Result<()> {
        let blocks = self.engine.model.manifest().layers[self.layer].blocks.as_ref().expect("a layer that routes has blocks");
        self.used.count(self.layer, routing, &self.of_answers);
        let chosen = Self::by_expert(routing, blocks.count);
        let row_bytes = (2 * blocks.width + blocks.inner) * size_of::<f32>();
        let rows_max = expert_rows(self.rows() as u64, blocks.chosen as u64, row_bytes as u64) as usize;
        let mut batch: Vec<(usize, Chosen)> = Vec::new();
        let mut rows = 0;
        for (expert, chosen) in chosen.into_iter().enumerate().filter(|(_, c)| !c.is_empty()) {
            let full = batch.len() == self.engine.blocks_in_flight || rows + chosen.len() > rows_max;
            // What is here is computed while the next one comes.
            let piece = Piece::Block { layer: self.layer as u32, expert: expert as u32 };
            if !batch.is_empty() && (full || !self.engine.store.ready(piece)) {
                self.expert_batch(&batch, blocks, z, y, f)?;
                batch.clear();
                rows = 0;
            }
            rows += chosen.len();
            batch.push((expert, chosen));
        }
        if batch.is_empty() { Ok(()) } else { self.expert_batch(&batch, blocks, z, y, f) }
    }
}
