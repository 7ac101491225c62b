//! AVX-512 F, BW and VL: sixteen blocks at a time, so that their scales are computed in one vector.
//!
//! Each f32 operation gives the scalar truth's bits: the one fused multiply-add is x − d·q, whose product is exact.

use super::portable::{self, BELOW_HALF};
use super::{Float, MAGNITUDE};
use crate::q8_0::{LEN, Stats};
use gantry_formats::block::GgmlType;
use std::arch::x86_64::*;

/// Blocks per batch: one per lane.
const LANES: usize = 16;

/// [`super::Level::quantize`].
///
/// # Safety
/// The CPU has AVX-512 F, BW and VL: the caller's `Level` says so.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn quantize(
    float: Float,
    src: &[u8],
    quants: &mut [u8],
    scales: &mut [u8],
) -> Result<Stats, usize> {
    match float {
        Float::F32 => run::<0, { 4 * LEN }>(src, quants, scales),
        Float::F16 => run::<1, { 2 * LEN }>(src, quants, scales),
        Float::Bf16 => run::<2, { 2 * LEN }>(src, quants, scales),
    }
}

/// Sixteen of a block's 32 values, `part` 0 or 1, for `FLOAT` 0 = F32, 1 = F16, 2 = BF16 in `SIZE` bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn load<const FLOAT: u8, const SIZE: usize>(block: &[u8; SIZE], part: usize) -> __m512 {
    const { assert!(SIZE == if FLOAT == 0 { 4 * LEN } else { 2 * LEN }) };
    let at = block[SIZE / 2 * part..][..SIZE / 2].as_ptr();
    // SAFETY: SIZE / 2 bytes are there: 64 for F32, 32 for the halves, which is what is read, unaligned.
    unsafe {
        match FLOAT {
            0 => _mm512_loadu_ps(at.cast()),
            1 => _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())),
            _ => {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }
    }
}

/// Magnitudes of which the largest is the block's.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn tops<const FLOAT: u8, const SIZE: usize>(block: &[u8; SIZE]) -> __m512i {
    let magnitude = _mm512_set1_epi32(MAGNITUDE);
    if FLOAT == 2 {
        // In place, without unpacking: the even values of the block moved up, the odd ones masked out.
        // SAFETY: the block is 64 bytes.
        let pairs = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(0x7fff_0000));
        let even = _mm512_and_si512(_mm512_slli_epi32::<16>(pairs), magnitude);
        return _mm512_max_epu32(odd, even);
    }
    let low = _mm512_and_si512(_mm512_castps_si512(load::<FLOAT, SIZE>(block, 0)), magnitude);
    let high = _mm512_and_si512(_mm512_castps_si512(load::<FLOAT, SIZE>(block, 1)), magnitude);
    _mm512_max_epu32(low, high)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn max_of_pairs(a: __m512i, b: __m512i) -> __m512i {
    _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn max_of_quads(a: __m512i, b: __m512i) -> __m512i {
    _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn max_of_quarters(a: __m512i, b: __m512i) -> __m512i {
    _mm512_max_epu32(_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b))
}

/// Lane i of the result is the largest u32 of `v[i]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn maxima(v: [__m512i; LANES]) -> __m512i {
    let mut quads = [_mm512_setzero_si512(); 4];
    for (quad, v) in quads.iter_mut().zip(v.as_chunks::<4>().0) {
        *quad = max_of_quads(max_of_pairs(v[0], v[1]), max_of_pairs(v[2], v[3]));
    }
    max_of_quarters(max_of_quarters(quads[0], quads[1]), max_of_quarters(quads[2], quads[3]))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn run<const FLOAT: u8, const SIZE: usize>(
    src: &[u8],
    quants: &mut [u8],
    scales: &mut [u8],
) -> Result<Stats, usize> {
    let mut stats = Stats::default();
    let mut errors = _mm512_setzero_si512();
    let mut relative = _mm512_setzero_ps();
    let (batches, rest) = src.as_chunks::<SIZE>().0.as_chunks::<LANES>();
    let (quant_batches, quants_rest) = quants.as_chunks_mut::<LEN>().0.as_chunks_mut::<LANES>();
    let (scale_batches, scales_rest) = scales.as_chunks_mut::<{ 2 * LANES }>();
    for (i, (blocks, (quants, scales))) in
        batches.iter().zip(quant_batches.iter_mut().zip(scale_batches)).enumerate()
    {
        let mut top = [_mm512_setzero_si512(); LANES];
        for (top, block) in top.iter_mut().zip(blocks) {
            *top = tops::<FLOAT, SIZE>(block);
        }
        let amax = _mm512_castsi512_ps(maxima(top));
        let d = _mm512_div_ps(amax, _mm512_set1_ps(127.0));
        let reciprocal = _mm512_div_ps(_mm512_set1_ps(1.0), d);
        let finite = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(reciprocal, _mm512_set1_ps(f32::INFINITY));
        let id = _mm512_maskz_mov_ps(finite, reciprocal);
        let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(d);
        let stored = _mm512_cvtph_ps(halves);
        // A NaN or an infinity in the block, or a scale that overflows, gives a stored scale at or above infinity.
        if _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(stored, _mm512_set1_ps(f32::INFINITY)) != 0 {
            return Err(i * LANES);
        }
        let zero = _mm512_setzero_ps();
        let is_zero = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(stored, zero);
        let lost = is_zero & _mm512_cmp_ps_mask::<_CMP_GT_OQ>(amax, zero);
        let small = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(stored, _mm512_set1_ps(portable::SMALLEST_NORMAL_F16));
        stats.lost += u64::from(lost.count_ones());
        stats.subnormal += u64::from((small & !is_zero).count_ones());
        // SAFETY: `scales` is 32 bytes, and both arrays are 16 f32.
        let (ids, ds) = unsafe {
            _mm256_storeu_si256(scales.as_mut_ptr().cast(), halves);
            let (mut ids, mut ds) = ([0.0_f32; LANES], [0.0_f32; LANES]);
            _mm512_storeu_ps(ids.as_mut_ptr(), id);
            _mm512_storeu_ps(ds.as_mut_ptr(), stored);
            (ids, ds)
        };
        let mut worst = [_mm512_setzero_si512(); LANES];
        for lane in 0..LANES {
            worst[lane] = one::<FLOAT, SIZE>(&blocks[lane], ids[lane], ds[lane], &mut quants[lane]);
        }
        let worst = maxima(worst);
        errors = _mm512_max_epu32(errors, worst);
        // The first operand of `max` gives way to the second where it is NaN: 0/0, an all-zero block.
        relative = _mm512_max_ps(_mm512_div_ps(_mm512_castsi512_ps(worst), amax), relative);
    }
    stats.blocks = (batches.len() * LANES) as u64;
    stats.max_abs_error = f32::from_bits(_mm512_reduce_max_epu32(errors));
    stats.max_rel_error = _mm512_reduce_max_ps(relative);
    let tail = portable::quantize(
        [Float::F32, Float::F16, Float::Bf16][FLOAT as usize],
        rest.as_flattened(),
        quants_rest.as_flattened_mut(),
        scales_rest,
    );
    stats.merge(&tail.map_err(|block| batches.len() * LANES + block)?);
    Ok(stats)
}

/// Writes one block's quants; gives the magnitudes of sixteen maxima of its errors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn one<const FLOAT: u8, const SIZE: usize>(
    block: &[u8; SIZE],
    id: f32,
    d: f32,
    quants: &mut [u8; LEN],
) -> __m512i {
    let magnitude = _mm512_set1_epi32(MAGNITUDE);
    let below_half = _mm512_castps_si512(_mm512_set1_ps(BELOW_HALF));
    let (id, d) = (_mm512_set1_ps(id), _mm512_set1_ps(d));
    let (halves, _) = quants.as_chunks_mut::<16>();
    let mut errors = _mm512_setzero_si512();
    for (part, quants) in halves.iter_mut().enumerate() {
        let x = load::<FLOAT, SIZE>(block, part);
        let y = _mm512_mul_ps(x, id);
        // magnitude ? below_half : y, bit by bit: the constant with y's sign.
        let half = _mm512_ternarylogic_epi32::<0xca>(magnitude, below_half, _mm512_castps_si512(y));
        let q = _mm512_cvttps_epi32(_mm512_add_ps(y, _mm512_castsi512_ps(half)));
        let error = _mm512_fnmadd_ps(d, _mm512_cvtepi32_ps(q), x);
        errors = _mm512_max_epu32(errors, _mm512_and_si512(_mm512_castps_si512(error), magnitude));
        // SAFETY: `quants` is 16 bytes.
        unsafe { _mm_storeu_si128(quants.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(q)) };
    }
    errors
}

/// [`super::Level::any_non_finite`]: the portable code, compiled for wider vectors.
///
/// # Safety
/// The CPU has AVX-512 F, BW and VL: the caller's `Level` says so.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn any_non_finite(ty: GgmlType, bytes: &[u8]) -> bool {
    portable::any_non_finite(ty, bytes)
}
