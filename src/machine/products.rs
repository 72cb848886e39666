//! How fast are the products that a model is made of, at its shapes and with its kernels?
//!
//! A product with one row is bound by decoding and memory, one with many by the multipliers: between them lies a factor of ten, so one figure
//! says nothing, and each is taken at several numbers of rows. Weights come from memory, not from a cache that a job would not
//! have either: there are always more of them than the caches hold.

use std::time::{Duration, Instant};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::synthetic::{self, Fill, Tensors, mix};
use crate::kernels::{Data, Kernels, Matrix, View, ViewMut, spread};
use crate::model::manifest::{Part, PartFormat};
use crate::store::Lease;

/// Numbers of rows at which products are measured.
pub const ROWS: [u32; 5] = [1, 16, 64, 256, 1024];
/// A figure is taken over at least so long.
const LEAST: Duration = Duration::from_millis(400);
/// A figure that would take longer than this is not taken; the one before stands for it.
const MOST_S: f64 = 10.0;
/// Bytes of weights that are multiplied in turn: more than caches hold, but not more pieces than these.
const WEIGHT_BYTES: usize = 256 << 20;
const WEIGHTS_MAX: usize = 4096;

/// Products with so many rows at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProductRate {
    /// Rows.
    pub rows: u32,
    /// Floating point operations a second, a fused multiply-add being two.
    pub flops_per_s: u64,
}

/// Products that can be repeated.
pub trait Products: Sync {
    /// Makes some of them with `rows` rows, other weights each `turn`; returns operations.
    fn some(&self, rows: usize, turn: usize) -> u64;
}

/// Routed experts, some side by side as in a job.
pub struct Experts {
    kernels: Kernels,
    parts: Vec<Part>,
    blocks: Vec<Lease>,
    side_by_side: usize,
    x: Vec<f32>,
}

/// Panels of the trunk, one after the other.
pub struct Trunk {
    kernels: Kernels,
    outputs: usize,
    cols: usize,
    panels: Vec<Vec<u8>>,
    x: Vec<f32>,
}

/// Inputs of every row, in -1..1.
fn inputs(cols: usize) -> Vec<f32> {
    let rows = ROWS[ROWS.len() - 1] as usize;
    (0..rows * cols).map(|i| (mix(i as u64) >> 40) as f32 / (1u32 << 23) as f32 - 1.0).collect()
}

fn weights(bytes: usize) -> usize {
    (WEIGHT_BYTES / bytes.max(1)).clamp(2, WEIGHTS_MAX)
}

impl Experts {
    /// Experts of `parts`, stored as `tensors`, of which `side_by_side` are computed at the same time.
    pub fn new(kernels: Kernels, parts: &[Part], tensors: &Tensors, side_by_side: usize) -> Self {
        let ends = tensors.iter().scan(0, |end, tensor| {
            *end += tensor.0;
            Some(*end - tensor.0..*end)
        });
        let ranges: Vec<_> = ends.collect();
        let bytes = ranges.last().map_or(0, |last| last.end);
        let block = |number: usize| {
            let mut memory = vec![0; bytes];
            synthetic::fill(number as u32, tensors, &mut memory);
            Lease::of(memory, ranges.clone())
        };
        let blocks = (0..weights(bytes).max(side_by_side)).into_par_iter().map(block).collect();
        let widest = parts.iter().map(|part| part.cols).max().unwrap_or(0);
        Experts { kernels, parts: parts.to_vec(), blocks, side_by_side, x: inputs(widest) }
    }
}

impl Products for Experts {
    fn some(&self, rows: usize, turn: usize) -> u64 {
        let longest = self.parts.iter().map(|part| part.rows).max().unwrap_or(0);
        let jobs =
            (0..self.side_by_side).map(|i| (&self.blocks[(turn * self.side_by_side + i) % self.blocks.len()], vec![0.0; rows * longest]));
        spread(jobs.collect(), |(block, mut y): (&Lease, Vec<f32>)| {
            for (i, part) in self.parts.iter().enumerate() {
                let data = match part.format {
                    PartFormat::Mxfp4 => Data::Mxfp4 { packed: block.part(2 * i), scales: block.part(2 * i + 1) },
                };
                let matrix = Matrix { rows: part.rows, cols: part.cols, data };
                self.kernels.matmul(rows, View::rows(&self.x, part.cols), &matrix, ViewMut::rows(&mut y, part.rows));
            }
            std::hint::black_box(&y);
        });
        let a_row: usize = self.parts.iter().map(|part| 2 * part.rows * part.cols).sum();
        (self.side_by_side * rows * a_row) as u64
    }
}

impl Trunk {
    /// Panels of bf16 with `outputs` rows of `cols` columns.
    pub fn new(kernels: Kernels, outputs: usize, cols: usize) -> Self {
        let bytes = outputs * cols * 2;
        let panel = |number: usize| {
            let mut memory = vec![0; bytes];
            synthetic::fill(number as u32, &[(bytes, Fill::Codes)], &mut memory);
            // Exponents near that of 1: neither subnormal nor infinite.
            memory.chunks_exact_mut(2).for_each(|value| value[1] = value[1] & 0x80 | 0x3c);
            memory
        };
        let panels = (0..weights(bytes)).into_par_iter().map(panel).collect();
        Trunk { kernels, outputs, cols, panels, x: inputs(cols) }
    }
}

impl Products for Trunk {
    fn some(&self, rows: usize, turn: usize) -> u64 {
        let mut y = vec![0.0; rows * self.outputs];
        let matrix = Matrix { rows: self.outputs, cols: self.cols, data: Data::Bf16(&self.panels[turn % self.panels.len()]) };
        self.kernels.matmul(rows, View::rows(&self.x, self.cols), &matrix, ViewMut::rows(&mut y, self.outputs));
        std::hint::black_box(&y);
        (2 * rows * self.outputs * self.cols) as u64
    }
}

/// Repeats products while `go_on` says so, once at least; operations a second.
pub fn sustained(products: &dyn Products, rows: usize, go_on: &dyn Fn(Duration) -> bool) -> u64 {
    let started = Instant::now();
    let (mut operations, mut turn) = (0u64, 0);
    loop {
        operations += products.some(rows, turn);
        turn += 1;
        if !go_on(started.elapsed()) {
            return (operations as f64 / started.elapsed().as_secs_f64().max(1e-9)) as u64;
        }
    }
}

/// The rates at [`ROWS`]; on a slow machine the largest numbers of rows may be missing.
pub fn rates(products: &dyn Products) -> Vec<ProductRate> {
    let warm = Instant::now();
    let few = products.some(ROWS[0] as usize, 0) as f64;
    let mut last = few / warm.elapsed().as_secs_f64().max(1e-9);
    let mut rates = Vec::with_capacity(ROWS.len());
    for rows in ROWS {
        if few * f64::from(rows) / last > MOST_S {
            break;
        }
        let flops_per_s = sustained(products, rows as usize, &|elapsed| elapsed < LEAST);
        last = flops_per_s as f64;
        rates.push(ProductRate { rows, flops_per_s });
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_as_the_shapes_say() {
        let part = |rows, cols| Part { name: "w", rows, cols, format: PartFormat::Mxfp4 };
        let tensors = [(32 * 32, Fill::Codes), (32 * 2, Fill::Scales), (64 * 16, Fill::Codes), (64, Fill::Scales)];
        let experts = Experts::new(Kernels::detect(), &[part(32, 64), part(64, 32)], &tensors, 3);
        assert_eq!(experts.some(16, 5), 3 * 16 * 2 * (32 * 64 + 64 * 32));
        let trunk = Trunk::new(Kernels::detect(), 48, 40);
        assert_eq!(trunk.some(4, 9), 2 * 4 * 48 * 40);
        assert!(
            trunk.panels[1].chunks(2).all(|v| (0.007..0.04).contains(&f32::from_bits(u32::from(v[1]) << 24 | u32::from(v[0]) << 16).abs()))
        );
        let turns = std::sync::atomic::AtomicU64::new(0);
        struct Counted<'a>(&'a std::sync::atomic::AtomicU64);
        impl Products for Counted<'_> {
            fn some(&self, rows: usize, turn: usize) -> u64 {
                assert_eq!(self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed), turn as u64);
                rows as u64
            }
        }
        sustained(&Counted(&turns), 1, &|_| turns.load(std::sync::atomic::Ordering::Relaxed) < 7);
        assert_eq!(turns.into_inner(), 7);
    }
}
