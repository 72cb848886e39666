//! Attention against softmax in f64, and against itself however it is cut.

use super::*;
use crate::kernels::tests::{all, noise, same};

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
    for (heads, key_width, value_width, positions) in [(5, 24, 17, 131), (2, 80, 64, 70), (4, 32, 32, 66), (1, 9, 3, 3), (20, 150, 33, 40)]
    {
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
