//! E8 products beside Q8_0 ones of the same shape, and the rotation beside its scalar truth:
//! `cargo bench -p gantry-kernels --bench e8`, on `GANTRY_BENCH_THREADS` threads (1 unless set).
//!
//! What is compared takes turns of 256 rows, a fraction of a millisecond; the median and the fastest turn are given,
//! the latter being what other processes disturb least. Rates are in 10⁹ weights per second and count a weight once
//! for each token. A `warm` matrix is 256 rows, in the second-level cache; a `cold` one exceeds the last-level cache,
//! and turns walk through it, so that weights come from memory.

use std::hint::black_box;
use std::time::Instant;

use gantry_formats::rotation;
use gantry_kernels::cpu::*;

const COLS: usize = 4096;
/// 64 MiB of E8, 178 MiB of Q8_0.
const COLD_ROWS: usize = (64usize << 20).div_ceil(COLS / 256 * 98).next_multiple_of(TURN);
/// Rows to a turn: 0.4 and 1.1 MB.
const TURN: usize = 256;

fn main() {
    let threads = std::env::var("GANTRY_BENCH_THREADS").ok().and_then(|t| t.parse().ok()).unwrap_or(1);
    let pool = Pool::new(threads);
    println!("{threads} threads; 10⁹ weights/s: median (fastest)");
    products(&pool, "warm", TURN, &[1, 2, 3, 4, 8, 16], 201);
    products(&pool, "cold", COLD_ROWS, &[1, 2, 4], 4 * COLD_ROWS / TURN);
    println!("a row's rotation, µs: median (fastest)");
    rotations(&pool);
}

fn products(pool: &Pool, place: &str, rows: usize, batches: &[usize], turns: usize) {
    let supers = rows * COLS / 256;
    let (indices, words, super_scales) = (noise(supers * 64), noise(supers * 32), scales(supers));
    let mut blocks = noise(supers * 98);
    blocks.chunks_exact_mut(98).for_each(|block| block[96..].copy_from_slice(&scales(1)));
    let (quants, block_scales) = (noise(rows * COLS), scales(rows * COLS / 32));
    let [indices, words, super_scales] = [indices, words, super_scales].map(Aligned::new);
    let [blocks, quants, block_scales] = [blocks, quants, block_scales].map(Aligned::new);
    let planar = MatrixView::e8_planar(rows, COLS, indices.bytes(), words.bytes(), super_scales.bytes());
    let block98 = MatrixView::e8_block98(rows, COLS, blocks.bytes());
    let split = MatrixView::q8_0_split(rows, COLS, quants.bytes(), block_scales.bytes());
    let [planar, block98, split] = [planar, block98, split].map(|matrix| matrix.expect("lengths agree"));
    for isa in Isa::available() {
        for &tokens in batches {
            let mut x = Q8Rows::new();
            x.quantize(isa, pool, &input(tokens * COLS), COLS);
            let mut y = vec![0f32; tokens * TURN];
            let mut multiply = |w: &MatrixView<'_>, turn: usize| {
                let first = turn * TURN % rows;
                let w = w.row_range(first..first + TURN);
                let start = Instant::now();
                gemm(isa, pool, &w, Activations::Q8(&x), black_box(&mut y));
                start.elapsed().as_secs_f64()
            };
            // Plain Rust is there to define, not to be fast.
            let turns = if isa == Isa::PORTABLE { 15 } else { turns };
            let mut seconds: [Vec<f64>; 3] = Default::default();
            for turn in 0..turns {
                for (seconds, w) in seconds.iter_mut().zip([&planar, &block98, &split]) {
                    seconds.push(multiply(w, turn));
                }
            }
            let weights = (tokens * TURN * COLS) as f64 / 1e9;
            let rates = seconds.map(|seconds| {
                let (median, fastest) = middle(seconds);
                format!("{:6.2} ({:6.2})", weights / median, weights / fastest)
            });
            let [planar, block98, split] = rates;
            let what = format!("{place}, {tokens} tokens, {}", isa.name());
            println!("{what:27}  e8.planar {planar}  e8.block98 {block98}  q8_0.split {split}");
        }
    }
}

fn rotations(pool: &Pool) {
    for cols in [2048, 2560, 4096, 7168] {
        let mut x = input(cols);
        let mut turn = |isa: Option<Isa>| {
            let start = Instant::now();
            match isa {
                Some(isa) => rotate(isa, pool, black_box(&mut x), cols),
                None => rotation::rotate(black_box(&mut x)).expect("a width of blocks"),
            }
            start.elapsed().as_secs_f64()
        };
        let kinds: Vec<_> = [None].into_iter().chain(Isa::available().into_iter().map(Some)).collect();
        let mut seconds = vec![Vec::new(); kinds.len()];
        for _ in 0..501 {
            seconds.iter_mut().zip(&kinds).for_each(|(seconds, isa)| seconds.push(turn(*isa)));
        }
        let times = kinds.iter().zip(seconds).map(|(isa, seconds)| {
            let (median, fastest) = middle(seconds);
            let name = isa.map_or("scalar", Isa::name);
            format!("  {name} {:.2} ({:.2})", median * 1e6, fastest * 1e6)
        });
        println!("{cols}{}", times.collect::<String>());
    }
}

/// Bytes at a multiple of 256, as planes of a container are.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new(mut bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        bytes.resize(len + 255, 0);
        let start = bytes.as_ptr().align_offset(256);
        bytes.copy_within(..len, start);
        bytes.truncate(start + len);
        Aligned { bytes, start }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// The median and the least.
fn middle(mut seconds: Vec<f64>) -> (f64, f64) {
    seconds.sort_by(f64::total_cmp);
    (seconds[seconds.len() / 2], seconds[0])
}

fn noise(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) as u8).collect()
}

/// fp16 2^-9 each: nothing overflows or becomes subnormal.
fn scales(n: usize) -> Vec<u8> {
    0x1800u16.to_le_bytes().repeat(n)
}

fn input(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect()
}
