//! AVX2: |w| unsigned times x with w's sign, pairs to i16, pairs to i32.
//!
//! 2 · 128 · 127 = 32,512 fits i16, so nothing saturates while no quantized activation is -128, which
//! [`Q8Rows`](super::Q8Rows) promises.

use std::arch::x86_64::*;
use std::ops::Range;

use half::f16;

use super::{BLOCK, Job, Q8Slice};
use crate::cpu::lanes::Avx2;
use crate::cpu::matrix::TILE;
use crate::cpu::scratch;

pub(super) fn tiles(_proof: Avx2, job: &Job<'_>, tiles: Range<usize>) {
    let blocks = job.x.cols() / BLOCK;
    scratch::with_lines(blocks, |lines| {
        for t in tiles {
            // SAFETY: the proof exists, so the processor has the features; the tile exists.
            unsafe { tile(job, t, lines.as_mut_ptr().cast()) }
        }
    });
}

/// # Safety
/// AVX2 and F16C; tile < ⌈rows/16⌉; cols/32 lines of 16 f32 at `scales`.
#[target_feature(enable = "avx2,f16c")]
unsafe fn tile(job: &Job<'_>, tile: usize, scales: *mut f32) {
    let cols = job.x.cols();
    let blocks = cols / BLOCK;
    let (rows, live) = job.tile_rows(tile);
    // SAFETY: every row of `rows` exists, with `cols` quants and `blocks` scales; the tile's `live` rows of y belong
    // to this thread.
    unsafe {
        widen_scales(job.scales, rows, blocks, blocks, scales);
        let quants = rows.map(|row| job.quants.as_ptr().add(row * cols));
        products(job.x, quants, scales, |token| job.y.slice(token * job.rows + tile * TILE, live));
    }
}

/// All tokens against 16 rows of int8; `out` has a token's outputs, one for each row that exists.
///
/// # Safety
/// The features; `cols` bytes at each of `rows`; cols/32 × 16 f32 at `scales`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(in crate::cpu) unsafe fn products<'a>(
    x: Q8Slice<'_>,
    rows: [*const u8; TILE],
    scales: *const f32,
    out: impl Fn(usize) -> &'a mut [f32],
) {
    let cols = x.cols();
    let blocks = cols / BLOCK;
    let low = *rows.first_chunk::<8>().expect("8 of 16");
    let high = *rows.last_chunk::<8>().expect("8 of 16");
    for token in 0..x.rows() {
        let to = out(token);
        // SAFETY: a token has `cols` quants and `blocks` scales; the rest is the caller's.
        unsafe {
            let xs = x.quants().as_ptr().add(token * cols);
            let x_scales = x.scales().as_ptr().add(token * blocks);
            let mut sums = [0f32; TILE];
            _mm256_storeu_ps(sums.as_mut_ptr(), eight(low, scales, xs, x_scales, blocks));
            if to.len() > 8 {
                let high = eight(high, scales.add(8), xs, x_scales, blocks);
                _mm256_storeu_ps(sums.as_mut_ptr().add(8), high);
            }
            to.copy_from_slice(&sums[..to.len()]);
        }
    }
}

/// The products of 8 rows with one token.
///
/// # Safety
/// 32·blocks quants at each of `rows` and at `x`; blocks × 16 f32 at `scales` (the first 8 of each line are
/// these rows'), less the 8 that would follow the last; blocks f32 at `x_scales`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn eight(
    rows: [*const u8; 8],
    scales: *const f32,
    x: *const i8,
    x_scales: *const f32,
    blocks: usize,
) -> __m256 {
    let mut acc = _mm256_setzero_ps();
    for b in 0..blocks {
        // SAFETY: b < blocks, so each access lies inside what the caller gave.
        unsafe {
            // The next 8 rows' 8 · cols bytes follow one another: 256 of them each block.
            for line in 0..4 {
                let next = rows[0].wrapping_add((8 * blocks + 8 * b) * BLOCK + line * 64);
                _mm_prefetch::<_MM_HINT_T1>(next.cast());
            }
            let xs = _mm256_loadu_si256(x.add(b * BLOCK).cast());
            macro_rules! dot {
                ($i:literal) => {
                    block_dot(_mm256_loadu_si256(rows[$i].add(b * BLOCK).cast()), xs)
                };
            }
            let low =
                _mm256_hadd_epi32(_mm256_hadd_epi32(dot!(0), dot!(1)), _mm256_hadd_epi32(dot!(2), dot!(3)));
            let high =
                _mm256_hadd_epi32(_mm256_hadd_epi32(dot!(4), dot!(5)), _mm256_hadd_epi32(dot!(6), dot!(7)));
            let dots = _mm256_add_epi32(
                _mm256_permute2x128_si256::<0x20>(low, high),
                _mm256_permute2x128_si256::<0x31>(low, high),
            );
            let scale =
                _mm256_mul_ps(_mm256_loadu_ps(scales.add(b * TILE)), _mm256_set1_ps(*x_scales.add(b)));
            acc = _mm256_add_ps(acc, _mm256_mul_ps(_mm256_cvtepi32_ps(dots), scale));
        }
    }
    acc
}

/// 8 partial sums of Σ w·x.
#[inline]
#[target_feature(enable = "avx2")]
fn block_dot(w: __m256i, x: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

/// The first `blocks` fp16 scales of 16 of the rows of `scales`, each of `stride`, as f32, transposed:
/// `[blocks][16]`.
///
/// # Safety
/// AVX2 and F16C; each row exists; blocks <= stride; blocks × 16 f32 at `out`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(in crate::cpu) unsafe fn widen_scales(
    scales: &[u8],
    rows: [usize; TILE],
    stride: usize,
    blocks: usize,
    out: *mut f32,
) {
    for (i, row) in rows.into_iter().enumerate() {
        // SAFETY: the row has `blocks` scales; b < blocks and i < 16.
        unsafe {
            let from = scales.as_ptr().add(row * stride * 2);
            let mut b = 0;
            while b + 8 <= blocks {
                let mut wide = [0f32; 8];
                let eight = _mm256_cvtph_ps(_mm_loadu_si128(from.add(b * 2).cast()));
                _mm256_storeu_ps(wide.as_mut_ptr(), eight);
                for (j, scale) in wide.into_iter().enumerate() {
                    *out.add((b + j) * TILE + i) = scale;
                }
                b += 8;
            }
            while b < blocks {
                let bits = from.add(b * 2).cast::<u16>().read_unaligned();
                *out.add(b * TILE + i) = f16::from_bits(bits).to_f32();
                b += 1;
            }
        }
    }
}
