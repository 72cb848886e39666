//! Kimi Delta Attention: a gated delta rule with a decay for each channel of the key.
//!
//! Heads are worked on in groups of one panel of the projections, so that temporaries are a panel wide, not all heads wide. A group has a
//! state of its own, asked for once: a layer's is 6.7 MB a sequence at K3, a group's 0.6, so that many sequences' can pass through a small
//! ring. What a token does to it fits a record of 28 KB.

use std::ops::Range;

use super::{by_groups, project, project_part};
use crate::error::Result;
use crate::kernels::{Delta, Kernels, Replay, View, ViewMut};
use crate::model::manifest::{StateId, WeightId};
use crate::model::{Feed, StateView, Stream};
use crate::scratch::{Buffer, Scratch};

/// eps of the query's and the key's L2 norm.
const L2_EPS: f32 = 1e-6;

/// The weights and widths of one layer.
pub struct Kda {
    /// Low-rank decay, first factor: [width, hidden].
    pub f_a: WeightId,
    /// Write strength: [heads, hidden].
    pub b: WeightId,
    /// Query, key, value: projection [heads*width, hidden] and convolution [heads*width, 1, taps].
    pub qkv: [(WeightId, WeightId); 3],
    /// Log of the decay's slope; only the first `heads` values count.
    pub a_log: WeightId,
    /// Low-rank decay, second factor: [heads*width, width].
    pub f_b: WeightId,
    /// Bias of the decay: `[heads*width]`.
    pub dt_bias: WeightId,
    /// Output gate: [heads*width, hidden].
    pub g: WeightId,
    /// Gain of the output's norm: `[width]`.
    pub o_norm: WeightId,
    /// [hidden, heads*width]
    pub o: WeightId,
    /// One a group of heads: for query, key and value the last inputs of the convolution, [3, taps-1, group*width], then a matrix a
    /// head, [group, width (key), width (value)].
    pub states: Vec<StateId>,
    /// Number of heads.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Inputs of a convolution.
    pub taps: usize,
    /// Heads worked on together.
    pub group: usize,
    /// Least log-decay of a step.
    pub gate_lower_bound: f32,
    /// eps of the output's norm.
    pub eps: f32,
}

impl Kda {
    /// x [rows, hidden] -> [rows, hidden], of the rows that are left after the layer's states are complete; `stream` is narrowed with them.
    ///
    /// # Errors
    /// What `feed` reports.
    pub fn forward(&self, feed: &mut dyn Feed, stream: &mut Stream, x: Buffer, hidden: usize) -> Result<Buffer> {
        let (rows, wide, x) = (x.len() / hidden, self.heads * self.width, &x);
        let kernels = feed.kernels();
        let low_rank = project(feed, self.f_a, self.width, x, hidden)?;
        let mut beta = project(feed, self.b, self.heads, x, hidden)?;
        kernels.sigmoid(&mut beta);
        let mut slope = feed.vector(self.a_log)?;
        kernels.exp(&mut slope);
        let mut mixed = by_groups(feed, rows, (self.heads, self.group, self.width), &mut |feed, heads| {
            let channels = heads.start * self.width..heads.end * self.width;
            let mut decay = project_part(feed, self.f_b, channels.clone(), &low_rank, self.width)?;
            let bias = feed.vector(self.dt_bias)?;
            kernels.decay(&mut decay, &bias[channels.clone()], &slope[heads.clone()], self.width, self.gate_lower_bound);
            let (o, q) = self.recur(feed, heads, decay, &beta, x, hidden)?;
            self.gate(feed, channels, &o, q, x, hidden)
        })?;
        feed.narrow(stream, &mut [&mut mixed]);
        project(feed, self.o, hidden, &mixed, wide)
    }

    /// Some heads' outputs of the delta rule over each span's tokens [rows, group*width], and a buffer of that size that is free.
    fn recur(
        &self,
        feed: &mut dyn Feed,
        heads: Range<usize>,
        decay: Buffer,
        beta: &[f32],
        x: &[f32],
        hidden: usize,
    ) -> Result<(Buffer, Buffer)> {
        let channels = heads.start * self.width..heads.end * self.width;
        let of = |feed: &mut dyn Feed, (projection, convolution): (WeightId, WeightId)| {
            let raw = project_part(feed, projection, channels.clone(), x, hidden)?;
            Ok((raw, feed.vector(convolution)?))
        };
        let inputs = [of(feed, self.qkv[0])?, of(feed, self.qkv[1])?, of(feed, self.qkv[2])?];
        let state = self.states[heads.start / self.group];
        let mut o = feed.scratch().take(decay.len());
        let group = Group { kda: self, kernels: feed.kernels(), scratch: feed.scratch(), heads, inputs, decay, beta };
        feed.mix(state, &mut o, &|rows, o, state| group.advance(rows, o, state))?;
        let [(q, _), ..] = group.inputs;
        Ok((o, q))
    }

    /// RMSNorm of each head's output times sigmoid(W x); `out` is overwritten and returned.
    fn gate(&self, feed: &mut dyn Feed, channels: Range<usize>, o: &[f32], mut out: Buffer, x: &[f32], hidden: usize) -> Result<Buffer> {
        let kernels = feed.kernels();
        let gain = feed.vector(self.o_norm)?;
        kernels.rms_norm(View { data: o, start: 0, stride: self.width }, &gain, self.eps, &mut out);
        let gate = project_part(feed, self.g, channels, x, hidden)?;
        kernels.multiply_sigmoid(&mut out, &gate);
        Ok(out)
    }
}

/// Floats of a token's record for each channel of a group: query, key and value before the convolution, decay, the key of the delta rule
/// and how the state changed along it.
pub const RECORD: usize = 6;

/// Some heads of a layer with all that their states are advanced by; rows are those of the sweep.
struct Group<'a> {
    kda: &'a Kda,
    kernels: Kernels,
    scratch: Scratch,
    heads: Range<usize>,
    /// Query, key, value: [rows, n] before the convolution, n channels being the group's, and the convolution of all heads.
    inputs: [(Buffer, Buffer); 3],
    /// [rows, n]
    decay: Buffer,
    /// [rows, heads], of all heads.
    beta: &'a [f32],
}

impl Group<'_> {
    /// The group's channels.
    fn n(&self) -> usize {
        self.heads.len() * self.kda.width
    }

    /// Takes a span's state through its rows; o is [span, n].
    fn advance(&self, rows: Range<usize>, o: &mut [f32], state: StateView<'_>) {
        let (n, d, kernels, tokens) = (self.n(), self.kda.width, self.kernels, rows.len());
        let (tails, matrices) = state.data.split_at_mut(3 * (self.kda.taps - 1) * n);
        self.replay(state.past, tails, matrices);
        let mut made = self.scratch.take(3 * tokens * n);
        self.convolve(rows.clone(), tails, &mut made);
        let plane = |which| View { data: &made, start: which * tokens * n, stride: n };
        let decay = View { data: &self.decay, start: rows.start * n, stride: n };
        let beta = View { data: self.beta, start: rows.start * self.kda.heads + self.heads.start, stride: self.kda.heads };
        let delta = Delta { q: plane(0), k: plane(1), v: plane(2), decay, beta, d, heads: self.heads.len(), tokens };
        let mut log = state.log;
        let changes = log.as_deref_mut().map(|log| ViewMut { data: log, start: 5 * n, stride: RECORD * n });
        kernels.delta_rule(matrices, &delta, ViewMut::rows(o, n), changes);
        let Some(log) = log else { return };
        let raw = self.inputs.each_ref().map(|(raw, _)| View { data: raw, start: rows.start * n, stride: n });
        for (t, record) in log.chunks_exact_mut(RECORD * n).enumerate() {
            for (view, part) in raw.iter().chain([&delta.decay, &delta.k]).zip(record.chunks_exact_mut(n)) {
                part.copy_from_slice(view.row(t, n));
            }
        }
    }

    /// SiLU(conv(x)) of a span's query, key and value, the first two normed, the query scaled -> [3, span, n].
    fn convolve(&self, rows: Range<usize>, tails: &mut [f32], made: &mut [f32]) {
        let (n, taps, width) = (self.n(), self.kda.taps, self.kda.width);
        let (first, tail, plane) = (self.heads.start * width, (taps - 1) * n, rows.len() * n);
        for (which, (raw, weight)) in self.inputs.iter().enumerate() {
            let filters = &weight[first * taps..(first + n) * taps];
            let (y, tail) = (&mut made[which * plane..][..plane], &mut tails[which * tail..][..tail]);
            self.kernels.short_conv_silu(&raw[rows.start * n..rows.end * n], filters, tail, y);
            match which {
                0 => self.kernels.l2_norm(y, width, L2_EPS, 1.0 / (width as f32).sqrt()),
                1 => self.kernels.l2_norm(y, width, L2_EPS, 1.0),
                _ => {}
            }
        }
    }

    /// Does what earlier tokens did, by their records.
    fn replay(&self, past: &[f32], tails: &mut [f32], matrices: &mut [f32]) {
        let (n, keep) = (self.n(), self.kda.taps - 1);
        let tokens = past.len() / (RECORD * n);
        if tokens == 0 {
            return;
        }
        let part = |which| View { data: past, start: which * n, stride: RECORD * n };
        let new = tokens.min(keep);
        for which in 0..self.inputs.len() {
            let tail = &mut tails[which * keep * n..][..keep * n];
            tail.copy_within(new * n.., 0);
            for (t, row) in (tokens - new..tokens).zip(tail[(keep - new) * n..].chunks_exact_mut(n)) {
                row.copy_from_slice(part(which).row(t, n));
            }
        }
        let replay = Replay { decay: part(3), k: part(4), change: part(5), d: self.kda.width, heads: self.heads.len(), tokens };
        self.kernels.delta_replay(matrices, &replay);
    }
}

#[cfg(test)]
mod tests;
