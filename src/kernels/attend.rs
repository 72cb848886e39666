//! Causal attention over a cache that all heads share, folded on a fixed grid of absolute positions.
//!
//! A softmax over n keys can be folded block by block, but each way of cutting rounds differently. So the cut is part of the
//! definition: blocks of [`GRID`] positions from position 0. A row's bits depend on its query, the cache and its position,
//! never on which rows came along. A task takes some rows and heads through one block of keys after another,
//! so that a block of 64 x 576 numbers (147 KB) comes from memory once for all of them.
#![allow(unsafe_code)] // Heads write their columns of shared rows in parallel.

use std::ops::Range;

use super::dots::dots;
use super::lanes::{LANES, Lanes};
use super::math::exp_of;
use super::matrix::Floats;
use super::scratch::{self, Line};
use super::view::{Target, View, ViewMut};
use super::{Kernels, Operation, parallel};

/// Positions of a block.
const GRID: usize = 64;
const CHUNKS: usize = GRID / LANES;
const _: () = assert!(CHUNKS * LANES == GRID);

/// Most rows of a task, and most (row, head) pairs: their sums, 2 KiB each, stay in the second cache.
const TASK_ROWS: usize = 8;
const TASK_PAIRS: usize = 64;

/// Most heads that go through a block together.
const GROUP: usize = 4;

/// Inputs of [`Kernels::attend`].
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Queries: rows, at positions first, first + 1, ...
    pub rows: usize,
    /// Heads.
    pub heads: usize,
    /// A row's head h is at h * key_width.
    pub q: View<'a>,
    /// Row p is position p of the cache.
    pub keys: View<'a>,
    /// Row p is position p of the cache.
    pub values: View<'a>,
    /// Numbers a key.
    pub key_width: usize,
    /// Numbers a value.
    pub value_width: usize,
    /// Position of row 0; row r sees positions up to its own, first + r.
    pub first: usize,
    /// Factor of the scores.
    pub scale: f32,
}

impl Kernels {
    /// Softmax attention; an out row's head h is at h * value_width. A block's scores come from dot products in the common order;
    /// then the sum and each output are multiplied by exp(old max - new max) and take up the block in order of position.
    ///
    /// # Panics
    /// When a view is shorter than its shape says.
    pub fn attend(&self, attention: &Attention, out: ViewMut) {
        let &Attention { rows, heads, key_width, value_width, first, .. } = attention;
        assert!(rows < 2 || out.stride >= heads * value_width, "attend: rows of out overlap");
        let out = &out.target();
        let operations = 2 * rows * heads * (first + rows) * (key_width + value_width);
        let task_rows = rows.clamp(1, TASK_ROWS);
        let row_tasks = rows.div_ceil(task_rows);
        // As many heads as share a block's keys well, as few as leave every thread some tasks.
        let share = heads.div_ceil(parallel::tasks(operations).div_ceil(row_tasks.max(1)));
        let task_heads = share.clamp(1, TASK_PAIRS / task_rows).next_multiple_of(GROUP);
        let head_tasks = heads.div_ceil(task_heads);
        parallel::each(row_tasks * head_tasks, operations, |task| {
            let (r, h) = (task / head_tasks * task_rows, task % head_tasks * task_heads);
            let (rows, heads) = (r..rows.min(r + task_rows), h..heads.min(h + task_heads));
            let width = value_width.div_ceil(LANES);
            let lines = rows.len() * heads.len() * (width + 1) + GROUP * CHUNKS;
            scratch::with(lines, |lines| self.run(Task { attention, rows, heads, width, lines, out }));
        });
    }
}

/// Some rows of some heads.
struct Task<'a> {
    attention: &'a Attention<'a>,
    rows: Range<usize>,
    heads: Range<usize>,
    /// Chunks a value.
    width: usize,
    lines: &'a mut [Line],
    out: &'a Target<'a>,
}

/// What a line beside a head's sums holds: the running max and the sum of exponentials.
const MAX: usize = 0;
const SUM: usize = 1;

impl Operation for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        let lines = std::mem::take(&mut self.lines);
        let (probabilities, states) = lines.split_at_mut(GROUP * CHUNKS);
        for state in states.chunks_exact_mut(self.width + 1) {
            state.fill(Line([0.0; LANES]));
            state[self.width].0[MAX] = f32::NEG_INFINITY;
        }
        let row_lines = self.heads.len() * (self.width + 1);
        let end = self.attention.first + self.rows.end; // positions that the last row sees
        for block in (0..end).step_by(GRID) {
            for (r, states) in self.rows.clone().zip(states.chunks_exact_mut(row_lines)) {
                let seen = self.attention.first + r + 1;
                if seen > block {
                    let positions = block..seen.min(block + GRID);
                    self.fold::<L>(r, positions, probabilities, states);
                }
            }
        }
        for (r, states) in self.rows.clone().zip(states.chunks_exact(row_lines)) {
            for (h, state) in self.heads.clone().zip(states.chunks_exact(self.width + 1)) {
                self.finish::<L>(r, h, state);
            }
        }
    }
}

impl Task<'_> {
    /// One block for one row, by groups of heads that fill the registers.
    #[inline(always)]
    fn fold<L: Lanes>(&self, r: usize, positions: Range<usize>, probabilities: &mut [Line], states: &mut [Line]) {
        let mut h = 0;
        while h < self.heads.len() {
            let states = &mut states[h * (self.width + 1)..];
            let positions = positions.clone();
            h += match self.heads.len() - h {
                1 => self.heads_of::<L, 1>(r, h, positions, probabilities, states),
                2 => self.heads_of::<L, 2>(r, h, positions, probabilities, states),
                3 if L::WIDE => self.heads_of::<L, 3>(r, h, positions, probabilities, states),
                _ if L::WIDE => self.heads_of::<L, 4>(r, h, positions, probabilities, states),
                _ => self.heads_of::<L, 2>(r, h, positions, probabilities, states),
            };
        }
    }

    #[inline(always)]
    fn heads_of<L: Lanes, const H: usize>(
        &self,
        r: usize,
        h: usize,
        positions: Range<usize>,
        probabilities: &mut [Line],
        states: &mut [Line],
    ) -> usize {
        if L::WIDE {
            self.scores::<L, H, 4>(r, h, positions.clone(), probabilities);
        } else {
            self.scores::<L, H, 2>(r, h, positions.clone(), probabilities);
        }
        let mut rescale = [0.0; H];
        for i in 0..H {
            let state = &mut states[i * (self.width + 1) + self.width].0;
            rescale[i] = soften::<L>(&mut probabilities[i * CHUNKS..][..CHUNKS], state);
        }
        let whole = self.attention.value_width / LANES;
        let mut column = 0;
        while column < self.width {
            let positions = positions.clone();
            column += match whole - column {
                4.. if L::WIDE => self.gather::<L, H, 4, false>(column, positions, probabilities, rescale, states),
                2.. => self.gather::<L, H, 2, false>(column, positions, probabilities, rescale, states),
                1 => self.gather::<L, H, 1, false>(column, positions, probabilities, rescale, states),
                _ => self.gather::<L, H, 1, true>(column, positions, probabilities, rescale, states),
            };
        }
        H
    }

    /// Scores of H heads from `h` on against the block's keys, N at a time; -inf where the row does not see.
    #[inline(always)]
    fn scores<L: Lanes, const H: usize, const N: usize>(&self, r: usize, h: usize, positions: Range<usize>, scores: &mut [Line]) {
        scores[..H * CHUNKS].fill(Line([f32::NEG_INFINITY; LANES]));
        let a = self.attention;
        let mut queries = [Floats::new(&[]); H];
        for (i, query) in queries.iter_mut().enumerate() {
            let at = (self.heads.start + h + i) * a.key_width;
            *query = Floats::new(&a.q.row(r, at + a.key_width)[at..]);
        }
        for p in positions.clone().step_by(N) {
            let mut keys = [Floats::new(&[]); N];
            for (i, key) in keys.iter_mut().enumerate() {
                // Past the block's end the last key is used again and dropped.
                *key = Floats::new(a.keys.row((p + i).min(positions.end - 1), a.key_width));
            }
            let sums = L::sums(dots(queries, keys, [[L::splat(0.0); N]; H]));
            for (i, sums) in sums.iter().enumerate() {
                for (j, sum) in sums.iter().enumerate().take(positions.end - p) {
                    let j = p - positions.start + j;
                    scores[i * CHUNKS + j / LANES].0[j % LANES] = sum * a.scale;
                }
            }
        }
    }

    /// W chunks of the outputs of H heads, or one ragged one: rescaled, then the block's values in order of position. Returns W.
    #[inline(always)]
    fn gather<L: Lanes, const H: usize, const W: usize, const RAGGED: bool>(
        &self,
        column: usize,
        positions: Range<usize>,
        probabilities: &[Line],
        rescale: [f32; H],
        states: &mut [Line],
    ) -> usize {
        let a = self.attention;
        let mut sums = [[L::splat(0.0); W]; H];
        for i in 0..H {
            for c in 0..W {
                sums[i][c] = L::load(&states[i * (self.width + 1) + column + c].0).mul(L::splat(rescale[i]));
            }
        }
        for (j, p) in positions.enumerate() {
            let row = &a.values.row(p, a.value_width)[column * LANES..];
            let mut values = [L::splat(0.0); W];
            if RAGGED {
                values[0] = L::load_part(row, 0.0);
            } else {
                let chunks = &row.as_chunks::<LANES>().0[..W];
                for c in 0..W {
                    values[c] = L::load(&chunks[c]);
                }
            }
            for i in 0..H {
                let p = L::splat(probabilities[i * CHUNKS + j / LANES].0[j % LANES]);
                for c in 0..W {
                    sums[i][c] = p.fma(values[c], sums[i][c]);
                }
            }
        }
        for i in 0..H {
            for c in 0..W {
                sums[i][c].store(&mut states[i * (self.width + 1) + column + c].0);
            }
        }
        W
    }

    /// Divides by the sum of exponentials and writes head h of row r.
    #[inline(always)]
    fn finish<L: Lanes>(&self, r: usize, h: usize, state: &[Line]) {
        let factor = L::splat(1.0 / state[self.width].0[SUM]);
        let at = h * self.attention.value_width;
        for (c, line) in state.iter().enumerate().take(self.width) {
            let mut values = [0.0; LANES];
            L::load(&line.0).mul(factor).store(&mut values);
            let count = LANES.min(self.attention.value_width - c * LANES);
            // SAFETY: these rows and heads belong to this task alone, and rows do not overlap.
            unsafe { self.out.write(r, at + c * LANES, &values[..count]) };
        }
    }
}

/// Scores of a block become exp(score - max); the running max and sum go on. Returns the factor of what was before.
#[inline(always)]
fn soften<L: Lanes>(scores: &mut [Line], state: &mut [f32; LANES]) -> f32 {
    let mut most = L::load(&scores[0].0);
    for line in &scores[1..] {
        most = most.max(L::load(&line.0));
    }
    let (old, block) = (state[MAX], most.largest());
    let new = if block > old { block } else { old };
    let mut sum = L::splat(0.0);
    for line in scores {
        let p = exp_of(L::load(&line.0).sub(L::splat(new)));
        p.store(&mut line.0);
        sum = sum.add(p);
    }
    let rescale = exp_of(old - new);
    state[MAX] = new;
    state[SUM] = state[SUM].mul_add(rescale, sum.sum());
    rescale
}

#[cfg(test)]
mod tests {
    use super::super::tests::{all, noise, same};
    use super::*;

    struct Problem {
        heads: usize,
        key_width: usize,
        value_width: usize,
        q: Vec<f32>,
        cache: Vec<f32>,
    }

    impl Problem {
        /// Values are the first columns of the keys, as in latent attention.
        fn new(heads: usize, key_width: usize, value_width: usize, positions: usize) -> Problem {
            let q = noise(1, positions * heads * key_width).iter().map(|v| v * 3.0).collect();
            Problem { heads, key_width, value_width, q, cache: noise(2, positions * key_width) }
        }

        /// Rows at positions from..to, with a cache that ends there.
        fn run(&self, kernels: Kernels, from: usize, to: usize, out: &mut [f32]) {
            let q = View { data: &self.q, start: from * self.heads * self.key_width, stride: self.heads * self.key_width };
            let cache = View::rows(&self.cache[..to * self.key_width], self.key_width);
            let attention = Attention {
                rows: to - from,
                heads: self.heads,
                q,
                keys: cache,
                values: cache,
                key_width: self.key_width,
                value_width: self.value_width,
                first: from,
                scale: 0.2,
            };
            let stride = self.heads * self.value_width;
            kernels.attend(&attention, ViewMut { data: out, start: from * stride, stride });
        }

        fn truth(&self, position: usize, head: usize) -> Vec<f64> {
            let q = &self.q[(position * self.heads + head) * self.key_width..][..self.key_width];
            let keys: Vec<&[f32]> = self.cache.chunks(self.key_width).take(position + 1).collect();
            let dot = |k: &[f32]| k.iter().zip(q).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() * 0.2;
            let weights: Vec<f64> = keys.iter().map(|k| dot(k).exp()).collect();
            let total: f64 = weights.iter().sum();
            (0..self.value_width).map(|c| keys.iter().zip(&weights).map(|(k, w)| w / total * f64::from(k[c])).sum()).collect()
        }
    }

    #[test]
    fn is_softmax_attention_and_any_cut_gives_the_same_bits() {
        for (heads, key_width, value_width, positions) in [(5, 24, 17, 131), (2, 80, 64, 70), (4, 32, 32, 66), (1, 9, 3, 3)] {
            let problem = Problem::new(heads, key_width, value_width, positions);
            let mut whole = vec![0.0; positions * heads * value_width];
            problem.run(all()[0], 0, positions, &mut whole);
            for (i, got) in whole.chunks(value_width).enumerate() {
                let want = problem.truth(i / heads, i % heads);
                assert!(got.iter().zip(&want).all(|(&g, w)| (f64::from(g) - w).abs() < 1e-5), "row {i}");
            }
            for kernels in all() {
                for step in [1, 3, 64, positions] {
                    let mut out = vec![0.0; whole.len()];
                    for from in (0..positions).step_by(step) {
                        problem.run(kernels, from, positions.min(from + step), &mut out);
                    }
                    assert!(same(&out, &whole), "{heads} {key_width} {value_width} step {step} {:?}", kernels.path());
                }
            }
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let problem = Problem::new(6, 64, 48, 100);
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            let mut out = vec![0.0; 100 * 6 * 48];
            pool.install(|| problem.run(Kernels::detect(), 0, 100, &mut out));
            out
        };
        assert!(same(&run(1), &run(2)));
    }

    #[test]
    fn what_a_row_must_not_see_does_not_matter() {
        let mut problem = Problem::new(2, 16, 16, 10);
        problem.cache[9 * 16..].fill(f32::NAN);
        for kernels in all() {
            let mut out = vec![0.0; 10 * 2 * 16];
            problem.run(kernels, 0, 10, &mut out);
            assert!(out[..9 * 32].iter().all(|v| v.is_finite()) && out[9 * 32].is_nan());
        }
    }
}
