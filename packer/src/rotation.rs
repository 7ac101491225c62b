//! Rotating rows in place, bit for bit as [`gantry_formats::rotation`] does, faster.
//!
//! Butterflies are sums and differences: neither the width of a vector nor taking two steps at once changes a bit.

use crate::PackError;
use crate::simd::{self, Level};
use gantry_formats::rotation::{CAP, blocks, factor, signs};
use std::sync::LazyLock;

/// What a block size needs, computed once.
pub(crate) struct Block {
    /// −0 where a value is negated, else 0: to be combined by exclusive or.
    pub(crate) signs: Vec<u32>,
    /// What every value is multiplied by.
    pub(crate) factor: f32,
}

/// The sizes that rows have: 256, 512, 1024, 2048, 4096.
static BLOCKS: LazyLock<Vec<Block>> = LazyLock::new(|| {
    let sizes = std::iter::successors(Some(SMALLEST), |n| (n * 2 <= CAP).then_some(n * 2));
    sizes
        .map(|n| {
            let bits = signs(n).flat_map(|byte| (0..8).map(move |j| u32::from(byte >> j & 1) << 31));
            Block { signs: bits.collect(), factor: factor(n) }
        })
        .collect()
});

const SMALLEST: usize = gantry_formats::rotation::MULTIPLE;

/// Rotates each row of `cols` values in place: x → Qᵀx, for rows of weights and of activations alike. `cols` is a
/// multiple of 256 and `rows` a whole number of rows; anything else is refused.
pub fn rotate(rows: &mut [f32], cols: usize) -> Result<(), PackError> {
    rotate_at(simd::level()?, rows, cols)
}

/// [`rotate`] at a given level.
pub fn rotate_at(level: Level, rows: &mut [f32], cols: usize) -> Result<(), PackError> {
    each(rows, cols, |block, values| level.rotate::<false>(block, values))
}

/// Takes rows back: x → Qx.
pub fn unrotate(rows: &mut [f32], cols: usize) -> Result<(), PackError> {
    unrotate_at(simd::level()?, rows, cols)
}

/// [`unrotate`] at a given level.
pub fn unrotate_at(level: Level, rows: &mut [f32], cols: usize) -> Result<(), PackError> {
    each(rows, cols, |block, values| level.rotate::<true>(block, values))
}

fn each(rows: &mut [f32], cols: usize, one: impl Fn(&Block, &mut [f32])) -> Result<(), PackError> {
    let sizes: Vec<usize> = blocks(cols)?.collect();
    PackError::expect_len("values", rows.len(), rows.len().next_multiple_of(cols.max(1)))?;
    let mut rest = rows;
    while !rest.is_empty() {
        for &n in &sizes {
            let (values, after) = rest.split_at_mut(n);
            one(&BLOCKS[(n / SMALLEST).ilog2() as usize], values);
            rest = after;
        }
    }
    Ok(())
}

/// Rotates one block, or with `BACK` takes it back.
#[inline(always)]
pub(crate) fn block<const BACK: bool>(block: &Block, values: &mut [f32]) {
    if !BACK {
        flip(block, values);
    }
    // Steps 1, 2, 4 within eight values, which stay in a register.
    for eight in values.as_chunks_mut::<8>().0 {
        *eight = within::<4>(within::<2>(within::<1>(*eight)));
    }
    // Then two steps at a time: half the traffic, the same sums. An odd number of steps leaves one for the end.
    let mut len = 8;
    while 2 * len < values.len() {
        for four in values.chunks_exact_mut(4 * len) {
            let (ab, cd) = four.split_at_mut(2 * len);
            let ((a, b), (c, d)) = (ab.split_at_mut(len), cd.split_at_mut(len));
            let eights = a.as_chunks_mut::<8>().0.iter_mut().zip(b.as_chunks_mut::<8>().0);
            let more = c.as_chunks_mut::<8>().0.iter_mut().zip(d.as_chunks_mut::<8>().0);
            for ((a, b), (c, d)) in eights.zip(more) {
                // By value, so that no store is between two loads.
                let (ab, ba) = butterflies(*a, *b);
                let (cd, dc) = butterflies(*c, *d);
                (*a, *c) = butterflies(ab, cd);
                (*b, *d) = butterflies(ba, dc);
            }
        }
        len *= 4;
    }
    if len < values.len() {
        let (low, high) = values.split_at_mut(len);
        for (u, v) in low.iter_mut().zip(high) {
            (*u, *v) = (*u + *v, *u - *v);
        }
    }
    for value in &mut *values {
        *value *= block.factor;
    }
    if BACK {
        flip(block, values);
    }
}

#[inline(always)]
fn flip(block: &Block, values: &mut [f32]) {
    for (value, sign) in values.iter_mut().zip(&block.signs) {
        *value = f32::from_bits(value.to_bits() ^ sign);
    }
}

/// (u + v, u − v) of eight pairs.
#[inline(always)]
fn butterflies(u: [f32; 8], v: [f32; 8]) -> ([f32; 8], [f32; 8]) {
    (std::array::from_fn(|i| u[i] + v[i]), std::array::from_fn(|i| u[i] - v[i]))
}

/// The butterflies of one step within eight values. Every element is the other one plus itself or minus itself, so
/// that all eight are one operation: u − v is u + (−v), and v + u is u + v.
#[inline(always)]
fn within<const LEN: usize>(x: [f32; 8]) -> [f32; 8] {
    let other: [f32; 8] = std::array::from_fn(|i| x[i ^ LEN]);
    let signed: [f32; 8] =
        std::array::from_fn(|i| f32::from_bits(x[i].to_bits() ^ if i & LEN == 0 { 0 } else { 1 << 31 }));
    std::array::from_fn(|i| other[i] + signed[i])
}
