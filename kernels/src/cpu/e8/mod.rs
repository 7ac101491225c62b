//! The product of E8 weights with activations quantized per 32, in the order that [`super::matrix::gemm`] states.
//!
//! A weight is ±g·s: g the codebook's 4..62, an int8, and one scale s = d·(0.5 + c)·0.5·0.5 per 32 columns, exact
//! in f32 (16 significant bits, no less than 2⁻²⁷). So a sub-block of 32 is a Q8_0 block with another scale: its
//! sum is an integer, and what is left is the chain of f32 operations of [`super::q8`].

use std::ops::Range;

pub(super) use gantry_formats::block::e8::{BYTES, INDICES, LEN, SCALE, WORDS};
use gantry_formats::block::{e8::step, iq3xxs_grid};
use half::f16;

use super::disjoint::Disjoint;
use super::isa::{Isa, Level};
#[cfg(target_arch = "x86_64")]
use super::lanes::Avx2;
use super::matrix::TILE;
use super::q8::{BLOCK, Q8Slice};

mod portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

/// Sub-blocks of a super-block.
const SUBS: usize = LEN / BLOCK;

/// One part of every super-block, `stride` bytes apart, row after row.
#[derive(Clone, Copy, Debug)]
struct Stream<'a> {
    bytes: &'a [u8],
    stride: usize,
}

impl<'a> Stream<'a> {
    /// The part of `n` bytes of super-block `i`.
    #[inline(always)]
    fn at<const N: usize>(&self, i: usize) -> &'a [u8; N] {
        self.bytes[i * self.stride..].first_chunk().expect("a super-block of the matrix")
    }

    /// Its address. `i` may lie past the end where it is only prefetched.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn address(&self, i: usize) -> *const u8 {
        self.bytes.as_ptr().wrapping_add(i * self.stride)
    }

    /// The parts of super-blocks `range`, of `size` bytes each.
    fn range(&self, range: Range<usize>, size: usize) -> Stream<'a> {
        let end = (range.end - 1) * self.stride + size;
        Stream { bytes: &self.bytes[range.start * self.stride..end], stride: self.stride }
    }
}

/// The super-blocks of a matrix, row-major: `e8.planar` has its parts side by side in three planes, `e8.block98` in
/// one, 98 bytes apart. Nothing is aligned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights<'a> {
    indices: Stream<'a>,
    words: Stream<'a>,
    scales: Stream<'a>,
}

impl<'a> Weights<'a> {
    /// Planes of n × 64, n × 32 and n × 2 bytes, n ≥ 1: checked by the caller.
    pub(super) fn planar(indices: &'a [u8], words: &'a [u8], scales: &'a [u8]) -> Self {
        Weights {
            indices: Stream { bytes: indices, stride: INDICES },
            words: Stream { bytes: words, stride: WORDS },
            scales: Stream { bytes: scales, stride: SCALE },
        }
    }

    /// n × 98 bytes, n ≥ 1: checked by the caller.
    pub(super) fn block98(bytes: &'a [u8]) -> Self {
        let from = |at: usize| Stream { bytes: &bytes[at..], stride: BYTES };
        Weights { indices: from(0), words: from(INDICES), scales: from(INDICES + WORDS) }
    }

    /// Some of the super-blocks, at least one.
    pub(super) fn range(&self, range: Range<usize>) -> Self {
        Weights {
            indices: self.indices.range(range.clone(), INDICES),
            words: self.words.range(range.clone(), WORDS),
            scales: self.scales.range(range, SCALE),
        }
    }

    /// The values of the super-blocks from `first`, as many as `out` holds.
    pub(super) fn dequantize(&self, first: usize, out: &mut [f32]) {
        for (i, out) in out.as_chunks_mut::<LEN>().0.iter_mut().enumerate() {
            let (weights, scales) = self.expand(first + i);
            let subs = weights.as_chunks::<BLOCK>().0.iter().zip(scales);
            for (out, (weights, scale)) in out.as_chunks_mut::<BLOCK>().0.iter_mut().zip(subs) {
                for (out, &weight) in out.iter_mut().zip(weights) {
                    *out = scale * f32::from(weight as i8);
                }
            }
        }
    }

    /// Super-block `i` as int8 weights (their bytes) and a scale for each 32 of them. The eighth sign of eight is the
    /// parity of the other seven.
    fn expand(&self, i: usize) -> ([u8; LEN], [f32; SUBS]) {
        let grid = iq3xxs_grid();
        let indices: &[u8; INDICES] = self.indices.at(i);
        let words: &[u8; WORDS] = self.words.at(i);
        let d = f16::from_le_bytes(*self.scales.at(i)).to_f32();
        let (mut weights, mut scales) = ([0; LEN], [0.0; SUBS]);
        for (s, word) in words.as_chunks::<4>().0.iter().enumerate() {
            let word = u32::from_le_bytes(*word);
            scales[s] = step(d, (word >> 28) as u8) * 0.5;
            for (l, eight) in weights[s * BLOCK..][..BLOCK].as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let seven = word >> (7 * l) & 0x7f;
                let signs = seven | (seven.count_ones() & 1) << 7;
                let pair = &indices[s * 8 + l * 2..][..2];
                for (j, weight) in eight.iter_mut().enumerate() {
                    let magnitude = grid[usize::from(pair[j / 4])][j % 4];
                    *weight = if signs >> j & 1 == 1 { magnitude.wrapping_neg() } else { magnitude };
                }
            }
        }
        (weights, scales)
    }
}

/// A product; lengths are checked by `gemm`: with cols = x.cols(), a multiple of 256, `weights` are rows × cols/256
/// super-blocks and y is x.rows() × rows.
pub(super) struct Job<'a> {
    pub(super) rows: usize,
    pub(super) weights: Weights<'a>,
    pub(super) x: Q8Slice<'a>,
    pub(super) y: Disjoint<'a, f32>,
}

impl Job<'_> {
    /// Super-blocks of a row.
    #[inline(always)]
    fn supers(&self) -> usize {
        self.x.cols() / LEN
    }

    /// Rows of a tile that exist, 1..=16.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn live(&self, tile: usize) -> usize {
        (self.rows - tile * TILE).min(TILE)
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
        Level::Avx512(token) => match (avx512::Vbmi::detect(token), Avx2::detect()) {
            (Some(token), _) => avx512::tiles(token, job, tiles),
            // Without byte permutations (Cascade Lake) 512 bits have nothing to offer the lookup.
            (None, Some(token)) => avx2::tiles(token, job, tiles),
            (None, None) => portable::tiles(job, tiles),
        },
    }
}
