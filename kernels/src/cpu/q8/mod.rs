//! The product of `q8_0.split` weights with activations quantized per 32, in the order that
//! [`super::product::gemm`] states. Block sums are integers, exact in every implementation; what is left is one
//! chain of f32 operations per output, which each implementation runs in the same order.

use std::ops::Range;

use super::disjoint::Disjoint;
use super::isa::{Isa, Level};
use super::matrix::TILE;

mod portable;
mod quantize;
pub(super) use portable::block_dot;
pub use quantize::Q8Rows;
pub(super) use quantize::Q8Slice;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;

/// Values that share a scale.
pub(super) const BLOCK: usize = 32;

/// A product; lengths are checked by `gemm`: with cols = x.cols(), a multiple of 32, `quants` are
/// rows × cols bytes, `scales` rows × cols/32 fp16, and y x.rows() × rows.
pub(super) struct Job<'a> {
    pub(super) rows: usize,
    pub(super) quants: &'a [u8],
    pub(super) scales: &'a [u8],
    pub(super) x: Q8Slice<'a>,
    pub(super) y: Disjoint<'a, f32>,
}

impl Job<'_> {
    /// The row of each lane of a tile. Lanes past the last row repeat it; they are computed, not stored.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn tile_rows(&self, tile: usize) -> ([usize; TILE], usize) {
        let first = tile * TILE;
        let live = (self.rows - first).min(TILE);
        (std::array::from_fn(|i| first + i.min(live - 1)), live)
    }
}

/// All tokens of some tiles of 16 rows.
pub(super) fn tiles(isa: Isa, job: &Job<'_>, tiles: Range<usize>) {
    debug_assert!(tiles.end <= job.rows.div_ceil(TILE));
    match isa.0 {
        Level::Portable(_) => portable::tiles(job, tiles),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(token) => avx2::tiles(token, job, tiles),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(token) => avx512::tiles(token, job, tiles),
    }
}
