//! Multi-head latent attention in its latent form, without rotation, with an output gate.
//!
//! The cache holds one latent and one shared key a token; kv_b is folded into the query and the output, so that keys and values are
//! never expanded (55 KB a token instead of 4.7 MB at K3).

use super::{by_groups, by_rows, project, project_part, rms_norm};
use crate::error::Result;
use crate::kernels::{Attention, Steps, View, ViewMut};
use crate::model::manifest::{StateId, WeightId};
use crate::model::{Feed, Stream};
use crate::scratch::Buffer;

/// The weights and widths of one layer.
pub struct Mla {
    /// [query_rank, hidden]
    pub q_a: WeightId,
    /// `[query_rank]`
    pub q_a_norm: WeightId,
    /// [latent + shared_key, hidden]
    pub kv_a: WeightId,
    /// `[latent]`
    pub kv_a_norm: WeightId,
    /// [heads*(key + shared_key), query_rank]
    pub q_b: WeightId,
    /// [heads*(key + value), latent]
    pub kv_b: WeightId,
    /// [heads*value, hidden]
    pub g: WeightId,
    /// [hidden, heads*value]
    pub o: WeightId,
    /// [tokens, latent + shared_key]
    pub cache: StateId,
    /// Number of heads.
    pub heads: usize,
    /// Heads worked on together.
    pub group: usize,
    /// Rank of the query.
    pub query_rank: usize,
    /// Width of the latent.
    pub latent: usize,
    /// Width of a head's own key.
    pub key: usize,
    /// Width of the key that all heads share.
    pub shared_key: usize,
    /// Width of a head's value.
    pub value: usize,
    /// eps of the norms.
    pub eps: f32,
}

impl Mla {
    /// x [rows, hidden] -> [rows, hidden], of the rows that are left once all are in the cache; `stream` is narrowed with them.
    ///
    /// # Errors
    /// What `feed` reports.
    pub fn forward(&self, feed: &mut dyn Feed, stream: &mut Stream, mut x: Buffer, hidden: usize) -> Result<Buffer> {
        let kernels = feed.kernels();
        self.extend_cache(feed, &x, hidden)?;
        feed.narrow(stream, &mut [&mut x]);
        let (rows, wide, x) = (x.len() / hidden, self.heads * self.value, &x);
        let raw = project(feed, self.q_a, self.query_rank, x, hidden)?;
        let low_rank = rms_norm(feed, self.q_a_norm, self.eps, &raw)?;
        drop(raw);
        let mixed = by_groups(feed, rows, (self.heads, self.group, self.value), &mut |feed, heads| {
            let per_query = self.key + self.shared_key;
            let q = project_part(feed, self.q_b, heads.start * per_query..heads.end * per_query, &low_rank, self.query_rank)?;
            let mut out = feed.scratch().take(rows * heads.len() * self.value);
            self.attend(feed, heads.clone(), &q, &mut out)?;
            let gate = project_part(feed, self.g, heads.start * self.value..heads.end * self.value, x, hidden)?;
            kernels.multiply_sigmoid(&mut out, &gate);
            Ok(out)
        })?;
        project(feed, self.o, hidden, &mixed, wide)
    }

    /// Each row adds its normed latent and its raw shared key to the cache.
    fn extend_cache(&self, feed: &mut dyn Feed, x: &[f32], hidden: usize) -> Result<()> {
        let width = self.latent + self.shared_key;
        let mut row = project(feed, self.kv_a, width, x, hidden)?;
        let gain = feed.vector(self.kv_a_norm)?;
        let (kernels, eps) = (feed.kernels(), self.eps);
        feed.mix(self.cache, &mut row, &|_, row, state| {
            let cached = &mut state.data[state.first * width..];
            cached.copy_from_slice(row);
            for (cached, row) in cached.chunks_exact_mut(width).zip(row.chunks_exact(width)) {
                kernels.rms_norm(View::rows(row, width), &gain, eps, &mut cached[..self.latent]);
            }
        })
    }

    /// Attention of some heads: q [rows, heads*(key + shared_key)] -> out [rows, heads*value].
    fn attend(&self, feed: &mut dyn Feed, heads: std::ops::Range<usize>, q: &[f32], out: &mut [f32]) -> Result<()> {
        let (n, width, query_width) = (heads.len(), self.latent + self.shared_key, self.key + self.shared_key);
        let rows = q.len() / (n * query_width);
        let per_head = self.key + self.value;
        let (scratch, kernels) = (feed.scratch(), feed.kernels());
        let panel = heads.start * per_head..heads.end * per_head;
        let mut folded = scratch.take(rows * n * width);
        feed.panel(self.kv_b, panel.clone(), &mut |kv_b| {
            let keys: Vec<_> = (0..n).map(|h| kv_b.slice(h * per_head..h * per_head + self.key)).collect();
            let to = ViewMut::rows(&mut folded, n * width);
            kernels.matmul_heads_transposed(rows, View::rows(q, query_width * n), &keys, to, Steps { x: query_width, y: width });
        })?;
        by_rows(&mut folded, n * width, q, n * query_width, &|folded, q| {
            for (folded, q) in folded.chunks_exact_mut(width).zip(q.chunks_exact(query_width)) {
                folded[self.latent..].copy_from_slice(&q[self.key..]);
            }
        });
        let mut context = scratch.take(rows * n * self.latent);
        feed.mix(self.cache, &mut context, &|rows, context, state| {
            let cache = View { data: state.data, start: 0, stride: width };
            let attention = Attention {
                q: View { data: &folded, start: rows.start * n * width, stride: n * width },
                keys: cache,
                values: cache,
                key_width: width,
                value_width: self.latent,
                heads: n,
                rows: rows.len(),
                first: state.first,
                scale: 1.0 / ((self.key + self.shared_key) as f32).sqrt(),
            };
            kernels.attend(&attention, ViewMut { data: context, start: 0, stride: n * self.latent });
        })?;
        feed.panel(self.kv_b, panel, &mut |kv_b| {
            let values: Vec<_> = (0..n).map(|h| kv_b.slice(h * per_head + self.key..(h + 1) * per_head)).collect();
            let to = ViewMut::rows(out, n * self.value);
            kernels.matmul_heads(rows, View::rows(&context, n * self.latent), &values, to, Steps { x: self.latent, y: self.value });
        })
    }
}
