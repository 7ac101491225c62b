//! AVX-512 F, BW and VL: sixteen blocks at a time, so that their scales are computed in one vector.
//!
//! Each f32 operation gives the scalar truth's bits: the one fused multiply-add is x − d·q, whose product is exact.

use super::portable::{self, BELOW_HALF};
use super::{AHEAD, Float, MAGNITUDE, nearest, prefetch};
use crate::q8_0::{LEN, Stats};
use gantry_formats::block::GgmlType;
use std::arch::x86_64::*;

/// Blocks per batch: one per lane.
const LANES: usize = 16;

/// Batches whose scales are computed before any is quantized: divisions take long, and so none waits for another's.
const AT_ONCE: usize = 2;

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

/// Sixteen of a block's 32 values, `part` 0 or 1, for `FLOAT` 0 = F32, 1 = F16 in `SIZE` bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn load<const FLOAT: u8, const SIZE: usize>(block: &[u8; SIZE], part: usize) -> __m512 {
    const { assert!(SIZE == if FLOAT == 0 { 4 * LEN } else { 2 * LEN }) };
    let at = block[SIZE / 2 * part..][..SIZE / 2].as_ptr();
    // SAFETY: SIZE / 2 bytes are there: 64 for F32, 32 for F16, which is what is read, unaligned.
    unsafe {
        if FLOAT == 0 { _mm512_loadu_ps(at.cast()) } else { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }
}

/// A block's 32 values, for `FLOAT` 0 = F32, 1 = F16, 2 = BF16: the two halves, but for BF16 the even values and the odd ones, which need no unpacking.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn values<const FLOAT: u8, const SIZE: usize>(block: &[u8; SIZE]) -> [__m512; 2] {
    if FLOAT == 2 {
        // SAFETY: the block is 64 bytes.
        let pairs = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        let [even, odd] =
            [_mm512_slli_epi32::<16>(pairs), _mm512_and_si512(pairs, _mm512_set1_epi32(!0xffff))];
        return [_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd)];
    }
    [load::<FLOAT, SIZE>(block, 0), load::<FLOAT, SIZE>(block, 1)]
}

/// Stores the low bytes of 32 integers that are in the order of [`values`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn put<const FLOAT: u8>(q: [__m512i; 2], quants: &mut [u8; LEN]) {
    let to = quants.as_mut_ptr();
    // SAFETY: `quants` is 32 bytes.
    unsafe {
        if FLOAT == 2 {
            let words = _mm512_mask_blend_epi16(0xaaaa_aaaa, q[0], _mm512_slli_epi32::<16>(q[1]));
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi16_epi8(words));
        } else {
            _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(q[0]));
            _mm_storeu_si128(to.add(16).cast(), _mm512_cvtepi32_epi8(q[1]));
        }
    }
}

/// Magnitudes of which the largest, as [`max`] and [`widen`] have it, is the block's.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn tops<const FLOAT: u8, const SIZE: usize>(block: &[u8; SIZE]) -> __m512i {
    if FLOAT == 2 {
        // SAFETY: the block is 64 bytes.
        let pairs = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        return _mm512_and_si512(pairs, _mm512_set1_epi32(0x7fff_7fff));
    }
    let magnitude = _mm512_set1_epi32(MAGNITUDE);
    let low = _mm512_and_si512(_mm512_castps_si512(load::<FLOAT, SIZE>(block, 0)), magnitude);
    let high = _mm512_and_si512(_mm512_castps_si512(load::<FLOAT, SIZE>(block, 1)), magnitude);
    _mm512_max_epu32(low, high)
}

/// The larger ones: of u16 for BF16, of u32 for others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn max<const FLOAT: u8>(a: __m512i, b: __m512i) -> __m512i {
    if FLOAT == 2 { _mm512_max_epu16(a, b) } else { _mm512_max_epu32(a, b) }
}

/// The bits of an f32 in each lane: for BF16 of the larger of the two there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn widen<const FLOAT: u8>(v: __m512i) -> __m512i {
    if FLOAT != 2 {
        return v;
    }
    _mm512_max_epu32(_mm512_slli_epi32::<16>(v), _mm512_and_si512(v, _mm512_set1_epi32(!0xffff)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn max_of_pairs<const FLOAT: u8>(a: __m512i, b: __m512i) -> __m512i {
    max::<FLOAT>(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn max_of_quads<const FLOAT: u8>(a: __m512i, b: __m512i) -> __m512i {
    max::<FLOAT>(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn max_of_quarters<const FLOAT: u8>(a: __m512i, b: __m512i) -> __m512i {
    max::<FLOAT>(_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b))
}

/// Lane i of the result is the largest of `v[i]`, as [`max`] has it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn maxima<const FLOAT: u8>(v: [__m512i; LANES]) -> __m512i {
    let mut quads = [_mm512_setzero_si512(); 4];
    for (quad, v) in quads.iter_mut().zip(v.as_chunks::<4>().0) {
        let pairs = [max_of_pairs::<FLOAT>(v[0], v[1]), max_of_pairs::<FLOAT>(v[2], v[3])];
        *quad = max_of_quads::<FLOAT>(pairs[0], pairs[1]);
    }
    let low = max_of_quarters::<FLOAT>(quads[0], quads[1]);
    max_of_quarters::<FLOAT>(low, max_of_quarters::<FLOAT>(quads[2], quads[3]))
}

/// What a batch is quantized with.
#[derive(Clone, Copy)]
struct Batch {
    amax: __m512,
    ids: [f32; LANES],
    ds: [f32; LANES],
    /// Whether `ids` are [`nearest::reciprocal`]'s.
    near: bool,
}

/// Writes a batch's scales; `None` where a block has no Q8_0 form.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn scale<const FLOAT: u8, const SIZE: usize>(
    blocks: &[[u8; SIZE]; LANES],
    scales: &mut [u8; 2 * LANES],
    stats: &mut Stats,
) -> Option<Batch> {
    let mut top = [_mm512_setzero_si512(); LANES];
    for (top, block) in top.iter_mut().zip(blocks) {
        *top = tops::<FLOAT, SIZE>(block);
        prefetch(block, AHEAD);
    }
    let amax = _mm512_castsi512_ps(widen::<FLOAT>(maxima::<FLOAT>(top)));
    let d = _mm512_div_ps(amax, _mm512_set1_ps(127.0));
    let reciprocal = _mm512_div_ps(_mm512_set1_ps(1.0), d);
    let finite = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(reciprocal, _mm512_set1_ps(f32::INFINITY));
    let id = _mm512_maskz_mov_ps(finite, reciprocal);
    let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(d);
    let stored = _mm512_cvtph_ps(halves);
    // A NaN or an infinity in the block, or a scale that overflows, gives a stored scale at or above infinity.
    if _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(stored, _mm512_set1_ps(f32::INFINITY)) != 0 {
        return None;
    }
    let zero = _mm512_setzero_ps();
    let is_zero = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(stored, zero);
    let lost = is_zero & _mm512_cmp_ps_mask::<_CMP_GT_OQ>(amax, zero);
    let small = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(stored, _mm512_set1_ps(portable::SMALLEST_NORMAL_F16));
    if small != 0 {
        stats.lost += u64::from(lost.count_ones());
        stats.subnormal += u64::from((small & !is_zero).count_ones());
    }
    let tiny = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(amax, _mm512_set1_ps(nearest::SMALLEST));
    let near = FLOAT == 2 && tiny & _mm512_cmp_ps_mask::<_CMP_GT_OQ>(amax, zero) == 0;
    let id = if near {
        // `nearest::reciprocal`, all at once; a scale that is stored has no amax above its `LARGEST`.
        let less = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_mul_ps(amax, id), _mm512_set1_ps(127.0));
        let (away, towards) = (_mm512_set1_ps(nearest::AWAY), _mm512_set1_ps(nearest::TOWARDS));
        _mm512_mul_ps(id, _mm512_mask_blend_ps(less, away, towards))
    } else {
        id
    };
    // SAFETY: `scales` is 32 bytes, and both arrays are 16 f32.
    let (ids, ds) = unsafe {
        _mm256_storeu_si256(scales.as_mut_ptr().cast(), halves);
        let (mut ids, mut ds) = ([0.0_f32; LANES], [0.0_f32; LANES]);
        _mm512_storeu_ps(ids.as_mut_ptr(), id);
        _mm512_storeu_ps(ds.as_mut_ptr(), stored);
        (ids, ds)
    };
    Some(Batch { amax, ids, ds, near })
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
    let outs = quant_batches.chunks_mut(AT_ONCE).zip(scale_batches.chunks_mut(AT_ONCE));
    for (i, (batches, (quants, scales))) in batches.chunks(AT_ONCE).zip(outs).enumerate() {
        let none = Batch { amax: _mm512_setzero_ps(), ids: [0.0; LANES], ds: [0.0; LANES], near: false };
        let mut scaled = [none; AT_ONCE];
        for (j, (batch, (blocks, scales))) in scaled.iter_mut().zip(batches.iter().zip(scales)).enumerate() {
            let first = (i * AT_ONCE + j) * LANES;
            *batch = scale::<FLOAT, SIZE>(blocks, scales, &mut stats).ok_or(first)?;
        }
        for (batch, (blocks, quants)) in scaled.iter().zip(batches.iter().zip(quants)) {
            let mut worst = [_mm512_setzero_si512(); LANES];
            if batch.near {
                for lane in 0..LANES {
                    worst[lane] = nearest::<FLOAT, SIZE>(
                        &blocks[lane],
                        batch.ids[lane],
                        batch.ds[lane],
                        &mut quants[lane],
                    );
                }
            } else {
                for lane in 0..LANES {
                    worst[lane] =
                        one::<FLOAT, SIZE>(&blocks[lane], batch.ids[lane], batch.ds[lane], &mut quants[lane]);
                }
            }
            let worst = maxima::<0>(worst);
            errors = _mm512_max_epu32(errors, worst);
            // The first operand of `max` gives way to the second where it is NaN: 0/0, an all-zero block.
            relative = _mm512_max_ps(_mm512_div_ps(_mm512_castsi512_ps(worst), batch.amax), relative);
        }
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

/// As [`one`], for BF16 and with the `id` that [`nearest::reciprocal`] gives.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn nearest<const FLOAT: u8, const SIZE: usize>(
    block: &[u8; SIZE],
    id: f32,
    d: f32,
    quants: &mut [u8; LEN],
) -> __m512i {
    let magnitude = _mm512_set1_epi32(MAGNITUDE);
    let (id, d, round) = (_mm512_set1_ps(id), _mm512_set1_ps(d), _mm512_set1_ps(nearest::ROUND));
    let mut errors = _mm512_setzero_si512();
    let mut q = [_mm512_setzero_si512(); 2];
    for (q, x) in q.iter_mut().zip(values::<FLOAT, SIZE>(block)) {
        let sum = _mm512_fmadd_ps(x, id, round);
        *q = _mm512_castps_si512(sum);
        let error = _mm512_fnmadd_ps(d, _mm512_sub_ps(sum, round), x);
        errors = _mm512_max_epu32(errors, _mm512_and_si512(_mm512_castps_si512(error), magnitude));
    }
    put::<FLOAT>(q, quants);
    errors
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
    let mut errors = _mm512_setzero_si512();
    let mut q = [_mm512_setzero_si512(); 2];
    for (q, x) in q.iter_mut().zip(values::<FLOAT, SIZE>(block)) {
        let y = _mm512_mul_ps(x, id);
        // magnitude ? below_half : y, bit by bit: the constant with y's sign.
        let half = _mm512_ternarylogic_epi32::<0xca>(magnitude, below_half, _mm512_castps_si512(y));
        *q = _mm512_cvttps_epi32(_mm512_add_ps(y, _mm512_castsi512_ps(half)));
        let error = _mm512_fnmadd_ps(d, _mm512_cvtepi32_ps(*q), x);
        errors = _mm512_max_epu32(errors, _mm512_and_si512(_mm512_castps_si512(error), magnitude));
    }
    put::<FLOAT>(q, quants);
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
