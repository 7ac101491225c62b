//! AVX-512 VNNI: w ^ 0x80 = w + 128 is unsigned, x signed; `vpdpbusd` sums four products exactly, and the
//! surplus 128·Σx is taken off per block (`Q8Rows::offsets`).
//!
//! One token reads the weights where they lie, 16 rows × 64 bytes at a time, and folds the lanes of 16 sums
//! together. Several tokens first share the work of transposing the tile into `[cols/4][16 rows][4]`, where a
//! lane is a row and nothing needs folding.
//!
//! Sixteen rows at once are sixteen streams, more than hardware prefetchers follow. So every load of a tile
//! prefetches a line of the next one, in the order of memory, into the second-level cache: 16 to 18 GB/s per
//! thread on a Zen 4 that reads 22 at best, against 7 without, and 14 with the same prefetches in bursts.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{BLOCK, Job, Q8Slice};
use crate::cpu::lanes::Avx512;
use crate::cpu::matrix::TILE;
use crate::cpu::scratch;

/// Bytes per row and step.
const STEP: usize = 64;

/// How far ahead a tile that is read where it lies asks for its lines, into the second-level cache. Lines follow
/// one another to the end of the matrix, but a hardware prefetcher stops at each page. On a Zen 4, 160 lines give
/// 18 to 23 GB/s per thread; 64 lose up to 10%, and so do 320; the first-level cache as the target loses 5 to 15%.
pub(in crate::cpu) const LINES_AHEAD: usize = 160;

pub(super) fn tiles(_proof: Avx512, job: &Job<'_>, tiles: Range<usize>) {
    let blocks = job.x.cols() / BLOCK;
    // One line per block for the scales, eight for its weights.
    scratch::with_lines(blocks * 9, |lines| {
        let (scales, weights) = lines.split_at_mut(blocks);
        let (scales, weights) = (scales.as_mut_ptr().cast(), weights.as_mut_ptr().cast());
        for t in tiles {
            // SAFETY: the proof exists, so the processor has the features; the tile exists; the scratch holds
            // `blocks` lines of scales and 8·blocks of weights.
            unsafe { tile(job, t, scales, weights) }
        }
    });
}

/// # Safety
/// The features; tile < ⌈rows/16⌉; cols/32 lines at `scales`, cols/4 at `weights`, both aligned to 64.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c")]
unsafe fn tile(job: &Job<'_>, tile: usize, scales: *mut __m512, weights: *mut __m512i) {
    let cols = job.x.cols();
    let blocks = cols / BLOCK;
    let (rows, live) = job.tile_rows(tile);
    let mask = ((1u32 << live) - 1) as __mmask16;
    // SAFETY: every row of `rows` exists, with `cols` quants and `blocks` scales; the tile's `live` rows of
    // y belong to this thread.
    unsafe {
        let from = job.scales.as_ptr().add(tile * TILE * blocks * 2);
        prefetch_next_scales(from, blocks);
        widen_scales(from, live, blocks, blocks, scales);
        let quants = rows.map(|row| job.quants.as_ptr().add(row * cols));
        let out = |token: usize| job.y.at(token * job.rows + tile * TILE);
        if job.x.rows() == 1 {
            let sums = fold(job, quants, scales);
            _mm512_mask_storeu_ps(out(0), mask, sums);
            return;
        }
        transpose_weights(quants, cols, weights);
        all_columns::<false>(job.x, scales, weights.cast(), |token, sums| {
            _mm512_mask_storeu_ps(out(token), mask, sums);
        });
    }
}

/// Every token against a tile `[cols/4][16 rows][4]`: `store(token, sums)` with the sum of row i in lane i. With
/// `RAW` the weights are int8 as they are stored, and read where they lie; else each is + 128.
///
/// # Safety
/// The features; cols/32 lines at `scales`, aligned; cols/4 at `weights`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c")]
pub(in crate::cpu) unsafe fn all_columns<const RAW: bool>(
    x: Q8Slice<'_>,
    scales: *const __m512,
    weights: *const u8,
    store: impl Fn(usize, __m512),
) {
    let blocks = x.cols() / BLOCK;
    let mut token = 0;
    macro_rules! take {
        ($n:literal) => {
            let zero = [_mm512_setzero_ps(); $n];
            // SAFETY: token + $n <= tokens; the rest is the caller's.
            let sums = unsafe {
                // The first tokens bring the tile into the cache.
                if RAW && token == 0 {
                    columns::<$n, RAW, true>(x, token, 0..blocks, zero, scales, weights)
                } else {
                    columns::<$n, RAW, false>(x, token, 0..blocks, zero, scales, weights)
                }
            };
            for (i, sums) in sums.into_iter().enumerate() {
                store(token + i, sums);
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

/// The only token against 16 rows as they lie: the sum of row i in lane i.
///
/// # Safety
/// The features; `cols` quants at each of `rows`; cols/32 lines at `scales`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c")]
unsafe fn fold(job: &Job<'_>, rows: [*const u8; TILE], scales: *const __m512) -> __m512 {
    let cols = job.x.cols();
    let blocks = cols / BLOCK;
    let flip = _mm512_set1_epi8(-128);
    let next = rows[0].wrapping_add(TILE * cols);
    let mut acc = _mm512_setzero_ps();
    // SAFETY: a step covers 64 columns below `cols`, the masked last one 32; block b < blocks. A prefetch may
    // name any address.
    unsafe {
        let x = job.x.quants().as_ptr();
        let x_scales = job.x.scales().as_ptr();
        let offsets = job.x.offsets().as_ptr();
        let add = |acc: __m512, dots: __m512i, b: usize| {
            let dots = _mm512_add_epi32(dots, _mm512_set1_epi32(*offsets.add(b)));
            let scale = _mm512_mul_ps(*scales.add(b), _mm512_set1_ps(*x_scales.add(b)));
            _mm512_add_ps(acc, _mm512_mul_ps(_mm512_cvtepi32_ps(dots), scale))
        };
        for step in 0..blocks / 2 {
            let at = step * STEP;
            let xs = _mm512_loadu_si512(x.add(at).cast());
            let zero = _mm512_setzero_si512();
            macro_rules! dot {
                ($i:expr) => {{
                    // The next tile's 16 · cols bytes follow one another: 1,024 of them each step.
                    _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(at * TILE + $i * 64).cast());
                    let w = _mm512_loadu_si512(rows[$i].add(at).cast());
                    _mm512_dpbusd_epi32(zero, _mm512_xor_si512(w, flip), xs)
                }};
            }
            // 128-bit lanes of `pair`: rows a, a, b, b; blocks 0, 1, 0, 1; four partial sums each.
            macro_rules! pair {
                ($a:expr, $b:expr) => {{
                    let (a, b) = (dot!($a), dot!($b));
                    _mm512_add_epi32(_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b))
                }};
            }
            // Rows f..f+4 and f+4..f+8: in each 128-bit lane the sums of four rows for one block.
            macro_rules! eight {
                ($f:literal) => {{
                    let (p0, p1) = (pair!($f, $f + 4), pair!($f + 1, $f + 5));
                    let u = _mm512_add_epi32(_mm512_unpacklo_epi64(p0, p1), _mm512_unpackhi_epi64(p0, p1));
                    let (p2, p3) = (pair!($f + 2, $f + 6), pair!($f + 3, $f + 7));
                    let v = _mm512_add_epi32(_mm512_unpacklo_epi64(p2, p3), _mm512_unpackhi_epi64(p2, p3));
                    _mm512_add_epi32(even_words(u, v), odd_words(u, v))
                }};
            }
            let (low, high) = (eight!(0), eight!(8));
            acc = add(acc, _mm512_shuffle_i32x4::<0x88>(low, high), 2 * step);
            acc = add(acc, _mm512_shuffle_i32x4::<0xdd>(low, high), 2 * step + 1);
        }
        if blocks % 2 == 1 {
            let at = (blocks - 1) * BLOCK;
            let xs = _mm256_loadu_si256(x.add(at).cast());
            let mut dots = [0i32; TILE];
            for (dot, row) in dots.iter_mut().zip(rows) {
                let w = _mm256_loadu_si256(row.add(at).cast());
                let w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
                let sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), w, xs);
                let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
                let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b1110>(sums));
                *dot = _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_shuffle_epi32::<1>(sums)));
            }
            acc = add(acc, _mm512_loadu_si512(dots.as_ptr().cast()), blocks - 1);
        }
    }
    acc
}

/// T tokens against some blocks of a tile, added to `acc`: per token the sum of row i in lane i. `scales` are those
/// of the blocks, `weights` the whole tile. With `AHEAD` each line asks for one further on.
///
/// # Safety
/// As [`all_columns`]; tokens token..token + T exist, and so do the blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c")]
pub(in crate::cpu) unsafe fn columns<const T: usize, const RAW: bool, const AHEAD: bool>(
    x: Q8Slice<'_>,
    token: usize,
    range: Range<usize>,
    mut acc: [__m512; T],
    scales: *const __m512,
    weights: *const u8,
) -> [__m512; T] {
    let cols = x.cols();
    let blocks = cols / BLOCK;
    let flip = _mm512_set1_epi8(-128);
    // SAFETY: t < T and b < blocks, so each access lies inside a token's quants, scales and offsets, or inside
    // the tile's lines. A prefetch may name any address.
    unsafe {
        let quants = x.quants().as_ptr().add(token * cols);
        let x_scales = x.scales().as_ptr().add(token * blocks);
        let offsets = x.offsets().as_ptr().add(token * blocks);
        for b in range.clone() {
            let mut dots = [_mm512_setzero_si512(); T];
            for (t, dots) in dots.iter_mut().enumerate() {
                *dots = _mm512_set1_epi32(*offsets.add(t * blocks + b));
            }
            for j in 0..BLOCK / 4 {
                let line = weights.add((b * (BLOCK / 4) + j) * STEP);
                if AHEAD {
                    _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(LINES_AHEAD * STEP).cast());
                }
                let mut w = _mm512_loadu_si512(line.cast());
                if RAW {
                    w = _mm512_xor_si512(w, flip);
                }
                for (t, dots) in dots.iter_mut().enumerate() {
                    let four = quants.add(t * cols + b * BLOCK + j * 4).cast::<i32>().read_unaligned();
                    *dots = _mm512_dpbusd_epi32(*dots, w, _mm512_set1_epi32(four));
                }
            }
            let scale = *scales.add(b - range.start);
            for (t, (acc, dots)) in acc.iter_mut().zip(dots).enumerate() {
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps(*x_scales.add(t * blocks + b)));
                *acc = _mm512_add_ps(*acc, _mm512_mul_ps(_mm512_cvtepi32_ps(dots), scale));
            }
        }
    }
    acc
}

/// 16 rows of `cols` int8 into `[cols/4][16 rows][4]`, each + 128.
///
/// # Safety
/// The features; `cols` bytes at each of `rows`; cols/4 lines at `out`, aligned; cols % 32 == 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn transpose_weights(rows: [*const u8; TILE], cols: usize, out: *mut __m512i) {
    let flip = _mm512_set1_epi8(-128);
    let next = rows[0].wrapping_add(TILE * cols).cast::<i8>();
    let mut at = 0;
    while at < cols {
        let live = (cols - at).min(STEP);
        let mask = u64::MAX >> (STEP - live);
        let mut w = [flip; TILE];
        for (i, (w, row)) in w.iter_mut().zip(rows).enumerate() {
            _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(at * TILE + i * 64).cast());
            // SAFETY: `live` bytes at row + at; masked ones are not read.
            *w = _mm512_xor_si512(unsafe { _mm512_maskz_loadu_epi8(mask, row.add(at).cast()) }, flip);
        }
        for (i, line) in transpose(w).into_iter().take(live / 4).enumerate() {
            // SAFETY: line at/4 + i < cols/4.
            unsafe { *out.add(at / 4 + i) = line };
        }
        at += STEP;
    }
}

/// Ask for the scales of the next tile, those of this one being 16 × `stride` fp16 at `from`.
#[inline(always)]
pub(in crate::cpu) fn prefetch_next_scales(from: *const u8, stride: usize) {
    let tile_bytes = TILE * stride * 2;
    for line in (0..tile_bytes).step_by(64) {
        // SAFETY: every x86-64 has SSE; a prefetch may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(tile_bytes + line).cast()) };
    }
}

/// The first `blocks` fp16 scales of `live` rows, `stride` apart, as f32, transposed: `[blocks][16]`. The other
/// lanes repeat the last row.
///
/// # Safety
/// The features; `live` rows of `stride` × 2 bytes at `from`, 1 <= live <= 16, blocks <= stride; `blocks` lines at `out`, aligned.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
pub(in crate::cpu) unsafe fn widen_scales(
    from: *const u8,
    live: usize,
    stride: usize,
    blocks: usize,
    out: *mut __m512,
) {
    let row = |i: usize| i.min(live - 1) * stride * 2;
    let mut b = 0;
    while b + 16 <= blocks {
        let mut wide = [_mm512_setzero_si512(); TILE];
        for (i, wide) in wide.iter_mut().enumerate() {
            // SAFETY: 16 scales from b in an existing row.
            let bits = unsafe { _mm256_loadu_si256(from.add(row(i) + b * 2).cast()) };
            *wide = _mm512_castps_si512(_mm512_cvtph_ps(bits));
        }
        for (i, line) in transpose(wide).into_iter().enumerate() {
            // SAFETY: b + i < blocks.
            unsafe { *out.add(b + i) = _mm512_castsi512_ps(line) };
        }
        b += 16;
    }
    if b == blocks {
        return;
    }
    if blocks == 1 {
        // SAFETY: one scale per row, one line.
        unsafe {
            let bits: [u16; TILE] = std::array::from_fn(|i| from.add(row(i)).cast::<u16>().read_unaligned());
            *out = _mm512_cvtph_ps(_mm256_loadu_si256(bits.as_ptr().cast()));
        }
        return;
    }
    // Two scales of each row by one gather.
    let offsets: [i32; TILE] = std::array::from_fn(|i| row(i) as i32);
    // SAFETY: `offsets` holds 16; the gathers read scales b and b + 1 (or b - 1 and b for the last of an odd
    // count) of existing rows.
    unsafe {
        let offsets = _mm512_loadu_si512(offsets.as_ptr().cast());
        let pair = |b: usize| _mm512_i32gather_epi32::<1>(offsets, from.add(b * 2).cast());
        while b + 2 <= blocks {
            let two = pair(b);
            *out.add(b) = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(two));
            *out.add(b + 1) = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(two)));
            b += 2;
        }
        if b < blocks {
            let two = _mm512_srli_epi32::<16>(pair(b - 1));
            *out.add(b) = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(two));
        }
    }
}

/// 16 × 16 words: word j of vector i becomes word i of vector j.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::cpu) fn transpose(r: [__m512i; 16]) -> [__m512i; 16] {
    // columns(g)[c]: in 128-bit lane l column 4l + c of rows 4g..4g + 4.
    macro_rules! columns {
        ($g:literal) => {{
            let (a, b) =
                (_mm512_unpacklo_epi32(r[$g], r[$g + 1]), _mm512_unpacklo_epi32(r[$g + 2], r[$g + 3]));
            let (c, d) =
                (_mm512_unpackhi_epi32(r[$g], r[$g + 1]), _mm512_unpackhi_epi32(r[$g + 2], r[$g + 3]));
            [
                _mm512_unpacklo_epi64(a, b),
                _mm512_unpackhi_epi64(a, b),
                _mm512_unpacklo_epi64(c, d),
                _mm512_unpackhi_epi64(c, d),
            ]
        }};
    }
    let (g0, g1, g2, g3) = (columns!(0), columns!(4), columns!(8), columns!(12));
    let mut out = [_mm512_setzero_si512(); 16];
    for c in 0..4 {
        let even_low = _mm512_shuffle_i32x4::<0x88>(g0[c], g1[c]);
        let odd_low = _mm512_shuffle_i32x4::<0xdd>(g0[c], g1[c]);
        let even_high = _mm512_shuffle_i32x4::<0x88>(g2[c], g3[c]);
        let odd_high = _mm512_shuffle_i32x4::<0xdd>(g2[c], g3[c]);
        out[c] = _mm512_shuffle_i32x4::<0x88>(even_low, even_high);
        out[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd_low, odd_high);
        out[8 + c] = _mm512_shuffle_i32x4::<0xdd>(even_low, even_high);
        out[12 + c] = _mm512_shuffle_i32x4::<0xdd>(odd_low, odd_high);
    }
    out
}

/// Words 0 and 2 of each 128-bit lane of a, then of b.
#[inline]
#[target_feature(enable = "avx512f")]
fn even_words(a: __m512i, b: __m512i) -> __m512i {
    _mm512_castps_si512(_mm512_shuffle_ps::<0x88>(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)))
}

/// Words 1 and 3 of each 128-bit lane of a, then of b.
#[inline]
#[target_feature(enable = "avx512f")]
fn odd_words(a: __m512i, b: __m512i) -> __m512i {
    _mm512_castps_si512(_mm512_shuffle_ps::<0xdd>(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)))
}
