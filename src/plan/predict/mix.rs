//! Sums of footprints, and what all answers have in common.

use super::super::footprint::Footprint;

/// The weighted sum of `parts`, cut to the `most` largest shares.
pub(super) fn mixed(parts: &[(f32, &Footprint)], most: usize) -> Footprint {
    let scaled = |&(weight, part): &(f32, _)| Footprint::iter(part).map(move |(block, share)| (block as u32, weight * share));
    let mut uses: Vec<(u32, f32)> = parts.iter().flat_map(scaled).collect();
    uses.sort_by_key(|&(block, _)| block);
    uses.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1 += next.1;
        }
        same
    });
    Footprint::of(uses, most)
}

/// `footprint`'s `most` largest shares.
pub(super) fn cut(footprint: &Footprint, most: usize) -> Footprint {
    if footprint.len() <= most { footprint.clone() } else { mixed(&[(1.0, footprint)], most) }
}

/// The shares of a dense vector, one a block.
pub(super) fn dense(shares: &[f32], most: usize) -> Footprint {
    Footprint::of(shares.iter().enumerate().map(|(block, &share)| (block as u32, share)), most)
}

/// The mean of the answers seen.
#[derive(Debug, Clone)]
pub(super) struct Popular {
    /// [blocks], sums of shares.
    sums: Vec<f64>,
    answers: u64,
}

impl Popular {
    pub(super) fn new(blocks: u32) -> Self {
        Popular { sums: vec![0.0; blocks as usize], answers: 0 }
    }

    pub(super) fn add(&mut self, answer: &Footprint) {
        for (block, share) in answer.iter() {
            if let Some(sum) = self.sums.get_mut(block) {
                *sum += f64::from(share);
            }
        }
        self.answers += 1;
    }

    /// The mean share of a block; 0 before there is an answer.
    pub(super) fn share(&self, block: usize) -> f64 {
        self.sums.get(block).map_or(0.0, |sum| sum / self.answers.max(1) as f64)
    }

    /// Blocks counted.
    pub(super) fn blocks(&self) -> usize {
        self.sums.len()
    }

    /// The mean, cut to its `most` largest shares.
    pub(super) fn footprint(&self, most: usize) -> Footprint {
        Footprint::of((0..self.blocks()).map(|block| (block as u32, self.share(block) as f32)), most)
    }
}
