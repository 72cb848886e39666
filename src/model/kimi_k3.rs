//! Kimi K3: delta attention and latent attention in turn, latent experts, attention over stored sums.
//!
//! A row of the stream holds the stored sums one after another and the running sum behind them. Storing the running sum
//! therefore moves nothing: its place becomes the last stored sum's, and the next place becomes its own.

mod config;
mod tensors;

use serde_json::Value;

use super::manifest::{Manifest, WeightId};
use super::nn::{self, Sums};
use super::{Feed, Fold, Model, Stream};
use crate::error::Result;
use crate::scratch::Buffer;
use config::Config;
use tensors::{Attention, LayerWeights, Mlp, Tail};

/// `model_type` in config.json.
pub const MODEL_TYPE: &str = "kimi_k3";

/// The released model's config.json: the fields that change what is computed.
pub const RELEASED: &str = include_str!("kimi_k3/released.json");

/// The architecture, its widths taken from config.json.
pub struct KimiK3 {
    config: Config,
    manifest: Manifest,
    layers: Vec<LayerWeights>,
    tail: Tail,
}

impl KimiK3 {
    /// Reads config.json, for weights that come in panels of at most `panel_bytes`; the error lists every fault.
    pub fn from_config(config: &Value, panel_bytes: usize) -> std::result::Result<Self, Vec<String>> {
        let config = Config::read(config)?;
        let (manifest, layers, tail) = tensors::list(&config, panel_bytes);
        Ok(KimiK3 { config, manifest, layers, tail })
    }

    /// RMSNorm of a row's mixed sums; what was mixed is free again, a row of it being 28 KB.
    fn normed_sums(&self, feed: &mut dyn Feed, sums: &Sums, norm: WeightId, sources: usize, x: &Stream) -> Result<Buffer> {
        sums.normed(feed, sources, x, norm, self.config.hidden, self.config.eps)
    }

    fn attention(&self, layer: usize, x: &mut Stream, feed: &mut dyn Feed) -> Result<()> {
        let (c, w) = (&self.config, &self.layers[layer]);
        let stored = c.stored_sums(layer);
        let pushes = layer.is_multiple_of(c.residual_block);
        let sources = if pushes { stored } else { stored + 1 }; // before this layer's push
        let h = self.normed_sums(feed, &w.attention_sums, w.input_norm, sources, x)?;
        let a = match &w.attention {
            Attention::Kda(kda) => kda.forward(feed, x, h, c.hidden)?,
            Attention::Mla(mla) => mla.forward(feed, x, h, c.hidden)?,
        };
        if pushes {
            set_sum(x, stored, &a, c.hidden);
        } else {
            add_to_sum(feed, x, stored, &a, c.hidden);
        }
        Ok(())
    }

    fn mlp(&self, layer: usize, x: &mut Stream, feed: &mut dyn Feed) -> Result<()> {
        let (c, w) = (&self.config, &self.layers[layer]);
        let stored = c.stored_sums(layer);
        let h = self.normed_sums(feed, &w.mlp_sums, w.post_norm, stored + 1, x)?;
        let m = match &w.mlp {
            Mlp::Dense(glu) => glu.forward(feed, &h, c.hidden)?,
            Mlp::Moe(moe) => moe.forward(feed, &h, c.hidden)?,
        };
        add_to_sum(feed, x, stored, &m, c.hidden);
        Ok(())
    }
}

impl Model for KimiK3 {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn layer(&self, layer: usize, x: &mut Stream, feed: &mut dyn Feed) -> Result<()> {
        self.attention(layer, x, feed)?;
        self.mlp(layer, x, feed)
    }

    fn head(&self, x: &Stream, feed: &mut dyn Feed, fold: &mut Fold<'_>) -> Result<()> {
        let c = &self.config;
        let h = self.normed_sums(feed, &self.tail.sums, self.tail.norm, c.sums(), x)?;
        let head = self.manifest.weight(self.tail.head);
        let panels: Vec<_> = (0..head.panels()).map(|p| head.panel(p)).collect();
        nn::fold_head(feed, self.tail.head, &panels, &h, c.hidden, fold)
    }
}

/// Sum `sum` of every row = a.
fn set_sum(x: &mut Stream, sum: usize, a: &[f32], hidden: usize) {
    let width = x.width;
    nn::by_rows(&mut x.data, width, a, hidden, &|x, a| {
        for (x, a) in x.chunks_exact_mut(width).zip(a.chunks_exact(hidden)) {
            x[sum * hidden..(sum + 1) * hidden].copy_from_slice(a);
        }
    });
}

/// Sum `sum` of every row += a.
fn add_to_sum(feed: &dyn Feed, x: &mut Stream, sum: usize, a: &[f32], hidden: usize) {
    let (kernels, width) = (feed.kernels(), x.width);
    nn::by_rows(&mut x.data, width, a, hidden, &|x, a| {
        for (x, a) in x.chunks_exact_mut(width).zip(a.chunks_exact(hidden)) {
            kernels.add(&mut x[sum * hidden..(sum + 1) * hidden], a);
        }
    });
}

#[cfg(test)]
mod tests;
