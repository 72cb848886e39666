//! The wave at hand: who adds fewest blocks to it?
//!
//! Members come and go as answers end, a million times in a job, so products of 1 - p that are multiplied and divided would drift, and a share
//! of 1 could not be divided out at all. Logarithms in whole numbers are added and subtracted instead: a wave is the same whatever its history.

use super::free::sum_over;
use crate::plan::Footprint;
use crate::plan::footprint::split;

/// Parts of one in a whole logarithm (base 2): over a million members fit below [`NEVER`].
const LOG_ONE: f64 = (1u64 << 20) as f64;
/// The logarithm of 1 - p for p = 1. Above it, nothing is free.
const NEVER: u64 = 1 << 43;
const _: () = assert!((NEVER >> 20) / 8 >= 1 << 20);

/// Sequences in flight together, and which blocks they are expected to use.
#[derive(Debug, Clone, Default)]
pub struct Wave {
    /// -log2 of the product of 1 - p, by block.
    logs: Vec<u64>,
    /// The product itself, in [0, 1].
    free: Vec<f32>,
    members: usize,
}

impl Wave {
    /// A sequence begins.
    pub fn add(&mut self, footprint: &Footprint) {
        let blocks = footprint.entries().last().map_or(0, |entry| split(*entry).0 + 1);
        if blocks > self.logs.len() {
            self.logs.resize(blocks, 0);
            self.free.resize(blocks, 1.0);
        }
        self.members += 1;
        self.change(footprint, u64::saturating_add);
    }

    /// A sequence that was added with this very footprint ends.
    pub fn remove(&mut self, footprint: &Footprint) {
        self.members = self.members.saturating_sub(1);
        self.change(footprint, u64::saturating_sub);
    }

    /// Sequences in it.
    pub fn members(&self) -> usize {
        self.members
    }

    /// The new blocks that a sequence is expected to bring: over its blocks, p times the product of 1 - p of the members.
    pub fn growth(&self, footprint: &Footprint) -> f32 {
        sum_over(footprint, |block, part| part as f32 * self.free.get(block).copied().unwrap_or(1.0)) / 255.0
    }

    /// Distinct blocks expected: over all blocks, 1 - the product of 1 - p.
    pub fn union(&self) -> f32 {
        self.free.iter().fold(0.0, |sum, free| sum + f64::from(1.0 - free)) as f32 // an empty sum would be -0
    }

    /// The one of `candidates` that makes the union grow least; of equals the first.
    pub fn pick<'a, I>(&self, candidates: impl IntoIterator<Item = (I, &'a Footprint)>) -> Option<I> {
        let grown = candidates.into_iter().map(|(id, footprint)| (self.growth(footprint), id));
        grown.reduce(|best, next| if next.0 < best.0 { next } else { best }).map(|(_, id)| id)
    }

    fn change(&mut self, footprint: &Footprint, join: fn(u64, u64) -> u64) {
        for (block, part) in footprint.entries().iter().map(|e| split(*e)) {
            let (Some(log), Some(free)) = (self.logs.get_mut(block), self.free.get_mut(block)) else { continue };
            *log = join(*log, LOGS[part]);
            *free = if *log >= NEVER { 0.0 } else { (-(*log as f64) / LOG_ONE).exp2() as f32 };
        }
    }
}

/// -log2(1 - part / 255) in parts of [`LOG_ONE`].
static LOGS: std::sync::LazyLock<[u64; 256]> = std::sync::LazyLock::new(|| {
    std::array::from_fn(|part| match part {
        255 => NEVER,
        part => (-(1.0 - part as f64 / 255.0).log2() * LOG_ONE).round() as u64,
    })
});
