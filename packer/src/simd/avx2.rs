//! AVX2 and F16C: eight blocks at a time, so that their scales are computed in one vector.
//!
//! Each f32 operation is the scalar truth's own, rounded the same way: no fused multiply-add, and d·q is exact.

use super::portable::{self, BELOW_HALF};
use super::{AHEAD, Float, MAGNITUDE, nearest, prefetch};
use crate::q8_0::{BYTES, LEN, Stats};
use gantry_formats::block::GgmlType;
use std::arch::x86_64::*;

/// Blocks per batch: one per lane.
const LANES: usize = 8;

/// Batches whose scales are computed before any is quantized: divisions take long, and so none waits for another's.
const AT_ONCE: usize = 4;

/// [`super::Level::quantize`].
///
/// # Safety
/// The CPU has AVX2, F16C and FMA: the caller's `Level` says so.
#[target_feature(enable = "avx2,f16c,fma")]
pub(super) unsafe fn quantize(
    float: Float,
    src: &[u8],
    planes: (&mut [u8], &mut [u8]),
    known: &Stats,
) -> Result<Stats, usize> {
    match float {
        Float::F32 => run::<0, { 4 * LEN }>(src, planes, known),
        Float::F16 => run::<1, { 2 * LEN }>(src, planes, known),
        Float::Bf16 => run::<2, { 2 * LEN }>(src, planes, known),
    }
}

/// Eight of a block's 32 values, `part` 0..4, for `FLOAT` 0 = F32, 1 = F16 in `SIZE` bytes.
///
/// Loops here are plain ones over arrays: closures given to `map` or `from_fn` were not inlined, at a tenth of the
/// speed.
#[inline]
#[target_feature(enable = "avx2,f16c,fma")]
fn load<const FLOAT: u8, const SIZE: usize>(block: &[u8; SIZE], part: usize) -> __m256 {
    const { assert!(SIZE == if FLOAT == 0 { 4 * LEN } else { 2 * LEN }) };
    let at = block[SIZE / 4 * part..][..SIZE / 4].as_ptr();
    // SAFETY: SIZE / 4 bytes are there: 32 for F32, 16 for F16, which is what is read, unaligned.
    unsafe {
        if FLOAT == 0 { _mm256_loadu_ps(at.cast()) } else { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }
}

/// A block's 32 values, for `FLOAT` 0 = F32, 1 = F16, 2 = BF16: the four quarters, but for BF16 the even values of each half and the odd ones, which need no
/// unpacking.
#[inline]
#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn values<const FLOAT: u8, const SIZE: usize>(block: &[u8; SIZE]) -> [__m256; 4] {
    if FLOAT == 2 {
        let odd = _mm256_set1_epi32(!0xffff);
        let [low, high] = halves(block);
        return [
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
            _mm256_castsi256_ps(_mm256_and_si256(low, odd)),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            _mm256_castsi256_ps(_mm256_and_si256(high, odd)),
        ];
    }
    [
        load::<FLOAT, SIZE>(block, 0),
        load::<FLOAT, SIZE>(block, 1),
        load::<FLOAT, SIZE>(block, 2),
        load::<FLOAT, SIZE>(block, 3),
    ]
}

/// The first 64 bytes of a block.
#[inline]
#[target_feature(enable = "avx2")]
fn halves<const SIZE: usize>(block: &[u8; SIZE]) -> [__m256i; 2] {
    const { assert!(SIZE >= 64) };
    // SAFETY: 64 bytes are there.
    unsafe { [_mm256_loadu_si256(block.as_ptr().cast()), _mm256_loadu_si256(block.as_ptr().add(32).cast())] }
}

/// Stores 32 integers from −128 to 127 that are in the order of [`values`].
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn put<const FLOAT: u8>(q: [__m256i; 4], quants: &mut [u8; LEN]) {
    // Packing works within 128-bit halves.
    let bytes = if FLOAT == 2 {
        let low = _mm256_blend_epi16::<0xaa>(q[0], _mm256_slli_epi32::<16>(q[1]));
        let high = _mm256_blend_epi16::<0xaa>(q[2], _mm256_slli_epi32::<16>(q[3]));
        // Quadwords come out as 0 2 1 3.
        _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(low, high))
    } else {
        let words = [_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])];
        // Dwords come out as 0 2 4 6 1 3 5 7.
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words[0], words[1]), order)
    };
    // SAFETY: `quants` is 32 bytes.
    unsafe { _mm256_storeu_si256(quants.as_mut_ptr().cast(), bytes) };
}

/// Magnitudes of which the largest, as [`max`] and [`widen`] have it, is the block's.
#[inline]
#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn tops<const FLOAT: u8, const SIZE: usize>(block: &[u8; SIZE]) -> __m256i {
    if FLOAT == 2 {
        let magnitude = _mm256_set1_epi32(0x7fff_7fff);
        let [low, high] = halves(block);
        return _mm256_max_epu16(_mm256_and_si256(low, magnitude), _mm256_and_si256(high, magnitude));
    }
    let mut top = _mm256_setzero_si256();
    for x in values::<FLOAT, SIZE>(block) {
        let bits = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(MAGNITUDE));
        top = _mm256_max_epu32(top, bits);
    }
    top
}

/// The larger ones: of u16 for BF16, of u32 for others.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn max<const FLOAT: u8>(a: __m256i, b: __m256i) -> __m256i {
    if FLOAT == 2 { _mm256_max_epu16(a, b) } else { _mm256_max_epu32(a, b) }
}

/// The bits of an f32 in each lane: for BF16 of the larger of the two there.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn widen<const FLOAT: u8>(v: __m256i) -> __m256i {
    if FLOAT != 2 {
        return v;
    }
    _mm256_max_epu32(_mm256_slli_epi32::<16>(v), _mm256_and_si256(v, _mm256_set1_epi32(!0xffff)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn max_of_pairs<const FLOAT: u8>(a: __m256i, b: __m256i) -> __m256i {
    max::<FLOAT>(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn max_of_quads<const FLOAT: u8>(a: __m256i, b: __m256i) -> __m256i {
    max::<FLOAT>(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b))
}

/// Lane i of the result is the largest of `v[i]`, as [`max`] has it.
#[inline]
#[target_feature(enable = "avx2")]
fn maxima<const FLOAT: u8>(v: [__m256i; LANES]) -> __m256i {
    let a = max_of_quads::<FLOAT>(max_of_pairs::<FLOAT>(v[0], v[1]), max_of_pairs::<FLOAT>(v[2], v[3]));
    let b = max_of_quads::<FLOAT>(max_of_pairs::<FLOAT>(v[4], v[5]), max_of_pairs::<FLOAT>(v[6], v[7]));
    max::<FLOAT>(_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b))
}

/// What a batch is quantized with.
#[derive(Clone, Copy)]
struct Batch {
    amax: __m256,
    ids: [f32; LANES],
    ds: [f32; LANES],
    /// Whether `ids` are [`nearest::reciprocal`]'s.
    near: bool,
    /// Whether no error can be larger than is known; only where `near`.
    known: bool,
}

/// Writes a batch's scales; `None` where a block has no Q8_0 form.
#[inline]
#[target_feature(enable = "avx2,f16c,fma")]
fn scale<const FLOAT: u8, const SIZE: usize>(
    blocks: &[[u8; SIZE]; LANES],
    scales: &mut [u8; 2 * LANES],
    stats: &mut Stats,
    known: (f32, f32),
    ahead: usize,
) -> Option<Batch> {
    let mut top = [_mm256_setzero_si256(); LANES];
    for (top, block) in top.iter_mut().zip(blocks) {
        *top = tops::<FLOAT, SIZE>(block);
        prefetch(block, ahead);
    }
    let amax = _mm256_castsi256_ps(widen::<FLOAT>(maxima::<FLOAT>(top)));
    let d = _mm256_div_ps(amax, _mm256_set1_ps(127.0));
    let reciprocal = _mm256_div_ps(_mm256_set1_ps(1.0), d);
    let infinite = _mm256_cmp_ps::<_CMP_EQ_OQ>(reciprocal, _mm256_set1_ps(f32::INFINITY));
    let id = _mm256_andnot_ps(infinite, reciprocal);
    let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(d);
    let stored = _mm256_cvtph_ps(halves);
    // A NaN or an infinity in the block, or a scale that overflows, gives a stored scale at or above infinity.
    let bad = _mm256_cmp_ps::<_CMP_NLT_UQ>(stored, _mm256_set1_ps(f32::INFINITY));
    if _mm256_movemask_ps(bad) != 0 {
        return None;
    }
    let zero = _mm256_setzero_ps();
    let is_zero = _mm256_cmp_ps::<_CMP_EQ_OQ>(stored, zero);
    let lost = _mm256_and_ps(is_zero, _mm256_cmp_ps::<_CMP_GT_OQ>(amax, zero));
    let small = _mm256_cmp_ps::<_CMP_LT_OQ>(stored, _mm256_set1_ps(portable::SMALLEST_NORMAL_F16));
    if _mm256_movemask_ps(small) != 0 {
        stats.lost += u64::from(_mm256_movemask_ps(lost).count_ones());
        stats.subnormal += u64::from(_mm256_movemask_ps(_mm256_andnot_ps(is_zero, small)).count_ones());
    }
    let tiny = _mm256_cmp_ps::<_CMP_LT_OQ>(amax, _mm256_set1_ps(nearest::SMALLEST));
    let tiny = _mm256_and_ps(tiny, _mm256_cmp_ps::<_CMP_GT_OQ>(amax, zero));
    let near = FLOAT == 2 && _mm256_movemask_ps(tiny) == 0;
    let known = near && _mm256_movemask_ps(small) == 0 && is_known(amax, known);
    let id = if near {
        // `nearest::reciprocal`, all at once; a scale that is stored has no amax above its `LARGEST`.
        let less = _mm256_cmp_ps::<_CMP_LT_OQ>(_mm256_mul_ps(amax, id), _mm256_set1_ps(127.0));
        let (away, towards) = (_mm256_set1_ps(nearest::AWAY), _mm256_set1_ps(nearest::TOWARDS));
        _mm256_mul_ps(id, _mm256_blendv_ps(away, towards, less))
    } else {
        id
    };
    // SAFETY: `scales` is 16 bytes, and both arrays are 8 f32.
    let (ids, ds) = unsafe {
        _mm_storeu_si128(scales.as_mut_ptr().cast(), halves);
        let (mut ids, mut ds) = ([0.0_f32; LANES], [0.0_f32; LANES]);
        _mm256_storeu_ps(ids.as_mut_ptr(), id);
        _mm256_storeu_ps(ds.as_mut_ptr(), stored);
        (ids, ds)
    };
    Some(Batch { amax, ids, ds, near, known })
}

/// Whether blocks of BF16 with normal scales cannot have larger errors than are known, by themselves and over `amax`.
#[inline]
#[target_feature(enable = "avx2,f16c,fma")]
fn is_known(amax: __m256, (error, ratio): (f32, f32)) -> bool {
    let worst: &[f32; 128] = &nearest::worst().block;
    let mantissa = _mm256_set1_epi32(0x7f);
    let at = _mm256_and_si256(_mm256_srli_epi32::<16>(_mm256_castps_si256(amax)), mantissa);
    // SAFETY: every index is below 128.
    let most = unsafe { _mm256_i32gather_ps::<4>(worst.as_ptr(), at) };
    let larger = _mm256_cmp_ps::<_CMP_GT_OQ>(most, _mm256_set1_ps(ratio));
    let most = _mm256_mul_ps(_mm256_mul_ps(most, amax), _mm256_set1_ps(nearest::ROUNDED));
    let larger = _mm256_or_ps(larger, _mm256_cmp_ps::<_CMP_GT_OQ>(most, _mm256_set1_ps(error)));
    _mm256_movemask_ps(larger) == 0
}

/// A batch's blocks, where its quants go, and where its scales go.
type Part<'a, const SIZE: usize> =
    ((&'a [[u8; SIZE]; LANES], &'a mut [[u8; LEN]; LANES]), &'a mut [u8; 2 * LANES]);

/// What was found so far.
struct Found {
    stats: Stats,
    /// Errors, and ratios, up to which none is looked for.
    known: (f32, f32),
    errors: __m256i,
    relative: __m256,
    /// Bytes that are asked for ahead.
    ahead: usize,
}

impl Found {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(known: &Stats, ahead: usize) -> Self {
        Self {
            stats: Stats::default(),
            known: (known.max_abs_error, known.max_rel_error),
            errors: _mm256_setzero_si256(),
            relative: _mm256_setzero_ps(),
            ahead,
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn stats(self) -> Stats {
        let (max_abs_error, max_rel_error) = largest(self.errors, self.relative);
        Stats { max_abs_error, max_rel_error, ..self.stats }
    }
}

/// Quantizes the batches that are there, the first ones. The error is the number of one that has no Q8_0 form.
#[inline]
#[target_feature(enable = "avx2,f16c,fma")]
fn turn<const FLOAT: u8, const SIZE: usize>(
    found: &mut Found,
    mut parts: [Option<Part<'_, SIZE>>; AT_ONCE],
) -> Result<(), usize> {
    let none =
        Batch { amax: _mm256_setzero_ps(), ids: [0.0; LANES], ds: [0.0; LANES], near: false, known: false };
    let mut scaled = [none; AT_ONCE];
    for (j, (batch, part)) in scaled.iter_mut().zip(&mut parts).enumerate() {
        let Some(((blocks, _), scales)) = part else { break };
        *batch = scale::<FLOAT, SIZE>(blocks, scales, &mut found.stats, found.known, found.ahead).ok_or(j)?;
        found.stats.blocks += LANES as u64;
    }
    for (batch, part) in scaled.iter().zip(&mut parts) {
        let Some(((blocks, quants), _)) = part else { break };
        if batch.known {
            for lane in 0..LANES {
                plain::<FLOAT, SIZE>(&blocks[lane], batch.ids[lane], &mut quants[lane]);
            }
            continue;
        }
        let mut worst = [_mm256_setzero_si256(); LANES];
        for lane in 0..LANES {
            let (id, d) = (batch.ids[lane], batch.ds[lane]);
            worst[lane] = if batch.near {
                nearest::<FLOAT, SIZE>(&blocks[lane], id, d, &mut quants[lane])
            } else {
                one::<FLOAT, SIZE>(&blocks[lane], id, d, &mut quants[lane])
            };
        }
        let worst = maxima::<0>(worst);
        found.errors = _mm256_max_epu32(found.errors, worst);
        // The first operand of `max` gives way to the second where it is NaN: 0/0, an all-zero block.
        let ratio = _mm256_div_ps(_mm256_castsi256_ps(worst), batch.amax);
        found.relative = _mm256_max_ps(ratio, found.relative);
        if batch.near {
            let (error, ratio) = largest(found.errors, found.relative);
            found.known = (found.known.0.max(error), found.known.1.max(ratio));
        }
    }
    Ok(())
}

#[inline]
#[target_feature(enable = "avx2,f16c,fma")]
fn run<const FLOAT: u8, const SIZE: usize>(
    src: &[u8],
    (quants, scales): (&mut [u8], &mut [u8]),
    known: &Stats,
) -> Result<Stats, usize> {
    let mut found = Found::new(known, AHEAD);
    let (batches, rest) = src.as_chunks::<SIZE>().0.as_chunks::<LANES>();
    let (quant_batches, quants_rest) = quants.as_chunks_mut::<LEN>().0.as_chunks_mut::<LANES>();
    let (scale_batches, scales_rest) = scales.as_chunks_mut::<{ 2 * LANES }>();
    let mut parts = batches.iter().zip(quant_batches).zip(scale_batches);
    for first in (0..batches.len()).step_by(AT_ONCE) {
        let parts = [parts.next(), parts.next(), parts.next(), parts.next()];
        turn::<FLOAT, SIZE>(&mut found, parts).map_err(|j| (first + j) * LANES)?;
    }
    let mut stats = found.stats();
    let tail = portable::quantize(
        [Float::F32, Float::F16, Float::Bf16][FLOAT as usize],
        rest.as_flattened(),
        quants_rest.as_flattened_mut(),
        scales_rest,
    );
    stats.merge(&tail.map_err(|block| batches.len() * LANES + block)?);
    Ok(stats)
}

/// [`super::Level::quantize_four`], for whole batches.
///
/// # Safety
/// The CPU has AVX2, F16C and FMA: the caller's `Level` says so.
#[target_feature(enable = "avx2,f16c,fma")]
pub(super) unsafe fn quantize_four(
    rows: [&[u8]; AT_ONCE],
    planes: [(&mut [u8], &mut [u8]); AT_ONCE],
    known: &Stats,
) -> Option<Stats> {
    // The rows share what one alone would ask for.
    let mut found = Found::new(known, AHEAD / AT_ONCE);
    let [mut a, mut b, mut c, mut d] = {
        let mut rows = rows.into_iter();
        planes.map(|(quants, scales)| {
            let batches = rows.next().unwrap_or_default().as_chunks::<{ 2 * LEN }>().0.as_chunks::<LANES>().0;
            let quants = quants.as_chunks_mut::<LEN>().0.as_chunks_mut::<LANES>().0;
            batches.iter().zip(quants).zip(scales.as_chunks_mut::<{ 2 * LANES }>().0)
        })
    };
    for _ in 0..a.len() {
        turn::<2, { 2 * LEN }>(&mut found, [a.next(), b.next(), c.next(), d.next()]).ok()?;
    }
    Some(found.stats())
}

/// The largest of eight errors and of eight ratios, none of them negative.
#[inline]
#[target_feature(enable = "avx2")]
fn largest(errors: __m256i, ratios: __m256) -> (f32, f32) {
    let (mut bits, mut each) = ([0_u32; LANES], [0.0_f32; LANES]);
    // SAFETY: both arrays are 32 bytes.
    unsafe {
        _mm256_storeu_si256(bits.as_mut_ptr().cast(), errors);
        _mm256_storeu_ps(each.as_mut_ptr(), ratios);
    }
    (f32::from_bits(bits.into_iter().fold(0, u32::max)), each.into_iter().fold(0.0, f32::max))
}

/// As [`nearest`], without errors.
#[inline]
#[target_feature(enable = "avx2,f16c,fma")]
fn plain<const FLOAT: u8, const SIZE: usize>(block: &[u8; SIZE], id: f32, quants: &mut [u8; LEN]) {
    let (id, round) = (_mm256_set1_ps(id), _mm256_set1_ps(nearest::ROUND));
    let mut q = [_mm256_setzero_si256(); 4];
    for (q, x) in q.iter_mut().zip(values::<FLOAT, SIZE>(block)) {
        *q = _mm256_castps_si256(_mm256_fmadd_ps(x, id, round));
    }
    put::<FLOAT>(q, quants);
}

/// As [`one`], for BF16 and with the `id` that [`nearest::reciprocal`] gives.
#[inline]
#[target_feature(enable = "avx2,f16c,fma")]
fn nearest<const FLOAT: u8, const SIZE: usize>(
    block: &[u8; SIZE],
    id: f32,
    d: f32,
    quants: &mut [u8; LEN],
) -> __m256i {
    let sign = _mm256_set1_ps(-0.0);
    let (id, d, round) = (_mm256_set1_ps(id), _mm256_set1_ps(d), _mm256_set1_ps(nearest::ROUND));
    let mut errors = _mm256_setzero_ps();
    let mut q = [_mm256_setzero_si256(); 4];
    for (q, x) in q.iter_mut().zip(values::<FLOAT, SIZE>(block)) {
        let sum = _mm256_fmadd_ps(x, id, round);
        *q = _mm256_castps_si256(sum);
        let error = _mm256_fnmadd_ps(d, _mm256_sub_ps(sum, round), x);
        errors = _mm256_max_ps(errors, _mm256_andnot_ps(sign, error));
    }
    put::<FLOAT>(q, quants);
    _mm256_castps_si256(errors)
}

/// Writes one block's quants; gives the magnitudes of eight maxima of its errors.
#[inline]
#[target_feature(enable = "avx2,f16c,fma")]
fn one<const FLOAT: u8, const SIZE: usize>(
    block: &[u8; SIZE],
    id: f32,
    d: f32,
    quants: &mut [u8; LEN],
) -> __m256i {
    let sign = _mm256_set1_ps(-0.0);
    let (id, d) = (_mm256_set1_ps(id), _mm256_set1_ps(d));
    let mut errors = _mm256_setzero_ps();
    let mut q = [_mm256_setzero_si256(); 4];
    for (q, x) in q.iter_mut().zip(values::<FLOAT, SIZE>(block)) {
        let y = _mm256_mul_ps(x, id);
        let half = _mm256_or_ps(_mm256_and_ps(y, sign), _mm256_set1_ps(BELOW_HALF));
        *q = _mm256_cvttps_epi32(_mm256_add_ps(y, half));
        let error = _mm256_fnmadd_ps(d, _mm256_cvtepi32_ps(*q), x);
        errors = _mm256_max_ps(errors, _mm256_andnot_ps(sign, error));
    }
    put::<FLOAT>(q, quants);
    _mm256_castps_si256(errors)
}

/// [`super::Level::split`].
///
/// # Safety
/// The CPU has AVX2: the caller's `Level` says so.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn split(src: &[u8], quants: &mut [u8], scales: &mut [u8]) {
    let planes = quants.as_chunks_mut::<LEN>().0.iter_mut().zip(scales.as_chunks_mut::<2>().0);
    for (block, (quants, scale)) in src.as_chunks::<BYTES>().0.iter().zip(planes) {
        scale.copy_from_slice(&block[..2]);
        // SAFETY: the block is 34 bytes, of which 2..34 are read, and `quants` is 32 bytes.
        unsafe {
            let q = _mm256_loadu_si256(block.as_ptr().add(2).cast());
            _mm256_storeu_si256(quants.as_mut_ptr().cast(), q);
        }
    }
}

/// [`super::Level::any_non_finite`]: the portable code, compiled for wider vectors.
///
/// # Safety
/// The CPU has AVX2: the caller's `Level` says so.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn any_non_finite(ty: GgmlType, bytes: &[u8]) -> bool {
    portable::any_non_finite(ty, bytes)
}
