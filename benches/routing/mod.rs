//! Routing that nobody recorded: documents whose tokens choose experts as a model of the largest shape might.
//!
//! Public recordings of real routing are of single texts, so they tell how skewed and how persistent a text is and nothing of how texts differ. So an
//! expert's logit has four parts, all normal: what is common to all texts, what is common to a text's topic, what is the text's own, and what
//! drifts from token to token. The largest of a layer are chosen. The first three are fitted together and the drift apart; how the first three share is a knob.

use rayon::prelude::*;

use nightshift::plan::Footprint;

mod draw;
pub use draw::{Draw, ENTRIES, EXPERTS, LAYERS};

/// Experts that a token takes of a layer.
pub const CHOSEN: usize = 16;

/// Variance of what stays through a text, of a logit's 1; the rest drifts.
const STAYS: f32 = 0.36;
/// How much of the drift the next token keeps.
const KEEPS: f32 = 0.58;
/// Topics, all equally common.
const TOPICS: usize = 32;
/// Of what texts differ in, the topic's share of the variance.
const TOPICAL: f32 = 0.5;

/// Normal enough to five standard deviations: the sum of eight bytes.
fn normal(draw: &mut Draw) -> f32 {
    let bits = draw.bits();
    let pairs = (bits & 0x00FF_00FF_00FF_00FF) + ((bits >> 8) & 0x00FF_00FF_00FF_00FF);
    let sum = pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48;
    (sum as f32 - 1020.0) / 209.0
}

/// The chosen experts of consecutive tokens: `[tokens, LAYERS, CHOSEN]`, in no order inside a layer.
pub struct Tokens(Vec<u16>);

impl Tokens {
    /// Chosen blocks of the token: layer times [`EXPERTS`] + expert.
    pub fn blocks(&self, token: usize) -> impl Iterator<Item = usize> + '_ {
        let of = &self.0[token * LAYERS * CHOSEN..(token + 1) * LAYERS * CHOSEN];
        of.iter().enumerate().map(|(i, expert)| i / CHOSEN * EXPERTS + usize::from(*expert))
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.0.len() / (LAYERS * CHOSEN)
    }

    /// Shares of all blocks over some tokens.
    pub fn shares(&self, tokens: std::ops::Range<usize>) -> Vec<f32> {
        let mut shares = vec![0.0; LAYERS * EXPERTS];
        let each = 1.0 / tokens.len() as f32;
        tokens.for_each(|token| self.blocks(token).for_each(|block| shares[block] += each));
        shares
    }

    /// The footprint of some tokens.
    pub fn footprint(&self, tokens: std::ops::Range<usize>) -> Footprint {
        let shares = self.shares(tokens);
        Footprint::of(shares.iter().enumerate().filter(|s| *s.1 > 0.0).map(|(block, share)| (block as u32, *share)), ENTRIES)
    }
}

/// Texts of `tokens` tokens; `differ` is the share of what stays through a text, in [0, 1], that is not common to all texts.
pub fn texts(count: usize, tokens: usize, differ: f32, seed: u64) -> Vec<Tokens> {
    let blocks = LAYERS * EXPERTS;
    let vector = |seed: u64, variance: f32| -> Vec<f32> {
        let mut draw = Draw::of(seed);
        (0..blocks).map(|_| normal(&mut draw) * variance.sqrt()).collect()
    };
    let common = vector(seed << 32, STAYS * (1.0 - differ));
    let topics: Vec<Vec<f32>> = (1..=TOPICS as u64).map(|topic| vector(seed << 32 | topic, STAYS * differ * TOPICAL)).collect();
    let own = (STAYS * differ * (1.0 - TOPICAL)).sqrt();
    let text = |nth: usize| {
        let mut draw = Draw::of(seed << 32 | 1 << 31 | nth as u64);
        let topic = &topics[draw.below(TOPICS)];
        let mut chosen = vec![0; tokens * LAYERS * CHOSEN];
        for layer in 0..LAYERS {
            let of = layer * EXPERTS..(layer + 1) * EXPERTS;
            let stays: Vec<f32> = common[of.clone()].iter().zip(&topic[of]).map(|(a, b)| a + b + own * normal(&mut draw)).collect();
            let mut drift: Vec<f32> = stays.iter().map(|_| normal(&mut draw) * (1.0 - STAYS).sqrt()).collect();
            let fresh = ((1.0 - STAYS) * (1.0 - KEEPS * KEEPS)).sqrt();
            for token in 0..tokens {
                let at = (token * LAYERS + layer) * CHOSEN;
                choose(&stays, &drift, &mut chosen[at..at + CHOSEN]);
                drift.iter_mut().for_each(|d| *d = *d * KEEPS + fresh * normal(&mut draw));
            }
        }
        Tokens(chosen)
    };
    (0..count).into_par_iter().map(text).collect()
}

/// The experts of the largest logits, in no order.
fn choose(stays: &[f32], drift: &[f32], chosen: &mut [u16]) {
    let logits = |least: f32| {
        let all = stays.iter().zip(drift).map(|(a, b)| a + b).enumerate();
        all.filter(move |(_, logit)| *logit > least).map(|(expert, logit)| (logit, expert as u16)).collect::<Vec<(f32, u16)>>()
    };
    // Twice as many as are wanted lie above this, as a rule.
    let mut high = logits(1.7);
    if high.len() < CHOSEN {
        high = logits(f32::NEG_INFINITY);
    }
    high.select_nth_unstable_by(CHOSEN - 1, |a, b| b.0.total_cmp(&a.0));
    chosen.iter_mut().zip(high).for_each(|(to, (_, expert))| *to = expert);
}
