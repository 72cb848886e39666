//! Pieces that architectures share. Each is a set of weight names with the equation that uses them.

mod glu;
mod kda;
mod mla;
mod moe;
mod sums;

pub use glu::{Glu, Situ};
pub use kda::{Kda, RECORD as KDA_RECORD};
pub use mla::Mla;
pub use moe::Moe;
pub use sums::Sums;

use std::ops::Range;

use super::manifest::WeightId;
use super::{Feed, Fold, Matrix};
use crate::error::Result;
use crate::kernels::{View, ViewMut, spread};
use crate::scratch::Buffer;

/// Width of a slice of the vocabulary: log-sum-exp folds slices in order, so that its bits do not depend on panels.
pub const VOCABULARY_GRID: usize = 1024;

/// x w^T for all output rows of `w`: x [rows, cols] -> [rows, w.rows].
///
/// # Errors
/// What `feed` reports.
pub fn project(feed: &mut dyn Feed, w: WeightId, outputs: usize, x: &[f32], width: usize) -> Result<Buffer> {
    project_part(feed, w, 0..outputs, x, width)
}

/// x w^T for the output rows `outputs` of `w` (whole panels): x [rows, width] -> [rows, outputs].
///
/// # Errors
/// What `feed` reports.
pub fn project_part(feed: &mut dyn Feed, w: WeightId, outputs: Range<usize>, x: &[f32], width: usize) -> Result<Buffer> {
    let n = outputs.len();
    let mut y = feed.scratch().take(x.len() / width * n);
    feed.matmul(w, outputs, View { data: x, start: 0, stride: width }, ViewMut { data: &mut y, start: 0, stride: n })?;
    Ok(y)
}

/// RMSNorm of contiguous rows: x * rsqrt(mean(x^2) + eps) * gain, after Zhang and Sennrich (2019).
///
/// # Errors
/// What `feed` reports.
pub fn rms_norm(feed: &mut dyn Feed, gain: WeightId, eps: f32, x: &[f32]) -> Result<Buffer> {
    let gain = feed.vector(gain)?;
    let mut y = feed.scratch().take(x.len());
    feed.kernels().rms_norm(View { data: x, start: 0, stride: gain.len() }, &gain, eps, &mut y);
    Ok(y)
}

/// Rows that one task copies or adds.
const TASK_ROWS: usize = 64;

/// Calls `f` with some rows of y and the same rows of x until all are done, on all threads: y [rows, y_width], x [rows, x_width].
pub fn by_rows(y: &mut [f32], y_width: usize, x: &[f32], x_width: usize, f: &(dyn Fn(&mut [f32], &[f32]) + Sync)) {
    spread(y.chunks_mut(TASK_ROWS * y_width).zip(x.chunks(TASK_ROWS * x_width)).collect(), |(y, x)| f(y, x));
}

/// Computes some units of a layer for all rows -> [rows, units*width].
type Group<'a> = dyn FnMut(&mut dyn Feed, Range<usize>) -> Result<Buffer> + 'a;

/// Computes `units` of `width` floats a row, `group` units at a time -> [rows, units*width].
///
/// # Errors
/// What `f` reports.
fn by_groups(feed: &mut dyn Feed, rows: usize, (units, group, width): (usize, usize, usize), f: &mut Group<'_>) -> Result<Buffer> {
    if units <= group {
        return f(feed, 0..units);
    }
    let stride = units * width;
    let mut whole = feed.scratch().take(rows * stride);
    for first in (0..units).step_by(group) {
        let part = first..units.min(first + group);
        let (from, n) = (first * width, part.len() * width);
        let made = f(feed, part)?;
        by_rows(&mut whole, stride, &made, n, &|whole, made| {
            for (whole, made) in whole.chunks_exact_mut(stride).zip(made.chunks_exact(n)) {
                whole[from..from + n].copy_from_slice(made);
            }
        });
    }
    Ok(whole)
}

/// Logits of x [rows, hidden], folded over the vocabulary's grid.
///
/// # Errors
/// What `feed` reports.
pub fn fold_head(
    feed: &mut dyn Feed,
    head: WeightId,
    panels: &[Range<usize>],
    x: &[f32],
    hidden: usize,
    fold: &mut Fold<'_>,
) -> Result<()> {
    let rows = x.len() / hidden;
    let kernels = feed.kernels();
    let mut logits = feed.scratch().take(rows * VOCABULARY_GRID);
    for panel in panels {
        feed.panel(head, panel.clone(), &mut |matrix: Matrix<'_>| {
            for start in (0..panel.len()).step_by(VOCABULARY_GRID) {
                let end = panel.len().min(start + VOCABULARY_GRID);
                let slice = &mut logits[..rows * (end - start)];
                kernels.matmul(
                    rows,
                    View { data: x, start: 0, stride: hidden },
                    &matrix.slice(start..end),
                    ViewMut { data: slice, start: 0, stride: end - start },
                );
                fold(panel.start + start..panel.start + end, slice);
            }
        })?;
    }
    Ok(())
}
