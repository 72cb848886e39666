//! Functions of one element, or of two at the same place: sixteen at a time, the ragged end as a part.
//!
//! Such a pass reads and writes memory once; what costs is exp, about nine nanoseconds for sixteen. An element's value
//! depends on its operands alone, so the cut into tasks is free.

use super::lanes::{LANES, Lanes};
use super::math::{Caps, exp_of, sigmoid_of, situ_of};
use super::{Kernels, Operation, parallel};

/// About how many operations an element with an exp is worth.
const EXP_COST: usize = 16;

/// A new value from the old one and another.
trait Pointwise: Copy {
    fn at<L: Lanes>(self, y: L, x: L) -> L;
}

#[derive(Clone, Copy)]
struct Exp;
#[derive(Clone, Copy)]
struct Sigmoid;
#[derive(Clone, Copy)]
struct MultiplySigmoid;
#[derive(Clone, Copy)]
struct Add;
#[derive(Clone, Copy)]
struct AddScaled(f32);
#[derive(Clone, Copy)]
struct SituGlu(Caps);
/// exp(lower * sigmoid(scale * (z + bias)))
#[derive(Clone, Copy)]
struct Decay {
    scale: f32,
    lower: f32,
}

impl Pointwise for Exp {
    #[inline(always)]
    fn at<L: Lanes>(self, y: L, _: L) -> L {
        exp_of(y)
    }
}

impl Pointwise for Sigmoid {
    #[inline(always)]
    fn at<L: Lanes>(self, y: L, _: L) -> L {
        sigmoid_of(y)
    }
}

impl Pointwise for MultiplySigmoid {
    #[inline(always)]
    fn at<L: Lanes>(self, y: L, x: L) -> L {
        y.mul(sigmoid_of(x))
    }
}

impl Pointwise for Add {
    #[inline(always)]
    fn at<L: Lanes>(self, y: L, x: L) -> L {
        y.add(x)
    }
}

impl Pointwise for AddScaled {
    #[inline(always)]
    fn at<L: Lanes>(self, y: L, x: L) -> L {
        L::splat(self.0).fma(x, y)
    }
}

impl Pointwise for SituGlu {
    #[inline(always)]
    fn at<L: Lanes>(self, gate: L, up: L) -> L {
        situ_of(gate, up, self.0)
    }
}

impl Pointwise for Decay {
    #[inline(always)]
    fn at<L: Lanes>(self, z: L, bias: L) -> L {
        exp_of(L::splat(self.lower).mul(sigmoid_of(L::splat(self.scale).mul(z.add(bias)))))
    }
}

/// `y[i] = f(y[i], x[i])`; without x, of y alone.
struct Map<'a, F> {
    f: F,
    y: &'a mut [f32],
    x: Option<&'a [f32]>,
}

impl<F: Pointwise> Operation for Map<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (ys, y_tail) = self.y.as_chunks_mut::<LANES>();
        let Some(x) = self.x else {
            for y in ys {
                let value = L::load(y);
                self.f.at(value, value).store(y);
            }
            let value = L::load_part(y_tail, 0.0);
            return self.f.at(value, value).store_part(y_tail);
        };
        let (xs, x_tail) = x.as_chunks::<LANES>();
        for (y, x) in ys.iter_mut().zip(xs) {
            self.f.at(L::load(y), L::load(x)).store(y);
        }
        self.f.at(L::load_part(y_tail, 0.0), L::load_part(x_tail, 0.0)).store_part(y_tail);
    }
}

impl Kernels {
    fn map_one<F: Pointwise + Sync>(&self, f: F, y: &mut [f32]) {
        let operations = y.len() * EXP_COST;
        parallel::pieces(y, 1, operations, |_, y| self.run(Map { f, y, x: None }));
    }

    fn map_two<F: Pointwise + Sync>(&self, f: F, cost: usize, y: &mut [f32], x: &[f32]) {
        assert_eq!(y.len(), x.len(), "a kernel's two operands differ in length");
        let operations = y.len() * cost;
        parallel::pieces(y, 1, operations, |at, y| {
            let x = &x[at..][..y.len()];
            self.run(Map { f, y, x: Some(x) });
        });
    }

    /// `x = sigmoid(x)`
    pub fn sigmoid(&self, x: &mut [f32]) {
        self.map_one(Sigmoid, x);
    }

    /// `x = exp(x)`
    pub fn exp(&self, x: &mut [f32]) {
        self.map_one(Exp, x);
    }

    /// `y *= sigmoid(gate)`
    pub fn multiply_sigmoid(&self, y: &mut [f32], gate: &[f32]) {
        self.map_two(MultiplySigmoid, EXP_COST, y, gate);
    }

    /// `gate = beta * tanh(gate / beta) * sigmoid(gate) * linear_beta * tanh(up / linear_beta)`, a division by a cap being a
    /// product with its reciprocal.
    pub fn situ_glu(&self, gate: &mut [f32], up: &[f32], beta: f32, linear_beta: f32) {
        self.map_two(SituGlu(Caps::new(beta, linear_beta)), 3 * EXP_COST, gate, up);
    }

    /// `y += x`
    pub fn add(&self, y: &mut [f32], x: &[f32]) {
        self.map_two(Add, 1, y, x);
    }

    /// `y = scale * x + y`, rounded once.
    pub fn add_scaled(&self, y: &mut [f32], x: &[f32], scale: f32) {
        self.map_two(AddScaled(scale), 1, y, x);
    }

    /// z [T, heads * width] becomes `exp(lower * sigmoid(head_scale[h] * (z + bias)))`; bias `[heads * width]`, head_scale `[heads]`.
    ///
    /// # Panics
    /// When z is not whole rows of the bias's length.
    pub fn decay(&self, z: &mut [f32], bias: &[f32], head_scale: &[f32], width: usize, lower: f32) {
        let row = head_scale.len() * width;
        assert!(bias.len() == row && z.len().is_multiple_of(row.max(1)), "decay: z is not [T, heads * width]");
        let operations = z.len() * 2 * EXP_COST;
        parallel::pieces(z, row, operations, |_, z| {
            for (i, y) in z.chunks_exact_mut(width).enumerate() {
                let h = i % head_scale.len();
                let x = Some(&bias[h * width..][..width]);
                self.run(Map { f: Decay { scale: head_scale[h], lower }, y, x });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::math;
    use super::super::tests::{all, noise, same};
    use super::*;

    /// What the lanes must agree on to the bit, corners included.
    fn corners() -> Vec<f32> {
        let mut x = noise(1, 999).iter().map(|v| v * 40.0).collect::<Vec<_>>();
        x.extend([0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE, 1e-44, -1e-44, 0.625, -0.625]);
        x.extend([88.72, 88.73, 89.0, 89.1, -87.4, -103.9, -104.0, -104.1, f32::MAX, f32::MIN]);
        x
    }

    #[test]
    fn lanes_and_numbers_give_the_same_bits() {
        for kernels in all() {
            let (mut exp, mut sigmoid, mut gated) = (corners(), corners(), corners());
            kernels.exp(&mut exp);
            kernels.sigmoid(&mut sigmoid);
            kernels.situ_glu(&mut gated, &corners(), 4.0, 25.0);
            for (i, x) in corners().into_iter().enumerate() {
                assert!(same(&[exp[i]], &[math::exp(x)]), "{x}: {} {}", exp[i], math::exp(x));
                assert!(same(&[sigmoid[i]], &[math::sigmoid(x)]), "{x}");
                let want = situ_of(x, x, Caps::new(4.0, 25.0));
                assert!(same(&[gated[i]], &[want]), "{x} {} {want}", gated[i]);
            }
        }
    }

    #[test]
    fn two_operands() {
        let (a, b) = (noise(2, 77), noise(3, 77));
        for kernels in all() {
            let (mut sum, mut scaled, mut gated) = (a.clone(), a.clone(), a.clone());
            kernels.add(&mut sum, &b);
            kernels.add_scaled(&mut scaled, &b, 0.3);
            kernels.multiply_sigmoid(&mut gated, &b);
            for i in 0..77 {
                assert_eq!(sum[i], a[i] + b[i]);
                assert_eq!(scaled[i], b[i].mul_add(0.3, a[i]));
                assert_eq!(gated[i], a[i] * math::sigmoid(b[i]));
            }
        }
    }

    #[test]
    fn decay_takes_each_head_its_scale() {
        let (z, bias, scale) = (noise(4, 3 * 40), noise(5, 40), [0.5, 3.0]);
        for kernels in all() {
            let mut got = z.clone();
            kernels.decay(&mut got, &bias, &scale, 20, -5.0);
            for (i, g) in got.iter().enumerate() {
                let want = math::exp(-5.0 * math::sigmoid(scale[i % 40 / 20] * (z[i] + bias[i % 40])));
                assert_eq!(*g, want);
            }
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let x = noise(6, 100_003);
        let kernels = Kernels::detect();
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
            let mut y = x.clone();
            pool.install(|| kernels.sigmoid(&mut y));
            y
        };
        assert!(same(&run(1), &run(3)));
    }
}
