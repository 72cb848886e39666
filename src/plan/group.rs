//! Who runs together: waves whose requests use the same blocks.
//!
//! A wave's sweep reads the union of its requests' blocks, 17.5 MB each at the largest model; waves of 8 that share what they can read an eighth less
//! than random ones do on the demo model. What is to be small is the expected union, the sum over blocks of 1 - product of (1 - p), which saves twice
//! as much there as likeness of vectors does. A million requests have 5 x 10^11 pairs and a plan may take a minute, so a crowd is first cut in
//! halves that differ most (`cut`), pieces are grown into waves (`grow`), and waves exchange requests with their neighbours (`mend`).
//! All of it is a function of the footprints: threads only compare, and ties fall to the lower request.

mod cut;
mod free;
mod grow;
mod mend;
mod wave;

use super::Footprint;
use super::footprint::split;
use free::Pool;
use mend::Judge;

pub use wave::Wave;

/// Comparisons that growing may take in all; what a core does in two seconds.
const COMPARISONS: usize = 5_000_000;
/// Requests that are compared with each other however many there are.
const PIECE_MIN: usize = 192;
/// Waves that a request's wave meets, times the requests: about ten comparisons each.
const MEETINGS: usize = 300_000;
/// Meetings of a wave however many requests there are.
const MEETINGS_MIN: usize = 6;
/// Meetings of a wave however few requests there are; as a rule a pass that mends nothing ends them sooner.
const MEETINGS_MAX: usize = 200;
/// Waves that exchange requests with each other, where they are more than one piece.
const WAVES_MENDED: usize = 8;
/// The part of a request's blocks that a wave's lengths being a factor of two apart is worth.
const LENGTH_WORTH: f32 = 0.003;

/// The order in which requests are admitted: each `wave` consecutive ones are a wave, and neighbouring waves are alike. A request whose footprint is
/// empty goes last, in order of input. `tokens` are expected lengths of answers, one a request or none at all: where it costs few blocks, a wave's
/// answers end together.
pub fn order(footprints: &[&Footprint], tokens: &[u32], wave: usize) -> Vec<u32> {
    let wave = wave.clamp(1, footprints.len().max(1));
    let (mut known, unknown): (Vec<u32>, Vec<u32>) = (0..footprints.len() as u32).partition(|i| !footprints[*i as usize].is_empty());
    if !known.is_empty() {
        let last = footprints.iter().filter_map(|footprint| footprint.entries().last()).map(|entry| split(*entry).0).max();
        let pool = Pool::of_blocks(last.expect("a request has a block") + 1);
        let lengths = lengths(footprints, tokens, known.len());
        let judge = Judge { footprints, lengths: &lengths, pool: &pool };
        let piece = (2 * COMPARISONS / known.len()).max(PIECE_MIN);
        let meetings = (MEETINGS / known.len()).clamp(MEETINGS_MIN, MEETINGS_MAX);
        let crowd = Crowd { judge: &judge, wave, piece, meetings };
        crowd.settle(&mut known, false);
    }
    known.extend(unknown);
    known
}

/// Lengths as a [`Judge`] takes them.
fn lengths(footprints: &[&Footprint], tokens: &[u32], known: usize) -> Vec<f32> {
    let blocks: f32 = footprints.iter().flat_map(|footprint| footprint.iter()).map(|(_, share)| share).sum();
    let scale = (LENGTH_WORTH * blocks / known as f32).sqrt();
    tokens.iter().map(|tokens| (*tokens as f32 + 1.0).log2() * scale).collect()
}

/// What holds for all pieces of a crowd.
struct Crowd<'a> {
    judge: &'a Judge<'a>,
    wave: usize,
    /// Most requests that are compared with each other.
    piece: usize,
    /// Waves that a wave meets to exchange requests.
    meetings: usize,
}

impl Crowd<'_> {
    /// Puts `piece` in order; only the last of all pieces has a short wave. Where it is `mended`, a larger piece that holds it takes care of exchanges.
    fn settle(&self, piece: &mut [u32], mended: bool) {
        let (footprints, pool) = (self.judge.footprints, self.judge.pool);
        let mends = !mended && piece.len() <= self.piece.max(WAVES_MENDED * self.wave);
        if piece.len() > self.piece.max(self.wave) {
            let at = cut::cut(footprints, pool.blocks(), piece, self.wave);
            let (one, other) = piece.split_at_mut(at);
            rayon::join(|| self.settle(one, mended || mends), || self.settle(other, mended || mends));
        } else if piece.len() > self.wave {
            grow::grow(footprints, pool, piece, self.wave);
        }
        if mends && piece.len() > self.wave {
            if self.wave > 1 {
                grow::tour(footprints, pool, piece, self.wave);
                mend::mend(self.judge, piece, self.wave, self.meetings);
            }
            grow::tour(footprints, pool, piece, self.wave);
        }
    }
}

#[cfg(test)]
mod tests;
