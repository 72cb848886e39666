//! Causal attention over a cache that all heads share, folded on a fixed grid of absolute positions.
//!
//! A softmax over n keys can be folded block by block, but each way of cutting rounds differently. So the cut is part of the
//! definition: blocks of [`GRID`] positions from position 0. A row's bits depend on its query, the cache and its position,
//! never on which rows came along.
//!
//! A score by lanes along the columns needs a tree of additions, which costs as much as the product of 80 columns (measured:
//! 42 GFLOP/s of 240). So the lanes are sixteen POSITIONS, and a score is one chain of fused multiply-adds over ascending
//! columns. A block's keys are turned once for all rows and heads of a task, 128 columns at a time: a tile of the first
//! cache. Both products then are the inner loop of `matmul`, whose rows are (row, head) pairs.
#![allow(unsafe_code)] // Heads write their columns of shared rows in parallel.

use std::ops::Range;

use super::lanes::{LANES, Lanes};
use super::math::weight_of;
use super::matrix::{Floats, Row};
use super::pairs::{Inputs, carry, exponentials};
use super::scratch::{self, Line, numbers};
use super::tile::RUN;
use super::view::{Target, View, ViewMut};
use super::{Kernels, Operation, parallel};

/// Positions of a block.
const GRID: usize = 64;
const CHUNKS: usize = GRID / LANES;
const _: () = assert!(CHUNKS * LANES == GRID);

/// Vectors in the widest tile, of positions or of value columns.
const VECTORS: usize = 4;
const _: () = assert!(CHUNKS <= VECTORS && GRID <= RUN);

/// Most rows of a task: a block that ends among them is computed for all.
const TASK_ROWS: usize = 16;

/// Most (row, head) pairs of a task: their sums, at most 2 KiB each, stay in the second cache.
const TASK_PAIRS: usize = 128;

/// Fewer heads would pay more for turning the keys than for their scores.
const LEAST_HEADS: usize = 16;

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
    /// Softmax attention; an out row's head h is at h * value_width. A block's scores are chains over ascending columns, times
    /// `scale`; then the sum and each output are multiplied by exp(old max - new max) and take up the block in order of
    /// position. An exponential below e^-64 is 0.
    ///
    /// # Panics
    /// When a view is shorter than its shape says.
    pub fn attend(&self, attention: &Attention, out: ViewMut) {
        let &Attention { rows, heads, key_width, value_width, first, .. } = attention;
        if rows == 0 || heads == 0 {
            return;
        }
        assert!(rows < 2 || out.stride >= heads * value_width, "attend: rows of out overlap");
        let out = &out.target();
        let operations = 2 * rows * heads * (first + rows) * (key_width + value_width);
        let (task_rows, task_heads) = shares(rows, heads, parallel::tasks(operations));
        let head_tasks = heads.div_ceil(task_heads);
        parallel::each(rows.div_ceil(task_rows) * head_tasks, operations, |task| {
            let (r, h) = (task / head_tasks * task_rows, task % head_tasks * task_heads);
            let (rows, heads) = (r..rows.min(r + task_rows), h..heads.min(h + task_heads));
            let (pairs, width) = (rows.len() * heads.len(), value_width.div_ceil(LANES));
            let lines = RUN * VECTORS + pairs * (CHUNKS + width) + 4 * pairs.div_ceil(LANES);
            scratch::with(lines, |lines| self.run(Task { attention, rows, heads, width, lines, out }));
        });
    }
}

/// Rows and heads of a task. Rows are cut first: a cut through the heads turns the keys twice.
fn shares(rows: usize, heads: usize, tasks: usize) -> (usize, usize) {
    let most = (TASK_PAIRS / heads.min(TASK_PAIRS)).min(TASK_ROWS);
    let task_rows = rows.div_ceil(tasks).min(most);
    let share = heads.div_ceil(tasks.div_ceil(rows.div_ceil(task_rows)));
    (task_rows, share.max(LEAST_HEADS).min(TASK_PAIRS / task_rows))
}

/// Some rows of some heads. Pair p is row p / heads, head p % heads of these.
struct Task<'a> {
    attention: &'a Attention<'a>,
    rows: Range<usize>,
    heads: Range<usize>,
    /// Chunks a value.
    width: usize,
    lines: &'a mut [Line],
    out: &'a Target<'a>,
}

/// A number for each pair, sixteen a line.
struct Marks<'a> {
    /// The largest score so far.
    most: &'a mut [Line],
    /// The sum of exponentials so far.
    total: &'a mut [Line],
    /// The largest score with this block; then the factor of what was before.
    next: &'a mut [Line],
    /// This block's sum of exponentials.
    added: &'a mut [Line],
}

/// Some columns of the queries.
struct Queries<'a>(&'a Task<'a>, Range<usize>);

impl Inputs for Queries<'_> {
    #[inline(always)]
    fn of(&self, pair: usize) -> &[f32] {
        let Queries(task, run) = self;
        let (r, at) = task.place(pair, task.attention.key_width);
        &task.attention.q.row(r, at + run.end)[at + run.start..]
    }
}

/// The probabilities of the positions that a pair sees of a block.
struct Probabilities<'a>(&'a Task<'a>, usize, &'a [f32]);

impl Inputs for Probabilities<'_> {
    #[inline(always)]
    fn of(&self, pair: usize) -> &[f32] {
        let &Probabilities(task, block, scores) = self;
        &scores[pair * GRID..][..task.count(pair, block)]
    }
}

impl Operation for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        let lines = std::mem::take(&mut self.lines);
        let pairs = self.rows.len() * self.heads.len();
        let (tile, lines) = lines.split_at_mut(RUN * VECTORS);
        let (scores, lines) = lines.split_at_mut(pairs * CHUNKS);
        let (states, marks) = lines.split_at_mut(pairs * self.width);
        let (most, marks) = marks.split_at_mut(pairs.div_ceil(LANES));
        let (total, marks) = marks.split_at_mut(pairs.div_ceil(LANES));
        let (next, added) = marks.split_at_mut(pairs.div_ceil(LANES));
        states.fill(Line([0.0; LANES]));
        most.fill(Line([f32::NEG_INFINITY; LANES]));
        total.fill(Line([0.0; LANES]));
        let mut marks = Marks { most, total, next, added };
        let end = self.attention.first + self.rows.end; // positions that the last row sees
        for block in (0..end).step_by(GRID) {
            let unseen = (block.saturating_sub(self.attention.first)).saturating_sub(self.rows.start);
            let pairs = unseen * self.heads.len()..pairs;
            self.scores::<L>(block, pairs.clone(), tile, scores);
            self.soften::<L>(block, pairs.clone(), scores, &mut marks);
            self.rescale::<L>(pairs.clone(), &marks, states);
            self.gather::<L>(block, pairs, tile, scores, states);
        }
        self.finish::<L>(&marks, states);
    }
}

impl Task<'_> {
    /// The row of a pair, and where its head's vector of `width` begins in that row.
    #[inline(always)]
    fn place(&self, pair: usize, width: usize) -> (usize, usize) {
        (self.rows.start + pair / self.heads.len(), (self.heads.start + pair % self.heads.len()) * width)
    }

    /// How many positions of a block the pair sees.
    #[inline(always)]
    fn count(&self, pair: usize, block: usize) -> usize {
        (self.attention.first + self.rows.start + pair / self.heads.len() + 1 - block).min(GRID)
    }

    /// The products of queries and a block's keys, for as many chunks of positions as the last row sees.
    #[inline(always)]
    fn scores<L: Lanes>(&self, block: usize, pairs: Range<usize>, tile: &mut [Line], scores: &mut [Line]) {
        let end = self.attention.first + self.rows.end;
        let seen = (end - block).min(GRID).div_ceil(LANES);
        for line in &mut scores[pairs.start * CHUNKS..] {
            *line = Line([0.0; LANES]);
        }
        for from in (0..self.attention.key_width).step_by(RUN) {
            let run = from..self.attention.key_width.min(from + RUN);
            let mut v = 0;
            while v < seen {
                let (pairs, run, sums) = (pairs.clone(), run.clone(), &mut scores[v..]);
                v += match seen - v {
                    1 => self.products::<L, 1>(block + v * LANES, pairs, run, tile, sums),
                    _ if !L::WIDE => self.products::<L, 1>(block + v * LANES, pairs, run, tile, sums),
                    2 => self.products::<L, 2>(block + v * LANES, pairs, run, tile, sums),
                    3 => self.products::<L, 3>(block + v * LANES, pairs, run, tile, sums),
                    _ => self.products::<L, VECTORS>(block + v * LANES, pairs, run, tile, sums),
                };
            }
        }
    }

    /// N chunks of positions from `at` on, over a run of columns. Returns N.
    #[inline(always)]
    fn products<L: Lanes, const N: usize>(
        &self,
        at: usize,
        pairs: Range<usize>,
        run: Range<usize>,
        tile: &mut [Line],
        sums: &mut [Line],
    ) -> usize {
        let a = self.attention;
        let last = a.first + self.rows.end - 1; // stands in for those past it, which no row sees
        let tile = &mut tile.as_chunks_mut::<N>().0[..RUN];
        for v in 0..N {
            let mut keys = [Floats::new(&[]); LANES];
            for (i, key) in keys.iter_mut().enumerate() {
                let row = a.keys.row((at + v * LANES + i).min(last), a.key_width);
                *key = Floats::new(&row[run.clone()]);
            }
            for (c, columns) in tile.as_chunks_mut::<LANES>().0.iter_mut().enumerate().take(run.len().div_ceil(LANES)) {
                let mut square = [L::splat(0.0); LANES];
                for i in 0..LANES {
                    square[i] = keys[i].checked(c);
                    // The same columns of the key that comes next in this lane: no hardware foresees sixteen strides.
                    L::prefetch(keys[i].at(c).cast::<u8>().wrapping_add(LANES * a.keys.stride * size_of::<f32>()));
                }
                let square = L::transpose(square);
                for i in 0..LANES {
                    square[i].store(&mut columns[i][v].0);
                }
            }
        }
        let tile = &tile[..run.len()];
        carry::<L, N>(&Queries(self, run), pairs, tile, sums, CHUNKS);
        N
    }

    /// Scores become exp(score - max), 0 where the row does not see; the largest and the sum of each pair go on.
    #[inline(always)]
    fn soften<L: Lanes>(&self, block: usize, pairs: Range<usize>, scores: &mut [Line], marks: &mut Marks) {
        marks.next.copy_from_slice(marks.most);
        marks.added.fill(Line([0.0; LANES]));
        for p in pairs.clone() {
            let count = self.count(p, block);
            let old = marks.most[p / LANES].0[p % LANES];
            let scores = &mut scores[p * CHUNKS..][..count.div_ceil(LANES)];
            let (next, added) = exponentials::<L>(scores, count, self.attention.scale, old);
            marks.next[p / LANES].0[p % LANES] = next;
            marks.added[p / LANES].0[p % LANES] = added;
        }
        for i in pairs.start / LANES..marks.most.len() {
            let (old, next) = (L::load(&marks.most[i].0), L::load(&marks.next[i].0));
            let factor = weight_of(old.sub(next));
            L::load(&marks.total[i].0).fma(factor, L::load(&marks.added[i].0)).store(&mut marks.total[i].0);
            next.store(&mut marks.most[i].0);
            factor.store(&mut marks.next[i].0);
        }
    }

    /// The sums so far times their pair's factor, which mostly is 1.
    #[inline(always)]
    fn rescale<L: Lanes>(&self, pairs: Range<usize>, marks: &Marks, states: &mut [Line]) {
        for p in pairs {
            let factor = marks.next[p / LANES].0[p % LANES];
            if factor != 1.0 {
                for line in &mut states[p * self.width..][..self.width] {
                    L::load(&line.0).mul(L::splat(factor)).store(&mut line.0);
                }
            }
        }
    }

    /// A block's values, in order of position, to the sums of all pairs.
    #[inline(always)]
    fn gather<L: Lanes>(&self, block: usize, pairs: Range<usize>, tile: &mut [Line], scores: &[Line], states: &mut [Line]) {
        let inputs = Probabilities(self, block, numbers(scores));
        let mut c = 0;
        while c < self.width {
            let (pairs, sums) = (pairs.clone(), &mut states[c..]);
            c += match self.width - c {
                1 => self.mixes::<L, 1>(&inputs, c, pairs, tile, sums),
                _ if !L::WIDE => self.mixes::<L, 1>(&inputs, c, pairs, tile, sums),
                2 => self.mixes::<L, 2>(&inputs, c, pairs, tile, sums),
                3 => self.mixes::<L, 3>(&inputs, c, pairs, tile, sums),
                _ => self.mixes::<L, VECTORS>(&inputs, c, pairs, tile, sums),
            };
        }
    }

    /// N chunks of value columns from chunk `c` on. Returns N.
    #[inline(always)]
    fn mixes<L: Lanes, const N: usize>(
        &self,
        inputs: &Probabilities,
        c: usize,
        pairs: Range<usize>,
        tile: &mut [Line],
        sums: &mut [Line],
    ) -> usize {
        let a = self.attention;
        let count = (a.first + self.rows.end - inputs.1).min(GRID);
        let tile = &mut tile.as_chunks_mut::<N>().0[..count];
        for (j, row) in tile.iter_mut().enumerate() {
            let value = Floats::new(a.values.row(inputs.1 + j, a.value_width));
            for (n, line) in row.iter_mut().enumerate() {
                value.checked::<L>(c + n).store(&mut line.0);
            }
        }
        carry::<L, N>(inputs, pairs, tile, sums, self.width);
        N
    }

    /// Divides by the sums of exponentials and writes all pairs.
    #[inline(always)]
    fn finish<L: Lanes>(&self, marks: &Marks, states: &[Line]) {
        for (p, state) in states.chunks_exact(self.width.max(1)).enumerate() {
            let factor = L::splat(1.0 / marks.total[p / LANES].0[p % LANES]);
            let (r, at) = self.place(p, self.attention.value_width);
            for (c, line) in state.iter().enumerate() {
                let mut values = [0.0; LANES];
                L::load(&line.0).mul(factor).store(&mut values);
                let count = LANES.min(self.attention.value_width - c * LANES);
                // SAFETY: these rows and heads belong to this task alone, and rows do not overlap.
                unsafe { self.out.write(r, at + c * LANES, &values[..count]) };
            }
        }
    }
}

#[cfg(test)]
mod tests;
