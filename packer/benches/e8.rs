//! Weights per second of the E8 encoder and of the rotation, for each level, on one thread:
//! `cargo bench -p gantry-packer --bench e8`. Normally distributed weights; `copy` is memcpy of the same values.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gantry_formats::rotation as truth;
use gantry_packer::e8::{self, Effort, LEN, Options, Planes, Scheme};
use gantry_packer::{rotation, simd::Level};
use std::hint::black_box;
use std::time::Duration;

/// Normally distributed, by Box and Muller.
fn values(n: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f64 + 0.5) / (1 << 24) as f64
    };
    (0..n)
        .map(|_| ((-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos() * 0.02) as f32)
        .collect()
}

fn encode(c: &mut Criterion) {
    let schemes = [
        ("reference", Scheme::Reference, Effort::Default, false, 256),
        ("default", Scheme::Default, Effort::Default, false, 256),
        ("importance", Scheme::Default, Effort::Default, true, 64),
        ("high", Scheme::Default, Effort::High, false, 16),
    ];
    for (name, scheme, effort, weighted, blocks) in schemes {
        let x = values(blocks * LEN);
        let weights: Vec<f32> = x.iter().map(|x| x.abs()).collect();
        let importance = weighted.then_some(&weights[..]);
        let (mut indices, mut words) = (vec![0; x.len() / 4], vec![0; x.len() / 8]);
        let mut scales = vec![0; x.len() / 128];
        let mut group = c.benchmark_group(format!("e8/{name}"));
        group.throughput(Throughput::Elements(x.len() as u64));
        for level in Level::available() {
            group.bench_function(level.name(), |b| {
                b.iter(|| {
                    let planes = Planes { indices: &mut indices[..], words: &mut words, scales: &mut scales };
                    e8::encode_at(level, Options { scheme, effort }, black_box(&x), importance, planes)
                });
            });
        }
        group.finish();
    }
}

fn bytes(c: &mut Criterion) {
    const BLOCKS: usize = 1024;
    let x = values(BLOCKS * LEN);
    let (mut indices, mut words, mut scales) =
        (vec![0; BLOCKS * 64], vec![0; BLOCKS * 32], vec![0; BLOCKS * 2]);
    let planes = Planes { indices: &mut indices[..], words: &mut words, scales: &mut scales };
    e8::encode(Options::default(), &x, None, planes).expect("finite");
    let mut group = c.benchmark_group("e8/planes");
    group.throughput(Throughput::Elements(x.len() as u64));
    let mut out = x.clone();
    group.bench_function("copy", |b| b.iter(|| out.copy_from_slice(black_box(&x))));
    let planes = Planes { indices: &indices[..], words: &words, scales: &scales };
    group.bench_function("decode", |b| b.iter(|| e8::decode(black_box(planes), &mut out)));
    let mut blocks = vec![0; BLOCKS * e8::BYTES];
    group.bench_function("export_iq3_xxs", |b| b.iter(|| e8::export_iq3_xxs(black_box(planes), &mut blocks)));
    group.bench_function("import_iq3_xxs", |b| {
        b.iter(|| {
            let planes = Planes { indices: &mut indices[..], words: &mut words, scales: &mut scales };
            e8::import_iq3_xxs(black_box(&blocks), planes)
        });
    });
    group.finish();
}

fn rotate(c: &mut Criterion) {
    for cols in [2560, 6144] {
        let mut rows = values(16 * cols);
        let x = rows.clone();
        let mut group = c.benchmark_group(format!("rotate/{cols}"));
        group.throughput(Throughput::Elements(rows.len() as u64));
        group.bench_function("copy", |b| b.iter(|| rows.copy_from_slice(black_box(&x))));
        group.bench_function("scalar truth", |b| {
            b.iter(|| rows.chunks_exact_mut(cols).try_for_each(|row| truth::rotate(black_box(row))));
        });
        for level in Level::available() {
            group.bench_function(level.name(), |b| {
                b.iter(|| rotation::rotate_at(level, black_box(&mut rows), cols))
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(600)).sample_size(10);
    targets = encode, bytes, rotate
}
criterion_main!(benches);
