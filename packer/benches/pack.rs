//! Bytes of source per second, for each level, on one thread: `cargo bench -p gantry-packer`.
//!
//! `cache` works on 256 KiB of values, `memory` on 64 MiB. `copy` is memcpy of the same source.

use criterion::{
    BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use gantry_formats::block::{GgmlType, fp16};
use gantry_packer::{finite, q8_0, simd::Level};
use std::hint::black_box;
use std::time::Duration;

const SIZES: [(&str, usize); 2] = [("cache", 64 << 10), ("memory", 16 << 20)];

/// Values like a weight matrix's: sums of four uniform numbers, near a normal distribution.
fn values(n: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| (uniform() + uniform() + uniform() + uniform()) * 0.05).collect()
}

fn source(ty: GgmlType, values: &[f32]) -> Vec<u8> {
    match ty {
        GgmlType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        GgmlType::F16 => values.iter().flat_map(|&x| fp16::f32_to_f16(x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|&x| fp16::f32_to_bf16(x).to_le_bytes()).collect(),
    }
}

fn copy(group: &mut BenchmarkGroup<'_, WallTime>, size: &str, src: &[u8]) {
    let mut out = vec![0; src.len()];
    group.throughput(Throughput::Bytes(src.len() as u64));
    group.bench_function(format!("copy/{size}"), |b| {
        b.iter(|| black_box(&mut out[..]).copy_from_slice(black_box(src)));
    });
}

fn all(c: &mut Criterion) {
    for (size, n) in SIZES {
        let values = values(n);
        let (mut quants, mut scales) = (vec![0; n], vec![0; n / 16]);
        for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16] {
            let src = source(ty, &values);
            let mut group = c.benchmark_group(format!("quantize/{}", ty.name().to_lowercase()));
            copy(&mut group, size, &src);
            for level in Level::available() {
                group.bench_function(format!("{}/{size}", level.name()), |b| {
                    b.iter(|| q8_0::quantize_at(level, ty, black_box(&src), &mut quants, &mut scales));
                });
            }
            group.finish();
            let mut group = c.benchmark_group(format!("check_finite/{}", ty.name().to_lowercase()));
            group.throughput(Throughput::Bytes(src.len() as u64));
            for level in Level::available() {
                group.bench_function(format!("{}/{size}", level.name()), |b| {
                    b.iter(|| finite::check_finite_at(level, ty, black_box(&src)));
                });
            }
            group.finish();
        }
        let mut blocks = vec![0; n / 32 * q8_0::BYTES];
        q8_0::join_q8_0(&quants, &scales, &mut blocks).expect("lengths fit");
        let mut group = c.benchmark_group("split_q8_0");
        copy(&mut group, size, &blocks);
        for level in Level::available() {
            group.bench_function(format!("{}/{size}", level.name()), |b| {
                b.iter(|| q8_0::split_q8_0_at(level, black_box(&blocks), &mut quants, &mut scales));
            });
        }
        group.bench_function(format!("join/{size}"), |b| {
            let mut out = vec![0; blocks.len()];
            b.iter(|| q8_0::join_q8_0(black_box(&quants), &scales, &mut out));
        });
        group.bench_function(format!("check_finite/{size}"), |b| {
            b.iter(|| finite::check_finite(GgmlType::Q8_0, black_box(&blocks)));
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(600)).sample_size(10);
    targets = all
}
criterion_main!(benches);
