//! Attention over a row's own stored sums (attention residuals).

use crate::error::Result;
use crate::kernels::View;
use crate::model::Feed;
use crate::model::Stream;
use crate::model::manifest::WeightId;
use crate::scratch::Buffer;

/// softmax over sources of score = sum(rms(v) * norm * proj), output = the RAW sources by those weights.
pub struct Sums {
    /// Gain of the keys' norm, `[hidden]`.
    pub norm: WeightId,
    /// The scorer, [1, hidden].
    pub proj: WeightId,
}

impl Sums {
    /// Mixes the first `sources` vectors of each row of the stream -> [rows, hidden].
    ///
    /// # Errors
    /// What `feed` reports.
    pub fn forward(&self, feed: &mut dyn Feed, sources: usize, x: &Stream, hidden: usize, eps: f32) -> Result<Buffer> {
        let norm = feed.vector(self.norm)?;
        let mut weight = feed.vector(self.proj)?;
        for (w, n) in weight.iter_mut().zip(norm.iter()) {
            *w *= n;
        }
        let mut out = feed.scratch().take(x.rows() * hidden);
        let view = View { data: &x.data, start: 0, stride: x.width };
        feed.kernels().residual_mix(sources, view, hidden, &weight, eps, &mut out);
        Ok(out)
    }
}
