//! Transposing bytes with AVX2, for `i8.kmajor`.

use super::strips_avx2::{pair, put, put_pair};
use std::arch::x86_64::*;

/// Rows of a block that is transposed at a time: whole cache lines of the output, two neighbours.
const BLOCK_ROWS: usize = 128;

/// Columns of such a block: a page of output each, few enough for the TLB.
const BLOCK_COLS: usize = 512;

/// [`super::Level::transpose`].
///
/// # Safety
/// The CPU has AVX2; `rows` × `cols`, multiples of 16, are readable at `from` and, transposed, writable at `to`.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn transpose(
    (rows, cols): (usize, usize),
    (from, from_stride): (*const u8, usize),
    (to, to_stride): (*mut u8, usize),
    stream: bool,
) {
    // A block goes through the first-level cache: lines of the output are far apart, and so written whole and once.
    let mut block = Block([0; BLOCK_ROWS * BLOCK_COLS]);
    // Past the cache only whole lines are worth writing: then every block but the first begins on one.
    let stream = stream && to.addr().is_multiple_of(16) && to_stride.is_multiple_of(64);
    let head = if stream { to.addr().next_multiple_of(64) - to.addr() } else { 0 };
    for col in (0..cols).step_by(BLOCK_COLS) {
        let width = BLOCK_COLS.min(cols - col);
        let mut row = 0;
        while row < rows {
            let height = if row == 0 && head > 0 { head } else { BLOCK_ROWS }.min(rows - row);
            // SAFETY: rows from `row` to `row + height` <= `rows`, columns likewise; the block holds as many.
            unsafe {
                for r in (0..height).step_by(16) {
                    for c in (0..width).step_by(UNIT) {
                        let from = from.add((row + r) * from_stride + col + c);
                        let to = block.0.as_mut_ptr().add(c * BLOCK_ROWS + r);
                        transpose_unit(from, from_stride, UNIT.min(width - c), to);
                    }
                }
                for c in 0..width {
                    let line = block.0.as_ptr().add(c * BLOCK_ROWS);
                    let to = to.add((col + c) * to_stride + row);
                    if stream && height.is_multiple_of(64) {
                        for i in (0..height).step_by(32) {
                            put::<true>(to.add(i), _mm256_loadu_si256(line.add(i).cast()));
                        }
                    } else {
                        for i in (0..height).step_by(16) {
                            _mm_storeu_si128(to.add(i).cast(), _mm_loadu_si128(line.add(i).cast()));
                        }
                    }
                }
            }
            row += height;
        }
    }
    if stream {
        _mm_sfence();
    }
}

/// The block, on a cache line's boundary.
#[repr(align(64))]
struct Block([u8; BLOCK_ROWS * BLOCK_COLS]);

/// Columns that are read at a time: a cache line, before another row evicts it.
const UNIT: usize = 64;

/// Transposes 16 rows of `width` <= [`UNIT`] columns into lines of a [`Block`].
///
/// Apart, so that the compiler keeps addresses out of the loops around it.
///
/// # Safety
/// As [`transpose`]: `width`, a multiple of 16, columns of 16 rows, and as many lines.
#[inline(never)]
#[target_feature(enable = "avx2")]
unsafe fn transpose_unit(from: *const u8, from_stride: usize, width: usize, to: *mut u8) {
    let mut unit = [0_u8; 16 * UNIT];
    let at = unit.as_mut_ptr();
    // SAFETY: 16 rows and `width` columns on both sides, and UNIT columns in `unit`.
    unsafe {
        for r in 0..16 {
            let (from, at) = (from.add(r * from_stride), at.add(r * UNIT));
            // The block below comes next, if there is one.
            _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(BLOCK_ROWS * from_stride).cast());
            if width == UNIT {
                _mm256_storeu_si256(at.cast(), _mm256_loadu_si256(from.cast()));
                _mm256_storeu_si256(at.add(32).cast(), _mm256_loadu_si256(from.add(32).cast()));
            } else {
                for c in (0..width).step_by(16) {
                    _mm_storeu_si128(at.add(c).cast(), _mm_loadu_si128(from.add(c).cast()));
                }
            }
        }
        for c in (0..width).step_by(16) {
            transpose16(at.add(c), to.add(c * BLOCK_ROWS));
        }
    }
}

/// Rows j and j + 4 woven byte by byte: once, bytes of one column lie 4 rows apart, then 2, then side by side.
#[inline]
#[target_feature(enable = "avx2")]
fn weave(v: [__m256i; 8]) -> [__m256i; 8] {
    [
        _mm256_unpacklo_epi8(v[0], v[4]),
        _mm256_unpackhi_epi8(v[0], v[4]),
        _mm256_unpacklo_epi8(v[1], v[5]),
        _mm256_unpackhi_epi8(v[1], v[5]),
        _mm256_unpacklo_epi8(v[2], v[6]),
        _mm256_unpackhi_epi8(v[2], v[6]),
        _mm256_unpacklo_epi8(v[3], v[7]),
        _mm256_unpackhi_epi8(v[3], v[7]),
    ]
}

/// Transposes 16 columns of 16 rows, [`UNIT`] apart, into lines [`BLOCK_ROWS`] apart.
///
/// # Safety
/// As [`transpose_unit`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn transpose16(from: *const u8, to: *mut u8) {
    // SAFETY: 16 rows and 16 columns on both sides.
    unsafe {
        let row = |r: usize| pair(from.add(r * UNIT), from.add((r + 8) * UNIT));
        let rows = [row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)];
        for (i, v) in weave(weave(weave(rows))).into_iter().enumerate() {
            let v = _mm256_permute4x64_epi64::<0b11_01_10_00>(v);
            let at = to.add(2 * i * BLOCK_ROWS);
            put_pair(at, at.add(BLOCK_ROWS), v);
        }
    }
}
