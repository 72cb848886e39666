//! The gated block of dense layers and shared experts.

use super::project_part;
use crate::error::Result;
use crate::kernels::{View, ViewMut};
use crate::model::Feed;
use crate::model::manifest::WeightId;
use crate::model::nn::{copy_rows, project};
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
        let (rows, kernels) = (x.len() / hidden, feed.kernels());
        let mut inner = feed.scratch().take(rows * self.inner);
        for start in (0..self.inner).step_by(self.step) {
            let part = start..self.inner.min(start + self.step);
            let mut gate = project_part(feed, self.gate, part.clone(), x, hidden)?;
            let up = project_part(feed, self.up, part.clone(), x, hidden)?;
            kernels.situ_glu(&mut gate, &up, self.situ.beta, self.situ.linear_beta);
            copy_rows(
                rows,
                part.len(),
                View { data: &gate, start: 0, stride: part.len() },
                ViewMut { data: &mut inner, start, stride: self.inner },
            );
        }
        project(feed, self.down, hidden, &inner, self.inner)
    }
}
