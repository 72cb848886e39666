//! Exchanges requests between waves while that makes their unions smaller in sum.
//!
//! Two waves of 32 have 1,024 pairs to exchange, and a thousand waves half a million pairs of waves. What a request saves by going less what it
//! costs by coming is, of two that change places, at least what the exchange saves; so only the few best of either side are looked at exactly.

use rayon::prelude::*;

use super::free::{Free, Pool};
use crate::plan::Footprint;

/// Requests of a wave that are looked at exactly, at first.
const BEST: usize = 8;
/// A saving in blocks that is none.
const NOTHING: f32 = 1e-3;

/// What an exchange is judged by.
#[derive(Debug)]
pub(super) struct Judge<'a> {
    /// Of all requests.
    pub footprints: &'a [&'a Footprint],
    /// Of all requests, log2 of the answer's expected length, so scaled that the squared distance of a wave's lengths from their mean is worth as
    /// many blocks; empty where lengths are not known.
    pub lengths: &'a [f32],
    /// Lends arrays.
    pub pool: &'a Pool,
}

/// One side of an exchange.
struct Side<'a> {
    wave: &'a mut [u32],
    free: Free,
}

/// Mends the waves of `piece`: each meets its neighbours, then those behind them, at most `meetings` of them, again and again until all meetings are
/// used up, or a pass mends nothing although it looked at every request.
pub(super) fn mend(judge: &Judge, piece: &mut [u32], wave: usize, mut meetings: usize) {
    let mut waves: Vec<&mut [u32]> = piece.chunks_mut(wave).collect();
    let mut best = BEST;
    while meetings > 0 {
        let farthest = meetings.min(waves.len() - 1);
        let mended: usize = (1..=farthest).map(|distance| judge.round(&mut waves, distance, best)).sum();
        meetings -= farthest;
        if mended == 0 && best >= wave {
            return;
        }
        if mended == 0 {
            best *= 4;
        }
    }
}

impl Judge<'_> {
    /// Each two waves at a distance meet; returns how many requests changed places. Those that meet at the same time have no wave in common.
    fn round(&self, waves: &mut [&mut [u32]], distance: usize, best: usize) -> usize {
        let half = |waves: &mut [&mut [u32]]| -> usize {
            let halves = waves.chunks_mut(2 * distance).filter_map(|both| both.split_at_mut_checked(distance));
            let mut pairs: Vec<_> = halves.flat_map(|(near, far)| near.iter_mut().zip(far)).collect();
            pairs.par_iter_mut().with_min_len(8).map(|(one, other)| self.meet(one, other, best)).sum()
        };
        half(waves) + waves.get_mut(distance..).map_or(0, half)
    }

    /// Exchanges requests of two waves; returns how many of each.
    fn meet(&self, one: &mut [u32], other: &mut [u32], best: usize) -> usize {
        let mut sides = [one, other].map(|wave| self.side(wave));
        let [ones, others] = [(0, 1), (1, 0)].map(|(from, to)| self.best(&sides[from], &sides[to], best));
        let mut changed = 0;
        if ones[0].0 + others[0].0 > NOTHING {
            let mut done = Vec::new();
            for (i, j) in self.worth(&mut sides, &ones, &others) {
                if !done.contains(&(0, i)) && !done.contains(&(1, j)) && self.exchange(&mut sides, i, j) {
                    done.extend([(0, i), (1, j)]);
                    changed += 1;
                }
            }
        }
        // Each array has met the members of both: what was taken out again left its rounding behind.
        let [Side { wave: one, free: mut first }, Side { wave: other, free: mut second }] = sides;
        for free in [&mut first, &mut second] {
            one.iter().chain(other.iter()).for_each(|i| free.forget(self.footprints[*i as usize]));
        }
        [first, second].into_iter().for_each(|free| self.pool.give_back(free));
        changed
    }

    fn side<'a>(&self, wave: &'a mut [u32]) -> Side<'a> {
        let mut free = self.pool.lend();
        wave.iter().for_each(|i| free.add(self.footprints[*i as usize]));
        Side { wave, free }
    }

    fn footprint(&self, side: &Side, member: usize) -> &Footprint {
        self.footprints[side.wave[member] as usize]
    }

    /// The `count` members that would save most by going from one side to the other, best first: what is saved at most, and which.
    fn best(&self, from: &Side, to: &Side, count: usize) -> Vec<(f32, usize)> {
        let slope = 2.0 * (self.mean_length(to.wave) - self.mean_length(from.wave));
        let saved = |member: usize| {
            let footprint = self.footprint(from, member);
            from.free.loss(footprint) - to.free.growth(footprint) + slope * self.length(from.wave[member])
        };
        let mut best: Vec<(f32, usize)> = (0..from.wave.len()).map(|member| (saved(member), member)).collect();
        best.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        best.truncate(count);
        best
    }

    /// The pairs whose exchange would save something, best first.
    fn worth(&self, sides: &mut [Side; 2], ones: &[(f32, usize)], others: &[(f32, usize)]) -> Vec<(usize, usize)> {
        let mut saved = vec![vec![0.0f32; others.len()]; ones.len()];
        for (side, mine, theirs) in [(0, ones, others), (1, others, ones)] {
            for (nth, (_, i)) in mine.iter().enumerate() {
                let footprint = self.footprint(&sides[side], *i);
                sides[side].free.take(footprint);
                let stays = sides[side].free.growth(footprint);
                for (other_nth, (_, j)) in theirs.iter().enumerate() {
                    let comes = sides[side].free.growth(self.footprint(&sides[1 - side], *j));
                    let (row, column) = if side == 0 { (nth, other_nth) } else { (other_nth, nth) };
                    saved[row][column] += stays - comes;
                }
                sides[side].free.add(footprint);
            }
        }
        let mut pairs = Vec::new();
        for (row, (_, i)) in ones.iter().enumerate() {
            for (column, (_, j)) in others.iter().enumerate() {
                let saved = saved[row][column] + self.evened(sides, *i, *j);
                if saved > NOTHING {
                    pairs.push((saved, *i, *j));
                }
            }
        }
        pairs.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        pairs.into_iter().map(|(_, i, j)| (i, j)).collect()
    }

    /// Exchanges member `i` of the first side and `j` of the second if that, after the exchanges before, still saves something.
    fn exchange(&self, sides: &mut [Side; 2], i: usize, j: usize) -> bool {
        let (goes, comes) = (self.footprint(&sides[0], i), self.footprint(&sides[1], j));
        sides[0].free.take(goes);
        sides[1].free.take(comes);
        let before = sides[0].free.growth(goes) + sides[1].free.growth(comes);
        let after = sides[0].free.growth(comes) + sides[1].free.growth(goes);
        let better = before - after + self.evened(sides, i, j) > NOTHING;
        let (first, second) = if better { (comes, goes) } else { (goes, comes) };
        sides[0].free.add(first);
        sides[1].free.add(second);
        if better {
            let [one, other] = sides;
            std::mem::swap(&mut one.wave[i], &mut other.wave[j]);
        }
        better
    }

    /// What the exchange saves by making the lengths of each wave more alike, in blocks.
    fn evened(&self, sides: &[Side; 2], i: usize, j: usize) -> f32 {
        let [one, other] = sides.each_ref().map(|side| &side.wave);
        let more = self.length(other[j]) - self.length(one[i]);
        let means = self.mean_length(one) - self.mean_length(other);
        more * (2.0 * means + more * (1.0 / one.len() as f32 + 1.0 / other.len() as f32))
    }

    fn length(&self, request: u32) -> f32 {
        self.lengths.get(request as usize).copied().unwrap_or(0.0)
    }

    fn mean_length(&self, wave: &[u32]) -> f32 {
        wave.iter().map(|i| self.length(*i)).sum::<f32>() / wave.len() as f32
    }
}
