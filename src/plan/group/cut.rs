//! Cuts a crowd in two halves whose requests use different blocks.
//!
//! Growing waves among a million candidates would take 10^12 comparisons. So the crowd is cut where it differs most: along the first principal
//! direction of a sample, each half again, until what is left is small enough to be compared. A level costs one comparison a request.

use rayon::prelude::*;

use super::free::sum_over;
use crate::plan::Footprint;
use crate::plan::footprint::split;

/// Requests that a direction is learned from.
const SAMPLE: usize = 256;
/// Steps of the power method: the cut needs a good direction, not the best.
const STEPS: usize = 5;

/// Reorders `piece`, which is longer than a wave, so that its first requests are like each other and unlike the rest; returns how many those are, a
/// multiple of `wave`. The cut is near the middle, where fewest requests stand.
pub(super) fn cut(footprints: &[&Footprint], blocks: usize, piece: &mut [u32], wave: usize) -> usize {
    let sample: Vec<&Footprint> = piece.iter().step_by(piece.len().div_ceil(SAMPLE)).map(|i| footprints[*i as usize]).collect();
    let direction = direction(&sample, blocks, wave);
    let place = |i: &u32| (along(&direction, footprints[*i as usize]), *i);
    let mut places: Vec<(f32, u32)> = piece.par_iter().with_min_len(256).map(place).collect();
    places.par_sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    for (slot, (_, i)) in piece.iter_mut().zip(&places) {
        *slot = *i;
    }
    let (middle, off, near) = (piece.len() / 2, piece.len() / 8, piece.len() / 64 + 1);
    let width = |at: usize| places[(at + near).min(places.len() - 1)].0 - places[at.saturating_sub(near)].0;
    let gap = (middle - off..=middle + off).max_by(|a, b| width(*a).total_cmp(&width(*b)).then(b.cmp(a)));
    let at = gap.unwrap_or(middle).next_multiple_of(wave);
    if at < piece.len() { at } else { middle.next_multiple_of(wave) }
}

fn along(direction: &[f32], footprint: &Footprint) -> f32 {
    sum_over(footprint, |block, part| part as f32 * direction[block])
}

/// The weighted principal direction of `sample`, by block. The expected union of a wave of B that is drawn from requests whose shares of a block vary
/// falls by the variance times (1 - mean)^(B - 2), so that is a block's weight: one that a random wave is sure to use tells nothing.
fn direction(sample: &[&Footprint], blocks: usize, wave: usize) -> Vec<f32> {
    let mut weights = vec![0.0f32; blocks];
    for footprint in sample {
        add(&mut weights, footprint, 1.0 / (255.0 * sample.len() as f32));
    }
    let power = wave.saturating_sub(2).min(1 << 20) as i32;
    for weight in &mut weights {
        *weight = (1.0 - weight.min(1.0)).powi(power);
    }
    let mut direction = vec![0.0; blocks];
    add(&mut direction, sample[0], 1.0);
    weigh(&mut direction, &weights);
    let unlike = |a: &&&Footprint, b: &&&Footprint| along(&direction, a).total_cmp(&along(&direction, b));
    let far = sample.iter().min_by(unlike).expect("a sample holds a request");
    let mut next = vec![0.0; blocks];
    add(&mut next, sample[0], 1.0);
    add(&mut next, far, -1.0);
    for _ in 0..STEPS {
        weigh(&mut next, &weights);
        std::mem::swap(&mut direction, &mut next);
        let places: Vec<f32> = sample.iter().map(|footprint| along(&direction, footprint)).collect();
        let mean = places.iter().sum::<f32>() / places.len() as f32;
        let spread = places.iter().map(|place| (place - mean).abs()).fold(0.0, f32::max);
        if spread <= f32::MIN_POSITIVE {
            break;
        }
        next.fill(0.0);
        for (footprint, place) in sample.iter().zip(places) {
            add(&mut next, footprint, (place - mean) / (spread * 255.0));
        }
    }
    direction
}

fn add(to: &mut [f32], footprint: &Footprint, times: f32) {
    for (block, part) in footprint.entries().iter().map(|e| split(*e)) {
        to[block] += times * part as f32;
    }
}

fn weigh(direction: &mut [f32], weights: &[f32]) {
    for (place, weight) in direction.iter_mut().zip(weights) {
        *place *= weight;
    }
}
