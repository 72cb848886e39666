//! The gated block of dense layers and shared experts.

use super::{by_groups, project, project_part};
use crate::error::Result;
use crate::model::Feed;
use crate::model::manifest::WeightId;
use crate::scratch::Buffer;

/// The caps of SiTU-GLU: beta tanh(gate/beta) sigmoid(gate) * linear_beta tanh(up/linear_beta), the sigmoid on the uncapped gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Situ {
    /// Cap of the gate.
    pub beta: f32,
    /// Cap of the linear factor.
    pub linear_beta: f32,
}

/// down( SiTU(gate x, up x) ).
pub struct Glu {
    /// [inner, hidden]
    pub gate: WeightId,
    /// [inner, hidden], with the same panels as the gate.
    pub up: WeightId,
    /// [hidden, inner]
    pub down: WeightId,
    /// Inner width.
    pub inner: usize,
    /// Output rows of a panel of gate and up.
    pub step: usize,
    /// The activation's caps.
    pub situ: Situ,
}

impl Glu {
    /// x [rows, hidden] -> [rows, hidden].
    ///
    /// # Errors
    /// What `feed` reports.
    pub fn forward(&self, feed: &mut dyn Feed, x: &[f32], hidden: usize) -> Result<Buffer> {
        let kernels = feed.kernels();
        let inner = by_groups(feed, x.len() / hidden, (self.inner, self.step, 1), &mut |feed, part| {
            let mut gate = project_part(feed, self.gate, part.clone(), x, hidden)?;
            let up = project_part(feed, self.up, part, x, hidden)?;
            kernels.situ_glu(&mut gate, &up, self.situ.beta, self.situ.linear_beta);
            Ok(gate)
        })?;
        project(feed, self.down, hidden, &inner, self.inner)
    }
}
