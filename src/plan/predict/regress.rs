//! What do answers use whose prompts are like this one?
//!
//! A full regression from prompt to answer has a weight for each pair of blocks: 82,432 squared at the largest size. In its dual form it has
//! one for each pair of finished rows, and of those a few hundred tell what can be told: a kernel ridge regression. Likeness is
//! exp(-distance squared) over what all tokens used, what the last ones used, and which token comes next: on 1,500 summaries, 200 of them
//! finished, its correlation with the truth is 0.50 without that token and 0.56 with it. The newest rows are kept; a new one costs its
//! distances to those, a fit one Cholesky factor.

use std::sync::Arc;

use super::super::footprint::{Footprint, PromptUse};
use super::mix::cut;
use super::{Known, Size};

/// Finished rows kept.
pub(super) const ROWS_MAX: usize = 768;
/// Rows of the first fit.
const ROWS_MIN: usize = 16;
/// Part of the rows that must be new before the next fit.
const RENEWED: usize = 4;
/// Squared distance, in units of the mean one, at which likeness falls by e.
const REACH: f64 = 0.53;
/// Parts of the distance: what all tokens used, what the last ones used, and that another token comes next.
const PARTS: [f64; 3] = [0.3, 1.0, 0.6];
/// What of a row's answer is its own, beside what likeness explains.
const NOISE: f64 = 0.35;

/// A finished row.
#[derive(Debug)]
struct Row {
    /// What of its prompt is looked at: all tokens, and the last ones.
    prompt: [Footprint; 2],
    next: Option<u32>,
    answer: Footprint,
}

/// Squared distances of all tokens' use and of the last ones', and 1 where another token comes next.
type Distance = [f32; 3];

/// Rows with what has been worked out of them.
#[derive(Debug, Clone)]
pub(super) struct Regression {
    size: Size,
    /// Prompts are looked at in blocks below this.
    looked: u32,
    /// The newest rows; when full, the oldest gives its place.
    rows: Vec<Arc<Row>>,
    next: usize,
    /// [rows, rows] with `ROWS_MAX` columns; the lower triangle is used.
    distances: Vec<Distance>,
    unfitted: usize,
    fit: Option<Arc<Fit>>,
}

#[derive(Debug)]
struct Fit {
    rows: Vec<Arc<Row>>,
    /// [blocks], the answers' mean.
    mean: Vec<f32>,
    scale: [f64; 3],
    factor: Factor,
}

impl Regression {
    pub(super) fn new(size: Size, looked: u32) -> Self {
        Regression { size, looked, rows: Vec::new(), next: 0, distances: Vec::new(), unfitted: 0, fit: None }
    }

    /// Rows that the fit in use knows.
    pub(super) fn fitted(&self) -> usize {
        self.fit.as_ref().map_or(0, |fit| fit.rows.len())
    }

    /// Takes a finished row in, and fits anew where enough rows are new.
    pub(super) fn learn(&mut self, known: &Known<'_>, answer: &Footprint) {
        let Some(prompt) = known.prompt else { return };
        let row = Row { prompt: self.look(prompt), next: prompt.next, answer: cut(answer, self.size.most) };
        let at = self.next;
        if at == self.rows.len() {
            self.rows.push(Arc::new(row));
            self.distances.resize(self.rows.len() * ROWS_MAX, [0.0; 3]);
        } else {
            self.rows[at] = Arc::new(row);
        }
        for (other, distance) in self.rows[at].distances(&self.rows, self.size.blocks).into_iter().enumerate() {
            self.distances[at.max(other) * ROWS_MAX + at.min(other)] = distance;
        }
        self.next = (at + 1) % ROWS_MAX;
        self.unfitted += 1;
        if self.rows.len() >= ROWS_MIN && self.unfitted * RENEWED >= self.rows.len() {
            self.unfitted = 0;
            self.fit = Some(Arc::new(self.fit()));
        }
    }

    /// Expected shares of all blocks [blocks], those that answers have in common included; none before the first fit.
    pub(super) fn predict(&self, prompt: &PromptUse) -> Option<Vec<f32>> {
        let fit = self.fit.as_ref()?;
        let asked = Row { prompt: self.look(prompt), next: prompt.next, answer: Footprint::default() };
        let like = asked.distances(&fit.rows, self.size.blocks).iter().map(|&d| likeness(d, fit.scale)).collect();
        let weights = fit.factor.solve(like);
        let rest = (1.0 - weights.iter().sum::<f64>()) as f32;
        let mut shares: Vec<f32> = fit.mean.iter().map(|share| rest * share).collect();
        for (row, weight) in fit.rows.iter().zip(&weights) {
            for (block, share) in row.answer.iter().filter(|&(block, _)| block < fit.mean.len()) {
                shares[block] += *weight as f32 * share;
            }
        }
        Some(shares)
    }

    /// What is looked at of a prompt.
    fn look(&self, prompt: &PromptUse) -> [Footprint; 2] {
        let part = |footprint: &Footprint| {
            let inside = footprint.iter().map(|(block, share)| (block as u32, share)).filter(|&(block, _)| block < self.looked);
            Footprint::of(inside, self.size.most)
        };
        [part(&prompt.all), part(&prompt.last)]
    }

    fn fit(&self) -> Fit {
        let n = self.rows.len();
        let pairs = || (1..n).flat_map(|i| &self.distances[i * ROWS_MAX..i * ROWS_MAX + i]);
        let scale = [0, 1, 2].map(|part| {
            let mean = if part == 2 { 1.0 } else { pairs().map(|d| f64::from(d[part])).sum::<f64>() / pairs().count() as f64 };
            // Prompts that are all the same in a part are at no distance in it.
            if mean > 0.0 { PARTS[part] / (mean * PARTS.iter().sum::<f64>() * REACH) } else { 0.0 }
        });
        let mut matrix = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..i {
                matrix[i * n + j] = likeness(self.distances[i * ROWS_MAX + j], scale);
            }
            matrix[i * n + i] = 1.0 + NOISE;
        }
        let mut mean = vec![0.0; self.size.blocks as usize];
        for (block, share) in self.rows.iter().flat_map(|row| row.answer.iter()).filter(|&(block, _)| block < self.size.blocks as usize) {
            mean[block] += share / n as f32;
        }
        Fit { rows: self.rows.clone(), mean, scale, factor: Factor::of(matrix, n) }
    }
}

impl Row {
    /// The distance of this row's prompt to each of `rows`.
    fn distances(&self, rows: &[Arc<Row>], blocks: u32) -> Vec<Distance> {
        let mut distances: Vec<Distance> = rows.iter().map(|row| [0.0, 0.0, f32::from(row.next != self.next)]).collect();
        let mut spread = vec![0.0; blocks as usize];
        for part in 0..2 {
            spread.fill(0.0);
            for (block, share) in self.prompt[part].iter() {
                spread[block] = share;
            }
            let own = spread.iter().map(|share| share * share).sum::<f32>();
            for (row, distance) in rows.iter().zip(&mut distances) {
                let (mut square, mut product) = (0.0, 0.0);
                for (block, share) in row.prompt[part].iter() {
                    square += share * share;
                    product += share * spread[block];
                }
                distance[part] = (own + square - 2.0 * product).max(0.0);
            }
        }
        distances
    }
}

fn likeness(distance: Distance, scale: [f64; 3]) -> f64 {
    (-distance.into_iter().zip(scale).map(|(part, scale)| f64::from(part) * scale).sum::<f64>()).exp()
}

/// The lower factor of a positive definite matrix.
#[derive(Debug)]
struct Factor {
    /// [n, n]; what stands above the diagonal is not used.
    lower: Vec<f64>,
    n: usize,
}

impl Factor {
    /// Of a matrix [n, n] of which the lower triangle is given. Likenesses are positive definite, and [`NOISE`] on the diagonal keeps every
    /// pivot above what rounding takes.
    fn of(mut matrix: Vec<f64>, n: usize) -> Self {
        for i in 0..n {
            let (above, row) = matrix.split_at_mut(i * n);
            for j in 0..i {
                let other = &above[j * n..=j * n + j];
                row[j] = (row[j] - dot(&row[..j], &other[..j])) / other[j];
            }
            row[i] = (row[i] - dot(&row[..i], &row[..i])).max(f64::MIN_POSITIVE).sqrt();
        }
        Factor { lower: matrix, n }
    }

    /// x of matrix x = `b`.
    fn solve(&self, mut b: Vec<f64>) -> Vec<f64> {
        let n = self.n;
        for i in 0..n {
            let row = &self.lower[i * n..=i * n + i];
            b[i] = (b[i] - dot(&row[..i], &b[..i])) / row[i];
        }
        for i in (0..n).rev() {
            let row = &self.lower[i * n..=i * n + i];
            b[i] /= row[i];
            let known = b[i];
            for (value, weight) in b[..i].iter_mut().zip(row) {
                *value -= known * weight;
            }
        }
        b
    }
}

/// In eight sums, so that it runs as vectors do.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f64 = a.remainder().iter().zip(b.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a.zip(b) {
        for lane in 0..8 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests;
