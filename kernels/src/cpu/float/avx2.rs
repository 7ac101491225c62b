//! AVX2, for two tokens and more.
//!
//! 16 lanes are two registers, of which the processor has 16. The lanes do not meet before the tree, so one half of
//! them goes over the columns, then the other: 2 rows × 6 tokens of sums, the two weights, an activation and a product
//! are 16 registers, and 12 products take 8 loads. Sums wait in memory for the tree, and between blocks of columns that
//! keep the activations of six tokens in the first-level cache.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Element, Job};
use crate::cpu::lanes::{Avx2, LANES};
use crate::cpu::matrix::TILE;

/// Tokens at a time, at most.
const GROUP: usize = 6;
/// Steps of 16 columns in a block, at most.
const STEPS: usize = 48;

/// The halves of the lanes: of each token, of each row of a tile.
type Sums = [[[__m256; 2]; TILE]; GROUP];

/// # Safety
/// AVX2; 8 × f32 at `p`.
#[inline(always)]
pub(super) unsafe fn f32s(p: *const u8) -> __m256 {
    // SAFETY: the caller's.
    unsafe { _mm256_loadu_ps(p.cast()) }
}

/// # Safety
/// AVX2 and F16C; 8 × IEEE half at `p`.
#[inline(always)]
pub(super) unsafe fn f16s(p: *const u8) -> __m256 {
    // SAFETY: the caller's.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
}

/// # Safety
/// AVX2; 8 × bfloat16 at `p`.
#[inline(always)]
pub(super) unsafe fn bf16s(p: *const u8) -> __m256 {
    // SAFETY: the caller's.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())))) }
}

/// The first `n` < 8 elements, the other lanes +0.
///
/// # Safety
/// AVX2 and F16C; `n` elements readable at `p`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn part<E: Element>(p: *const u8, n: usize) -> __m256 {
    let mut bytes = [0u8; LANES / 2 * 4];
    // SAFETY: the caller's; 8 elements of at most 4 bytes fit, and zero bytes are +0 in each format.
    unsafe {
        std::ptr::copy_nonoverlapping(p, bytes.as_mut_ptr(), n * E::BYTES);
        E::eight(bytes.as_ptr())
    }
}

/// All tokens of some tiles of 16 rows.
pub(super) fn tiles<E: Element>(proof: Avx2, job: &Job<'_>, tiles: Range<usize>) {
    debug_assert!(tiles.end <= job.rows.div_ceil(TILE));
    // SAFETY: the proof exists, so the processor has the features; the tiles exist.
    unsafe { run::<E>(proof, job, tiles) }
}

/// # Safety
/// AVX2 and F16C; the tiles exist.
#[target_feature(enable = "avx2,f16c")]
unsafe fn run<E: Element>(proof: Avx2, job: &Job<'_>, tiles: Range<usize>) {
    let tokens = job.x.len() / job.cols;
    // As equal as can be: 7 are 3 and 4.
    let groups = tokens.div_ceil(GROUP);
    let mut sums: Sums = [[[_mm256_setzero_ps(); 2]; TILE]; GROUP];
    for tile in tiles {
        for group in 0..groups {
            let first = group * tokens / groups;
            let tile = Tile { proof, job, row: tile * TILE, token: first };
            // SAFETY: the features; the tile and the tokens exist.
            unsafe {
                match (group + 1) * tokens / groups - first {
                    1 => tile.run::<4, 1, E>(&mut sums),
                    2 => tile.run::<4, 2, E>(&mut sums),
                    3 => tile.run::<3, 3, E>(&mut sums),
                    4 => tile.run::<2, 4, E>(&mut sums),
                    5 => tile.run::<2, 5, E>(&mut sums),
                    _ => tile.run::<2, GROUP, E>(&mut sums),
                }
            }
        }
    }
}

/// 16 rows, or those that are left, with some tokens.
struct Tile<'a> {
    proof: Avx2,
    job: &'a Job<'a>,
    row: usize,
    token: usize,
}

impl Tile<'_> {
    /// T tokens, R rows at a time.
    ///
    /// # Safety
    /// AVX2 and F16C; the first row exists, and the tokens.
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn run<const R: usize, const T: usize, E: Element>(&self, sums: &mut Sums) {
        let job = self.job;
        debug_assert!(self.row < job.rows && (self.token + T) * job.cols <= job.x.len());
        let live = (job.rows - self.row).min(TILE);
        let steps = job.cols / LANES;
        let blocks = steps.div_ceil(STEPS).max(1);
        for block in 0..blocks {
            let first = block * steps / blocks;
            let stretch = Stretch {
                first,
                steps: (block + 1) * steps / blocks - first,
                rest: if block + 1 == blocks { job.cols % LANES } else { 0 },
            };
            let mut row = 0;
            // SAFETY: the features; these rows and tokens exist, and the steps and the rest lie inside of them.
            unsafe {
                while row + R <= live {
                    self.prefetch::<R, E>(row + R, live, &stretch);
                    self.halves::<R, T, E>(row, &stretch, sums);
                    row += R;
                }
                while row < live {
                    self.halves::<1, T, E>(row, &stretch, sums);
                    row += 1;
                }
            }
        }
        for (t, sums) in sums.iter().enumerate().take(T) {
            for (first, sums) in (0..live).step_by(8).zip(sums.as_chunks::<8>().0) {
                let mut eight = [_mm256_setzero_ps(); 8];
                for (eight, half) in eight.iter_mut().zip(sums) {
                    *eight = _mm256_add_ps(half[0], half[1]);
                }
                let mut out = [0f32; 8];
                // SAFETY: `out` holds 8; rows row + first.. of token + t exist, and no other thread has them.
                unsafe {
                    _mm256_storeu_ps(out.as_mut_ptr(), self.proof.sum8(eight));
                    let n = (live - first).min(8);
                    let to = (self.token + t) * job.stride + self.row + first;
                    job.y.slice(to, n).copy_from_slice(&out[..n]);
                }
            }
        }
    }

    /// Ask for what the next R rows have of the stretch, while their first tokens are at work.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn prefetch<const R: usize, E: Element>(&self, row: usize, live: usize, stretch: &Stretch) {
        let job = self.job;
        if self.token > 0 {
            return;
        }
        for r in row..(row + R).min(live) {
            let from = ((self.row + r) * job.cols + stretch.first * LANES) * E::BYTES;
            for line in (0..stretch.steps * LANES * E::BYTES).step_by(64) {
                _mm_prefetch::<_MM_HINT_T1>(job.weights.as_ptr().wrapping_add(from + line).cast());
            }
        }
    }

    /// Both halves of R rows.
    ///
    /// # Safety
    /// AVX2 and F16C; the rows and tokens exist, and the stretch lies inside of them.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn halves<const R: usize, const T: usize, E: Element>(
        &self,
        row: usize,
        stretch: &Stretch,
        sums: &mut Sums,
    ) {
        let (job, first) = (self.job, stretch.first * LANES);
        let sums = sums.as_mut_ptr().cast::<__m256>();
        // SAFETY: the caller's; a half is 8 of 16 elements, of which a short row may have none.
        unsafe {
            let w = job.weights.as_ptr().add(((self.row + row) * job.cols + first) * E::BYTES);
            let x = job.x.as_ptr().add(self.token * job.cols + first);
            for half in 0..2 {
                half_sums::<R, T, E>(
                    w.wrapping_add(half * 8 * E::BYTES),
                    x.wrapping_add(half * 8),
                    job.cols,
                    stretch,
                    stretch.rest.saturating_sub(half * 8).min(8),
                    sums.add(row * 2 + half),
                );
            }
        }
    }
}

/// Columns: `steps` times 16 from 16 · `first`, then the `rest`, which end the row.
struct Stretch {
    first: usize,
    steps: usize,
    rest: usize,
}

/// Add 8 lanes of R rows × T tokens.
///
/// # Safety
/// AVX2 and F16C. At `w` and `x` every 16 elements, `steps` times, 8 are readable, then `rest` <= 8; the next row or
/// token is `cols` elements on. R × T sums at `sums`, those of a row 2 apart, of a token 2 · 16.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn half_sums<const R: usize, const T: usize, E: Element>(
    w: *const u8,
    x: *const f32,
    cols: usize,
    stretch: &Stretch,
    rest: usize,
    sums: *mut __m256,
) {
    let mut lanes = [[_mm256_setzero_ps(); R]; T];
    // SAFETY: the caller's.
    unsafe {
        if stretch.first > 0 {
            for (t, lanes) in lanes.iter_mut().enumerate() {
                for (r, lanes) in lanes.iter_mut().enumerate() {
                    *lanes = *sums.add((t * TILE + r) * 2);
                }
            }
        }
        // A pointer to each row and token and one offset for all: the fewest instructions beside the arithmetic.
        let mut rows = [w; R];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = w.wrapping_add(r * cols * E::BYTES);
        }
        let mut tokens = [x; T];
        for (t, token) in tokens.iter_mut().enumerate() {
            *token = x.wrapping_add(t * cols);
        }
        let end = stretch.steps * LANES;
        let mut k = 0;
        while k < end {
            let mut ws = [_mm256_setzero_ps(); R];
            for (ws, row) in ws.iter_mut().zip(rows) {
                *ws = E::eight(row.add(k * E::BYTES));
            }
            for (lanes, token) in lanes.iter_mut().zip(tokens) {
                let x = _mm256_loadu_ps(token.add(k));
                for (lanes, w) in lanes.iter_mut().zip(ws) {
                    *lanes = _mm256_add_ps(*lanes, _mm256_mul_ps(w, x));
                }
            }
            k += LANES;
        }
        if rest > 0 {
            let mut ws = [_mm256_setzero_ps(); R];
            for (ws, row) in ws.iter_mut().zip(rows) {
                *ws = part::<E>(row.add(end * E::BYTES), rest);
            }
            for (lanes, token) in lanes.iter_mut().zip(tokens) {
                let x = part::<super::F32>(token.add(end).cast(), rest);
                for (lanes, w) in lanes.iter_mut().zip(ws) {
                    *lanes = _mm256_add_ps(*lanes, _mm256_mul_ps(w, x));
                }
            }
        }
        for (t, lanes) in lanes.iter().enumerate() {
            for (r, lanes) in lanes.iter().enumerate() {
                *sums.add((t * TILE + r) * 2) = *lanes;
            }
        }
    }
}
