//! Linear attention at 16 key heads, 48 value heads and 128 values a head: `cargo bench -p gantry-kernels --bench
//! linear`, on `GANTRY_BENCH_THREADS` threads (2 unless set); 1 token and a batch of 128. The states of several
//! layers take turns for 1 token, so that each comes from memory.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gantry_kernels::cpu::*;

const SHAPE: DeltaShape =
    DeltaShape { key_heads: 16, value_heads: 48, dim: 128, keys: KeyHeads::Tiled, eps: 1e-6 };
/// Queries, keys and values of a token.
const WIDTH: usize = (2 * 16 + 48) * 128;
const LAYERS: usize = 36;

fn threads() -> usize {
    std::env::var("GANTRY_BENCH_THREADS").ok().and_then(|t| t.parse().ok()).unwrap_or(2)
}

fn input(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect()
}

fn delta(c: &mut Criterion) {
    let pool = Pool::new(threads());
    let heads = Pieces { row: 48, start: 0, count: 1, len: 48, stride: 48 };
    let mut group = c.benchmark_group("delta_net");
    for tokens in [1, 128] {
        let (qkv, gates) = (input(tokens * WIDTH), input(tokens * 48));
        let (decay, dt) = (vec![-0.1f32; 48], vec![0.5f32; 48]);
        let (beta, alpha) = ((&gates[..], heads), (&gates[..], heads));
        let input = DeltaInput { qkv: &qkv, beta, alpha, decay: &decay, dt: &dt };
        let mut y = vec![0f32; tokens * 48 * 128];
        group.throughput(Throughput::Elements((tokens * SHAPE.state()) as u64));
        for isa in Isa::available() {
            let mut states = vec![vec![0f32; SHAPE.state()]; if tokens == 1 { LAYERS } else { 1 }];
            let mut layer = 0;
            group.bench_function(BenchmarkId::new(isa.name(), tokens), |b| {
                b.iter(|| {
                    layer = (layer + 1) % states.len();
                    delta_net(isa, &pool, &SHAPE, tokens, &input, &mut states[layer], &mut y);
                })
            });
        }
    }
    group.finish();
}

fn conv(c: &mut Criterion) {
    let pool = Pool::new(threads());
    let shape = ConvShape { channels: WIDTH, taps: 4, dilation: 1 };
    let mut group = c.benchmark_group("causal_conv");
    let weight = input(4 * WIDTH);
    for tokens in [1, 128] {
        let x = input(tokens * WIDTH);
        let mut history = vec![0f32; shape.history() * WIDTH];
        let mut y = vec![0f32; tokens * WIDTH];
        group.throughput(Throughput::Elements((tokens * WIDTH) as u64));
        for isa in Isa::available() {
            group.bench_function(BenchmarkId::new(isa.name(), tokens), |b| {
                b.iter(|| {
                    causal_conv(isa, &pool, shape, &weight, tokens, &x, WIDTH, &mut history, true, &mut y);
                })
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    targets = delta, conv
}
criterion_main!(benches);
