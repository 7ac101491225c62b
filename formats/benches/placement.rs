//! Placing a large model: `cargo bench -p gantry-formats --bench placement`. 48 layers of 512 experts on 8 cards that
//! have room for 80 of each layer, so that 16 copies on each fit; the hotness falls with the rank.

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use gantry_formats::placement::{Fill, LayerExperts, Request, Strategy, place};

const LAYERS: u32 = 48;
const EXPERTS: u32 = 512;
const CARDS: usize = 8;
const ROOM: u64 = 80;
const STRIDE: u64 = 1 << 20;

/// Experts whose tokens fall as 1 / rank^exponent, each layer in an order of its own.
fn model(exponent: f64) -> Vec<LayerExperts> {
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let layer = |layer| {
        let count = |rank: u32| (1e7 / f64::from(rank).powf(exponent)) as u64;
        let mut counts: Vec<u64> = (1..=EXPERTS).map(count).collect();
        (1..counts.len()).rev().for_each(|i| counts.swap(i, next() % (i + 1)));
        LayerExperts { layer, experts: EXPERTS, bytes: STRIDE, counts }
    };
    (0..LAYERS).map(layer).collect()
}

fn placement(c: &mut Criterion) {
    let mut group = c.benchmark_group("placement/48x512/8");
    group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));
    let usable = [Some(u64::from(LAYERS) * ROOM * STRIDE); CARDS];
    for exponent in [0.8, 1.2] {
        let layers = model(exponent);
        let all = [
            Strategy::Paired,
            Strategy::Layers,
            Strategy::Balanced,
            Strategy::Replicate(16),
            Strategy::Replicate(64),
        ];
        for strategy in all {
            let request = Request { layers: &layers, usable: &usable, strategy, fill: Fill::Share };
            group.bench_function(format!("{strategy}/zipf {exponent}"), |b| b.iter(|| place(&request)));
        }
    }
    group.finish();
}

criterion_group!(benches, placement);
criterion_main!(benches);
