//! The definition, in plain Rust.

use std::ops::Range;

use half::f16;

use super::{BLOCK, Job};
use crate::cpu::matrix::TILE;

pub(super) fn tiles(job: &Job<'_>, tiles: Range<usize>) {
    let cols = job.x.cols();
    let blocks = cols / BLOCK;
    for row in tiles.start * TILE..(tiles.end * TILE).min(job.rows) {
        let quants = job.quants[row * cols..][..cols].as_chunks::<BLOCK>().0;
        let scales = job.scales[row * blocks * 2..][..blocks * 2].as_chunks::<2>().0;
        for token in 0..job.x.rows() {
            let x = job.x.quants()[token * cols..][..cols].as_chunks::<BLOCK>().0;
            let x_scales = &job.x.scales()[token * blocks..][..blocks];
            let mut acc = 0f32;
            for (((w, w_scale), x), x_scale) in quants.iter().zip(scales).zip(x).zip(x_scales) {
                let dot = block_dot(w, x);
                acc += dot as f32 * (f16::from_le_bytes(*w_scale).to_f32() * x_scale);
            }
            // SAFETY: token < tokens, row < rows; no other thread has this row.
            unsafe { *job.y.at(token * job.rows + row) = acc };
        }
    }
}

/// Σ w·x. Not inlined, so that its length is unknown: the loop stays one and becomes vector code, where 32
/// unrolled steps stay scalar. A product of two int8 fits i16 and 32 of them i32; nothing wraps.
#[inline(never)]
pub(in crate::cpu) fn block_dot(w: &[u8], x: &[i8]) -> i32 {
    let products = w.iter().zip(x).map(|(&w, &x)| i16::from(w as i8).wrapping_mul(i16::from(x)));
    products.fold(0i32, |sum, product| sum.wrapping_add(i32::from(product)))
}
