//! AVX2: codebook entries are loaded one by one, the signs go to the activations, magnitudes are the unsigned
//! operand: 2 · 62 · 127 fits i16, so nothing saturates.
//!
//! One token multiplies as it decodes; several share a tile expanded to int8 rows, which then is what a Q8_0 tile is.

use std::arch::x86_64::*;
use std::ops::Range;

use gantry_formats::block::iq3xxs_grid;

use super::{BLOCK, INDICES, Job, LEN, SUBS, WORDS};
use crate::cpu::lanes::Avx2;
use crate::cpu::matrix::TILE;
use crate::cpu::q8::avx2 as q8;
use crate::cpu::scratch;

/// Rows that are lanes of one accumulator.
const EIGHT: usize = 8;

pub(super) fn tiles(_proof: Avx2, job: &Job<'_>, tiles: Range<usize>) {
    let cols = job.x.cols();
    let blocks = cols / BLOCK;
    if job.x.rows() == 1 {
        for tile in tiles {
            for first in (0..job.live(tile)).step_by(EIGHT) {
                // SAFETY: the proof exists, so the processor has the features; the rows exist and their y belongs to
                // this thread.
                unsafe { direct(job, tile * TILE + first) }
            }
        }
        return;
    }
    // A line for the scales of a block, eight for its weights.
    scratch::with_lines(blocks * 9, |lines| {
        let (scales, weights) = lines.split_at_mut(blocks);
        let (scales, weights) = (scales.as_mut_ptr().cast(), weights.as_mut_ptr().cast());
        for tile in tiles {
            // SAFETY: as above; the scratch holds 16 × blocks scales and 16 × cols weights.
            unsafe { batch(job, tile, scales, weights) }
        }
    });
}

/// The signs of a super-block's weights, a byte for each eight: of each seven stored and their parity.
#[inline]
#[target_feature(enable = "avx2")]
fn signs(words: __m256i) -> [u8; WORDS] {
    let seven = |shifted: __m256i, mask: i32| _mm256_and_si256(shifted, _mm256_set1_epi32(mask));
    let low = _mm256_or_si256(seven(words, 0x7f), seven(_mm256_slli_epi32::<1>(words), 0x7f00));
    let high = _mm256_or_si256(
        seven(_mm256_slli_epi32::<2>(words), 0x7f_0000),
        seven(_mm256_slli_epi32::<3>(words), 0x7f00_0000),
    );
    let seven = _mm256_or_si256(low, high);
    // Per nibble 0x80 where it has an odd number of ones.
    let o = -128;
    let odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, o, o, 0, o, 0, 0, o, o, 0, 0, o, 0, o, o, 0));
    let nibble = _mm256_set1_epi8(15);
    let parity = _mm256_xor_si256(
        _mm256_shuffle_epi8(odd, _mm256_and_si256(seven, nibble)),
        _mm256_shuffle_epi8(odd, _mm256_and_si256(_mm256_srli_epi32::<4>(seven), nibble)),
    );
    let mut out = [0; WORDS];
    // SAFETY: `out` has 32 bytes.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_or_si256(seven, parity)) };
    out
}

/// Per byte -1 where its bit of a sub-block's signs is set, else 1.
#[inline]
#[target_feature(enable = "avx2")]
fn factors(signs: [u8; 4]) -> __m256i {
    let bytes = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let signs = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(signs)), bytes);
    let negative = _mm256_cmpeq_epi8(_mm256_and_si256(signs, bits), bits);
    _mm256_or_si256(negative, _mm256_set1_epi8(1))
}

/// The magnitudes of a sub-block.
#[inline]
#[target_feature(enable = "avx2")]
fn magnitudes(grid: &[[u8; 4]; 256], indices: &[u8; 8]) -> __m256i {
    let at = |i: usize| i32::from_le_bytes(grid[usize::from(indices[i])]);
    _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))
}

/// The scales of a super-block's sub-blocks.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn scales(words: __m256i, d: [u8; 2]) -> __m256 {
    let d = _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes(d)));
    // 2c + 1, which is 8 times (0.5 + c)·0.5·0.5.
    let odd = _mm256_or_si256(_mm256_srli_epi32::<27>(words), _mm256_set1_epi32(1));
    _mm256_mul_ps(_mm256_cvtepi32_ps(odd), _mm256_mul_ps(d, _mm256_set1_ps(0.125)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_words(job: &Job<'_>, i: usize) -> __m256i {
    let words: &[u8; WORDS] = job.weights.words.at(i);
    // SAFETY: `words` has 32 bytes.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

/// Lane s: the sum of vector s's lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn sums(v: [__m256i; 8]) -> __m256i {
    let low = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    let high = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    _mm256_add_epi32(
        _mm256_permute2x128_si256::<0x20>(low, high),
        _mm256_permute2x128_si256::<0x31>(low, high),
    )
}

/// 8 × 8: lane j of vector i becomes lane i of vector j.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(v: [__m256; 8]) -> [__m256; 8] {
    // four(g)[c]: lanes c and c + 4 of vectors g..g + 4.
    macro_rules! four {
        ($g:literal) => {{
            let (a, b) = (_mm256_unpacklo_ps(v[$g], v[$g + 1]), _mm256_unpacklo_ps(v[$g + 2], v[$g + 3]));
            let (c, d) = (_mm256_unpackhi_ps(v[$g], v[$g + 1]), _mm256_unpackhi_ps(v[$g + 2], v[$g + 3]));
            [
                _mm256_shuffle_ps::<0x44>(a, b),
                _mm256_shuffle_ps::<0xee>(a, b),
                _mm256_shuffle_ps::<0x44>(c, d),
                _mm256_shuffle_ps::<0xee>(c, d),
            ]
        }};
    }
    let (low, high) = (four!(0), four!(4));
    let mut out = [_mm256_setzero_ps(); 8];
    for c in 0..4 {
        out[c] = _mm256_permute2f128_ps::<0x20>(low[c], high[c]);
        out[4 + c] = _mm256_permute2f128_ps::<0x31>(low[c], high[c]);
    }
    out
}

/// The only token against rows first..first + 8, as far as they exist.
///
/// # Safety
/// The features; row `first` exists; the rows' y belongs to this thread.
#[target_feature(enable = "avx2,f16c")]
unsafe fn direct(job: &Job<'_>, first: usize) {
    let grid = iq3xxs_grid();
    let supers = job.supers();
    let live = (job.rows - first).min(EIGHT);
    let mut acc = _mm256_setzero_ps();
    let mut terms = [acc; EIGHT];
    let (xs, x_scales) = (job.x.quants().as_chunks::<BLOCK>().0, job.x.scales().as_chunks::<SUBS>().0);
    for (s, (xs, x_scales)) in xs.as_chunks::<SUBS>().0.iter().zip(x_scales).enumerate() {
        // SAFETY: `x_scales` has 8.
        let x_scales = unsafe { _mm256_loadu_ps(x_scales.as_ptr()) };
        for (row, term) in terms.iter_mut().enumerate().take(live) {
            // Eight rows are eight streams; the next eight are one.
            let next = (first + EIGHT) * supers + s * EIGHT + row;
            _mm_prefetch::<_MM_HINT_T1>(job.weights.indices.address(next).cast());
            _mm_prefetch::<_MM_HINT_T1>(job.weights.words.address(next).cast());
            let i = (first + row) * supers + s;
            let words = load_words(job, i);
            let signs = signs(words);
            let indices: &[u8; INDICES] = job.weights.indices.at(i);
            // Written out, not a loop: the compiler leaves one as it is, and its results in memory.
            let dot = |sub: usize| {
                let magnitudes = magnitudes(grid, &indices.as_chunks().0[sub]);
                // SAFETY: a block has 32.
                let x = unsafe { _mm256_loadu_si256(xs[sub].as_ptr().cast()) };
                let x = _mm256_sign_epi8(x, factors(signs.as_chunks().0[sub]));
                _mm256_madd_epi16(_mm256_maddubs_epi16(magnitudes, x), _mm256_set1_epi16(1))
            };
            let sums = sums([dot(0), dot(1), dot(2), dot(3), dot(4), dot(5), dot(6), dot(7)]);
            let scale = _mm256_mul_ps(scales(words, *job.weights.scales.at(i)), x_scales);
            *term = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), scale);
        }
        for term in transpose(terms) {
            acc = _mm256_add_ps(acc, term);
        }
    }
    let mut out = [0f32; EIGHT];
    // SAFETY: `out` has 8; `live` rows from `first` exist, and are this thread's.
    unsafe {
        _mm256_storeu_ps(out.as_mut_ptr(), acc);
        job.y.slice(first, live).copy_from_slice(&out[..live]);
    }
}

/// All tokens against a tile, expanded first.
///
/// # Safety
/// The features; the tile exists and its rows of y belong to this thread; 16 × cols/32 f32 at `scales`, 16 × cols
/// bytes at `weights`.
#[target_feature(enable = "avx2,f16c")]
unsafe fn batch(job: &Job<'_>, tile: usize, scales: *mut f32, weights: *mut u8) {
    let grid = iq3xxs_grid();
    let (cols, supers, live) = (job.x.cols(), job.supers(), job.live(tile));
    for row in 0..live {
        for s in 0..supers {
            let i = (tile * TILE + row) * supers + s;
            let words = load_words(job, i);
            let signs = signs(words);
            let indices: &[u8; INDICES] = job.weights.indices.at(i);
            for sub in 0..SUBS {
                let magnitudes = magnitudes(grid, &indices.as_chunks().0[sub]);
                let block = _mm256_sign_epi8(magnitudes, factors(signs.as_chunks().0[sub]));
                // SAFETY: row < 16, and the block ends at most at `cols`.
                unsafe { _mm256_storeu_si256(weights.add(row * cols + s * LEN + sub * BLOCK).cast(), block) };
            }
            let mut eight = [0f32; SUBS];
            // SAFETY: `eight` has 8; row < 16, and block 8s + sub is below cols/32.
            unsafe {
                _mm256_storeu_ps(eight.as_mut_ptr(), self::scales(words, *job.weights.scales.at(i)));
                for (sub, scale) in eight.into_iter().enumerate() {
                    *scales.add((s * SUBS + sub) * TILE + row) = scale;
                }
            }
        }
    }
    // SAFETY: rows up to `live` were written above, others repeat the last one; their scales are of any content, as
    // is what the product gives for them, which is not stored.
    unsafe {
        let rows = std::array::from_fn(|i| weights.add(i.min(live - 1) * cols).cast_const());
        let out = |token: usize| job.y.slice(token * job.rows + tile * TILE, live);
        q8::products(job.x, rows, scales, out);
    }
}
