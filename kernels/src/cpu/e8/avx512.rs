//! AVX-512 with byte permutations (VBMI): the whole codebook in registers.
//!
//! Byte j (0..4) of the 256 codebook entries is a table of four registers, which two `vpermi2b` and a blend by the
//! index's high bit look up for 64 indices at once. So a super-block's magnitudes come as four planes, plane j
//! holding weights 4k + j, k = 0..64, and the activations are brought into that order first. The stored signs become
//! a byte for each index pair (`vpmultishiftqb` cuts out the seven bits, one more `vpermi2b` adds the parity), whose
//! bits select the activations to negate: magnitudes stay unsigned, as `vpdpbusd` wants one operand. Each dword of
//! the four planes' sum belongs to one sub-block, each sub-block has two of them.
//!
//! A few tokens share one look at a row ([`direct`]); more share a tile expanded to `[cols/4][16 rows][4]`, which
//! then is what a Q8_0 tile is.
//!
//! Sixteen rows are sixteen streams, more than hardware prefetchers follow: each row's step prefetches a part of the
//! next tile, in the order of memory. A tile is small enough for the first-level cache: aiming at the second made
//! planes from memory a fifth slower.
//!
//! Vectors stay out of `array::map` and its like: what takes a closure is not compiled for these features, is called,
//! and passes vectors through memory.

use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::LazyLock;

use gantry_formats::block::iq3xxs_grid;

use super::{BLOCK, INDICES, Job, LEN, SUBS};
use crate::cpu::lanes::Avx512;
use crate::cpu::matrix::TILE;
use crate::cpu::q8::avx512 as q8;
use crate::cpu::scratch;

/// Tokens that are still multiplied directly: an expansion costs as much as they do.
const DIRECT: usize = 3;
/// Weights that share an index: planes of a super-block.
const PLANES: usize = 4;

/// AVX-512 as [`Avx512`] has it, and VBMI: a value exists only where both were detected.
#[derive(Clone, Copy)]
pub(super) struct Vbmi(());

impl Vbmi {
    pub(super) fn detect(_proof: Avx512) -> Option<Self> {
        is_x86_feature_detected!("avx512vbmi").then_some(Vbmi(()))
    }
}

/// What the permutations look up.
#[repr(C, align(64))]
struct Tables {
    /// `[j][i]`: byte j of codebook entries 64i..64i + 64.
    grid: [[[u8; 64]; 4]; PLANES],
    /// The eight signs of each seven stored.
    signs: [[u8; 64]; 2],
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let grid = iq3xxs_grid();
    Tables {
        grid: std::array::from_fn(|j| {
            std::array::from_fn(|i| std::array::from_fn(|entry| grid[64 * i + entry][j]))
        }),
        signs: std::array::from_fn(|i| {
            std::array::from_fn(|seven| {
                let seven = (64 * i + seven) as u8;
                seven | (seven.count_ones() as u8 & 1) << 7
            })
        }),
    }
});

pub(super) fn tiles(_proof: Vbmi, job: &Job<'_>, tiles: Range<usize>) {
    let (cols, tokens) = (job.x.cols(), job.x.rows());
    let tables = &*TABLES;
    if tokens > DIRECT {
        let blocks = cols / BLOCK;
        // One line per block for the scales, eight for its weights.
        scratch::with_lines(blocks * 9, |lines| {
            let (scales, weights) = lines.split_at_mut(blocks);
            let (scales, weights) = (scales.as_mut_ptr().cast(), weights.as_mut_ptr().cast());
            for tile in tiles {
                let mask = ((1u32 << job.live(tile)) - 1) as __mmask16;
                // SAFETY: the proof exists, so the processor has the features; the tile exists, its rows of y belong
                // to this thread; the scratch holds `blocks` lines of scales and 8·blocks of weights.
                unsafe {
                    expand(job, tables, tile, scales, weights);
                    let out = |token: usize| job.y.at(token * job.rows + tile * TILE);
                    q8::all_columns::<false>(job.x, scales, weights.cast_const().cast(), |token, sums| {
                        _mm512_mask_storeu_ps(out(token), mask, sums);
                    });
                }
            }
        });
        return;
    }
    scratch::with_lines(tokens * cols / 64, |lines| {
        let planes = lines.as_mut_ptr().cast();
        // SAFETY: as above; the scratch holds a line for every 64 activations.
        unsafe {
            plane_activations(job.x.quants(), planes);
            for tile in tiles {
                match tokens {
                    1 => direct::<1>(job, tables, tile, planes),
                    2 => direct::<2>(job, tables, tile, planes),
                    _ => direct::<3>(job, tables, tile, planes),
                }
            }
        }
    });
}

/// Per 256 activations four lines: line j has activations 4k + j, k = 0..64.
///
/// # Safety
/// The features; a line for every 64 of `x`, a multiple of 256, at `out`, aligned.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn plane_activations(x: &[i8], out: *mut __m512i) {
    let every_fourth: [u8; 64] = std::array::from_fn(|k| 4 * (k as u8 & 31));
    // SAFETY: `every_fourth` has 64 bytes, each chunk 256; line 4i + j is below x.len() / 64.
    unsafe {
        let every_fourth = _mm512_loadu_si512(every_fourth.as_ptr().cast());
        for (i, x) in x.as_chunks::<LEN>().0.iter().enumerate() {
            let at = |q: usize| _mm512_loadu_si512(x.as_ptr().add(64 * q).cast());
            for j in 0..PLANES {
                let indices = _mm512_add_epi8(every_fourth, _mm512_set1_epi8(j as i8));
                let low = _mm512_permutex2var_epi8(at(0), indices, at(1));
                let high = _mm512_permutex2var_epi8(at(2), indices, at(3));
                *out.add(PLANES * i + j) = _mm512_shuffle_i64x2::<0x44>(low, high);
            }
        }
    }
}

/// The tables and constants of [`planes`], for the compiler to hold in registers.
#[derive(Clone, Copy)]
struct Registers {
    grid: [[__m512i; 4]; PLANES],
    signs: [__m512i; 2],
    /// Byte k of a qword: 7·(k/2), where the signs of index k begin.
    cuts: __m512i,
    /// `[j]`: the bit of weight j of an index in its pair's signs, for even and odd indices.
    bits: [__m512i; PLANES],
}

impl Registers {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn load(tables: &Tables) -> Self {
        // SAFETY: each table has 64 bytes.
        let load = |table: &[u8; 64]| unsafe { _mm512_loadu_si512(table.as_ptr().cast()) };
        let [s0, s1] = &tables.signs;
        let mut grid = [[_mm512_setzero_si512(); 4]; PLANES];
        for (grid, tables) in grid.iter_mut().zip(&tables.grid) {
            for (quarter, table) in grid.iter_mut().zip(tables) {
                *quarter = load(table);
            }
        }
        Registers {
            grid,
            signs: [load(s0), load(s1)],
            cuts: _mm512_set1_epi64(0x1515_0e0e_0707_0000),
            bits: [
                _mm512_set1_epi16(0x1001),
                _mm512_set1_epi16(0x2002),
                _mm512_set1_epi16(0x4004),
                _mm512_set1_epi16(0x8008u16 as i16),
            ],
        }
    }
}

/// A super-block: per plane the magnitudes and which of them are negative.
///
/// # Safety
/// The features; super-block `i` exists.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn planes(job: &Job<'_>, r: &Registers, i: usize) -> [(__m512i, __mmask64); PLANES] {
    // SAFETY: the super-block has 64 bytes of indices and 32 of words.
    let (indices, words) = unsafe {
        (
            _mm512_loadu_si512(job.weights.indices.address(i).cast()),
            _mm256_loadu_si256(job.weights.words.address(i).cast()),
        )
    };
    let high = _mm512_movepi8_mask(indices);
    // The eighth bit of a cut is the next one's first; the lookup takes seven.
    let seven = _mm512_multishift_epi64_epi8(r.cuts, _mm512_cvtepu32_epi64(words));
    let signs = _mm512_permutex2var_epi8(r.signs[0], seven, r.signs[1]);
    let mut out = [(indices, 0); PLANES];
    for ((plane, negative), (grid, bit)) in out.iter_mut().zip(r.grid.iter().zip(r.bits)) {
        let low_half = _mm512_permutex2var_epi8(grid[0], indices, grid[1]);
        let high_half = _mm512_permutex2var_epi8(grid[2], indices, grid[3]);
        *plane = _mm512_mask_blend_epi8(high, low_half, high_half);
        *negative = _mm512_test_epi8_mask(signs, bit);
    }
    out
}

/// The scales of super-blocks `a` (lanes 0..8) and `b`, one for each of their sub-blocks.
///
/// # Safety
/// The features; the super-blocks exist.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,f16c")]
unsafe fn pair_scales(job: &Job<'_>, a: usize, b: usize) -> __m512 {
    // SAFETY: a super-block has 32 bytes of words and 2 of scale.
    let (words, d) = unsafe {
        let words = |i: usize| _mm256_loadu_si256(job.weights.words.address(i).cast());
        let d = |i: usize| {
            let bits = job.weights.scales.address(i).cast::<i16>().read_unaligned();
            _mm256_cvtph_ps(_mm_set1_epi16(bits))
        };
        (
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(words(a)), words(b)),
            _mm512_insertf32x8::<1>(_mm512_castps256_ps512(d(a)), d(b)),
        )
    };
    // 2c + 1, which is 8 times (0.5 + c)·0.5·0.5.
    let odd = _mm512_or_si512(_mm512_srli_epi32::<27>(words), _mm512_set1_epi32(1));
    _mm512_mul_ps(_mm512_cvtepi32_ps(odd), _mm512_mul_ps(d, _mm512_set1_ps(0.125)))
}

/// Rows 2p (lanes 0..8) and 2p + 1 of vector p, one lane per sub-block, turned to one vector per sub-block, one lane
/// per row: 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15.
#[inline]
#[target_feature(enable = "avx512f")]
fn by_sub_block(p: [__m512; 8]) -> [__m512; SUBS] {
    // four(g)[c]: in its 128-bit lanes sub-blocks c and c + 4 of vectors g..g + 4's first rows, then second rows.
    macro_rules! four {
        ($g:literal) => {{
            let (a, b) = (_mm512_unpacklo_ps(p[$g], p[$g + 1]), _mm512_unpacklo_ps(p[$g + 2], p[$g + 3]));
            let (c, d) = (_mm512_unpackhi_ps(p[$g], p[$g + 1]), _mm512_unpackhi_ps(p[$g + 2], p[$g + 3]));
            [
                _mm512_shuffle_ps::<0x44>(a, b),
                _mm512_shuffle_ps::<0xee>(a, b),
                _mm512_shuffle_ps::<0x44>(c, d),
                _mm512_shuffle_ps::<0xee>(c, d),
            ]
        }};
    }
    let (low, high) = (four!(0), four!(4));
    let mut out = [_mm512_setzero_ps(); SUBS];
    for c in 0..4 {
        out[c] = _mm512_shuffle_f32x4::<0x88>(low[c], high[c]);
        out[4 + c] = _mm512_shuffle_f32x4::<0xdd>(low[c], high[c]);
    }
    out
}

/// Lane i: row i of what [`by_sub_block`] gives.
#[inline]
#[target_feature(enable = "avx512f")]
fn rows_in_order(v: __m512) -> __m512 {
    _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15), v)
}

/// Ask for super-block `i` in the order of memory, any `i`.
#[inline(always)]
fn prefetch(job: &Job<'_>, i: usize) {
    // SAFETY: every x86-64 has SSE; a prefetch does not fault.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(job.weights.indices.address(i).cast());
        _mm_prefetch::<_MM_HINT_T0>(job.weights.words.address(i).cast());
    }
}

/// All T tokens against the rows of a tile.
///
/// # Safety
/// The features; x has T tokens, and `x_planes` has them as [`plane_activations`] gives them; the tile exists and its
/// rows of y belong to this thread.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,f16c")]
unsafe fn direct<const T: usize>(job: &Job<'_>, tables: &Tables, tile: usize, x_planes: *const __m512i) {
    let supers = job.supers();
    let live = job.live(tile);
    let first = tile * TILE * supers;
    let r = Registers::load(tables);
    let zero = _mm512_setzero_si512();
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    let mut acc = [_mm512_setzero_ps(); T];
    let mut terms = [[_mm512_setzero_ps(); 8]; T];
    // SAFETY: rows below `live` exist, each with `supers` super-blocks; a token has 4 lines of planes and 8 scales
    // for each of them.
    unsafe {
        let x_scales = job.x.scales().as_ptr();
        for s in 0..supers {
            _mm_prefetch::<_MM_HINT_T1>(job.weights.scales.address(first + TILE * (supers + s)).cast());
            for p in 0..live.div_ceil(2) {
                let (a, b) = (2 * p, (2 * p + 1).min(live - 1));
                let mut sums = [[zero; T]; 2];
                for (i, (row, sums)) in [a, b].into_iter().zip(&mut sums).enumerate() {
                    prefetch(job, first + TILE * (supers + s) + 2 * p + i);
                    let planes = planes(job, &r, first + row * supers + s);
                    for (t, sum) in sums.iter_mut().enumerate() {
                        for (j, (magnitudes, negative)) in planes.into_iter().enumerate() {
                            let x = *x_planes.add((t * supers + s) * PLANES + j);
                            let x = _mm512_mask_sub_epi8(x, negative, zero, x);
                            *sum = _mm512_dpbusd_epi32(*sum, magnitudes, x);
                        }
                    }
                }
                let scales = pair_scales(job, first + a * supers + s, first + b * supers + s);
                for (t, terms) in terms.iter_mut().enumerate() {
                    let (a, b) = (sums[0][t], sums[1][t]);
                    let dots = _mm512_add_epi32(
                        _mm512_permutex2var_epi32(a, even, b),
                        _mm512_permutex2var_epi32(a, odd, b),
                    );
                    let x_scales =
                        _mm512_broadcast_f32x8(_mm256_loadu_ps(x_scales.add((t * supers + s) * SUBS)));
                    terms[p] = _mm512_mul_ps(_mm512_cvtepi32_ps(dots), _mm512_mul_ps(scales, x_scales));
                }
            }
            for (acc, terms) in acc.iter_mut().zip(&terms) {
                for term in by_sub_block(*terms) {
                    *acc = _mm512_add_ps(*acc, term);
                }
            }
        }
        for (t, acc) in acc.into_iter().enumerate() {
            let mask = ((1u32 << live) - 1) as __mmask16;
            _mm512_mask_storeu_ps(job.y.at(t * job.rows + tile * TILE), mask, rows_in_order(acc));
        }
    }
}

/// A tile's scales as `[cols/32][16 rows]` and its weights as `[cols/4][16 rows][4]`, each + 128. Rows that do not
/// exist get the weight and the scale 0.
///
/// # Safety
/// The features; the tile exists; cols/32 lines at `scales`, cols/4 at `weights`, aligned.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,f16c")]
unsafe fn expand(job: &Job<'_>, tables: &Tables, tile: usize, scales: *mut __m512, weights: *mut __m512i) {
    let supers = job.supers();
    let live = job.live(tile);
    let first = tile * TILE * supers;
    let r = Registers::load(tables);
    let flip = _mm512_set1_epi8(-128);
    let mut row_scales = [_mm512_setzero_ps(); 8];
    // [q][row]: dword 4·lane + e is index 16·lane + 4q + e of the row.
    let mut dwords = [[flip; TILE]; 4];
    // SAFETY: rows below `live` exist, each with `supers` super-blocks, which have 8 lines of scales and 64 of
    // weights each.
    unsafe {
        for s in 0..supers {
            _mm_prefetch::<_MM_HINT_T1>(job.weights.scales.address(first + TILE * (supers + s)).cast());
            let [q0, q1, q2, q3] = &mut dwords;
            let rows = q0.iter_mut().zip(q1).zip(q2.iter_mut().zip(q3)).take(live);
            for (row, ((q0, q1), (q2, q3))) in rows.enumerate() {
                prefetch(job, first + TILE * (supers + s) + row);
                let planes = planes(job, &r, first + row * supers + s);
                let mut biased = [flip; PLANES];
                for (biased, (magnitudes, negative)) in biased.iter_mut().zip(planes) {
                    let up = _mm512_add_epi8(flip, magnitudes);
                    *biased = _mm512_mask_sub_epi8(up, negative, flip, magnitudes);
                }
                let [a, b, c, d] = biased;
                let (ab_low, ab_high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
                let (cd_low, cd_high) = (_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d));
                *q0 = _mm512_unpacklo_epi16(ab_low, cd_low);
                *q1 = _mm512_unpackhi_epi16(ab_low, cd_low);
                *q2 = _mm512_unpacklo_epi16(ab_high, cd_high);
                *q3 = _mm512_unpackhi_epi16(ab_high, cd_high);
            }
            for (q, dwords) in dwords.iter().enumerate() {
                for (i, line) in q8::transpose(*dwords).into_iter().enumerate() {
                    *weights.add(s * INDICES + 16 * (i / 4) + 4 * q + i % 4) = line;
                }
            }
            for (p, scales) in row_scales.iter_mut().enumerate().take(live.div_ceil(2)) {
                let (a, b) = (2 * p, (2 * p + 1).min(live - 1));
                *scales = pair_scales(job, first + a * supers + s, first + b * supers + s);
            }
            for (i, line) in by_sub_block(row_scales).into_iter().enumerate() {
                *scales.add(s * SUBS + i) = rows_in_order(line);
            }
        }
    }
}
