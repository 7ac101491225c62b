//! Strips with AVX2. Vectors are loaded as two pieces of 16 bytes, so that all shuffling stays inside 128-bit halves.
//!
//! Every 64 bytes of a strip are stored by neighbouring instructions, as whole lines past the cache need it.

use gantry_formats::layout::Order;
use std::arch::x86_64::*;

/// Four vectors, whose halves are 4 × 4 matrices of u32, transposed: its own inverse.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose4(v: [__m256i; 4]) -> [__m256i; 4] {
    let (low01, low23) = (_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpacklo_epi32(v[2], v[3]));
    let (high01, high23) = (_mm256_unpackhi_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[2], v[3]));
    [
        _mm256_unpacklo_epi64(low01, low23),
        _mm256_unpackhi_epi64(low01, low23),
        _mm256_unpacklo_epi64(high01, high23),
        _mm256_unpackhi_epi64(high01, high23),
    ]
}

/// 16 bytes at `low`, then 16 at `high`.
///
/// # Safety
/// Both are readable.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn pair(low: *const u8, high: *const u8) -> __m256i {
    // SAFETY: the caller's.
    unsafe { _mm256_loadu2_m128i(high.cast(), low.cast()) }
}

/// Stores the halves of `v` at `low` and `high`.
///
/// # Safety
/// 16 bytes at both are writable.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn put_pair(low: *mut u8, high: *mut u8, v: __m256i) {
    // SAFETY: the caller's.
    unsafe { _mm256_storeu2_m128i(high.cast(), low.cast(), v) }
}

/// Stores 32 bytes, past the cache if `STREAM`: by 16, for that is what allocators align to.
///
/// # Safety
/// 32 bytes at `to` are writable; for `STREAM` it is a multiple of 16.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn put<const STREAM: bool>(to: *mut u8, v: __m256i) {
    // SAFETY: the caller's.
    unsafe {
        if STREAM {
            _mm_stream_si128(to.cast(), _mm256_castsi256_si128(v));
            _mm_stream_si128(to.add(16).cast(), _mm256_extracti128_si256::<1>(v));
        } else {
            _mm256_storeu_si256(to.cast(), v);
        }
    }
}

/// The shuffles of one order, tile by tile.
macro_rules! for_each_tile {
    ($tiles:ident, $rows:ident + $cols:literal, $strip:ident + $bytes:literal, $tile:expr) => {
        for i in 0..$tiles {
            $tile($rows.add(i * $cols), $strip.add(i * $bytes));
        }
    };
}

/// [`super::Level::pack_strip`].
///
/// # Safety
/// The CPU has AVX2; `tiles` tiles of `order` are readable in rows `stride` apart from `rows` on and writable at
/// `strip`, which is a multiple of 16 for `STREAM`.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn pack<const STREAM: bool>(
    order: Order,
    rows: *const u8,
    stride: usize,
    tiles: usize,
    strip: *mut u8,
) {
    // SAFETY: a tile of an order is what its function reads and writes: the caller's promise, for each tile.
    unsafe {
        let s = stride;
        match order {
            Order::NvA32 => for_each_tile!(tiles, rows + 32, strip + 512, |r, t| nv_a32::<STREAM>(r, s, t)),
            Order::NvA64 => for_each_tile!(tiles, rows + 64, strip + 1024, |r, t| nv_a64::<STREAM>(r, s, t)),
            Order::Slot8 | Order::Rdna4 => {
                for_each_tile!(tiles, rows + 32, strip + 512, |r, t| runs_of_8::<STREAM>(r, s, t));
            }
            Order::Slot16 => for_each_tile!(tiles, rows + 64, strip + 1024, |r, t| slot16::<STREAM>(r, s, t)),
            Order::Ck16 | Order::Rdna3 => {
                let tiles = tiles * order.col_tile() as usize / 32;
                for_each_tile!(tiles, rows + 32, strip + 512, |r, t| runs_of_16::<STREAM>(r, s, t));
            }
            Order::Vnni16 => {
                for_each_tile!(tiles, rows + 32, strip + 512, |r, t| vnni::<STREAM, 16>(r, s, t))
            }
            Order::Vnni8 => for_each_tile!(tiles, rows + 32, strip + 256, |r, t| vnni::<STREAM, 8>(r, s, t)),
            Order::NMajor | Order::KMajor => unreachable!("{order} has no strips"),
        }
        if STREAM {
            // Stores past the cache are seen in order with later ones only after a fence.
            _mm_sfence();
        }
    }
}

/// [`super::Level::unpack_strip`].
///
/// # Safety
/// The CPU has AVX2; `tiles` tiles of `order` are readable at `strip` and writable in rows `stride` apart from
/// `rows` on.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn unpack(order: Order, strip: *const u8, tiles: usize, rows: *mut u8, stride: usize) {
    // SAFETY: a tile of an order is what its function reads and writes: the caller's promise, for each tile.
    unsafe {
        let s = stride;
        match order {
            Order::NvA32 => for_each_tile!(tiles, rows + 32, strip + 512, |r, t| back_nv_a32(t, r, s)),
            Order::NvA64 => for_each_tile!(tiles, rows + 64, strip + 1024, |r, t| back_nv_a64(t, r, s)),
            Order::Slot8 | Order::Rdna4 => {
                for_each_tile!(tiles, rows + 32, strip + 512, |r, t| back_runs_of_8(t, r, s));
            }
            Order::Slot16 => for_each_tile!(tiles, rows + 64, strip + 1024, |r, t| back_slot16(t, r, s)),
            Order::Ck16 | Order::Rdna3 => {
                let tiles = tiles * order.col_tile() as usize / 32;
                for_each_tile!(tiles, rows + 32, strip + 512, |r, t| back_runs_of_16(t, r, s));
            }
            Order::Vnni16 => for_each_tile!(tiles, rows + 32, strip + 512, |r, t| back_vnni::<16>(t, r, s)),
            Order::Vnni8 => for_each_tile!(tiles, rows + 32, strip + 256, |r, t| back_vnni::<8>(t, r, s)),
            Order::NMajor | Order::KMajor => unreachable!("{order} has no strips"),
        }
    }
}

/// 4 k of `ROWS` rows side by side.
///
/// # Safety
/// As [`pack`], for one tile.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn vnni<const STREAM: bool, const ROWS: usize>(rows: *const u8, stride: usize, tile: *mut u8) {
    // SAFETY: rows below ROWS, 16 columns at 0 and 16; 8 stretches of ROWS · 4 bytes.
    unsafe {
        for part in 0..2 {
            let mut words = [[_mm256_setzero_si256(); 4]; 2];
            for (half, words) in words.iter_mut().enumerate().take(ROWS / 8) {
                let at = rows.add(half * 8 * stride + part * 16);
                let row = |r: usize| pair(at.add(r * stride), at.add((r + 4) * stride));
                *words = transpose4([row(0), row(1), row(2), row(3)]);
            }
            for word in 0..4 {
                for (half, words) in words.iter().enumerate().take(ROWS / 8) {
                    put::<STREAM>(tile.add((part * 4 + word) * ROWS * 4 + half * 32), words[word]);
                }
            }
        }
    }
}

/// # Safety
/// As [`unpack`], for one tile.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn back_vnni<const ROWS: usize>(tile: *const u8, rows: *mut u8, stride: usize) {
    // SAFETY: as in `vnni`.
    unsafe {
        for half in 0..ROWS / 8 {
            for part in 0..2 {
                let word =
                    |w: usize| _mm256_loadu_si256(tile.add((part * 4 + w) * ROWS * 4 + half * 32).cast());
                let at = rows.add(half * 8 * stride + part * 16);
                for (r, v) in transpose4([word(0), word(1), word(2), word(3)]).into_iter().enumerate() {
                    put_pair(at.add(r * stride), at.add((r + 4) * stride), v);
                }
            }
        }
    }
}

/// 8 k of 16 rows, one below the other.
///
/// # Safety
/// As [`pack`], for one tile of 32 columns.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn runs_of_8<const STREAM: bool>(rows: *const u8, stride: usize, tile: *mut u8) {
    // SAFETY: 16 rows, 16 columns at 0 and 16; 4 stretches of 128 bytes.
    unsafe {
        for part in 0..2 {
            for r in (0..16).step_by(8) {
                let row = |i: usize| {
                    let at = rows.add((r + i) * stride + part * 16);
                    pair(at, at.add(2 * stride))
                };
                let (a, b, c, d) = (row(0), row(1), row(4), row(5));
                let to = tile.add(part * 256 + r * 8);
                put::<STREAM>(to, _mm256_unpacklo_epi64(a, b));
                put::<STREAM>(to.add(32), _mm256_unpacklo_epi64(c, d));
                put::<STREAM>(to.add(128), _mm256_unpackhi_epi64(a, b));
                put::<STREAM>(to.add(160), _mm256_unpackhi_epi64(c, d));
            }
        }
    }
}

/// # Safety
/// As [`unpack`], for one tile of 32 columns.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn back_runs_of_8(tile: *const u8, rows: *mut u8, stride: usize) {
    // SAFETY: as in `runs_of_8`.
    unsafe {
        for r in (0..16).step_by(4) {
            for part in 0..2 {
                let from = tile.add(part * 256 + r * 8);
                let low = _mm256_loadu_si256(from.cast());
                let high = _mm256_loadu_si256(from.add(128).cast());
                let at = rows.add(r * stride + part * 16);
                let next = at.add(stride);
                put_pair(at, at.add(2 * stride), _mm256_unpacklo_epi64(low, high));
                put_pair(next, next.add(2 * stride), _mm256_unpackhi_epi64(low, high));
            }
        }
    }
}

/// 8 k of the first 32 and 8 of the second, of 16 rows, one below the other.
///
/// # Safety
/// As [`pack`], for one tile.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn slot16<const STREAM: bool>(rows: *const u8, stride: usize, tile: *mut u8) {
    // SAFETY: 16 rows, 64 columns; 4 stretches of 256 bytes.
    unsafe {
        for r in (0..16).step_by(4) {
            for part in 0..2 {
                let of = |i: usize, k: usize| {
                    let at = rows.add((r + i) * stride + part * 16 + k);
                    pair(at, at.add(stride))
                };
                let (a, b, c, d) = (of(0, 0), of(0, 32), of(2, 0), of(2, 32));
                let to = tile.add(part * 512 + r * 16);
                put::<STREAM>(to, _mm256_unpacklo_epi64(a, b));
                put::<STREAM>(to.add(32), _mm256_unpacklo_epi64(c, d));
                put::<STREAM>(to.add(256), _mm256_unpackhi_epi64(a, b));
                put::<STREAM>(to.add(288), _mm256_unpackhi_epi64(c, d));
            }
        }
    }
}

/// # Safety
/// As [`unpack`], for one tile.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn back_slot16(tile: *const u8, rows: *mut u8, stride: usize) {
    // SAFETY: as in `slot16`.
    unsafe {
        for r in (0..16).step_by(2) {
            for part in 0..2 {
                let from = tile.add(part * 512 + r * 16);
                let low = _mm256_loadu_si256(from.cast());
                let high = _mm256_loadu_si256(from.add(256).cast());
                let at = rows.add(r * stride + part * 16);
                let next = at.add(stride);
                put_pair(at, next, _mm256_unpacklo_epi64(low, high));
                put_pair(at.add(32), next.add(32), _mm256_unpackhi_epi64(low, high));
            }
        }
    }
}

/// 16 k of 16 rows, one below the other.
///
/// # Safety
/// As [`pack`], for 32 columns.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn runs_of_16<const STREAM: bool>(rows: *const u8, stride: usize, tile: *mut u8) {
    // SAFETY: 16 rows, 32 columns; 2 stretches of 256 bytes.
    unsafe {
        for part in 0..2 {
            for r in (0..16).step_by(2) {
                let at = rows.add(r * stride + part * 16);
                put::<STREAM>(tile.add(part * 256 + r * 16), pair(at, at.add(stride)));
            }
        }
    }
}

/// # Safety
/// As [`unpack`], for 32 columns.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn back_runs_of_16(tile: *const u8, rows: *mut u8, stride: usize) {
    // SAFETY: as in `runs_of_16`.
    unsafe {
        for r in 0..16 {
            let from = tile.add(r * 16);
            let v = pair(from, from.add(256));
            _mm256_storeu_si256(rows.add(r * stride).cast(), v);
        }
    }
}

/// 4 k of row r and 4 of row r + 8 in turn, for all of a tile.
///
/// # Safety
/// As [`pack`], for one tile.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn nv_a32<const STREAM: bool>(rows: *const u8, stride: usize, tile: *mut u8) {
    // SAFETY: 16 rows, 32 columns; 8 stretches of 64 bytes.
    unsafe {
        for r in 0..8 {
            let row = |r: usize| {
                let v = _mm256_loadu_si256(rows.add(r * stride).cast());
                _mm256_permute4x64_epi64::<0b11_01_10_00>(v)
            };
            let (a, b) = (row(r), row(r + 8));
            let to = tile.add(r * 64);
            put::<STREAM>(to, _mm256_unpacklo_epi32(a, b));
            put::<STREAM>(to.add(32), _mm256_unpackhi_epi32(a, b));
        }
    }
}

/// # Safety
/// As [`unpack`], for one tile.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn back_nv_a32(tile: *const u8, rows: *mut u8, stride: usize) {
    // SAFETY: as in `nv_a32`.
    unsafe {
        for r in 0..8 {
            let half = |i: usize| {
                let v = _mm256_loadu_si256(tile.add(r * 64 + i * 32).cast());
                _mm256_shuffle_epi32::<0b11_01_10_00>(v)
            };
            let (low, high) = (half(0), half(1));
            let a = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_unpacklo_epi64(low, high));
            let b = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_unpackhi_epi64(low, high));
            _mm256_storeu_si256(rows.add(r * stride).cast(), a);
            _mm256_storeu_si256(rows.add((r + 8) * stride).cast(), b);
        }
    }
}

/// As [`nv_a32`], with every other 8 k in the first step and the rest in the second.
///
/// # Safety
/// As [`pack`], for one tile.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn nv_a64<const STREAM: bool>(rows: *const u8, stride: usize, tile: *mut u8) {
    // SAFETY: 16 rows, 64 columns; 16 stretches of 64 bytes.
    unsafe {
        for r in 0..8 {
            let row = |r: usize, k: usize| _mm256_loadu_si256(rows.add(r * stride + k).cast());
            let (a, b, c, d) = (row(r, 0), row(r + 8, 0), row(r, 32), row(r + 8, 32));
            let to = tile.add(r * 64);
            put::<STREAM>(to, _mm256_unpacklo_epi32(a, b));
            put::<STREAM>(to.add(32), _mm256_unpacklo_epi32(c, d));
            put::<STREAM>(to.add(512), _mm256_unpackhi_epi32(a, b));
            put::<STREAM>(to.add(544), _mm256_unpackhi_epi32(c, d));
        }
    }
}

/// # Safety
/// As [`unpack`], for one tile.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn back_nv_a64(tile: *const u8, rows: *mut u8, stride: usize) {
    // SAFETY: as in `nv_a64`.
    unsafe {
        for r in 0..8 {
            for part in 0..2 {
                let step = |i: usize| {
                    let v = _mm256_loadu_si256(tile.add(i * 512 + r * 64 + part * 32).cast());
                    _mm256_shuffle_epi32::<0b11_01_10_00>(v)
                };
                let (first, second) = (step(0), step(1));
                let at = rows.add(r * stride + part * 32);
                _mm256_storeu_si256(at.cast(), _mm256_unpacklo_epi64(first, second));
                _mm256_storeu_si256(at.add(8 * stride).cast(), _mm256_unpackhi_epi64(first, second));
            }
        }
    }
}
