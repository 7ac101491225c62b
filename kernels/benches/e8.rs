//! E8 against Q8_0 of the same shape, and the rotation: `cargo bench -p gantry-kernels --bench e8`, on
//! `GANTRY_BENCH_THREADS` threads (1 unless set). The matrices exceed [`COLD`] bytes each, so weights come from
//! memory; throughput is weights per second.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gantry_kernels::cpu::*;

/// More than the last-level cache.
const COLD: usize = 64 << 20;
const COLS: usize = 4096;
/// 64 MiB of E8; Q8_0 has 2.8 times that.
const ROWS: usize = COLD.div_ceil(COLS / 256 * 98).next_multiple_of(16);

fn threads() -> usize {
    std::env::var("GANTRY_BENCH_THREADS").ok().and_then(|t| t.parse().ok()).unwrap_or(1)
}

fn noise(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) as u8).collect()
}

/// fp16 2^-9 each: activations keep their size.
fn scales(n: usize) -> Vec<u8> {
    0x1800u16.to_le_bytes().repeat(n)
}

fn input(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect()
}

fn products(c: &mut Criterion) {
    let pool = Pool::new(threads());
    let supers = ROWS * COLS / 256;
    let (indices, words, super_scales) = (noise(supers * 64), noise(supers * 32), scales(supers));
    let mut blocks = noise(supers * 98);
    blocks.chunks_exact_mut(98).for_each(|block| block[96..].copy_from_slice(&0x1800u16.to_le_bytes()));
    let (quants, q_scales) = (noise(ROWS * COLS), scales(ROWS * COLS / 32));
    let matrices = [
        ("e8.planar", MatrixView::e8_planar(ROWS, COLS, &indices, &words, &super_scales)),
        ("e8.block98", MatrixView::e8_block98(ROWS, COLS, &blocks)),
        ("q8_0.split", MatrixView::q8_0_split(ROWS, COLS, &quants, &q_scales)),
    ]
    .map(|(name, matrix)| (name, matrix.expect("lengths agree")));
    for tokens in [1, 2, 3, 4, 8, 16] {
        let mut group = c.benchmark_group(format!("{COLS}->{ROWS} x {tokens}"));
        group.throughput(Throughput::Elements((tokens * ROWS * COLS) as u64));
        for isa in [Isa::avx2(), Isa::avx512()].into_iter().flatten() {
            let mut x = Q8Rows::new();
            x.quantize(isa, &pool, &input(tokens * COLS), COLS);
            let mut y = vec![0f32; tokens * ROWS];
            for (name, matrix) in &matrices {
                group.bench_function(BenchmarkId::new(*name, isa.name()), |b| {
                    b.iter(|| gemm(isa, &pool, matrix, Activations::Q8(&x), black_box(&mut y)))
                });
            }
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = products
}
criterion_main!(benches);
