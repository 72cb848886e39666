//! What a set of requests leaves free of each block: the product of 1 - p over its members.
//!
//! Grouping asks thousands of times a wave by how much a request would make its union grow, so this is one array, built from nothing for each
//! question's set and handed from one to the next by a pool: 330 KB at the largest model, which stays in a core's cache.

use std::sync::Mutex;

use crate::plan::Footprint;
use crate::plan::footprint::split;

/// Shares are parts of this.
const WHOLE: f32 = 255.0;

/// 1 - p by the parts of p. What is always used is taken as 1 - 1/1024, so that a member can be divided out again.
const MISS: [f32; 256] = {
    let mut miss = [0.0; 256];
    let mut part = 0;
    while part < 256 {
        miss[part] = 1.0 - part as f32 / WHOLE;
        part += 1;
    }
    miss[255] = 1.0 / 1024.0;
    miss
};

/// The inverse of [`MISS`].
const BACK: [f32; 256] = {
    let mut back = MISS;
    let mut part = 0;
    while part < 256 {
        back[part] = 1.0 / back[part];
        part += 1;
    }
    back
};

/// The product of 1 - p over some requests, by block.
#[derive(Debug)]
pub(super) struct Free(Vec<f32>);

impl Free {
    /// Of no request.
    pub fn of_blocks(blocks: usize) -> Self {
        Free(vec![1.0; blocks])
    }

    /// The new blocks that `footprint` is expected to bring.
    pub fn growth(&self, footprint: &Footprint) -> f32 {
        sum_over(footprint, |block, part| part as f32 * self.0[block]) / WHOLE
    }

    /// The blocks of `footprint` that are expected to be there already.
    pub fn common(&self, footprint: &Footprint) -> f32 {
        sum_over(footprint, |block, part| part as f32 * (1.0 - self.0[block])) / WHOLE
    }

    /// The blocks that would go with the member `footprint`.
    pub fn loss(&self, footprint: &Footprint) -> f32 {
        sum_over(footprint, |block, part| part as f32 * self.0[block] * BACK[part]) / WHOLE
    }

    /// `footprint` joins.
    pub fn add(&mut self, footprint: &Footprint) {
        for (block, part) in footprint.entries().iter().map(|e| split(*e)) {
            self.0[block] *= MISS[part];
        }
    }

    /// The member `footprint` leaves, up to rounding.
    pub fn take(&mut self, footprint: &Footprint) {
        for (block, part) in footprint.entries().iter().map(|e| split(*e)) {
            self.0[block] *= BACK[part];
        }
    }

    /// Free of all blocks of `footprint`, exactly; of every member, it is as new.
    pub fn forget(&mut self, footprint: &Footprint) {
        for (block, _) in footprint.entries().iter().map(|e| split(*e)) {
            self.0[block] = 1.0;
        }
    }
}

/// A sum over a footprint's blocks and parts of 255, in four strands: one strand would wait for each addition.
pub(super) fn sum_over(footprint: &Footprint, term: impl Fn(usize, usize) -> f32) -> f32 {
    let mut strands = [0.0f32; 4];
    let (fours, rest) = footprint.entries().as_chunks::<4>();
    for four in fours {
        for (strand, entry) in strands.iter_mut().zip(four) {
            let (block, part) = split(*entry);
            *strand += term(block, part);
        }
    }
    let rest: f32 = rest.iter().map(|entry| split(*entry)).map(|(block, part)| term(block, part)).sum();
    (strands[0] + strands[1]) + (strands[2] + strands[3]) + rest
}

/// Lends arrays that were made once.
#[derive(Debug)]
pub(super) struct Pool {
    blocks: usize,
    spare: Mutex<Vec<Free>>,
}

impl Pool {
    /// Of arrays with room for `blocks`.
    pub fn of_blocks(blocks: usize) -> Self {
        Pool { blocks, spare: Mutex::new(Vec::new()) }
    }

    /// Blocks that an array has.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// An array of no request.
    pub fn lend(&self) -> Free {
        let spare = self.spare.lock().expect("no holder panics").pop();
        spare.unwrap_or_else(|| Free::of_blocks(self.blocks))
    }

    /// Takes one back; it holds no request any more.
    pub fn give_back(&self, free: Free) {
        self.spare.lock().expect("no holder panics").push(free);
    }
}
