//! How near does a product come to the machine's peak? Criterion's elements are floating point operations, so its
//! Gelem/s are GFLOP/s. `cargo bench --bench matmul`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nightshift::kernels::{Data, Kernels, Matrix, Path, View, ViewMut};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Bytes that are neither all alike nor subnormal bf16.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| 0x3b ^ (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x87).collect()
}

fn shape(c: &mut Criterion, pool: &ThreadPool, name: &str, w: &Matrix) {
    for kernels in [Path::Avx512, Path::Avx2].into_iter().filter_map(Kernels::with) {
        let mut group = c.benchmark_group(format!("{name}/{} threads/{}", pool.current_num_threads(), kernels.path().name()));
        group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
        for rows in [1, 4, 16, 64, 256, 512, 2048] {
            let x: Vec<f32> = (0..rows * w.cols).map(|i| (i % 97) as f32 / 50.0 - 1.0).collect();
            group.throughput(Throughput::Elements(2 * (rows * w.rows * w.cols) as u64));
            group.bench_function(BenchmarkId::from_parameter(rows), |b| {
                b.iter_custom(|times| pool.install(|| time(kernels, rows, &x, w, times)));
            });
        }
        group.finish();
    }
}

fn time(kernels: Kernels, rows: usize, x: &[f32], w: &Matrix, times: u64) -> Duration {
    let mut y = vec![0.0; rows * w.rows];
    let start = Instant::now();
    for _ in 0..times {
        kernels.matmul(rows, View::rows(black_box(x), w.cols), w, ViewMut::rows(&mut y, w.rows));
    }
    start.elapsed()
}

fn products(c: &mut Criterion) {
    let (packed, scales) = (bytes(3072 * 3584 / 2), vec![120; 3072 * 3584 / 32]);
    let (trunk, small) = (bytes(2048 * 7168 * 2), bytes(256 * 256 * 2));
    let (small_packed, small_scales) = (bytes(128 * 128 / 2), vec![120; 128 * 128 / 32]);
    for threads in [1, 2] {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        let mut run = |name, rows, cols, data| shape(c, &pool, name, &Matrix::new(rows, cols, data).expect("its shape"));
        run("mxfp4 3072x3584", 3072, 3584, Data::Mxfp4 { packed: &packed, scales: &scales });
        run("bf16 2048x7168", 2048, 7168, Data::Bf16(&trunk));
        run("bf16 256x256", 256, 256, Data::Bf16(&small));
        run("mxfp4 128x128", 128, 128, Data::Mxfp4 { packed: &small_packed, scales: &small_scales });
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
