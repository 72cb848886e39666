//! How near does a product come to the machine's peak? Criterion's elements are floating point operations, so its
//! Gelem/s are GFLOP/s. `cargo bench --bench matmul`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nightshift::kernels::{Data, Kernels, Matrix, Path, View, ViewMut};

/// Bytes that are neither all alike nor subnormal bf16.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| 0x3b ^ (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x87).collect()
}

fn shape(c: &mut Criterion, name: &str, w: &Matrix) {
    for path in [Path::Avx512, Path::Avx2] {
        let Some(kernels) = Kernels::with(path) else { continue };
        let mut group = c.benchmark_group(format!("{name}/{}", path.name()));
        group.sample_size(10).warm_up_time(std::time::Duration::from_millis(300)).measurement_time(std::time::Duration::from_secs(1));
        for rows in [1, 4, 16, 64, 256] {
            let x: Vec<f32> = (0..rows * w.cols).map(|i| (i % 97) as f32 / 50.0 - 1.0).collect();
            let mut y = vec![0.0; rows * w.rows];
            group.throughput(Throughput::Elements(2 * (rows * w.rows * w.cols) as u64));
            group.bench_function(BenchmarkId::from_parameter(rows), |b| {
                b.iter(|| kernels.matmul(rows, View::rows(black_box(&x), w.cols), w, ViewMut::rows(&mut y, w.rows)));
            });
        }
        group.finish();
    }
}

fn products(c: &mut Criterion) {
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| {
            let (packed, scales) = (bytes(3072 * 3584 / 2), vec![120; 3072 * 3584 / 32]);
            let expert = Matrix::new(3072, 3584, Data::Mxfp4 { packed: &packed, scales: &scales }).expect("its shape");
            shape(c, &format!("{threads} threads/mxfp4 3072x3584"), &expert);
            let trunk = bytes(2048 * 7168 * 2);
            shape(c, &format!("{threads} threads/bf16 2048x7168"), &Matrix::new(2048, 7168, Data::Bf16(&trunk)).expect("its shape"));
            let small = bytes(256 * 256 * 2);
            shape(c, &format!("{threads} threads/bf16 256x256"), &Matrix::new(256, 256, Data::Bf16(&small)).expect("its shape"));
        });
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
