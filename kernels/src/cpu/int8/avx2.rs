//! AVX2: |w| unsigned times x with w's sign, pairs to i16, pairs to i32, lanes being rows.
//!
//! 2 · 128 · 127 = 32,512 fits i16, so nothing saturates while no quantized activation is -128, which
//! [`Q8Slice`] and [`I8Slice`](super::I8Slice) promise.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Job, LINE, Operand, Tile, WIDEN, WORD};
use crate::cpu::lanes::Avx2;
use crate::cpu::matrix::TILE;
use crate::cpu::q8::{BLOCK, Q8Slice, avx2 as q8};
use crate::cpu::scratch::Line;

/// How far ahead lines are asked for, into the second-level cache: as for AVX-512.
const LINES_AHEAD: usize = 160;

/// Lines of 4 columns in a block.
const BLOCK_LINES: usize = BLOCK / WORD;

/// `scales`: with a scale per 32, a line for each block.
pub(super) fn tile(_proof: Avx2, job: &Job<'_>, tile: Tile<'_>, scales: &mut [Line]) {
    // SAFETY: the proof exists, so the processor has the features.
    unsafe { product(job, tile, scales) }
}

#[target_feature(enable = "avx2,f16c")]
fn product(job: &Job<'_>, tile: Tile<'_>, scales: &mut [Line]) {
    let first = tile.index * TILE;
    let from = job.w.row_scales(first);
    let store = |token: usize, sums: [__m256; 2]| {
        let mut out = [0f32; TILE];
        // SAFETY: `out` holds 2 × 8; the token and `live` rows from `first` exist; no other thread has them.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), sums[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), sums[1]);
            job.y.slice(token * job.rows + first, tile.live).copy_from_slice(&out[..tile.live]);
        }
    };
    let weights = tile.weights.as_ptr();
    match job.x {
        Operand::Blocks(x) => {
            let (blocks, stride) = (x.cols() / BLOCK, job.w.padded_cols() / BLOCK);
            assert!(scales.len() >= blocks && from.len() >= TILE * stride * 2);
            assert!(tile.weights.len() >= x.cols() * TILE);
            let scales: *mut f32 = scales.as_mut_ptr().cast();
            let rows = std::array::from_fn(|i| i);
            let zero = [_mm256_setzero_ps(); 2];
            let mut token = 0;
            // SAFETY: the planes hold 16 whole rows; a line each for `blocks` blocks; cols/4 lines of weights
            // (all asserted); token + 2 <= tokens.
            unsafe {
                if x.rows() == 1 {
                    let mut acc = [zero];
                    for b in (0..blocks).step_by(WIDEN) {
                        let end = blocks.min(b + WIDEN);
                        q8::widen_scales(&from[b * 2..], rows, stride, end - b, scales);
                        acc = add_blocks(x, 0, b..end, acc, scales, weights);
                    }
                    store(0, acc[0]);
                    return;
                }
                q8::widen_scales(from, rows, stride, blocks, scales);
                while token + 2 <= x.rows() {
                    let sums = add_blocks(x, token, 0..blocks, [zero; 2], scales, weights);
                    sums.into_iter().enumerate().for_each(|(i, sums)| store(token + i, sums));
                    token += 2;
                }
                if token < x.rows() {
                    store(token, add_blocks(x, token, 0..blocks, [zero], scales, weights)[0]);
                }
            }
        }
        Operand::Rows(x) => {
            let lines = x.stride() / WORD;
            assert!(from.len() >= TILE * 4 && tile.weights.len() >= lines * LINE);
            let from: *const f32 = from.as_ptr().cast();
            let mut token = 0;
            macro_rules! take {
                ($n:literal) => {
                    // SAFETY: 16 scales and `lines` lines (asserted); token + $n <= tokens, each of 4·lines quants.
                    unsafe {
                        let quants = x.quants().as_ptr().add(token * x.stride());
                        let zero = [[_mm256_setzero_si256(); 2]; $n];
                        let dots = dots::<$n>(zero, weights, lines, quants, x.stride());
                        for (i, dots) in dots.into_iter().enumerate() {
                            let x_scale = _mm256_set1_ps(x.scales()[token + i]);
                            let y = |half: usize| {
                                let sum = _mm256_mul_ps(_mm256_cvtepi32_ps(dots[half]), x_scale);
                                _mm256_mul_ps(sum, _mm256_loadu_ps(from.add(half * 8)))
                            };
                            store(token + i, [y(0), y(1)]);
                        }
                    }
                };
            }
            while token + 2 <= x.rows() {
                take!(2);
                token += 2;
            }
            if token < x.rows() {
                take!(1);
            }
        }
    }
}

/// T tokens against some blocks of a tile with a scale per 32, added to `acc`: per token rows 0..8 and 8..16.
/// `scales` are those of the blocks, `weights` the whole tile.
///
/// # Safety
/// AVX2; tokens token..token + T exist, and so do the blocks; 16 f32 for each of them at `scales`; cols/4 lines at
/// `weights`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn add_blocks<const T: usize>(
    x: Q8Slice<'_>,
    token: usize,
    range: Range<usize>,
    mut acc: [[__m256; 2]; T],
    scales: *const f32,
    weights: *const u8,
) -> [[__m256; 2]; T] {
    let cols = x.cols();
    let blocks = cols / BLOCK;
    // SAFETY: t < T and b < blocks, so each access lies inside a token's quants and scales, or inside the tile's.
    unsafe {
        let quants = x.quants().as_ptr().add(token * cols);
        let x_scales = x.scales().as_ptr().add(token * blocks);
        for b in range.clone() {
            let zero = [[_mm256_setzero_si256(); 2]; T];
            let weights = weights.add(b * BLOCK_LINES * LINE);
            let dots = dots::<T>(zero, weights, BLOCK_LINES, quants.add(b * BLOCK), cols);
            for (t, (acc, dots)) in acc.iter_mut().zip(dots).enumerate() {
                let x_scale = _mm256_set1_ps(*x_scales.add(t * blocks + b));
                for (half, (acc, dots)) in acc.iter_mut().zip(dots).enumerate() {
                    let scale = _mm256_mul_ps(
                        _mm256_loadu_ps(scales.add((b - range.start) * TILE + half * 8)),
                        x_scale,
                    );
                    *acc = _mm256_add_ps(*acc, _mm256_mul_ps(_mm256_cvtepi32_ps(dots), scale));
                }
            }
        }
    }
    acc
}

/// `dots` + Σ w·x over `lines` lines: per token rows 0..8 and 8..16.
///
/// # Safety
/// AVX2; `lines` lines at `weights`; 4·lines quants at `quants` + t·stride for t < T.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn dots<const T: usize>(
    mut dots: [[__m256i; 2]; T],
    weights: *const u8,
    lines: usize,
    quants: *const i8,
    stride: usize,
) -> [[__m256i; 2]; T] {
    let ones = _mm256_set1_epi16(1);
    for j in 0..lines {
        // SAFETY: j < lines and t < T. A prefetch may name any address.
        unsafe {
            let line = weights.add(j * LINE);
            _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(LINES_AHEAD * LINE).cast());
            let w = [_mm256_loadu_si256(line.cast()), _mm256_loadu_si256(line.add(32).cast())];
            for (t, dots) in dots.iter_mut().enumerate() {
                let four = quants.add(t * stride + j * WORD).cast::<i32>().read_unaligned();
                let x = _mm256_set1_epi32(four);
                for (dots, w) in dots.iter_mut().zip(w) {
                    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
                    *dots = _mm256_add_epi32(*dots, _mm256_madd_epi16(pairs, ones));
                }
            }
        }
    }
    dots
}
