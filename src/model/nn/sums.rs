//! Attention over a row's own stored sums (attention residuals).

use super::by_rows;
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
    /// RMSNorm, with the gain `then`, of the mix of the first `sources` vectors of each row of the stream -> [rows, hidden].
    ///
    /// # Errors
    /// What `feed` reports.
    pub fn normed(&self, feed: &mut dyn Feed, sources: usize, x: &Stream, then: WeightId, hidden: usize, eps: f32) -> Result<Buffer> {
        let (norm, gain) = (feed.vector(self.norm)?, feed.vector(then)?);
        let mut weight = feed.vector(self.proj)?;
        for (w, n) in weight.iter_mut().zip(norm.iter()) {
            *w *= n;
        }
        let (kernels, scratch) = (feed.kernels(), feed.scratch());
        let mut out = scratch.take(x.rows() * hidden);
        by_rows(&mut out, hidden, &x.data, x.width, &|out, x_rows| {
            let mut mixed = scratch.take(out.len());
            kernels.residual_mix(sources, View::rows(x_rows, x.width), hidden, &weight, eps, &mut mixed);
            kernels.rms_norm(View::rows(&mixed, hidden), &gain, eps, out);
        });
        Ok(out)
    }
}
