//! Latent mixture of experts: routed blocks in a narrow width, shared experts in the full one.

use super::{Glu, project, rms_norm};
use crate::error::Result;
use crate::kernels::{Kernels, View, ViewMut};
use crate::model::manifest::WeightId;
use crate::model::{Block, Feed, Routing};
use crate::scratch::{Buffer, Scratch};

/// The weights and widths of one layer.
pub struct Moe {
    /// The router: [experts, hidden].
    pub gate: WeightId,
    /// Steers the choice, never the weights: [experts].
    pub bias: WeightId,
    /// [latent, hidden]
    pub down: WeightId,
    /// Gain of the norm on the experts' sum: [latent].
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
        let z = project(feed, self.down, self.latent, x, hidden)?;
        let mut y = scratch.zeros(z.len());
        feed.experts(&routing, &z, &mut y, &|block, z, out| self.expert(kernels, &scratch, block, z, out))?;
        drop(z);
        if let Some(gain) = self.norm {
            y = rms_norm(feed, gain, self.eps, &y)?;
        }
        let mut out = project(feed, self.up, hidden, &y, self.latent)?;
        drop(y);
        kernels.add(&mut out, &self.shared.forward(feed, x, hidden)?);
        Ok(out)
    }

    /// Scores = sigmoid(gate x); the best by score + bias are chosen, weighted by their scores alone.
    fn route(&self, feed: &mut dyn Feed, x: &[f32], hidden: usize) -> Result<Routing> {
        let mut scores = project(feed, self.gate, self.experts, x, hidden)?;
        feed.kernels().sigmoid(&mut scores);
        let bias = feed.vector(self.bias)?;
        let rows = x.len() / hidden;
        let mut routing =
            Routing { ids: Vec::with_capacity(rows * self.chosen), weights: Vec::with_capacity(rows * self.chosen), chosen: self.chosen };
        let mut order: Vec<(f32, u32)> = Vec::with_capacity(self.experts);
        for row in scores.chunks_exact(self.experts) {
            choose(row, &bias, self.chosen, &mut order);
            let chosen = order[..self.chosen].iter().map(|&(_, id)| row[id as usize]);
            let sum: f32 = chosen.clone().sum();
            let norm = if self.renormalize { sum + 1e-20 } else { 1.0 };
            routing.weights.extend(chosen.map(|score| score / norm * self.scaling));
            routing.ids.extend(order[..self.chosen].iter().map(|&(_, id)| id));
        }
        Ok(routing)
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
