//! The read of a gated hyper-connection at 4 streams of 2560 values and rank 320, from Q8_0 and from BF16 weights:
//! `cargo bench -p gantry-kernels --bench hyper_connection`, on `GANTRY_BENCH_THREADS` threads (1 unless set).
//!
//! What is compared takes turns; the median and the fastest turn are given, the latter being what other processes
//! disturb least. Turns walk through sites that together exceed the last-level cache, as a model's do, so that weights
//! come from memory; `bytes` is what reading the same weight bytes alone costs, in the same turns, and the ratio is
//! between the medians. `rest` is the read without its three products.

use std::hint::black_box;
use std::time::Instant;

use gantry_kernels::cpu::*;

const S: Streams = Streams { count: 4, len: 2560 };
const RANK: usize = 320;
/// More than the last-level cache.
const COLD: usize = 128 << 20;
const TURNS: usize = 201;

fn main() {
    let threads = std::env::var("GANTRY_BENCH_THREADS").ok().and_then(|t| t.parse().ok()).unwrap_or(1);
    let pool = Pool::new(threads);
    println!("{threads} threads; µs a read: median (fastest)");
    // Scales and weights of 2^-9: nothing overflows or becomes subnormal.
    let q8 = sites(17, 16, 0x1800);
    let bf16 = sites(2, 1, 0x3b00);
    for isa in Isa::available() {
        for tokens in [1, 4, 8] {
            let mut state = State::new(tokens);
            // Plain Rust is there to define, not to be fast.
            let turns = if isa == Isa::PORTABLE { 5 } else { TURNS };
            let mut seconds: [Vec<f64>; 5] = Default::default();
            for turn in 0..turns {
                let mut time = |kind: usize, f: &mut dyn FnMut()| {
                    let start = Instant::now();
                    f();
                    seconds[kind].push(start.elapsed().as_secs_f64());
                };
                // Different sites for a read and for its bytes, so that neither finds what the other has left.
                let at =
                    |sites: &[Site], far: bool| (turn + usize::from(far) * sites.len() / 2) % sites.len();
                time(0, &mut || state.read(isa, &pool, &q8[at(&q8, false)].views(Layout::Q8)));
                time(1, &mut || bytes(&pool, &q8[at(&q8, true)].bytes));
                time(2, &mut || state.read(isa, &pool, &bf16[at(&bf16, false)].views(Layout::Bf16)));
                time(3, &mut || bytes(&pool, &bf16[at(&bf16, true)].bytes));
                time(4, &mut || state.rest(isa, &pool));
            }
            let times = seconds.map(middle);
            let [q8, q8_bytes, bf16, bf16_bytes, rest] =
                times.map(|(median, fastest)| format!("{:7.1} ({:7.1})", median * 1e6, fastest * 1e6));
            let [q8_ratio, bf16_ratio] = [0, 2].map(|i| times[i].0 / times[i + 1].0);
            println!(
                "{:8} {tokens} tokens  q8_0.split {q8} = {q8_ratio:.2} × bytes {q8_bytes}  bf16 {bf16} = \
                 {bf16_ratio:.2} × bytes {bf16_bytes}  rest {rest}",
                isa.name()
            );
        }
    }
}

#[derive(Clone, Copy)]
enum Layout {
    Q8,
    Bf16,
}

/// The weights of one read, one after another: down, up, inject; of Q8_0 the quants of each, then its scales.
struct Site {
    bytes: Vec<u8>,
}

const SHAPES: [(usize, usize); 3] =
    [(RANK, S.count * S.len), (S.count * S.len, RANK), (S.count, S.count * S.len)];

/// Sites of num/den bytes a weight, as many as exceed the cache, filled with this half word.
fn sites(num: usize, den: usize, fill: u16) -> Vec<Site> {
    let bytes = SHAPES.iter().map(|(rows, cols)| rows * cols).sum::<usize>() * num / den;
    (0..COLD.div_ceil(bytes)).map(|_| Site { bytes: fill.to_le_bytes().repeat(bytes / 2) }).collect()
}

impl Site {
    fn views(&self, layout: Layout) -> [MatrixView<'_>; 3] {
        let mut rest = &self.bytes[..];
        let mut take = |n: usize| rest.split_off(..n).expect("a site holds its matrices");
        SHAPES.map(|(rows, cols)| {
            let matrix = match layout {
                Layout::Q8 => {
                    let quants = take(rows * cols);
                    MatrixView::q8_0_split(rows, cols, quants, take(rows * cols / 16))
                }
                Layout::Bf16 => MatrixView::bf16(rows, cols, take(rows * cols * 2)),
            };
            matrix.expect("lengths agree")
        })
    }
}

/// What a read goes through, for some tokens.
struct State {
    x: Vec<f32>,
    add: Vec<f32>,
    gamma: Vec<f32>,
    normed: Vec<f32>,
    low: Vec<f32>,
    gates: Vec<f32>,
    inject: Vec<f32>,
    mixed: Vec<f32>,
    rows: Q8Rows,
}

impl State {
    fn new(tokens: usize) -> Self {
        let width = S.width();
        State {
            x: input(tokens * width),
            add: input(tokens * S.len),
            gamma: input(width),
            normed: vec![0.0; tokens * width],
            low: vec![0.0; tokens * RANK],
            gates: vec![0.0; tokens * width],
            inject: vec![0.0; tokens * S.count],
            mixed: vec![0.0; tokens * S.len],
            rows: Q8Rows::new(),
        }
    }

    fn read(&mut self, isa: Isa, pool: &Pool, [down, up, inject]: &[MatrixView<'_>; 3]) {
        self.norm(isa, pool);
        let normed = activations(isa, pool, down, &self.normed, &mut self.rows);
        gemm(isa, pool, down, normed, &mut self.low);
        gemm(isa, pool, inject, normed, &mut self.inject);
        silu_scaled(isa, pool, &mut self.low, 1.0 / S.count as f32);
        gemm(isa, pool, up, activations(isa, pool, up, &self.low, &mut self.rows), &mut self.gates);
        self.mix(isa, pool);
    }

    fn rest(&mut self, isa: Isa, pool: &Pool) {
        self.norm(isa, pool);
        silu_scaled(isa, pool, &mut self.low, 1.0 / S.count as f32);
        self.mix(isa, pool);
    }

    fn norm(&mut self, isa: Isa, pool: &Pool) {
        let write = StreamWrite { add: &self.add, inject: Some((&self.inject, S.count)) };
        // The streams would grow from turn to turn.
        self.x.fill(0.5);
        stream_norm(isa, pool, S, Some(write), &mut self.x, &self.gamma, 1e-6, &mut self.normed);
    }

    fn mix(&mut self, isa: Isa, pool: &Pool) {
        stream_mix(isa, pool, S, &self.normed, &self.gates, &mut self.mixed);
        black_box(&self.mixed);
    }
}

fn activations<'a>(
    isa: Isa,
    pool: &Pool,
    w: &MatrixView<'_>,
    x: &'a [f32],
    rows: &'a mut Q8Rows,
) -> Activations<'a> {
    match w.activations() {
        ActivationKind::Q8 => {
            rows.quantize(isa, pool, x, w.cols());
            Activations::Q8(rows)
        }
        _ => Activations::F32(x),
    }
}

/// Every byte once, in words, on every thread.
fn bytes(pool: &Pool, bytes: &[u8]) {
    let words = bytes.as_chunks::<8>().0;
    pool.for_chunks(words.len(), 8192, |range| {
        let sum = words[range].iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
        black_box(sum);
    });
}

/// The median and the least.
fn middle(mut seconds: Vec<f64>) -> (f64, f64) {
    seconds.sort_by(f64::total_cmp);
    (seconds[seconds.len() / 2], seconds[0])
}

fn input(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect()
}
