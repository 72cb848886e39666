//! Grows waves one request at a time, and puts waves beside those that they are like.

use rayon::prelude::*;

use super::free::{Free, Pool};
use crate::plan::Footprint;

/// Requests whose comparison is worth handing to another thread.
const HANDFUL: usize = 128;

/// Reorders `piece` so that each `wave` consecutive requests share blocks: a wave begins with the request that is least like the rest, and takes
/// until it is full the one by which its union grows least, beside what that one has that others lack; else those that use few blocks would be
/// taken first wherever they belong.
pub(super) fn grow(footprints: &[&Footprint], pool: &Pool, piece: &mut [u32], wave: usize) {
    let mut free = pool.lend();
    let mut waiting: Vec<(u32, f32)> = lonely(footprints, pool, piece);
    for wave in piece.chunks_mut(wave) {
        for (nth, member) in wave.iter_mut().enumerate() {
            let best = match nth {
                0 => least(&waiting, |(_, lonely)| -lonely),
                _ => least(&waiting, |(i, lonely)| free.growth(footprints[*i as usize]) / lonely.max(f32::MIN_POSITIVE)),
            };
            *member = waiting.swap_remove(best).0;
            free.add(footprints[*member as usize]);
        }
        wave.iter().for_each(|i| free.forget(footprints[*i as usize]));
    }
    pool.give_back(free);
}

/// Requests of `piece`, and how much of each stands where the others have little.
fn lonely(footprints: &[&Footprint], pool: &Pool, piece: &[u32]) -> Vec<(u32, f32)> {
    let mut mean = vec![0.0f32; pool.blocks()];
    for footprint in piece.iter().map(|i| footprints[*i as usize]) {
        footprint.iter().for_each(|(block, share)| mean[block] += share / piece.len() as f32);
    }
    let alone = |i: &u32| footprints[*i as usize].iter().map(|(block, share)| share * (1.0 - mean[block])).sum();
    piece.iter().map(|i| (*i, alone(i))).collect()
}

/// Where the least value is; of equals, that of the lowest request.
fn least(waiting: &[(u32, f32)], value: impl Fn(&(u32, f32)) -> f32 + Sync) -> usize {
    let valued = waiting.par_iter().with_min_len(HANDFUL).enumerate().map(|(at, one)| (value(one), one.0, at));
    let least = valued.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    least.expect("a request waits for every place").2
}

/// Reorders the waves of `piece` so that the next is the one that has most blocks in common with the last; the short one stays at the end.
pub(super) fn tour(footprints: &[&Footprint], pool: &Pool, piece: &mut [u32], wave: usize) {
    let whole = piece.len() / wave * wave;
    let mut waves: Vec<Vec<u32>> = piece[..whole].chunks(wave).map(<[u32]>::to_vec).collect();
    let mut free = pool.lend();
    let mut next = 0;
    for to in piece[..whole].chunks_mut(wave) {
        to.copy_from_slice(&waves.swap_remove(next));
        to.iter().for_each(|i| free.add(footprints[*i as usize]));
        next = likest(footprints, &free, &waves);
        to.iter().for_each(|i| free.forget(footprints[*i as usize]));
    }
    pool.give_back(free);
}

fn likest(footprints: &[&Footprint], free: &Free, waves: &[Vec<u32>]) -> usize {
    let common = |wave: &Vec<u32>| wave.iter().map(|i| free.common(footprints[*i as usize])).sum::<f32>();
    let valued = waves.par_iter().with_min_len(HANDFUL).enumerate().map(|(at, wave)| (common(wave), wave[0], at));
    valued.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))).map_or(0, |best| best.2)
}
