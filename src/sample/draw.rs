//! Which token is drawn? At a vocabulary of 163,840 a full sort would cost more than the rest together, and a sum of floats
//! would make the answer depend on its order.
//!
//! A token's weight, exp of its distance to the best over the temperature, becomes an integer in units of 2^-40 (what is
//! less is never drawn): sums of integers are exact in any order, so the sets of top-k and top-p are found by selection
//! and agree bit for bit between machines. The cuts are prefixes of one order, better logit first and lower id among
//! equals. The random number is a hash of (seed, id, position), so a row draws the same whoever runs beside it.

use crate::kernels::math::exp;
use crate::request::Sampling;

/// Units in the best token's weight, as a power of two.
const WEIGHT_BITS: u32 = 40;
/// Random bits of a draw.
const RANDOM_BITS: u32 = 53;
// The largest sum of weights times the largest random number stays within a u128.
const _: () = assert!(WEIGHT_BITS + u32::BITS + RANDOM_BITS < u128::BITS);

/// A token that may be drawn.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// Rises with the logit; among equal logits the lower id has the higher rank. No two are equal.
    rank: u64,
    /// In units of 2^-40 of the best token's.
    weight: u64,
}

/// Memory that draws reuse: at most 32 bytes an entry of the vocabulary.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Ascending id.
    candidates: Vec<Candidate>,
    /// The same in any order, for selections.
    order: Vec<Candidate>,
}

/// Draws the token at `position` (counted from 0 over prompt and answer) of request `id` from `logits`, one an entry of the vocabulary.
/// `sampling.temperature` is positive: greedy rows never come here. Temperature comes first, then min-p, top-k
/// and top-p with vLLM's meanings.
///
/// None where no logit is a finite number: the row must fail.
pub fn draw(logits: &[f32], scratch: &mut Scratch, sampling: &Sampling, id: &str, position: u32) -> Option<u32> {
    let Scratch { candidates, order } = scratch;
    candidates.clear();
    candidates.extend((0u32..).zip(logits).filter(|(_, logit)| logit.is_finite()).map(|(id, logit)| Candidate::new(id, *logit)));
    let best = candidates.iter().map(|candidate| candidate.rank).max().map(logit_of)?;
    keep_top_k(candidates, order, sampling.top_k);
    for candidate in candidates.iter_mut() {
        candidate.weight = weight(logit_of(candidate.rank), best, sampling.temperature, sampling.min_p);
    }
    candidates.retain(|candidate| candidate.weight > 0);
    keep_top_p(candidates, order, sampling.top_p);
    let mut left = (total(candidates) * u128::from(random(sampling.seed, id, position))) >> RANDOM_BITS;
    for candidate in candidates.iter() {
        match left.checked_sub(u128::from(candidate.weight)) {
            Some(rest) => left = rest,
            None => return Some(candidate.id()),
        }
    }
    unreachable!("the random number is below the sum of all weights")
}

impl Candidate {
    fn new(id: u32, logit: f32) -> Self {
        // Zero has two signs and one value; adding 0 makes them one.
        let bits = (logit + 0.0).to_bits();
        let rising = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        Candidate { rank: u64::from(rising) << 32 | u64::from(!id), weight: 0 }
    }

    fn id(&self) -> u32 {
        !(self.rank as u32)
    }
}

/// The logit that `rank` was made of.
fn logit_of(rank: u64) -> f32 {
    let rising = (rank >> 32) as u32;
    f32::from_bits(if rising >> 31 == 1 { rising & !(1 << 31) } else { !rising })
}

/// exp((logit - best) / temperature) in units of 2^-40; 0 under `min_p` of the best token's.
fn weight(logit: f32, best: f32, temperature: f32, min_p: f32) -> u64 {
    // The best is exact, whatever the temperature: 0 over a tiny one must not be trusted to a division.
    let weight = if logit == best { 1.0 } else { exp((logit - best) / temperature).min(1.0) };
    if weight < min_p { 0 } else { (f64::from(weight) * (1u64 << WEIGHT_BITS) as f64) as u64 }
}

/// Keeps the `top_k` best; 0 keeps all.
fn keep_top_k(candidates: &mut Vec<Candidate>, order: &mut Vec<Candidate>, top_k: u32) {
    let k = top_k as usize;
    if k == 0 || k >= candidates.len() {
        return;
    }
    order.clone_from(candidates);
    let (_, last, _) = order.select_nth_unstable_by_key(k - 1, |candidate| std::cmp::Reverse(candidate.rank));
    let last = last.rank;
    candidates.retain(|candidate| candidate.rank >= last);
}

/// Keeps the fewest of the best whose weights make `top_p` of the sum, one at least.
fn keep_top_p(candidates: &mut Vec<Candidate>, order: &mut Vec<Candidate>, top_p: f32) {
    if top_p >= 1.0 {
        return;
    }
    order.clone_from(candidates);
    let mut wanted = ((total(candidates) as f64 * f64::from(top_p)).ceil() as u128).max(1);
    let mut rest = order.as_mut_slice();
    while rest.len() > 1 {
        let middle = rest.len() / 2;
        rest.select_nth_unstable_by_key(middle, |candidate| std::cmp::Reverse(candidate.rank));
        let (better, worse) = rest.split_at_mut(middle);
        let mass = total(better);
        if mass >= wanted {
            rest = better;
        } else {
            wanted -= mass;
            rest = worse;
        }
    }
    let last = rest.first().map_or(0, |candidate| candidate.rank);
    candidates.retain(|candidate| candidate.rank >= last);
}

fn total(candidates: &[Candidate]) -> u128 {
    candidates.iter().map(|candidate| u128::from(candidate.weight)).sum()
}

/// A uniform number below 2^53: the first bits of BLAKE3 over seed, position and id.
fn random(seed: i64, id: &str, position: u32) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.update(&position.to_le_bytes());
    hasher.update(id.as_bytes());
    let hash = hasher.finalize();
    let first = hash.as_bytes().first_chunk::<8>().expect("a hash has 32 bytes");
    u64::from_le_bytes(*first) >> (u64::BITS - RANDOM_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sampling(temperature: f32, top_p: f32, top_k: u32, min_p: f32) -> Sampling {
        Sampling { temperature, top_p, top_k, min_p, ..Sampling::default() }
    }

    /// All tokens that `draws` draws give, and how often.
    fn counts(logits: &[f32], sampling: &Sampling, draws: u32) -> Vec<u32> {
        let mut scratch = Scratch::default();
        let mut counts = vec![0; logits.len()];
        for position in 0..draws {
            counts[draw(logits, &mut scratch, sampling, "row", position).expect("finite") as usize] += 1;
        }
        counts
    }

    fn possible(logits: &[f32], sampling: &Sampling) -> Vec<usize> {
        counts(logits, sampling, 2_000).iter().enumerate().filter(|(_, n)| **n > 0).map(|(id, _)| id).collect()
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.5f32, 0.3, 0.15, 0.05].map(f32::ln);
        let n = 40_000;
        for (count, p) in counts(&logits, &sampling(1.0, 1.0, 0, 0.0), n).iter().zip([0.5, 0.3, 0.15, 0.05]) {
            let sigma = (f64::from(n) * p * (1.0 - p)).sqrt();
            assert!((f64::from(*count) - f64::from(n) * p).abs() < 4.0 * sigma, "{count} for {p}");
        }
        let sharp = counts(&logits, &sampling(0.5, 1.0, 0, 0.0), n);
        let share = f64::from(sharp[0]) / f64::from(n);
        assert!((share - 0.25 / 0.365).abs() < 0.012, "temperature squares the odds: {share}");
    }

    #[test]
    fn cuts_keep_what_vllm_keeps() {
        let logits = [0.1f32, 0.4, 0.2, 0.3].map(f32::ln);
        assert_eq!(possible(&logits, &sampling(1.0, 1.0, 2, 0.0)), [1, 3]);
        assert_eq!(possible(&logits, &sampling(1.0, 0.65, 0, 0.0)), [1, 3]);
        assert_eq!(possible(&logits, &sampling(1.0, 0.75, 0, 0.0)), [1, 2, 3]);
        assert_eq!(possible(&logits, &sampling(1.0, 1e-6, 0, 0.0)), [1]);
        assert_eq!(possible(&logits, &sampling(1.0, 1.0, 0, 0.6)), [1, 3]);
        assert_eq!(possible(&logits, &sampling(1.0, 1.0, 0, 1.0)), [1]);
        // Top-p counts what top-k left: 0.4 is 0.57 of 0.7.
        assert_eq!(possible(&logits, &sampling(1.0, 0.5, 2, 0.0)), [1]);
        // Min-p is relative to the best after temperature.
        assert_eq!(possible(&logits, &sampling(0.5, 1.0, 0, 0.5)), [1, 3]);
        assert_eq!(possible(&logits, &sampling(0.5, 1.0, 0, 0.6)), [1]);
    }

    #[test]
    fn equal_logits_go_by_the_lower_id() {
        let logits = [1.0, -0.0, 0.0, 1.0, 0.0];
        assert_eq!(possible(&logits, &sampling(1.0, 1.0, 1, 0.0)), [0]);
        assert_eq!(possible(&logits, &sampling(1.0, 1.0, 3, 0.0)), [0, 1, 3]);
        assert_eq!(possible(&[0.0; 8], &sampling(1.0, 0.5, 0, 0.0)), [0, 1, 2, 3]);
    }

    #[test]
    fn extreme_numbers_draw_the_best() {
        for temperature in [f32::MIN_POSITIVE, f32::from_bits(1), 1e-30] {
            assert_eq!(possible(&[f32::MIN, 3.0, f32::MAX, -5.0], &sampling(temperature, 0.9, 0, 0.0)), [2]);
        }
        assert_eq!(possible(&[f32::NAN, 1.0, f32::NEG_INFINITY], &sampling(1.0, 1.0, 0, 0.0)), [1]);
        assert_eq!(possible(&[0.0, 1.0], &sampling(f32::MAX, 1.0, 0, 0.0)), [0, 1]);
        assert_eq!(draw(&[f32::NAN, f32::INFINITY], &mut Scratch::default(), &sampling(1.0, 1.0, 0, 0.0), "a", 0), None);
        assert_eq!(draw(&[], &mut Scratch::default(), &sampling(1.0, 1.0, 0, 0.0), "a", 0), None);
    }

    #[test]
    fn the_random_number_depends_on_seed_id_and_position_alone() {
        let base = random(1, "a", 2);
        assert_eq!(base, random(1, "a", 2));
        assert_eq!(base, 1_543_083_066_122_719, "a number that once drew an answer stays");
        for other in [random(2, "a", 2), random(1, "b", 2), random(1, "a", 3)] {
            assert_ne!(base, other);
        }
        let flat = [0.0; 4096];
        let drawn = |seed, id, position| {
            draw(&flat, &mut Scratch::default(), &Sampling { seed, ..sampling(1.0, 1.0, 0, 0.0) }, id, position).expect("finite")
        };
        assert_eq!(drawn(1, "a", 2), drawn(1, "a", 2));
        for other in [drawn(2, "a", 2), drawn(1, "b", 2), drawn(1, "a", 3)] {
            assert_ne!(drawn(1, "a", 2), other, "a draw takes the number of its own seed, id and position");
        }
    }

    proptest! {
        #[test]
        fn cuts_are_those_of_a_full_sort(logits in prop::collection::vec((-6i8..6).prop_map(|l| f32::from(l) / 2.0), 1..40),
                                         top_p in 0.01f32..1.0, top_k in 0u32..12, min_p in 0.0f32..0.5) {
            let sampling = sampling(0.7, top_p, top_k, min_p);
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
            order.truncate(if top_k == 0 { usize::MAX } else { top_k as usize });
            let best = logits[order[0]];
            order.retain(|id| weight(logits[*id], best, 0.7, min_p) > 0);
            let weights: Vec<u128> = order.iter().map(|id| u128::from(weight(logits[*id], best, 0.7, min_p))).collect();
            let wanted = weights.iter().sum::<u128>() as f64 * f64::from(top_p);
            let kept = (1..=order.len()).find(|n| weights[..*n].iter().sum::<u128>() as f64 >= wanted).expect("all is enough");
            let mut expected = order[..kept].to_vec();
            expected.sort_unstable();
            let mut scratch = Scratch::default();
            draw(&logits, &mut scratch, &sampling, "row", 0).expect("finite");
            let ids: Vec<usize> = scratch.candidates.iter().map(|candidate| candidate.id() as usize).collect();
            prop_assert_eq!(ids, expected);
        }
    }
}
