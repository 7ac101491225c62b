//! Float weights with some tokens at once: `cargo bench -p gantry-kernels --bench floats`, on one thread, with the widest
//! instruction set or the one that `GANTRY_SIMD` names.
//!
//! Three things take turns, a few milliseconds each, 41 times: all tokens in one product, the same tokens one by one,
//! and a chain of integer multiplications, 3 cycles each on most processors, which tells the clock. Of each the fastest
//! turn counts, since what else runs on the machine only ever slows it down. `of bound` is the part of 2
//! multiplications and 2 additions of 8 lanes per cycle, twice that with AVX-512; with 1 token weights come from memory.

use std::hint::black_box;
use std::time::Instant;

use gantry_kernels::cpu::*;

const TURNS: usize = 41;
/// Values of weights: in the second-level cache, and past every cache.
const WARM: usize = 96 << 10;
const COLD: usize = 48 << 20;

fn seconds(work: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// The fastest of each in turn.
fn fastest<const N: usize>(mut works: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut best = [f64::INFINITY; N];
    for _ in 0..TURNS {
        for (best, work) in best.iter_mut().zip(&mut works) {
            *best = best.min(seconds(work));
        }
    }
    best
}

fn report(isa: Isa, what: &str, rows: usize, cols: usize, tokens: usize, copies: usize) {
    let pool = Pool::new(1);
    let values = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 50.0;
    let x: Vec<f32> = (0..tokens * cols).map(values).collect();
    let bytes: Vec<u8> = (0..copies * rows * cols)
        .flat_map(|i| match what {
            "bf16" => ((values(i).to_bits() >> 16) as u16).to_le_bytes().to_vec(),
            "f16" => half::f16::from_f32(values(i)).to_le_bytes().to_vec(),
            _ => values(i).to_le_bytes().to_vec(),
        })
        .collect();
    let views: Vec<MatrixView<'_>> = bytes
        .chunks_exact(bytes.len() / copies)
        .map(|bytes| {
            match what {
                "bf16" => MatrixView::bf16(rows, cols, bytes),
                "f16" => MatrixView::f16(rows, cols, bytes),
                _ => MatrixView::f32(rows, cols, bytes),
            }
            .expect("lengths agree")
        })
        .collect();
    let products = (rows * cols * tokens * copies) as f64;
    let times = (4e7 / products).ceil() as usize;
    let (mut y, mut one) = (vec![0f32; tokens * rows], vec![0f32; rows]);
    let mut all = || {
        for _ in 0..times {
            for w in &views {
                gemm(isa, &pool, w, Activations::F32(&x), &mut y);
            }
        }
        black_box(&y);
    };
    let mut each = || {
        for _ in 0..times {
            for w in &views {
                for x in x.chunks_exact(cols) {
                    gemm(isa, &pool, w, Activations::F32(x), &mut one);
                }
            }
        }
        black_box(&one);
    };
    const CHAIN: usize = 200_000;
    let mut chain = || {
        let mut v = black_box(3u64);
        for _ in 0..CHAIN {
            v = black_box(3u64).wrapping_mul(v);
        }
        black_box(v);
    };
    let [all, each, chain] = fastest([&mut all, &mut each, &mut chain]);
    let clock = 3.0 * CHAIN as f64 / chain;
    let lanes = if isa.name() == "avx512" { 32.0 } else { 16.0 };
    let place = if copies > 1 { "memory" } else { "cache" };
    println!(
        "{what:4} {cols:5}->{rows:5} x {tokens:3} from {place:6} {:6.2} G products/s, {:4.2} of bound at {:.2} GHz, \
         {:5.2}x one by one, {:5.1} GB/s of weights",
        products * times as f64 / all * 1e-9,
        products * times as f64 / all / (lanes * clock),
        clock * 1e-9,
        each / all,
        (bytes.len() * times) as f64 / all * 1e-9,
    );
}

fn main() {
    let isa = isa().expect("an instruction set of this processor");
    println!("{}", isa.name());
    for cols in [576, 768, 2048, 2064] {
        for tokens in [1, 2, 3, 4, 5, 6, 8, 12, 128] {
            report(isa, "bf16", (WARM / cols).next_multiple_of(16), cols, tokens, 1);
        }
    }
    for what in ["f16", "f32"] {
        for tokens in [2, 6, 128] {
            report(isa, what, (WARM / 2048).next_multiple_of(16), 2048, tokens, 1);
        }
    }
    for tokens in [1, 2, 4, 8, 16] {
        report(isa, "bf16", 768, 2048, tokens, COLD / (768 * 2048));
    }
}
