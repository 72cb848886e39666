//! Latent mixture of experts: routed blocks in a narrow width, shared experts in the full one.

use super::{Glu, project, rms_norm};
use crate::error::Result;
use crate::kernels::{Kernels, View, ViewMut, spread};
use crate::model::manifest::WeightId;
use crate::model::{Block, Feed, Routing};
use crate::scratch::{Buffer, Scratch};

/// Rows that are routed by one task.
const ROUTED_ROWS: usize = 64;

/// The weights and widths of one layer.
pub struct Moe {
    /// The router: [experts, hidden].
    pub gate: WeightId,
    /// Steers the choice, never the weights: `[experts]`.
    pub bias: WeightId,
    /// [latent, hidden]
    pub down: WeightId,
    /// Gain of the norm on the experts' sum: `[latent]`.
    pub norm: Option<WeightId>,
    /// [hidden, latent]
    pub up: WeightId,
    /// On the full width, unweighted.
    pub shared: Glu,
    /// Experts that a row chooses.
    pub chosen: usize,
    /// Number of experts.
    pub experts: usize,
    /// Width of z and of the experts' sum.
    pub latent: usize,
    /// Inner width of a routed expert.
    pub inner: usize,
    /// Factor of the weights.
    pub scaling: f32,
    /// Divide the chosen scores by their sum.
    pub renormalize: bool,
    /// eps of the norm.
    pub eps: f32,
}

impl Moe {
    /// x [rows, hidden] -> [rows, hidden].
    ///
    /// # Errors
    /// What `feed` reports.
    pub fn forward(&self, feed: &mut dyn Feed, x: &[f32], hidden: usize) -> Result<Buffer> {
        let (kernels, scratch) = (feed.kernels(), feed.scratch());
        let routing = self.route(feed, x, hidden)?;
        feed.queue(&routing);
        let shared = self.shared.forward(feed, x, hidden)?;
        let z = project(feed, self.down, self.latent, x, hidden)?;
        let mut y = scratch.zeros(z.len());
        feed.experts(&routing, &z, &mut y, &|block, z, out| self.expert(kernels, &scratch, block, z, out))?;
        drop(z);
        if let Some(gain) = self.norm {
            y = rms_norm(feed, gain, self.eps, &y)?;
        }
        let mut out = project(feed, self.up, hidden, &y, self.latent)?;
        drop(y);
        kernels.add(&mut out, &shared);
        Ok(out)
    }

    /// Scores = sigmoid(gate x); the best by score + bias are chosen, weighted by their scores alone.
    fn route(&self, feed: &mut dyn Feed, x: &[f32], hidden: usize) -> Result<Routing> {
        let mut scores = project(feed, self.gate, self.experts, x, hidden)?;
        let kernels = feed.kernels();
        let bias = feed.vector(self.bias)?;
        let rows = x.len() / hidden;
        let mut routing = Routing { ids: vec![0; rows * self.chosen], weights: vec![0.0; rows * self.chosen], chosen: self.chosen };
        let parts = routing.ids.chunks_mut(ROUTED_ROWS * self.chosen).zip(routing.weights.chunks_mut(ROUTED_ROWS * self.chosen));
        let parts = scores.chunks_mut(ROUTED_ROWS * self.experts).zip(parts).collect();
        spread(parts, |(scores, (ids, weights))| {
            kernels.sigmoid(scores);
            let mut order = Vec::with_capacity(self.experts);
            let rows = ids.chunks_exact_mut(self.chosen).zip(weights.chunks_exact_mut(self.chosen));
            for (scores, (ids, weights)) in scores.chunks_exact(self.experts).zip(rows) {
                choose(scores, &bias, self.chosen, &mut order);
                self.weigh(scores, &order, ids, weights);
            }
        });
        Ok(routing)
    }

    /// Ids and weights of the chosen experts of one row, best first.
    fn weigh(&self, scores: &[f32], order: &[(f32, u32)], ids: &mut [u32], weights: &mut [f32]) {
        for ((id, weight), &(_, chosen)) in ids.iter_mut().zip(weights.iter_mut()).zip(order) {
            *id = chosen;
            *weight = scores[chosen as usize];
        }
        let norm = if self.renormalize { weights.iter().sum::<f32>() + 1e-20 } else { 1.0 };
        for weight in weights {
            *weight = *weight / norm * self.scaling;
        }
    }

    /// w2 SiTU(w1 z, w3 z): z [rows, latent] -> out [rows, latent].
    fn expert(&self, kernels: Kernels, scratch: &Scratch, block: &Block<'_>, z: &[f32], out: &mut [f32]) {
        let rows = z.len() / self.latent;
        let x = View { data: z, start: 0, stride: self.latent };
        let [mut gate, mut up] = [(); 2].map(|()| scratch.take(rows * self.inner));
        kernels.matmul(rows, x, &block.parts[0], ViewMut { data: &mut gate, start: 0, stride: self.inner });
        kernels.matmul(rows, x, &block.parts[1], ViewMut { data: &mut up, start: 0, stride: self.inner });
        kernels.situ_glu(&mut gate, &up, self.shared.situ.beta, self.shared.situ.linear_beta);
        let inner = View { data: &gate, start: 0, stride: self.inner };
        kernels.matmul(rows, inner, &block.parts[2], ViewMut { data: out, start: 0, stride: self.latent });
    }
}

/// Puts the `chosen` best of scores + bias first, best first; ties go to the lower id, and what is no number goes last.
fn choose(scores: &[f32], bias: &[f32], chosen: usize, order: &mut Vec<(f32, u32)>) {
    order.clear();
    order.extend(scores.iter().zip(bias).enumerate().map(|(id, (score, bias))| {
        let key = score + bias;
        (if key.is_nan() { f32::NEG_INFINITY } else { key }, id as u32)
    }));
    let better = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    if chosen < order.len() {
        order.select_nth_unstable_by(chosen - 1, better);
    }
    order[..chosen].sort_unstable_by(better);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bias_steers_the_choice_and_ties_go_to_the_lower_id() {
        let mut order = Vec::new();
        choose(&[0.5, 0.9, 0.5, 0.1], &[0.0, 0.0, 0.0, 1.0], 3, &mut order);
        assert_eq!(order[..3].iter().map(|o| o.1).collect::<Vec<_>>(), [3, 1, 0]);
        choose(&[f32::NAN, 0.2], &[0.0, 0.0], 2, &mut order);
        assert_eq!(order[0].1, 1, "what is no number comes last");
    }
}
