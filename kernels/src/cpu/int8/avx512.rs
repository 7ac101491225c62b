//! AVX-512 VNNI: w ^ 0x80 = w + 128 is unsigned, x signed; `vpdpbusd` sums four products of each row, wrapping,
//! and the surplus 128·Σx is taken off (`Q8Slice::offsets`, `I8Slice::offsets`).
//!
//! A line of 64 bytes is 4 columns of 16 rows, so a tile is one stream of memory and a lane is a row.

use std::arch::x86_64::*;

use super::{I8Slice, Job, LINE, Operand, Tile, WIDEN, WORD};
use crate::cpu::lanes::Avx512;
use crate::cpu::matrix::TILE;
use crate::cpu::q8::{BLOCK, Q8Slice, avx512 as q8};
use crate::cpu::scratch::Line;

/// `scales`: with a scale per 32, a line for each block.
pub(super) fn tile(_proof: Avx512, job: &Job<'_>, tile: Tile<'_>, scales: &mut [Line]) {
    // SAFETY: the proof exists, so the processor has the features.
    unsafe { product(job, tile, scales) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c")]
fn product(job: &Job<'_>, tile: Tile<'_>, scales: &mut [Line]) {
    let first = tile.index * TILE;
    let mask = ((1u32 << tile.live) - 1) as __mmask16;
    let from = job.w.row_scales(first);
    let store = |token: usize, sums: __m512| {
        // SAFETY: the token and `live` rows from `first` exist; no other thread has them.
        unsafe { _mm512_mask_storeu_ps(job.y.at(token * job.rows + first), mask, sums) }
    };
    match job.x {
        Operand::Blocks(x) => {
            let (blocks, stride) = (x.cols() / BLOCK, job.w.padded_cols() / BLOCK);
            assert!(scales.len() >= blocks && from.len() >= TILE * stride * 2);
            assert!(tile.weights.len() >= x.cols() * TILE);
            let scales = scales.as_mut_ptr().cast();
            // SAFETY: the planes hold 16 whole rows; a line each for `blocks` blocks, aligned; cols/4 lines of
            // weights (all asserted).
            unsafe {
                if x.rows() == 1 {
                    store(0, alone(x, from.as_ptr(), stride, scales, tile.weights.as_ptr()));
                    return;
                }
                q8::prefetch_next_scales(from.as_ptr(), stride);
                q8::widen_scales(from.as_ptr(), TILE, stride, blocks, scales);
                q8::all_columns::<true>(x, scales, tile.weights.as_ptr(), store);
            }
        }
        Operand::Rows(x) => {
            assert!(from.len() >= TILE * 4 && tile.weights.len() >= x.stride() * TILE);
            // SAFETY: 16 scales and stride/4 lines (asserted).
            unsafe {
                let scales = _mm512_loadu_ps(from.as_ptr().cast());
                all_columns(x, scales, tile.weights.as_ptr(), store);
            }
        }
    }
}

/// The only token against a tile with a scale per 32: row i in lane i.
///
/// # Safety
/// The features; 16 rows of `stride` fp16 at `from`, cols/32 <= stride; 16 lines at `scales`, or as many as there
/// are blocks, aligned; cols/4 lines at `weights`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c")]
unsafe fn alone(
    x: Q8Slice<'_>,
    from: *const u8,
    stride: usize,
    scales: *mut __m512,
    weights: *const u8,
) -> __m512 {
    let blocks = x.cols() / BLOCK;
    let mut acc = [_mm512_setzero_ps()];
    for b in (0..blocks).step_by(WIDEN) {
        let end = blocks.min(b + WIDEN);
        // SAFETY: blocks b..end exist. A prefetch may name any address.
        unsafe {
            let from = from.add(b * 2);
            if b.is_multiple_of(2 * WIDEN) {
                for row in 0..TILE {
                    _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add((TILE + row) * stride * 2).cast());
                }
            }
            q8::widen_scales(from, TILE, stride, end - b, scales);
            acc = q8::columns::<1, true, true>(x, 0, b..end, acc, scales, weights);
        }
    }
    acc[0]
}

/// Every token against a tile with one scale per row: `store(token, y)` with row i in lane i.
///
/// # Safety
/// The features; stride/4 lines at `weights`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c")]
unsafe fn all_columns(x: I8Slice<'_>, scales: __m512, weights: *const u8, store: impl Fn(usize, __m512)) {
    let mut token = 0;
    macro_rules! take {
        ($n:literal) => {
            // SAFETY: token + $n <= tokens; the rest is the caller's.
            let dots = unsafe {
                // The first tokens bring the tile into the cache.
                if token == 0 {
                    columns::<$n, true>(x, token, weights)
                } else {
                    columns::<$n, false>(x, token, weights)
                }
            };
            for (i, dots) in dots.into_iter().enumerate() {
                let x_scale = _mm512_set1_ps(x.scales()[token + i]);
                store(token + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dots), x_scale), scales));
            }
            token += $n;
        };
    }
    while token + 8 <= x.rows() {
        take!(8);
    }
    if token + 4 <= x.rows() {
        take!(4);
    }
    if token + 2 <= x.rows() {
        take!(2);
    }
    while token < x.rows() {
        take!(1);
    }
}

/// Σ w·x of T tokens: row i in lane i.
///
/// # Safety
/// As [`all_columns`]; tokens token..token + T exist.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c")]
unsafe fn columns<const T: usize, const AHEAD: bool>(
    x: I8Slice<'_>,
    token: usize,
    weights: *const u8,
) -> [__m512i; T] {
    let stride = x.stride();
    let flip = _mm512_set1_epi8(-128);
    // Sums of even and of odd lines: one chain of additions would be longer than the loads take.
    let mut dots = [[_mm512_setzero_si512(); T]; 2];
    // SAFETY: t < T and j < stride/4, an even number, so each access lies inside a token's quants or inside the
    // tile's lines. A prefetch may name any address.
    unsafe {
        let quants = x.quants().as_ptr().add(token * stride);
        for (t, dots) in dots[0].iter_mut().enumerate() {
            *dots = _mm512_set1_epi32(x.offsets()[token + t]);
        }
        for j in (0..stride / WORD).step_by(2) {
            for (i, dots) in dots.iter_mut().enumerate() {
                let line = weights.add((j + i) * LINE);
                if AHEAD {
                    _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(q8::LINES_AHEAD * LINE).cast());
                }
                let w = _mm512_xor_si512(_mm512_loadu_si512(line.cast()), flip);
                for (t, dots) in dots.iter_mut().enumerate() {
                    let four = quants.add(t * stride + (j + i) * WORD).cast::<i32>().read_unaligned();
                    *dots = _mm512_dpbusd_epi32(*dots, w, _mm512_set1_epi32(four));
                }
            }
        }
    }
    std::array::from_fn(|t| _mm512_add_epi32(dots[0][t], dots[1][t]))
}
