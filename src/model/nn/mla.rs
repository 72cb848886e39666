//! Multi-head latent attention in its latent form, without rotation, with an output gate.
//!
//! The cache holds one latent and one shared key a token; kv_b is folded into the query and the output, so that keys and values are
//! never expanded (55 KB a token instead of 4.7 MB at K3).

use super::{by_groups, copy_rows, project, project_part, rms_norm};
use crate::error::Result;
use crate::kernels::{Attention, View, ViewMut};
use crate::model::Feed;
use crate::model::manifest::{StateId, WeightId};
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
    /// x [rows, hidden] -> [rows, hidden].
    ///
    /// # Errors
    /// What `feed` reports.
    pub fn forward(&self, feed: &mut dyn Feed, x: &[f32], hidden: usize) -> Result<Buffer> {
        let (rows, wide) = (x.len() / hidden, self.heads * self.value);
        let kernels = feed.kernels();
        let raw = project(feed, self.q_a, self.query_rank, x, hidden)?;
        let low_rank = rms_norm(feed, self.q_a_norm, self.eps, &raw)?;
        drop(raw);
        let fresh = self.cached_row(feed, x, hidden)?;
        let mixed = by_groups(feed, rows, (self.heads, self.group, self.value), &mut |feed, heads| {
            let per_query = self.key + self.shared_key;
            let q = project_part(feed, self.q_b, heads.start * per_query..heads.end * per_query, &low_rank, self.query_rank)?;
            let mut out = feed.scratch().take(rows * heads.len() * self.value);
            self.attend(feed, heads.clone(), &q, &fresh, &mut out)?;
            let gate = project_part(feed, self.g, heads.start * self.value..heads.end * self.value, x, hidden)?;
            kernels.multiply_sigmoid(&mut out, &gate);
            Ok(out)
        })?;
        project(feed, self.o, hidden, &mixed, wide)
    }

    /// What each row adds to the cache: normed latent, raw shared key -> [rows, latent + shared_key].
    fn cached_row(&self, feed: &mut dyn Feed, x: &[f32], hidden: usize) -> Result<Buffer> {
        let width = self.latent + self.shared_key;
        let mut row = project(feed, self.kv_a, width, x, hidden)?;
        let rows = row.len() / width;
        let gain = feed.vector(self.kv_a_norm)?;
        let mut latent = feed.scratch().take(rows * self.latent);
        feed.kernels().rms_norm(View { data: &row, start: 0, stride: width }, &gain, self.eps, &mut latent);
        copy_rows(
            rows,
            self.latent,
            View { data: &latent, start: 0, stride: self.latent },
            ViewMut { data: &mut row, start: 0, stride: width },
        );
        Ok(row)
    }

    /// Attention of some heads: q [rows, heads*(key + shared_key)] -> out [rows, heads*value].
    fn attend(&self, feed: &mut dyn Feed, heads: std::ops::Range<usize>, q: &[f32], fresh: &[f32], out: &mut [f32]) -> Result<()> {
        let (n, width) = (heads.len(), self.latent + self.shared_key);
        let rows = fresh.len() / width;
        let per_head = self.key + self.value;
        let (scratch, kernels) = (feed.scratch(), feed.kernels());
        let panel = heads.start * per_head..heads.end * per_head;
        let query_stride = n * (self.key + self.shared_key);
        let mut folded = scratch.take(rows * n * width);
        feed.panel(self.kv_b, panel.clone(), &mut |kv_b| {
            for h in 0..n {
                let at = h * (self.key + self.shared_key);
                let key = kv_b.slice(h * per_head..h * per_head + self.key);
                kernels.matmul_transposed(
                    rows,
                    View { data: q, start: at, stride: query_stride },
                    &key,
                    ViewMut { data: &mut folded, start: h * width, stride: n * width },
                );
                copy_rows(
                    rows,
                    self.shared_key,
                    View { data: q, start: at + self.key, stride: query_stride },
                    ViewMut { data: &mut folded, start: h * width + self.latent, stride: n * width },
                );
            }
        })?;
        let mut context = scratch.take(rows * n * self.latent);
        feed.mix(self.cache, &mut context, &|rows, context, state| {
            if heads.start == 0 {
                state.data[state.first * width..].copy_from_slice(&fresh[rows.start * width..rows.end * width]);
            }
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
            for h in 0..n {
                let value = kv_b.slice(h * per_head + self.key..(h + 1) * per_head);
                kernels.matmul(
                    rows,
                    View { data: &context, start: h * self.latent, stride: n * self.latent },
                    &value,
                    ViewMut { data: out, start: h * self.value, stride: n * self.value },
                );
            }
        })
    }
}
