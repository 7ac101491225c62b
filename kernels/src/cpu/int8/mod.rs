//! The product of int8 weights in a matrix instruction's order, in the order of sums that
//! [`super::product::gemm`] states. Integer sums are exact in every implementation, and wrap only on the way: with
//! at most [`MAX_COLS`] columns the whole sum fits i32. What is left is one chain of f32 operations per output.
//!
//! Every kernel reads tiles of 16 rows in the order of `i8.frag.vnni16`, where a vector of 16 words holds 4
//! columns of each row, so that lanes are rows and nothing needs to be folded or transposed. A matrix in that
//! order is read where it lies; a tile of any other is brought into it first.

use std::ops::Range;

use gantry_formats::layout::{Order, Scales};

use super::disjoint::Disjoint;
use super::isa::{Isa, Level};
use super::matrix::TILE;
use super::q8::{BLOCK, Q8Slice};
use super::scratch;

mod load;
mod planes;
mod portable;
mod quantize;
pub(super) use planes::Planes;
pub use quantize::I8Rows;
pub(super) use quantize::I8Slice;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

/// Columns of a row that has one scale: 131,071 · 128 · 127 < 2^31.
pub(super) const MAX_COLS: usize = gantry_formats::layout::MAX_WHOLE_ROW as usize;

/// Columns that lie side by side for each row of a tile.
const WORD: usize = 4;

/// Blocks whose scales are widened at once where one token reads a tile: shortly before they are used, so that the
/// memory never waits for it. A row has a line of scales for every two times as many.
#[cfg(target_arch = "x86_64")]
const WIDEN: usize = 16;

/// Bytes of 4 columns of a tile.
const LINE: usize = TILE * WORD;

/// Quantized activations.
#[derive(Clone, Copy)]
pub(super) enum Operand<'a> {
    /// For weights with a scale per 32.
    Blocks(Q8Slice<'a>),
    /// For weights with a scale per row.
    Rows(I8Slice<'a>),
}

/// A product; lengths are checked by `gemm`: `x` is of the kind that the weights' scales ask for and has their
/// columns, y is tokens × rows.
pub(super) struct Job<'a> {
    pub(super) rows: usize,
    pub(super) w: Planes<'a>,
    pub(super) x: Operand<'a>,
    pub(super) y: Disjoint<'a, f32>,
}

impl Job<'_> {
    /// Columns to a multiple of 32: what is multiplied. Quants of a token past its columns are 0.
    fn depth(&self) -> usize {
        match self.x {
            Operand::Blocks(x) => x.cols(),
            Operand::Rows(x) => x.stride(),
        }
    }
}

/// 16 rows of weights in the order of `i8.frag.vnni16`.
#[derive(Clone, Copy)]
struct Tile<'a> {
    /// Which one: its first row is `index` · 16 of the job's.
    index: usize,
    /// Rows of it that exist, 1 to 16; the others are padding, computed but not stored.
    live: usize,
    /// `[depth/4][16][4]` int8.
    weights: &'a [u8],
}

/// All tokens of some tiles of 16 rows.
pub(super) fn tiles(isa: Isa, job: &Job<'_>, tiles: Range<usize>) {
    debug_assert!(tiles.end <= job.rows.div_ceil(TILE));
    let depth = job.depth();
    let loader = (job.w.order != Order::Vnni16).then(|| load::Loader::new(&job.w));
    let scale_lines = if job.w.scales == Scales::Block32 { depth / BLOCK } else { 0 };
    let tile_lines = if loader.is_some() { depth / WORD } else { 0 };
    scratch::with_lines(scale_lines + tile_lines, |lines| {
        let (scales, loaded) = lines.split_at_mut(scale_lines);
        for index in tiles {
            let weights = match &loader {
                None => &job.w.tile(index)[..depth * TILE],
                Some(loader) => {
                    let loaded = scratch::bytes(loaded);
                    loader.load(&job.w, index, loaded);
                    loaded
                }
            };
            let tile = Tile { index, live: (job.rows - index * TILE).min(TILE), weights };
            match isa.0 {
                Level::Portable(_) => portable::tile(job, tile, scales),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2(token) => avx2::tile(token, job, tile, scales),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512(token) => avx512::tile(token, job, tile, scales),
            }
        }
    });
}
