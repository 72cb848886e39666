//! Kimi Delta Attention: a gated delta rule with a decay for each channel of the key.
//!
//! Heads are worked on in groups of one panel of the projections, so that temporaries are a panel wide, not all heads wide.

use super::{by_groups, project, project_part};
use crate::error::Result;
use crate::kernels::{Delta, View, ViewMut};
use crate::model::manifest::{StateId, WeightId};
use crate::model::{Feed, Stream};
use crate::scratch::Buffer;

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
    /// The last inputs of the convolutions: for query, key and value, group by group, [taps-1, group*width].
    pub tails: StateId,
    /// [heads, width (key), width (value)]
    pub matrix: StateId,
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
            let [q, k, v] = self.queries_keys_values(feed, channels.clone(), x, hidden)?;
            let o = self.recur(feed, heads, [&q, &k, &v, &decay], &beta)?;
            drop((k, v, decay));
            self.gate(feed, channels, &o, q, x, hidden)
        })?;
        feed.narrow(stream, &mut [&mut mixed]);
        project(feed, self.o, hidden, &mixed, wide)
    }

    /// SiLU(conv(W x)) for query, key and value of some heads; query and key normed, the query scaled.
    fn queries_keys_values(&self, feed: &mut dyn Feed, channels: std::ops::Range<usize>, x: &[f32], hidden: usize) -> Result<[Buffer; 3]> {
        let (n, kernels, past) = (channels.len(), feed.kernels(), self.taps - 1);
        let wide = self.heads * self.width;
        let mut made = Vec::with_capacity(3);
        for (which, (projection, convolution)) in self.qkv.iter().enumerate() {
            let raw = project_part(feed, *projection, channels.clone(), x, hidden)?;
            let weight = feed.vector(*convolution)?;
            let taps = &weight[channels.start * self.taps..channels.end * self.taps];
            let tail_at = past * (which * wide + channels.start);
            let mut y = feed.scratch().take(raw.len());
            feed.mix(self.tails, &mut y, &|rows, y, state| {
                let tail = &mut state.data[tail_at..tail_at + past * n];
                kernels.short_conv_silu(&raw[rows.start * n..rows.end * n], taps, tail, y);
                match which {
                    0 => kernels.l2_norm(y, self.width, L2_EPS, 1.0 / (self.width as f32).sqrt()),
                    1 => kernels.l2_norm(y, self.width, L2_EPS, 1.0),
                    _ => {}
                }
            })?;
            made.push(y);
        }
        Ok(made.try_into().unwrap_or_else(|_| unreachable!("three were made")))
    }

    /// The delta rule over each span's tokens -> [rows, group*width].
    fn recur(&self, feed: &mut dyn Feed, heads: std::ops::Range<usize>, qkvg: [&[f32]; 4], beta: &[f32]) -> Result<Buffer> {
        let n = heads.len() * self.width;
        let kernels = feed.kernels();
        let mut o = feed.scratch().take(qkvg[0].len());
        let square = self.width * self.width;
        feed.mix(self.matrix, &mut o, &|rows, o, state| {
            let [q, k, v, decay] = qkvg.map(|data| View { data, start: rows.start * n, stride: n });
            let beta = View { data: beta, start: rows.start * self.heads + heads.start, stride: self.heads };
            let delta = Delta { q, k, v, decay, beta, d: self.width, heads: heads.len(), tokens: rows.len() };
            kernels.delta_rule(&mut state.data[heads.start * square..heads.end * square], &delta, ViewMut { data: o, start: 0, stride: n });
        })?;
        Ok(o)
    }

    /// RMSNorm of each head's output times sigmoid(W x); `out` is overwritten and returned.
    fn gate(
        &self,
        feed: &mut dyn Feed,
        channels: std::ops::Range<usize>,
        o: &[f32],
        mut out: Buffer,
        x: &[f32],
        hidden: usize,
    ) -> Result<Buffer> {
        let kernels = feed.kernels();
        let gain = feed.vector(self.o_norm)?;
        kernels.rms_norm(View { data: o, start: 0, stride: self.width }, &gain, self.eps, &mut out);
        let gate = project_part(feed, self.g, channels, x, hidden)?;
        kernels.multiply_sigmoid(&mut out, &gate);
        Ok(out)
    }
}
