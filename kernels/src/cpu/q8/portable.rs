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
                let dot: i32 = w.iter().zip(x).map(|(&w, &x)| i32::from(w as i8) * i32::from(x)).sum();
                acc += dot as f32 * (f16::from_le_bytes(*w_scale).to_f32() * x_scale);
            }
            // SAFETY: token < tokens, row < rows; no other thread has this row.
            unsafe { *job.y.at(token * job.rows + row) = acc };
        }
    }
}
