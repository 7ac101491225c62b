//! The definition, in plain Rust.

use std::ops::Range;

use super::{BLOCK, Job, LEN, SUBS};
use crate::cpu::matrix::TILE;
use crate::cpu::q8::block_dot;

pub(super) fn tiles(job: &Job<'_>, tiles: Range<usize>) {
    let (cols, supers) = (job.x.cols(), job.supers());
    for row in tiles.start * TILE..(tiles.end * TILE).min(job.rows) {
        for s in 0..supers {
            let (weights, scales) = job.weights.expand(row * supers + s);
            for token in 0..job.x.rows() {
                let x = &job.x.quants()[token * cols + s * LEN..][..LEN];
                let x_scales = &job.x.scales()[token * cols / BLOCK + s * SUBS..][..SUBS];
                // SAFETY: token < tokens, row < rows; no other thread has this row.
                let y = unsafe { &mut *job.y.at(token * job.rows + row) };
                let mut acc = if s == 0 { 0.0 } else { *y };
                let blocks = weights.as_chunks::<BLOCK>().0.iter().zip(x.as_chunks::<BLOCK>().0);
                for ((w, x), (w_scale, x_scale)) in blocks.zip(scales.iter().zip(x_scales)) {
                    acc += block_dot(w, x) as f32 * (w_scale * x_scale);
                }
                *y = acc;
            }
        }
    }
}
