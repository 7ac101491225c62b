//! The definition, in plain Rust.

use super::{Job, LINE, Operand, Tile, WORD};
use crate::cpu::matrix::TILE;
use crate::cpu::q8::BLOCK;
use crate::cpu::scratch::Line;

/// `scales`: with a scale per 32, a line for each block.
pub(super) fn tile(job: &Job<'_>, tile: Tile<'_>, scales: &mut [Line]) {
    let first = tile.index * TILE;
    let store = |token: usize, sums: [f32; TILE]| {
        // SAFETY: the token and `live` rows from `first` exist; no other thread has them.
        unsafe { job.y.slice(token * job.rows + first, tile.live) }.copy_from_slice(&sums[..tile.live]);
    };
    match job.x {
        Operand::Blocks(x) => {
            let blocks = x.cols() / BLOCK;
            for (b, scales) in scales.iter_mut().enumerate() {
                scales.0 = std::array::from_fn(|row| job.w.scale(first + row, b));
            }
            for token in 0..x.rows() {
                let quants = x.quants()[token * x.cols()..][..x.cols()].chunks_exact(BLOCK);
                let weights = tile.weights.chunks_exact(BLOCK * TILE);
                let mut acc = [0f32; TILE];
                for (((w, x), w_scales), x_scale) in
                    weights.zip(quants).zip(&*scales).zip(&x.scales()[token * blocks..])
                {
                    let dots = dots(w, x);
                    for ((acc, dot), w_scale) in acc.iter_mut().zip(dots).zip(w_scales.0) {
                        *acc += dot as f32 * (w_scale * x_scale);
                    }
                }
                store(token, acc);
            }
        }
        Operand::Rows(x) => {
            for token in 0..x.rows() {
                let dots = dots(tile.weights, &x.quants()[token * x.stride()..][..x.stride()]);
                let x_scale = x.scales()[token];
                store(token, std::array::from_fn(|i| dots[i] as f32 * x_scale * job.w.scale(first + i, 0)));
            }
        }
    }
}

/// Σ w·x of each row. A product of two int8 fits i16.
fn dots(weights: &[u8], x: &[i8]) -> [i32; TILE] {
    let mut dots = [0i32; TILE];
    for (line, x) in weights.as_chunks::<LINE>().0.iter().zip(x.as_chunks::<WORD>().0) {
        for (dot, w) in dots.iter_mut().zip(line.as_chunks::<WORD>().0) {
            for (&w, &x) in w.iter().zip(x) {
                *dot = dot.wrapping_add(i32::from(i16::from(w as i8).wrapping_mul(i16::from(x))));
            }
        }
    }
    dots
}
