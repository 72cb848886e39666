//! The gated delta rule: a head's state [key, value] decays, is corrected towards v along k, and is read along q.
//!
//! Token by token, the same recurrence for a chunk as for one token, so that any cut gives the same bits. A state of
//! 128 x 128 is 64 KiB, more than the first cache, and every token passes over it twice. But value channels never meet:
//! a strip of 64 of them goes through all tokens before the next strip begins. It is copied out for that: where it lies, its
//! rows are 512 bytes apart and share half of a cache's sets, so that 32 KiB do not stay in 48 (measured: 2.1 us a token).
#![allow(unsafe_code)] // Heads write their columns of shared rows in parallel.

use rayon::prelude::*;

use super::lanes::{LANES, Lanes};
use super::scratch::{self, Line, numbers};
use super::view::{Target, View, ViewMut};
use super::{Kernels, Operation, parallel};

/// Inputs of [`Kernels::delta_rule`]. A row of q, k, v and decay is a token, head h at h * d; a row of beta is `[heads]`.
#[derive(Clone, Copy, Debug)]
pub struct Delta<'a> {
    /// What is asked of the state.
    pub q: View<'a>,
    /// Where the state is corrected.
    pub k: View<'a>,
    /// Towards what.
    pub v: View<'a>,
    /// Factor of each key channel.
    pub decay: View<'a>,
    /// How far.
    pub beta: View<'a>,
    /// Key channels of a head, and value channels.
    pub d: usize,
    /// Heads.
    pub heads: usize,
    /// Rows.
    pub tokens: usize,
}

impl Kernels {
    /// state [heads, d (key), d (value)]; per token and head, i ascending in every sum, each a chain of fused multiply-adds from 0:
    /// `S[i] *= decay[i]; w = beta * (v - sum k[i] S[i]); S[i] += k[i] w; out = sum q[i] S[i]`. An out row is a token, head h at h * d.
    ///
    /// # Panics
    /// When a view or the state is shorter than its shape says.
    pub fn delta_rule(&self, state: &mut [f32], delta: &Delta, out: ViewMut) {
        let Delta { d, heads, tokens, .. } = *delta;
        assert_eq!(state.len(), heads * d * d, "delta_rule: state is not [heads, d, d]");
        if state.is_empty() || tokens == 0 {
            return;
        }
        assert!(tokens == 1 || out.stride >= heads * d, "delta_rule: rows of out overlap");
        let out = &out.target();
        let task = |(head, state): (usize, &mut [f32])| {
            scratch::with(d * WIDEST, |lines| self.run(Head { state, head, delta, out, lines }));
        };
        if parallel::worth(tokens * heads * d * d * 8) {
            state.par_chunks_mut(d * d).with_max_len(1).enumerate().for_each(task);
        } else {
            state.chunks_mut(d * d).enumerate().for_each(task);
        }
    }
}

/// Chunks of value channels in the widest strip.
const WIDEST: usize = 4;

/// One head, all tokens.
struct Head<'a> {
    state: &'a mut [f32],
    head: usize,
    delta: &'a Delta<'a>,
    out: &'a Target<'a>,
    lines: &'a mut [Line],
}

impl Operation for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        let lines = std::mem::take(&mut self.lines);
        let d = self.delta.d;
        let mut from = 0;
        while from < d {
            from += LANES
                * match (d - from).div_ceil(LANES) {
                    1 => self.strip::<L, 1>(from, lines),
                    2 | 3 => self.strip::<L, 2>(from, lines), // one chain alone waits four cycles a step
                    _ => self.strip::<L, WIDEST>(from, lines),
                };
        }
    }
}

impl<'a> Head<'a> {
    /// W chunks of value channels from `from` on, through all tokens. Returns W.
    #[inline(always)]
    fn strip<L: Lanes, const W: usize>(&mut self, from: usize, lines: &mut [Line]) -> usize {
        let (d, at) = (self.delta.d, self.head * self.delta.d);
        let width = (d - from).min(W * LANES);
        let strip = &mut lines.as_chunks_mut::<W>().0[..d];
        for (row, lines) in self.state.chunks_exact(d).zip(strip.iter_mut()) {
            store(load::<L, W>(&row[from..from + width]), lines);
        }
        for t in 0..self.delta.tokens {
            let part = |view: View<'a>| &view.row(t, at + d)[at..];
            let (q, k, decay) = (part(self.delta.q), part(self.delta.k), part(self.delta.decay));
            let v = load::<L, W>(&part(self.delta.v)[from..from + width]);
            let beta = L::splat(self.delta.beta.row(t, self.head + 1)[self.head]);
            let mut values = [Line([0.0; LANES]); W];
            store(step::<L, W>(strip, [q, k, decay], v, beta), &mut values);
            // SAFETY: this head's columns belong to this task alone, and rows do not overlap.
            unsafe { self.out.write(t, at + from, &numbers(&values)[..width]) };
        }
        for (row, lines) in self.state.chunks_exact_mut(d).zip(strip.iter()) {
            row[from..from + width].copy_from_slice(&numbers(lines)[..width]);
        }
        W
    }
}

/// One token: q, k and decay are `[d]`. Returns what the strip answers.
#[inline(always)]
fn step<L: Lanes, const W: usize>(strip: &mut [[Line; W]], inputs: [&[f32]; 3], v: [L; W], beta: L) -> [L; W] {
    let [q, k, decay] = inputs;
    let mut seen = [L::splat(0.0); W];
    for ((row, &k), &decay) in strip.iter_mut().zip(k).zip(decay) {
        for c in 0..W {
            let s = L::load(&row[c].0).mul(L::splat(decay));
            seen[c] = L::splat(k).fma(s, seen[c]);
            s.store(&mut row[c].0);
        }
    }
    let mut change = [L::splat(0.0); W];
    for c in 0..W {
        change[c] = beta.mul(v[c].sub(seen[c]));
    }
    let mut answer = [L::splat(0.0); W];
    for ((row, &k), &q) in strip.iter_mut().zip(k).zip(q) {
        for c in 0..W {
            let s = L::splat(k).fma(change[c], L::load(&row[c].0));
            answer[c] = L::splat(q).fma(s, answer[c]);
            s.store(&mut row[c].0);
        }
    }
    answer
}

/// At most W chunks, the rest filled with zeros.
#[inline(always)]
fn load<L: Lanes, const W: usize>(from: &[f32]) -> [L; W] {
    let (whole, tail) = from.as_chunks::<LANES>();
    let mut out = [L::splat(0.0); W];
    if let Some(whole) = whole.as_array::<W>() {
        for c in 0..W {
            out[c] = L::load(&whole[c]);
        }
        return out;
    }
    for c in 0..whole.len() {
        out[c] = L::load(&whole[c]);
    }
    if !tail.is_empty() {
        out[whole.len()] = L::load_part(tail, 0.0);
    }
    out
}

#[inline(always)]
fn store<L: Lanes, const W: usize>(values: [L; W], to: &mut [Line; W]) {
    for c in 0..W {
        values[c].store(&mut to[c].0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{all, noise, same};
    use super::*;

    /// Token `from..to` of a problem with `heads` of `d`.
    struct Problem {
        d: usize,
        heads: usize,
        inputs: [Vec<f32>; 4],
        beta: Vec<f32>,
    }

    impl Problem {
        fn new(d: usize, heads: usize, tokens: usize) -> Problem {
            let mut inputs = [1, 2, 3, 4].map(|seed| noise(seed, tokens * heads * d));
            inputs[3].iter_mut().for_each(|g| *g = 0.6 + 0.4 * g.abs());
            Problem { d, heads, inputs, beta: noise(5, tokens * heads) }
        }

        fn run(&self, kernels: Kernels, state: &mut [f32], out: &mut [f32], from: usize, to: usize) {
            let (d, heads) = (self.d, self.heads);
            let view = |data| View { data, start: from * heads * d, stride: heads * d };
            let [q, k, v, decay] = self.inputs.each_ref().map(|x| view(x));
            let beta = View { data: &self.beta, start: from * heads, stride: heads };
            let delta = Delta { q, k, v, decay, beta, d, heads, tokens: to - from };
            kernels.delta_rule(state, &delta, ViewMut { data: out, start: from * heads * d, stride: heads * d });
        }

        /// The definition, in plain loops.
        fn plainly(&self, state: &mut [f32], tokens: usize) -> Vec<f32> {
            let (d, heads) = (self.d, self.heads);
            let [q, k, v, decay] = &self.inputs;
            let mut out = vec![0.0; tokens * heads * d];
            for (t, h, c) in (0..tokens).flat_map(|t| (0..heads * d).map(move |c| (t, c / d, c % d))) {
                let at = (t * heads + h) * d;
                let s = |i: usize| (h * d + i) * d + c;
                let mut seen = 0.0f32;
                for i in 0..d {
                    state[s(i)] *= decay[at + i];
                    seen = k[at + i].mul_add(state[s(i)], seen);
                }
                let w = self.beta[t * heads + h] * (v[at + c] - seen);
                for i in 0..d {
                    state[s(i)] = k[at + i].mul_add(w, state[s(i)]);
                    out[at + c] = q[at + i].mul_add(state[s(i)], out[at + c]);
                }
            }
            out
        }
    }

    #[test]
    fn matches_the_definition_and_any_cut_gives_the_same_bits() {
        for (d, heads, tokens) in [(128, 2, 3), (16, 3, 5), (20, 2, 4), (7, 1, 4), (100, 1, 3)] {
            let problem = Problem::new(d, heads, tokens);
            let start = noise(9, heads * d * d);
            let mut want_state = start.clone();
            let want = problem.plainly(&mut want_state, tokens);
            for kernels in all() {
                for cut in 0..=tokens {
                    let (mut state, mut out) = (start.clone(), vec![0.0; want.len()]);
                    problem.run(kernels, &mut state, &mut out, 0, cut);
                    problem.run(kernels, &mut state, &mut out, cut, tokens);
                    assert!(same(&out, &want) && same(&state, &want_state), "d {d}, cut {cut}, {:?}", kernels.path());
                }
            }
        }
    }
}
