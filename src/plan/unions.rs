//! What will waves read, by what is known of their requests before a prompt is read?
//!
//! A run groups its requests anew when their prompts have been read, so that this is a look ahead and no promise: the union that the waves of a
//! table's footprints are expected to have, beside that of the same requests shuffled. A draw of a hundred thousand requests has 4 x 10^8
//! entries, so there are as many draws as a few seconds hold; how they spread says what chance alone does.

use std::ops::Range;

use rayon::prelude::*;

use super::footprint::Footprint;
use super::group::{Wave, order};
use super::schedule::mix;

/// Shuffles at least and at most: two have a spread.
const DRAWS: Range<usize> = 2..20;
/// Entries and blocks that all of them may touch.
const TOUCHED: usize = 200_000_000;

/// What waves are expected to use, blocks being those that their footprints tell of.
#[derive(Debug, Clone, PartialEq)]
pub struct Unions {
    /// Each wave in order: its requests, and its expected distinct blocks.
    pub waves: Vec<(Vec<u32>, f64)>,
    /// Expected distinct blocks, the mean over these waves.
    pub grouped: f64,
    /// The same of shuffled waves of the same sizes: the mean over draws.
    pub random: f64,
    /// The standard deviation of a draw.
    pub random_sd: f64,
    /// Shuffles drawn.
    pub draws: usize,
    /// The part of its blocks that a request shares with others of its wave: the mean.
    pub shared: f64,
    /// Requests with that part, least first. Those whose wave has half its places free are left out.
    pub least: Vec<(u32, f64)>,
}

/// Groups requests, none of whose footprints is empty, into waves of `wave`, each among the `pool` that may have begun at once; `least` of those
/// that share least are told. None where there are no requests.
pub fn unions(footprints: &[&Footprint], wave: usize, pool: usize, least: usize) -> Option<Unions> {
    if footprints.is_empty() {
        return None;
    }
    let wave = wave.max(1);
    let mut members = Vec::with_capacity(footprints.len());
    let mut ends = vec![0];
    for (begun, first) in footprints.chunks(pool.max(wave)).zip((0..).step_by(pool.max(wave))) {
        let ordered = order(begun, &[], wave);
        ends.extend((0..ordered.len()).step_by(wave).map(|from| first + (from + wave).min(ordered.len())));
        members.extend(ordered.into_iter().map(|i| first as u32 + i));
    }
    let cuts: Vec<Range<usize>> = ends.windows(2).map(|pair| pair[0]..pair[1]).collect();
    let unions = unions_of(footprints, &members, &cuts);
    let draws = draws(footprints, cuts.len());
    let drawn: Vec<f64> = (0..draws).map(|seed| mean(&unions_of(footprints, &shuffled(members.len(), seed as u64), &cuts))).collect();
    let random = mean(&drawn);
    let spread: f64 = drawn.iter().map(|draw| (draw - random).powi(2)).sum();
    let mut shares = shares(footprints, &members, &cuts, wave);
    shares.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let shared = mean(&shares.iter().map(|(_, shared)| *shared).collect::<Vec<_>>());
    shares.truncate(least);
    Some(Unions {
        grouped: mean(&unions),
        waves: cuts.into_iter().map(|cut| members[cut].to_vec()).zip(unions).collect(),
        random,
        random_sd: (spread / (draws - 1) as f64).sqrt(),
        draws,
        shared,
        least: shares,
    })
}

/// How many shuffles are drawn.
fn draws(footprints: &[&Footprint], waves: usize) -> usize {
    let blocks = footprints.iter().filter_map(|footprint| footprint.iter().last()).map(|(block, _)| block + 1).max().unwrap_or(0);
    let entries: usize = footprints.iter().map(|footprint| footprint.len()).sum();
    (TOUCHED / (entries + waves * blocks).max(1)).clamp(DRAWS.start, DRAWS.end)
}

fn shuffled(requests: usize, seed: u64) -> Vec<u32> {
    let mut shuffled: Vec<u32> = (0..requests as u32).collect();
    shuffled.sort_by_cached_key(|&i| mix(u64::from(i) ^ mix(seed)));
    shuffled
}

fn wave_of(footprints: &[&Footprint], members: &[u32]) -> Wave {
    let mut wave = Wave::default();
    members.iter().for_each(|&i| wave.add(footprints[i as usize]));
    wave
}

/// The expected union of each wave, `cuts` being its places among `members`.
fn unions_of(footprints: &[&Footprint], members: &[u32], cuts: &[Range<usize>]) -> Vec<f64> {
    cuts.par_iter().map(|cut| f64::from(wave_of(footprints, &members[cut.clone()]).union())).collect()
}

/// The part of its blocks that each request of a wave that is over half full shares with the others.
fn shares(footprints: &[&Footprint], members: &[u32], cuts: &[Range<usize>], wave: usize) -> Vec<(u32, f64)> {
    let fullest = wave.min(members.len());
    let of_wave = |cut: &Range<usize>| {
        let members = &members[cut.clone()];
        let mut wave = wave_of(footprints, members);
        let share = |&i: &u32| {
            let footprint = footprints[i as usize];
            let alone = f64::from(Wave::default().growth(footprint));
            wave.remove(footprint);
            let brings = f64::from(wave.growth(footprint));
            wave.add(footprint);
            (i, if alone > 0.0 { 1.0 - brings / alone } else { 0.0 })
        };
        members.iter().map(share).collect::<Vec<_>>()
    };
    cuts.par_iter().filter(|cut| 2 * cut.len() > fullest).flat_map_iter(of_wave).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two kinds that share nothing, in turn.
    fn two_kinds(requests: u32) -> Vec<Footprint> {
        (0..requests).map(|i| Footprint::of((0..10).map(|block| (block + 10 * (i % 2), 1.0)), 100)).collect()
    }

    fn told(footprints: &[Footprint], wave: usize, pool: usize) -> Unions {
        unions(&footprints.iter().collect::<Vec<_>>(), wave, pool, 2).expect("requests")
    }

    #[test]
    fn waves_of_a_kind_use_half_of_what_shuffled_ones_do() {
        let found = told(&two_kinds(64), 8, 64);
        assert_eq!((found.waves.len(), found.draws), (8, DRAWS.end));
        assert!((found.grouped - 10.0).abs() < 1e-3 && found.random > 19.0 && found.random_sd < 1.0, "{found:?}");
        assert!((found.shared - 1.0).abs() < 1e-3, "{found:?}");
        let mut all: Vec<u32> = found.waves.iter().flat_map(|(members, _)| members.clone()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..64));
        assert_eq!(found, told(&two_kinds(64), 8, 64));
    }

    #[test]
    fn only_those_that_have_begun_can_be_chosen_among() {
        let found = told(&two_kinds(30), 4, 4);
        assert!((found.grouped - 20.0).abs() < 1e-3, "{found:?}");
        assert_eq!(found.waves.last().map(|(members, _)| members.len()), Some(2));
        assert_eq!(unions(&[], 4, 4, 1), None);
        assert_eq!(told(&two_kinds(1), 0, 0).grouped, 10.0);
    }

    #[test]
    fn who_shares_least_is_told_first() {
        let mut footprints = two_kinds(16);
        footprints[5] = Footprint::of((50..60).map(|block| (block, 0.5)), 100);
        let found = told(&footprints, 8, 16);
        assert_eq!(found.least.len(), 2);
        assert!(found.least[0].0 == 5 && found.least[0].1.abs() < 1e-3 && found.least[1].1 > 0.9, "{found:?}");
    }
}
