//! The gated delta rule: a head's state [key, value] decays, is corrected towards v along k, and is read along q.
//!
//! Token by token, the same recurrence for a chunk as for one token, so that any cut gives the same bits. A state of
//! 128 x 128 is 64 KiB, more than the first cache, and every token passes over it twice. But value channels never meet:
//! a strip of 64 of them goes through all tokens before the next strip begins. It is copied out for that: where it lies, its
//! rows are 512 bytes apart and share half of a cache's sets, so that 32 KiB do not stay in 48 (measured: 2.1 us a token).
//!
//! A state of 64 KiB need not be written down after each token: decay, k and the change w, 1.5 KiB, lead from an older state
//! to the same bits, since the sums over the state that made w are not summed again.
#![allow(unsafe_code)] // Heads write their columns of shared rows in parallel.

use std::ops::Range;

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

/// Inputs of [`Kernels::delta_replay`]: of each token what changed the state, head h at h * d of a row.
#[derive(Clone, Copy, Debug)]
pub struct Replay<'a> {
    /// Where the state was corrected.
    pub k: View<'a>,
    /// Factor of each key channel.
    pub decay: View<'a>,
    /// The changes that [`Kernels::delta_rule`] handed out.
    pub change: View<'a>,
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
    /// The w go to `changes` where they are wanted, in rows like those of out.
    ///
    /// # Panics
    /// When a view or the state is shorter than its shape says.
    pub fn delta_rule(&self, state: &mut [f32], delta: &Delta, out: ViewMut, changes: Option<ViewMut>) {
        let Delta { d, heads, tokens, .. } = *delta;
        let strides = [Some(out.stride), changes.as_ref().map(|c| c.stride)];
        assert!(tokens < 2 || strides.into_iter().flatten().all(|s| s >= heads * d), "delta_rule: rows of out or changes overlap");
        let rule = Rule { delta, out: out.target(), changes: changes.map(ViewMut::target) };
        self.each_head(state, (d, heads, tokens), tokens * heads * d * d * 8, &rule);
    }

    /// Brings a state to where [`Kernels::delta_rule`] brought it, bit for bit, by the changes that it handed out:
    /// `S[i] *= decay[i]; S[i] += k[i] w`.
    ///
    /// # Panics
    /// When a view or the state is shorter than its shape says.
    pub fn delta_replay(&self, state: &mut [f32], replay: &Replay) {
        let Replay { d, heads, tokens, .. } = *replay;
        self.each_head(state, (d, heads, tokens), tokens * heads * d * d * 3, replay);
    }

    /// Takes the state of each head through all tokens.
    fn each_head<T: Token>(&self, state: &mut [f32], (d, heads, tokens): (usize, usize, usize), operations: usize, token: &T) {
        assert_eq!(state.len(), heads * d * d, "the delta rule's state is not [heads, d, d]");
        if state.is_empty() || tokens == 0 {
            return;
        }
        let task = |(head, state): (usize, &mut [f32])| {
            scratch::with(d * WIDEST, |lines| self.run(Head { state, head, d, tokens, token, lines }));
        };
        if parallel::worth(operations) {
            state.par_chunks_mut(d * d).with_max_len(1).enumerate().for_each(task);
        } else {
            state.chunks_mut(d * d).enumerate().for_each(task);
        }
    }
}

/// Chunks of value channels in the widest strip.
const WIDEST: usize = 4;

/// What a token does to a strip of a head's state.
trait Token: Sync {
    /// W chunks of value channels, `columns` of them in use; a token's row of all heads holds them at those places.
    fn take<L: Lanes, const W: usize>(&self, strip: &mut [[Line; W]], t: usize, head: usize, columns: Range<usize>);
}

/// One head, all tokens.
struct Head<'a, T> {
    state: &'a mut [f32],
    head: usize,
    d: usize,
    tokens: usize,
    token: &'a T,
    lines: &'a mut [Line],
}

impl<T: Token> Operation for Head<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        let lines = std::mem::take(&mut self.lines);
        let mut from = 0;
        while from < self.d {
            from += LANES
                * match (self.d - from).div_ceil(LANES) {
                    1 => self.strip::<L, 1>(from, lines),
                    2 | 3 => self.strip::<L, 2>(from, lines), // one chain alone waits four cycles a step
                    _ => self.strip::<L, WIDEST>(from, lines),
                };
        }
    }
}

impl<T: Token> Head<'_, T> {
    /// W chunks of value channels from `from` on, through all tokens. Returns W.
    #[inline(always)]
    fn strip<L: Lanes, const W: usize>(&mut self, from: usize, lines: &mut [Line]) -> usize {
        let (d, at) = (self.d, self.head * self.d);
        let width = (d - from).min(W * LANES);
        let strip = &mut lines.as_chunks_mut::<W>().0[..d];
        for (row, lines) in self.state.chunks_exact(d).zip(strip.iter_mut()) {
            store(load::<L, W>(&row[from..from + width]), lines);
        }
        for t in 0..self.tokens {
            self.token.take::<L, W>(strip, t, self.head, at + from..at + from + width);
        }
        for (row, lines) in self.state.chunks_exact_mut(d).zip(strip.iter()) {
            row[from..from + width].copy_from_slice(&numbers(lines)[..width]);
        }
        W
    }
}

/// The delta rule, and where its results go.
struct Rule<'a> {
    delta: &'a Delta<'a>,
    out: Target<'a>,
    changes: Option<Target<'a>>,
}

impl Token for Rule<'_> {
    #[inline(always)]
    fn take<L: Lanes, const W: usize>(&self, strip: &mut [[Line; W]], t: usize, head: usize, columns: Range<usize>) {
        let Delta { q, k, v, decay, beta, d, .. } = *self.delta;
        let inputs = [q, k, decay].map(|view| part(view, t, head, d));
        let v = load::<L, W>(&v.row(t, columns.end)[columns.clone()]);
        let beta = L::splat(beta.row(t, head + 1)[head]);
        let (change, answer) = step::<L, W>(strip, inputs, v, beta);
        let write = |to: &Target, values: [L; W]| {
            let mut lines = [Line([0.0; LANES]); W];
            store(values, &mut lines);
            // SAFETY: this head's columns belong to this task alone, and rows do not overlap.
            unsafe { to.write(t, columns.start, &numbers(&lines)[..columns.len()]) };
        };
        write(&self.out, answer);
        if let Some(changes) = &self.changes {
            write(changes, change);
        }
    }
}

impl Token for Replay<'_> {
    #[inline(always)]
    fn take<L: Lanes, const W: usize>(&self, strip: &mut [[Line; W]], t: usize, head: usize, columns: Range<usize>) {
        let [k, decay] = [self.k, self.decay].map(|view| part(view, t, head, self.d));
        let change = load::<L, W>(&self.change.row(t, columns.end)[columns]);
        for ((row, &k), &decay) in strip.iter_mut().zip(k).zip(decay) {
            for c in 0..W {
                let s = L::load(&row[c].0).mul(L::splat(decay)); // rounded here, as in `step`
                L::splat(k).fma(change[c], s).store(&mut row[c].0);
            }
        }
    }
}

/// A head's `[d]` of token t.
#[inline(always)]
fn part<'a>(view: View<'a>, t: usize, head: usize, d: usize) -> &'a [f32] {
    &view.row(t, (head + 1) * d)[head * d..]
}

/// One token: q, k and decay are `[d]`. Returns how the strip changed along k, and what it answers.
#[inline(always)]
fn step<L: Lanes, const W: usize>(strip: &mut [[Line; W]], inputs: [&[f32]; 3], v: [L; W], beta: L) -> ([L; W], [L; W]) {
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
    (change, answer)
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
mod tests;
