//! Host kernels at the shapes of SmolLM2-135M: `cargo bench -p gantry-kernels`, on `GANTRY_BENCH_THREADS`
//! threads (2 unless set). Decoding reads more weights than any cache holds, so the matrices of the `decode`
//! group are repeated until they exceed [`COLD`] bytes; `decode/read` is what reading alone costs.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gantry_kernels::cpu::*;

/// More than the last-level cache.
const COLD: usize = 96 << 20;
/// (rows, cols): q+k+v, output, gate+up, down, head.
const SHAPES: [(usize, usize); 5] = [(960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576)];
const LAYERS: usize = 30;
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const DIM: usize = 64;
const WIDTH: usize = HEADS * DIM;
const KV: KvShape = KvShape { heads: KV_HEADS, key_len: DIM, value_len: DIM, shared: false };

fn threads() -> usize {
    std::env::var("GANTRY_BENCH_THREADS").ok().and_then(|t| t.parse().ok()).unwrap_or(2)
}

struct Q8 {
    rows: usize,
    cols: usize,
    quants: Vec<u8>,
    scales: Vec<u8>,
}

impl Q8 {
    fn new(rows: usize, cols: usize, seed: usize) -> Self {
        let quants = (0..rows * cols).map(|i| ((i + seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        // 2^-9: activations keep their size through the stack, so nothing overflows or becomes subnormal.
        let scales = (0..rows * cols / 32).flat_map(|_| 0x1800u16.to_le_bytes()).collect();
        Q8 { rows, cols, quants, scales }
    }

    fn view(&self) -> MatrixView<'_> {
        MatrixView::q8_0_split(self.rows, self.cols, &self.quants, &self.scales).expect("lengths agree")
    }

    fn bytes(&self) -> usize {
        self.quants.len() + self.scales.len()
    }
}

fn input(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect()
}

fn decode(c: &mut Criterion) {
    let pool = Pool::new(threads());
    let mut group = c.benchmark_group("decode");
    for (rows, cols) in SHAPES {
        let copies = COLD.div_ceil(rows * cols * 17 / 16);
        let weights: Vec<Q8> = (0..copies).map(|i| Q8::new(rows, cols, i)).collect();
        group.throughput(Throughput::Bytes((copies * weights[0].bytes()) as u64));
        let shape = format!("{cols}->{rows}");
        group.bench_function(BenchmarkId::new("read", &shape), |b| {
            b.iter(|| {
                for w in &weights {
                    pool.for_chunks(w.quants.len() / 4096, 8, |r| {
                        let bytes = &w.quants[r.start * 4096..r.end * 4096];
                        let words = bytes.as_chunks::<8>().0;
                        black_box(words.iter().fold(0u64, |s, b| s.wrapping_add(u64::from_le_bytes(*b))));
                    });
                }
            })
        });
        for isa in Isa::available() {
            let mut x = Q8Rows::new();
            x.quantize(isa, &pool, &input(cols), cols);
            let mut y = vec![0f32; rows];
            group.bench_function(BenchmarkId::new(isa.name(), &shape), |b| {
                b.iter(|| {
                    for w in &weights {
                        gemm(isa, &pool, &w.view(), Activations::Q8(&x), &mut y);
                    }
                })
            });
        }
    }
    group.finish();
}

fn prompt(c: &mut Criterion) {
    let pool = Pool::new(threads());
    let mut group = c.benchmark_group("prompt128");
    for (rows, cols) in &SHAPES[..4] {
        let w = Q8::new(*rows, *cols, 0);
        group.throughput(Throughput::Elements((128 * rows * cols) as u64));
        for isa in Isa::available() {
            let mut x = Q8Rows::new();
            x.quantize(isa, &pool, &input(128 * cols), *cols);
            let mut y = vec![0f32; 128 * rows];
            group.bench_function(BenchmarkId::new(isa.name(), format!("{cols}->{rows}")), |b| {
                b.iter(|| gemm(isa, &pool, &w.view(), Activations::Q8(&x), &mut y))
            });
        }
    }
    group.finish();
}

fn floats(c: &mut Criterion) {
    let pool = Pool::new(threads());
    let mut group = c.benchmark_group("bf16_576->3072");
    let bytes: Vec<u8> =
        input(3072 * 576).iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect();
    let w = MatrixView::bf16(3072, 576, &bytes).expect("lengths agree");
    for tokens in [1, 128] {
        group.throughput(Throughput::Elements((tokens * 3072 * 576) as u64));
        let x = input(tokens * 576);
        let mut y = vec![0f32; tokens * 3072];
        for isa in Isa::available() {
            group.bench_function(BenchmarkId::new(isa.name(), tokens), |b| {
                b.iter(|| gemm(isa, &pool, &w, Activations::F32(&x), &mut y))
            });
        }
    }
    group.finish();
}

/// A whole model: every step of 30 layers and the head, with random weights.
struct Stack {
    layers: Vec<[Q8; 4]>,
    head: Q8,
    caches: Vec<KvCache>,
    norm: Vec<f32>,
    table: RopeTable,
    isa: Isa,
    pool: Pool,
    q8: Q8Rows,
    angles: RopeAngles,
    buffers: [Vec<f32>; 7],
}

impl Stack {
    fn new(isa: Isa) -> Self {
        let matrix = |shape: usize, seed: usize| Q8::new(SHAPES[shape].0, SHAPES[shape].1, seed);
        Stack {
            layers: (0..LAYERS).map(|i| std::array::from_fn(|s| matrix(s, i))).collect(),
            head: matrix(4, 0),
            caches: (0..LAYERS).map(|_| KvCache::new(KvType::F16, KV, 512, None)).collect(),
            norm: vec![1.0; WIDTH],
            table: RopeTable::new(DIM, 1e5, None, RopeScaling::None),
            isa,
            pool: Pool::new(threads()),
            q8: Q8Rows::new(),
            angles: RopeAngles::default(),
            buffers: Default::default(),
        }
    }

    fn forward(&mut self, first: usize, tokens: usize) {
        let Stack { layers, head, caches, norm, table, isa, pool, q8, angles, buffers } = self;
        let isa = *isa;
        let [x, h, qkv, gate_up, act, out, logits] = buffers;
        x.clear();
        x.extend(input(tokens * WIDTH));
        h.resize(tokens * WIDTH, 0.0);
        out.resize(tokens * WIDTH, 0.0);
        qkv.resize(tokens * 960, 0.0);
        gate_up.resize(tokens * 3072, 0.0);
        act.resize(tokens * 1536, 0.0);
        logits.resize(49152, 0.0);
        let positions: Vec<u32> = (first as u32..).take(tokens).collect();
        table.angles(&positions, angles);
        let heads = RopeHeads { stride: 960, heads: HEADS + KV_HEADS, head_stride: DIM, start: 0 };
        for ([w_qkv, w_o, w_gate_up, w_down], cache) in layers.iter().zip(caches) {
            rms_norm(isa, pool, x, norm, 1e-5, h);
            q8.quantize(isa, pool, h, WIDTH);
            gemm(isa, pool, &w_qkv.view(), Activations::Q8(q8), qkv);
            rope(RopeStyle::Norm, angles, false, qkv, heads);
            let (k, v) = (&qkv[WIDTH..], &qkv[WIDTH + KV_HEADS * DIM..]);
            cache.write(first, tokens, k, Some(v), 960);
            let keys = Keys { cache, window: None, chosen: None, more: None, sinks: None };
            attention(isa, pool, HEADS, 0.125, &keys, first, qkv, 960, h);
            q8.quantize(isa, pool, h, WIDTH);
            gemm(isa, pool, &w_o.view(), Activations::Q8(q8), out);
            add(isa, x, out);
            rms_norm(isa, pool, x, norm, 1e-5, h);
            q8.quantize(isa, pool, h, WIDTH);
            gemm(isa, pool, &w_gate_up.view(), Activations::Q8(q8), gate_up);
            silu_mul(isa, pool, gate_up, 1536, None, act);
            q8.quantize(isa, pool, act, 1536);
            gemm(isa, pool, &w_down.view(), Activations::Q8(q8), out);
            add(isa, x, out);
        }
        let last = &x[(tokens - 1) * WIDTH..];
        rms_norm(isa, pool, last, norm, 1e-5, &mut h[..WIDTH]);
        q8.quantize(isa, pool, &h[..WIDTH], WIDTH);
        gemm(isa, pool, &head.view(), Activations::Q8(q8), logits);
        black_box(&logits[0]);
    }
}

fn stack(c: &mut Criterion) {
    let mut group = c.benchmark_group("stack");
    for isa in Isa::available() {
        let mut stack = Stack::new(isa);
        group.throughput(Throughput::Elements(128));
        group.bench_function(BenchmarkId::new("prompt128", isa.name()), |b| b.iter(|| stack.forward(0, 128)));
        group.throughput(Throughput::Elements(64));
        group.bench_function(BenchmarkId::new("decode64", isa.name()), |b| {
            b.iter(|| (0..64).for_each(|position| stack.forward(position, 1)))
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = stack, decode, prompt, floats
}
criterion_main!(benches);
