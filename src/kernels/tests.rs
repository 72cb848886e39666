//! Products: the same bits on all paths, whatever the rows, threads and strides; and right against f64.

use super::*;

/// Every instruction set of this machine, the definition first.
pub(super) fn all() -> Vec<Kernels> {
    [Path::Scalar, Path::Avx2, Path::Avx512].into_iter().filter_map(Kernels::with).collect()
}

/// Numbers in [-1, 1) from a small generator.
pub(super) fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Equal bits, any NaN being like any other.
pub(super) fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}

/// Weights of one format, with the bytes that a view borrows; the first byte is a gap that spoils alignment.
struct Weights {
    rows: usize,
    cols: usize,
    format: usize,
    bytes: Vec<u8>,
    scales: Vec<u8>,
}

impl Weights {
    fn new(format: usize, rows: usize, cols: usize) -> Weights {
        let values = noise((rows * 31 + cols) as u64, rows * cols);
        let mut bytes = vec![0];
        let mut scales = Vec::new();
        match format {
            0 => bytes.extend(values.iter().flat_map(|v| v.to_le_bytes())),
            1 => bytes.extend(values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes())),
            _ => {
                bytes.extend(values.chunks(2).map(|v| (v[0].to_bits() >> 3) as u8));
                scales.extend(values.chunks(32).map(|v| 118 + (v[1].to_bits() >> 5 & 7) as u8));
            }
        }
        Weights { rows, cols, format, bytes, scales }
    }

    fn matrix(&self) -> Matrix<'_> {
        let bytes = &self.bytes[1..];
        let data = match self.format {
            0 => Data::F32(bytes),
            1 => Data::Bf16(bytes),
            _ => Data::Mxfp4 { packed: bytes, scales: &self.scales },
        };
        Matrix::new(self.rows, self.cols, data).expect("the bytes are of this shape")
    }

    fn decoded(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        self.matrix().decode(&mut out);
        out
    }
}

/// The contract in plain loops.
fn defined(x: &[f32], w: &[f32]) -> f32 {
    let chain = |(x, w): (&[f32], &[f32])| x.iter().zip(w).fold(0.0f32, |sum, (x, w)| x.mul_add(*w, sum));
    let chains = x.chunks(128).zip(w.chunks(128)).map(chain);
    chains.reduce(|sum, chain| sum + chain).unwrap_or(0.0)
}

fn product(kernels: Kernels, rows: usize, x: View, w: &Matrix) -> Vec<f32> {
    let mut y = vec![0.0; rows * w.rows];
    kernels.matmul(rows, x, w, ViewMut::rows(&mut y, w.rows));
    y
}

#[test]
fn matmul_is_the_definition_on_every_path_for_any_rows() {
    let shapes = [
        (1, 1usize),
        (3, 5),
        (4, 16),
        (7, 17),
        (9, 33),
        (5, 48),
        (66, 32),
        (2, 1030),
        (13, 1024),
        (6, 2080),
        (5, 0),
        (49, 320),
        (70, 129),
        (300, 40),
    ];
    for (n, (outputs, cols)) in shapes.into_iter().enumerate() {
        for format in 0..3 {
            let cols = if format == 2 { cols.next_multiple_of(32) } else { cols };
            let weights = Weights::new(format, outputs, cols);
            let w = weights.decoded();
            for rows in [1, 2, 3, 4, 5, 6, 7, 8, 13, 26, 131] {
                if rows > 26 && cols > 100 {
                    continue;
                }
                let x = noise(n as u64 + 50, rows * cols);
                let want: Vec<f32> =
                    (0..rows * outputs).map(|i| defined(&x[i / outputs * cols..][..cols], &w[i % outputs * cols..][..cols])).collect();
                for kernels in all() {
                    let got = product(kernels, rows, View::rows(&x, cols), &weights.matrix());
                    assert!(same(&got, &want), "{rows} x {outputs} x {cols}, format {format}, {:?}", kernels.path());
                }
            }
        }
    }
}

#[test]
fn wide_matrices_are_right_and_alike() {
    for (format, outputs, cols) in [(1, 37, 7168), (2, 37, 3584), (2, 20, 3072), (0, 9, 7170)] {
        let weights = Weights::new(format, outputs, cols);
        let (w, x) = (weights.decoded(), noise(7, 9 * cols));
        let mut first: Option<Vec<f32>> = None;
        for kernels in all() {
            let y = product(kernels, 9, View::rows(&x, cols), &weights.matrix());
            for (i, &got) in y.iter().enumerate() {
                let (x, w) = (&x[i / outputs * cols..][..cols], &w[i % outputs * cols..][..cols]);
                let want: f64 = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                let size: f64 = x.iter().zip(w).map(|(&x, &w)| f64::from(x * w).abs()).sum();
                assert!((f64::from(got) - want).abs() <= 2e-7 * size, "{got} {want}");
            }
            for r in 0..9 {
                let one = product(kernels, 1, View { data: &x, start: r * cols, stride: 0 }, &weights.matrix());
                assert!(same(&one, &y[r * outputs..][..outputs]), "a row alone");
            }
            assert!(same(first.get_or_insert(y.clone()), &y));
        }
    }
}

#[test]
fn strided_views_touch_nothing_else() {
    let weights = Weights::new(1, 10, 40);
    for rows in [1, 3, 9] {
        let x = noise(3, 5 + rows * 57);
        for kernels in all() {
            let dense: Vec<f32> = (0..rows).flat_map(|r| x[5 + r * 57..][..40].to_vec()).collect();
            let want = product(kernels, rows, View::rows(&dense, 40), &weights.matrix());
            let mut y = vec![7.0; 3 + rows * 23];
            kernels.matmul(
                rows,
                View { data: &x, start: 5, stride: 57 },
                &weights.matrix(),
                ViewMut { data: &mut y, start: 3, stride: 23 },
            );
            for r in 0..rows {
                assert!(same(&y[3 + r * 23..][..10], &want[r * 10..][..10]));
                assert!(y[3 + r * 23 + 10..].iter().take(13).all(|&v| v == 7.0));
            }
            assert_eq!(&y[..3], &[7.0; 3]);
        }
    }
}

#[test]
fn threads_and_slices_change_no_bit() {
    let weights = Weights::new(2, 300, 96);
    let x = noise(4, 150 * 96);
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| product(Kernels::detect(), 150, View::rows(&x, 96), &weights.matrix()))
    };
    let whole = run(1);
    assert!(same(&whole, &run(2)) && same(&whole, &run(5)));
    let panel = product(Kernels::detect(), 150, View::rows(&x, 96), &weights.matrix().slice(100..163));
    for r in 0..150 {
        assert!(same(&panel[r * 63..][..63], &whole[r * 300 + 100..][..63]));
    }
}

#[test]
fn transposed_is_one_ascending_chain() {
    for (outer, cols) in [(128, 512usize), (5, 16), (33, 70), (7, 129), (1, 3)] {
        for format in 0..3 {
            let cols = if format == 2 { cols.next_multiple_of(32) } else { cols };
            let weights = Weights::new(format, outer, cols);
            let w = weights.decoded();
            for rows in [1, 2, 3, 4, 7, 35] {
                let x = noise(5, rows * (outer + 9));
                let view = View { data: &x, start: 4, stride: outer + 9 };
                let chain = |r: usize, c: usize| (0..outer).fold(0.0f32, |s, n| view.row(r, outer)[n].mul_add(w[n * cols + c], s));
                let want: Vec<f32> = (0..rows * cols).map(|i| chain(i / cols, i % cols)).collect();
                for kernels in all() {
                    let mut y = vec![0.0; rows * cols];
                    let steps = Steps { x: 0, y: cols };
                    kernels.matmul_heads_transposed(rows, view, &[weights.matrix()], ViewMut::rows(&mut y, cols), steps);
                    assert!(same(&y, &want), "{rows} x {outer} x {cols}, format {format}, {:?}", kernels.path());
                }
            }
        }
    }
}

#[test]
fn mxfp4_decodes_every_code_and_scale_exactly() {
    let packed: Vec<u8> = (0..16u8).map(|i| (2 * i % 16) | (2 * i % 16 + 1) << 4).collect();
    for scale in 0..=255u8 {
        let scales = [scale];
        let w = Matrix::new(1, 32, Data::Mxfp4 { packed: &packed, scales: &scales }).expect("one block");
        let mut got = [0.0; 32];
        w.decode(&mut got);
        for (code, &value) in got.iter().enumerate() {
            let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
            let want = sign * [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code & 7] * 2f64.powi(i32::from(scale) - 127);
            assert!(if scale == 255 { value.is_nan() } else { value.to_bits() == (want as f32).to_bits() }, "{code} {scale}");
        }
        for kernels in all() {
            for rows in [1, 6] {
                // Each row picks one column, so that the lanes' decoder is seen alone.
                for column in 0..if scale == 255 { 0 } else { 32 } {
                    let mut x = vec![0.0; rows * 32];
                    x.iter_mut().skip(column).step_by(32).for_each(|v| *v = 1.0);
                    let want = got[column] + if got.iter().any(|v| v.is_infinite()) { f32::NAN } else { 0.0 };
                    let y = product(kernels, rows, View::rows(&x, 32), &w);
                    assert!(same(&y, &vec![want; rows]), "{y:?} {want} {scale}");
                }
            }
        }
    }
}

#[test]
fn bf16_decodes_every_code_exactly() {
    let codes: Vec<u16> = (0..=u16::MAX).collect();
    let bytes: Vec<u8> = codes.iter().flat_map(|c| c.to_le_bytes()).collect();
    let mut got = vec![0.0; codes.len()];
    Matrix::new(4096, 16, Data::Bf16(&bytes)).expect("all codes").decode(&mut got);
    assert!(got.iter().zip(&codes).all(|(v, &c)| v.to_bits() == u32::from(c) << 16));
    // In a product what is no finite number would spoil its row.
    let finite: Vec<u16> = codes.iter().map(|&c| if c & 0x7f80 == 0x7f80 { 0 } else { c }).collect();
    let bytes: Vec<u8> = finite.iter().flat_map(|c| c.to_le_bytes()).collect();
    let w = Matrix::new(4096, 16, Data::Bf16(&bytes)).expect("all codes");
    for kernels in all() {
        for (rows, column) in [1, 6].into_iter().flat_map(|rows| (0..16).map(move |column| (rows, column))) {
            let mut x = vec![0.0; rows * 16];
            x.iter_mut().skip(column).step_by(16).for_each(|v| *v = 1.0);
            let y = product(kernels, rows, View::rows(&x, 16), &w);
            // A sum with +0 makes -0 to +0.
            assert!(y.iter().enumerate().all(|(i, &v)| v == f32::from_bits(u32::from(finite[i % 4096 * 16 + column]) << 16)));
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let bytes = [0u8; 64];
    assert!(Matrix::new(4, 4, Data::F32(&bytes)).is_some());
    assert!(Matrix::new(4, 5, Data::F32(&bytes)).is_none());
    assert!(Matrix::new(usize::MAX, 5, Data::F32(&bytes)).is_none());
    assert!(Matrix::new(4, 8, Data::Bf16(&bytes)).is_some());
    assert!(Matrix::new(4, 32, Data::Mxfp4 { packed: &bytes, scales: &[0; 4] }).is_some());
    assert!(Matrix::new(4, 32, Data::Mxfp4 { packed: &bytes, scales: &[0; 5] }).is_none());
    assert!(Matrix::new(8, 16, Data::Mxfp4 { packed: &bytes, scales: &[0; 4] }).is_none());
}

#[test]
fn nan_scales_are_found_anywhere() {
    let mut scales = vec![254u8; 10_000];
    assert!(!mxfp4_has_nan(&scales) && !mxfp4_has_nan(&[]));
    for at in [0, 4095, 4096, 9_999] {
        scales[at] = 255;
        assert!(mxfp4_has_nan(&scales));
        scales[at] = 254;
    }
}

#[test]
fn max_and_select_treat_nan_and_zeros_alike() {
    let corners = [0.0, -0.0, 1.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-45];
    struct Pairs([f32; 16], [f32; 16]);
    impl Operation for Pairs {
        type Output = [[f32; 16]; 4];
        #[inline(always)]
        fn run<L: Lanes>(self) -> [[f32; 16]; 4] {
            let (a, b) = (L::load(&self.0), L::load(&self.1));
            let mut out = [[0.0; 16]; 4];
            for (value, out) in [a.max(b), a.above(b, a, b), a.with_sign_of(b), L::splat(a.largest())].into_iter().zip(&mut out) {
                value.store(out);
            }
            out
        }
    }
    for i in 0..64 {
        let mut pair = (noise(i, 16), noise(i + 100, 16));
        for l in 0..16 {
            (pair.0[l], pair.1[l]) = (corners[(i as usize + l) % 8], corners[(i as usize / 8 + l * 3) % 8]);
        }
        let arrays = || (pair.0.as_slice().try_into().expect("16"), pair.1.as_slice().try_into().expect("16"));
        let want = all()[0].run(Pairs(arrays().0, arrays().1));
        for kernels in all() {
            let got = kernels.run(Pairs(arrays().0, arrays().1));
            assert!(same(got.as_flattened(), want.as_flattened()), "{i} {got:?} {want:?}");
        }
    }
}

#[test]
fn detection_takes_what_is_there() {
    assert_eq!(Kernels::with(Path::Scalar).expect("everywhere").path().name(), "scalar");
    assert!(Kernels::with(Kernels::detect().path()).is_some());
    assert_eq!(all().last().expect("one at least").path(), Kernels::detect().path());
}
