//! Int8 fragments against memcpy, on one thread: `cargo bench -p gantry-packer --bench int8`.
//!
//! First each pair in turn, copy then work, nine times: a ratio of medians that a busy machine cannot tilt. The copy
//! moves half of what the work reads and writes together, so both move the same bytes. Then criterion's own view.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use gantry_formats::block::{GgmlType, fp16};
use gantry_formats::layout::{Order, Scales};
use gantry_packer::int8::{self, Form};
use gantry_packer::{fragment, simd::Level};
use std::hint::black_box;
use std::time::{Duration, Instant};

const ROWS: usize = 8192;
const COLS: usize = 16_384;

/// BF16 like a weight matrix's.
fn bf16(n: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let stretch: Vec<u8> = (0..n.min(1 << 20))
        .flat_map(|_| fp16::f32_to_bf16((uniform() + uniform() + uniform()) * 0.05).to_le_bytes())
        .collect();
    stretch.iter().copied().cycle().take(2 * n).collect()
}

/// Prints the medians of both, in turn, if `name` is asked for.
fn pair(name: &str, bytes: usize, mut copy: impl FnMut(), mut work: impl FnMut()) {
    if std::env::args().skip(1).find(|a| !a.starts_with('-')).is_some_and(|filter| !name.contains(&filter)) {
        return;
    }
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..9 {
        let start = Instant::now();
        copy();
        let middle = Instant::now();
        work();
        seconds[0].push((middle - start).as_secs_f64());
        seconds[1].push(middle.elapsed().as_secs_f64());
    }
    let [copy, work] = seconds.map(|mut s| {
        s.sort_by(f64::total_cmp);
        s[s.len() / 2]
    });
    let gb = bytes as f64 / 1e9;
    println!("{name:48} {:5.1} GB/s, copy {:5.1} GB/s, ratio {:.2}", gb / work, gb / copy, copy / work);
}

fn pairs() {
    let source = bf16(ROWS * COLS);
    let bytes = &source[..ROWS * COLS];
    let (mut out, mut back) = (vec![1; ROWS * COLS], vec![1; ROWS * COLS]);
    let mut copied = vec![1; source.len()];
    for level in Level::available() {
        for order in Order::ALL {
            let work =
                || fragment::permute_at(level, order, ROWS, COLS, black_box(bytes), &mut out).expect("fits");
            let copy = || black_box(&mut copied[..bytes.len()]).copy_from_slice(black_box(bytes));
            pair(&format!("permute {order} {}", level.name()), 2 * bytes.len(), copy, work);
            let work = || {
                fragment::unpermute_at(level, order, ROWS, COLS, black_box(&out), &mut back).expect("fits")
            };
            let copy = || black_box(&mut copied[..bytes.len()]).copy_from_slice(black_box(bytes));
            pair(&format!("unpermute {order} {}", level.name()), 2 * bytes.len(), copy, work);
        }
        for (order, scales) in [Order::Vnni16, Order::NvA32]
            .into_iter()
            .flat_map(|o| [(o, Scales::Channel), (o, Scales::Block32)])
        {
            let form = Form { order, scales, rows: ROWS, cols: COLS };
            let mut planes = vec![1; form.plane_bytes().expect("small").1];
            let moved = source.len() + out.len() + planes.len();
            let work = || {
                int8::quantize_at(level, form, GgmlType::BF16, black_box(&source), &mut out, &mut planes)
                    .expect("finite");
            };
            let copy =
                || black_box(&mut copied[..moved / 2]).copy_from_slice(black_box(&source[..moved / 2]));
            pair(&format!("bf16 to {order} {scales} {}", level.name()), moved, copy, work);
        }
    }
}

fn all(c: &mut Criterion) {
    // In the second-level cache: what one piece of a pipeline looks like.
    let (rows, cols) = (64, 4096);
    let source = bf16(rows * cols);
    let (mut out, mut planes) = (vec![1; rows * cols], vec![1; rows * cols / 16]);
    for level in Level::available() {
        let mut group = c.benchmark_group(format!("int8/{}", level.name()));
        for order in Order::ALL {
            group.throughput(Throughput::Bytes((rows * cols) as u64));
            group.bench_function(BenchmarkId::new("permute", order), |b| {
                b.iter(|| {
                    fragment::permute_at(
                        level,
                        order,
                        rows,
                        cols,
                        black_box(&source[..rows * cols]),
                        &mut out,
                    )
                });
            });
        }
        for scales in [Scales::Channel, Scales::Block32] {
            let form = Form { order: Order::Vnni16, scales, rows, cols };
            planes.resize(form.plane_bytes().expect("small").1, 0);
            group.throughput(Throughput::Bytes(source.len() as u64));
            group.bench_function(BenchmarkId::new("bf16", scales), |b| {
                b.iter(|| {
                    int8::quantize_at(level, form, GgmlType::BF16, black_box(&source), &mut out, &mut planes)
                });
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(300)).sample_size(10);
    targets = all
}

fn main() {
    // `cargo test --benches` only wants to know that it runs.
    if std::env::args().any(|a| a == "--bench") {
        pairs();
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
