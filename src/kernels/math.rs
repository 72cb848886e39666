//! exp, ln, tanh and sigmoid with the same bits on every machine.
//!
//! A libm differs between systems and versions, so a job that moved would change its answers. These are our own: range
//! reduction and a polynomial in explicit fused steps (coefficients of the public Cephes library), one body for a
//! number and for sixteen lanes. Errors against the true value stay within 2 ulp (sigmoid and tanh 3; SiTU 7, less than the
//! sum of its functions' and products') wherever the result is a normal number. Nothing is flushed: exp goes through the
//! subnormals down to 0, and NaN stays NaN.

use super::lanes::{ROUND, Real};

/// ln 2 in two parts: the first has few bits, so that n times it is exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// exp of more is infinite, of less is 0; the clamps only keep the exponent in range.
const EXP_MOST: f32 = 89.0;
const EXP_LEAST: f32 = -104.0;

/// (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2, highest power first.
const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// A weight of e^-64 = 2^-92 changes nothing that has 24 bits. Products with smaller ones would be subnormal numbers, for which
/// some machines need a hundred times as long.
const NEGLIGIBLE: f32 = -64.0;

/// e^x of less does not change 1 + e^x, and 2^n of its exponent is still a normal number.
const TANH_LEAST: f32 = -87.0;

/// `p * x + coefficient`, highest first.
#[inline(always)]
fn polynomial<V: Real, const N: usize>(x: V, coefficients: [f32; N]) -> V {
    let mut sum = V::splat(coefficients[0]);
    for c in coefficients.into_iter().skip(1) {
        sum = sum.fma(x, V::splat(c));
    }
    sum
}

/// e^x
#[inline(always)]
pub(super) fn exp_of<V: Real>(x: V) -> V {
    let (most, least) = (V::splat(EXP_MOST), V::splat(EXP_LEAST));
    let x = x.above(most, most, x);
    let x = least.above(x, least, x);
    // x = n ln 2 + r, |r| <= ln 2 / 2
    let t = x.fma(V::splat(std::f32::consts::LOG2_E), V::splat(ROUND));
    let n = t.sub(V::splat(ROUND));
    let r = n.fma(V::splat(-LN2_LOW), n.fma(V::splat(-LN2_HIGH), x));
    let p = polynomial(r, EXP);
    let p = p.fma(r.mul(r), r).add(V::splat(1.0));
    let (a, b) = t.powers();
    p.mul(a).mul(b)
}

/// e^x of a score less the largest one, so x <= 0; 0 below [`NEGLIGIBLE`].
#[inline(always)]
pub(super) fn weight_of<V: Real>(x: V) -> V {
    let least = V::splat(NEGLIGIBLE);
    let y = least.max(x); // a NaN is not below the bound and stays
    let t = y.fma(V::splat(std::f32::consts::LOG2_E), V::splat(ROUND));
    let n = t.sub(V::splat(ROUND));
    let r = n.fma(V::splat(-LN2_LOW), n.fma(V::splat(-LN2_HIGH), y));
    let p = polynomial(r, EXP).fma(r.mul(r), r).add(V::splat(1.0));
    least.above(x, V::splat(0.0), p.mul(t.power()))
}

/// 1 / (1 + e^-x)
#[inline(always)]
pub(super) fn sigmoid_of<V: Real>(x: V) -> V {
    let one = V::splat(1.0);
    one.div(one.add(exp_of(x.mul(V::splat(-1.0)))))
}

/// tanh x as a quotient: -t / (2 + t) with t = e^-2|x| - 1, which is precise near 0. The divisor is in [1, 2].
#[inline(always)]
fn tanh_parts<V: Real>(x: V) -> (V, V) {
    let (one, two) = (V::splat(1.0), V::splat(2.0));
    // A NaN is not below the bound and stays.
    let y = V::splat(TANH_LEAST).max(x.abs().mul(V::splat(-2.0)));
    let t = y.fma(V::splat(std::f32::consts::LOG2_E), V::splat(ROUND));
    let n = t.sub(V::splat(ROUND));
    let r = n.fma(V::splat(-LN2_LOW), n.fma(V::splat(-LN2_HIGH), y));
    let less_one = polynomial(r, EXP).fma(r.mul(r), r); // e^r - 1
    let power = t.power();
    let t = power.fma(less_one, power.sub(one));
    (t.with_sign_of(x), two.add(t)) // -0 stays -0
}

/// tanh x
#[inline(always)]
fn tanh_of<V: Real>(x: V) -> V {
    let (above, below) = tanh_parts(x);
    above.div(below)
}

/// The caps of [`situ_of`] and their reciprocals.
#[derive(Clone, Copy)]
pub(super) struct Caps {
    beta: f32,
    linear: f32,
    per_beta: f32,
    per_linear: f32,
}

impl Caps {
    pub(super) fn new(beta: f32, linear: f32) -> Caps {
        Caps { beta, linear, per_beta: 1.0 / beta, per_linear: 1.0 / linear }
    }
}

/// `beta * tanh(gate / beta) * sigmoid(gate) * linear * tanh(up / linear)` with one division: all three functions are quotients
/// whose divisors are in [1, 2]. A cap divides by its reciprocal.
#[inline(always)]
pub(super) fn situ_of<V: Real>(gate: V, up: V, caps: Caps) -> V {
    let one = V::splat(1.0);
    let (gated, a) = tanh_parts(gate.mul(V::splat(caps.per_beta)));
    let (linear, b) = tanh_parts(up.mul(V::splat(caps.per_linear)));
    let small = exp_of(gate.abs().mul(V::splat(-1.0)));
    let open = gate.above(V::splat(0.0), one, small);
    let gated = V::splat(caps.beta).mul(gated).mul(open);
    gated.mul(V::splat(caps.linear).mul(linear)).div(a.mul(b).mul(one.add(small)))
}

/// e^x; the same bits as the lanes of `Kernels::exp`.
pub fn exp(x: f32) -> f32 {
    exp_of(x)
}

/// 1 / (1 + e^-x); the same bits as the lanes of `Kernels::sigmoid`.
pub fn sigmoid(x: f32) -> f32 {
    sigmoid_of(x)
}

/// tanh x
pub fn tanh(x: f32) -> f32 {
    tanh_of(x)
}

/// The natural logarithm: -inf of 0, NaN below.
pub fn ln(x: f32) -> f32 {
    if x.is_nan() || x < 0.0 {
        return f32::NAN;
    }
    if x == 0.0 {
        return f32::NEG_INFINITY;
    }
    if x == f32::INFINITY {
        return x;
    }
    // A subnormal is lifted by 2^23 first.
    let (x, lift) = if x < f32::MIN_POSITIVE { (x * 8_388_608.0, 23) } else { (x, 0) };
    // x = 2^e m, sqrt(1/2) <= m < sqrt 2
    let bits = x.to_bits() as i32;
    let e = (bits - std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32) >> 23;
    let m = f32::from_bits((bits - (e << 23)) as u32) - 1.0;
    let n = (e - lift) as f32;
    let square = m * m;
    let p = polynomial(
        m,
        [
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_9e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_8e-1,
            2.000_071_5e-1,
            -2.499_999_4e-1,
            3.333_333e-1,
        ],
    );
    let tail = (m * square).mul_add(p, n * LN2_LOW);
    let tail = square.mul_add(-0.5, tail);
    n.mul_add(LN2_HIGH, m + tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units of the last place of the true value.
    fn ulp(got: f32, want: f64) -> f64 {
        if f64::from(got) == want || (got == want as f32) {
            return 0.0;
        }
        let near = (want as f32).abs().max(f32::MIN_POSITIVE);
        let step = f64::from(f32::from_bits(near.to_bits() + 1)) - f64::from(near);
        (f64::from(got) - want).abs() / step
    }

    /// The worst error over numbers evenly spaced in [from, to].
    fn worst(f: fn(f32) -> f32, truth: fn(f64) -> f64, from: f32, to: f32) -> f64 {
        let steps = 200_000;
        (0..=steps).map(|i| from + (to - from) * (i as f32 / steps as f32)).map(|x| ulp(f(x), truth(f64::from(x)))).fold(0.0, f64::max)
    }

    #[test]
    fn exp_is_close_everywhere() {
        assert!(worst(exp, f64::exp, -87.0, 88.72) <= 2.0, "{}", worst(exp, f64::exp, -87.0, 88.72));
        assert!(worst(exp, f64::exp, -1e-3, 1e-3) <= 1.0);
        assert!(worst(exp, f64::exp, -104.0, -87.0) <= 1.0);
    }

    #[test]
    fn exp_at_the_ends() {
        assert_eq!(exp(0.0).to_bits(), 1.0f32.to_bits());
        assert_eq!(exp(-0.0).to_bits(), 1.0f32.to_bits());
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(88.73), f32::INFINITY);
        assert!(exp(88.72).is_finite());
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp(-1e30).to_bits(), 0);
        assert_eq!(exp(-103.0).to_bits(), 1);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn ln_is_close_everywhere() {
        assert!(worst(ln, f64::ln, 1e-30, 4.0) <= 2.0, "{}", worst(ln, f64::ln, 1e-30, 4.0));
        assert!(worst(ln, f64::ln, 0.99, 1.01) <= 2.0);
        assert!(worst(ln, f64::ln, 1.0, 3e38) <= 2.0);
        assert!(worst(ln, f64::ln, f32::from_bits(1), f32::MIN_POSITIVE) <= 2.0);
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(ln(0.0), f32::NEG_INFINITY);
        assert_eq!(ln(f32::INFINITY), f32::INFINITY);
        assert!(ln(-1.0).is_nan() && ln(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_close_everywhere() {
        for (from, to) in [(-12.0, 12.0), (-0.7, 0.7), (-1e-3, 1e-3), (0.0, 1e-38)] {
            assert!(worst(tanh, f64::tanh, from, to) <= 3.0, "{from} {to} {}", worst(tanh, f64::tanh, from, to));
        }
        assert_eq!(tanh(f32::INFINITY), 1.0);
        assert_eq!(tanh(-300.0), -1.0);
        assert_eq!(tanh(-0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(tanh(f32::from_bits(7)).to_bits(), 7);
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn weights_are_close_or_nothing() {
        assert!(worst(weight_of, f64::exp, -64.0, 0.0) <= 2.0, "{}", worst(weight_of, f64::exp, -64.0, 0.0));
        assert_eq!(weight_of(0.0f32).to_bits(), 1.0f32.to_bits());
        for x in [-64.00001, -100.0, -1e30, f32::NEG_INFINITY] {
            assert_eq!(weight_of(x).to_bits(), 0, "{x}");
        }
        assert!(weight_of(f32::NAN).is_nan());
    }

    #[test]
    fn situ_is_close_everywhere() {
        let sizes = [1e-30, 1e-9, 1e-3, 0.1, 0.7, 1.0, 3.0, 9.0, 40.0, 86.0, 300.0];
        let numbers: Vec<f32> =
            sizes.iter().flat_map(|s| (0..60).map(move |i| s * (i as f32 / 29.5 - 1.0))).filter(|&x| x > -87.0).collect();
        for (beta, linear) in [(4.0, 25.0), (3.0, 7.0)] {
            let mut worst = 0.0f64;
            for (&gate, &up) in numbers.iter().flat_map(|g| numbers.iter().map(move |u| (g, u))) {
                let (g, u, b, l) = (f64::from(gate), f64::from(up), f64::from(beta), f64::from(linear));
                let want = b * (g / b).tanh() / (1.0 + (-g).exp()) * l * (u / l).tanh();
                if want.abs() > 1e-37 {
                    worst = worst.max(ulp(situ_of(gate, up, Caps::new(beta, linear)), want));
                }
            }
            assert!(worst <= 7.0, "{worst}");
        }
        let capped = |gate: f32, up: f32| situ_of(gate, up, Caps::new(4.0, 25.0));
        assert_eq!(capped(f32::INFINITY, f32::NEG_INFINITY), -100.0);
        assert_eq!(capped(f32::NEG_INFINITY, 1.0), 0.0);
        assert!(capped(f32::NAN, 1.0).is_nan() && capped(1.0, f32::NAN).is_nan());
    }

    #[test]
    fn sigmoid_is_close_everywhere() {
        let truth = |x: f64| 1.0 / (1.0 + (-x).exp());
        assert!(worst(sigmoid, truth, -87.0, 30.0) <= 3.0, "{}", worst(sigmoid, truth, -87.0, 30.0));
        assert_eq!(sigmoid(f32::INFINITY), 1.0);
        assert_eq!(sigmoid(f32::NEG_INFINITY), 0.0);
        assert_eq!(sigmoid(0.0), 0.5);
        assert!(sigmoid(f32::NAN).is_nan());
    }
}
