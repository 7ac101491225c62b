//! Int8 with one f32 scale for a whole row: the row's largest magnitude, then its quants, a stretch at a time.
//!
//! Per value q = x·id rounded half away from zero; the error is |x − d·q|, product and difference each rounded to
//! f32, as in plain Rust: here d·q is inexact, so no level may fuse them.

use super::portable::BELOW_HALF;
use super::{Float, Kind, Level, MAGNITUDE};
use gantry_formats::block::fp16;

/// A row's largest magnitude, its scale and the scale's reciprocal.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(crate) amax: f32,
    pub(crate) d: f32,
    pub(crate) id: f32,
    /// The largest error that is known already, of this row or others, and the largest over a row's `amax`: smaller
    /// ones need not be looked for.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(crate) known: (f32, f32),
}

impl Level {
    /// Whether [`Self::magnitudes`] and [`Self::scale_down_four`] are faster than their like for single rows.
    pub(crate) fn reads_rows_together(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => true,
            _ => false,
        }
    }

    /// [`Self::magnitude`] of four rows of BF16, of equal lengths, a stretch of each in turn: a processor brings several
    /// streams faster than one.
    pub(crate) fn magnitudes(self, rows: [&[u8]; 4]) -> [u32; 4] {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx2 => unsafe { avx2::magnitudes(rows) },
            _ => rows.map(|row| self.magnitude(Float::Bf16, row)),
        }
    }

    /// [`Self::scale_down`] of four rows of BF16, of equal lengths and one after the other, a stretch of each in turn; the
    /// next four are fetched meanwhile. Errors may be given as 0 where none of the rows can have a larger one than is
    /// known.
    pub(crate) fn scale_down_four(
        self,
        rows: [&[u8]; 4],
        scales: [Scale; 4],
        mut quants: [&mut [u8]; 4],
    ) -> [u32; 4] {
        #[cfg(target_arch = "x86_64")]
        if self.0 == Kind::Avx2 {
            assert!(rows.iter().zip(&quants).all(|(row, quants)| row.len() == 2 * quants.len()));
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            if unsafe { avx2::scale_down_four(rows, &scales, &mut quants) } {
                return [0; 4];
            }
        }
        let mut worst = [0; 4];
        for (((worst, row), scale), quants) in worst.iter_mut().zip(rows).zip(scales).zip(quants) {
            *worst = self.scale_down(Float::Bf16, (row, Some(4 * row.len())), scale, quants);
        }
        worst
    }

    /// Bits of the largest magnitude in `src`; 0x7f80_0000 or more where a value is infinite or NaN.
    pub(crate) fn magnitude(self, float: Float, src: &[u8]) -> u32 {
        match self.0 {
            Kind::Portable => portable_magnitude(float, src),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx2 => unsafe { avx2::magnitude(float, src) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx512 => unsafe { avx512::magnitude(float, src) },
        }
    }

    /// Quantizes values of which none is larger than the scale's `amax`, one byte each to `quants`, which is as
    /// long as they are. Gives the bits of the largest error against the scale. `ahead` is how many bytes after `src`
    /// starts what will be read next does, if that is known: it is fetched meanwhile.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    pub(crate) fn scale_down(
        self,
        float: Float,
        (src, ahead): (&[u8], Option<usize>),
        scale: Scale,
        quants: &mut [u8],
    ) -> u32 {
        assert_eq!(src.len(), quants.len() * float.bytes());
        match self.0 {
            Kind::Portable => portable_scale_down(float, src, scale, quants),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx2 => unsafe { avx2::scale_down(float, (src, ahead), scale, quants) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx512 => unsafe { avx512::scale_down(float, (src, ahead), scale, quants) },
        }
    }
}

fn portable_magnitude(float: Float, src: &[u8]) -> u32 {
    fn top<const N: usize>(src: &[u8], read: impl Fn([u8; N]) -> f32) -> u32 {
        src.as_chunks().0.iter().fold(0, |top: i32, &b| top.max(read(b).to_bits() as i32 & MAGNITUDE)) as u32
    }
    match float {
        Float::F32 => top(src, f32::from_le_bytes),
        Float::F16 => top(src, |b| fp16::f16_to_f32(u16::from_le_bytes(b))),
        Float::Bf16 => top(src, |b| fp16::bf16_to_f32(u16::from_le_bytes(b))),
    }
}

fn portable_scale_down(float: Float, src: &[u8], Scale { d, id, .. }: Scale, quants: &mut [u8]) -> u32 {
    let each = |quant: &mut u8, x: f32| {
        let y = x * id;
        let q = (y + BELOW_HALF.copysign(y)) as i32;
        *quant = q as u8;
        (x - d * q as f32).to_bits() as i32 & MAGNITUDE
    };
    fn worst<const N: usize>(
        src: &[u8],
        quants: &mut [u8],
        read: impl Fn([u8; N]) -> f32,
        each: impl Fn(&mut u8, f32) -> i32,
    ) -> u32 {
        let pairs = quants.iter_mut().zip(src.as_chunks().0);
        pairs.fold(0, |worst, (quant, &b)| worst.max(each(quant, read(b)))) as u32
    }
    match float {
        Float::F32 => worst(src, quants, f32::from_le_bytes, each),
        Float::F16 => worst(src, quants, |b| fp16::f16_to_f32(u16::from_le_bytes(b)), each),
        Float::Bf16 => worst(src, quants, |b| fp16::bf16_to_f32(u16::from_le_bytes(b)), each),
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::super::avx2::{max, put, tops, values, widen};
    use super::super::nearest::{ROUND, ROUNDED, mantissa, reciprocal, worst};
    use super::super::prefetch;
    use super::{BELOW_HALF, Float, Scale, portable_magnitude, portable_scale_down};
    use crate::q8_0::LEN;
    use std::arch::x86_64::*;

    /// # Safety
    /// The CPU has AVX2, F16C and FMA: the caller's `Level` says so.
    #[target_feature(enable = "avx2,f16c,fma")]
    pub(super) unsafe fn magnitude(float: Float, src: &[u8]) -> u32 {
        match float {
            Float::F32 => top::<0, { 4 * LEN }>(float, src),
            Float::F16 => top::<1, { 2 * LEN }>(float, src),
            Float::Bf16 => top::<2, { 2 * LEN }>(float, src),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c,fma")]
    fn top<const FLOAT: u8, const SIZE: usize>(float: Float, src: &[u8]) -> u32 {
        let (blocks, rest) = src.as_chunks::<SIZE>();
        let mut top = [_mm256_setzero_si256(); 4];
        let (quads, last) = blocks.as_chunks::<4>();
        for quad in quads {
            for (top, block) in top.iter_mut().zip(quad) {
                *top = max::<FLOAT>(*top, tops::<FLOAT, SIZE>(block));
            }
        }
        for block in last {
            top[0] = max::<FLOAT>(top[0], tops::<FLOAT, SIZE>(block));
        }
        let top =
            [widen::<FLOAT>(top[0]), widen::<FLOAT>(top[1]), widen::<FLOAT>(top[2]), widen::<FLOAT>(top[3])];
        largest(top).max(portable_magnitude(float, rest))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn largest(v: [__m256i; 4]) -> u32 {
        let v = _mm256_max_epu32(_mm256_max_epu32(v[0], v[1]), _mm256_max_epu32(v[2], v[3]));
        let mut bits = [0_u32; 8];
        // SAFETY: the array is 32 bytes.
        unsafe { _mm256_storeu_si256(bits.as_mut_ptr().cast(), v) };
        bits.into_iter().fold(0, u32::max)
    }

    /// # Safety
    /// The CPU has AVX2, F16C and FMA: the caller's `Level` says so.
    #[target_feature(enable = "avx2,f16c,fma")]
    pub(super) unsafe fn scale_down(
        float: Float,
        src: (&[u8], Option<usize>),
        scale: Scale,
        quants: &mut [u8],
    ) -> u32 {
        match float {
            Float::F32 => down::<0, { 4 * LEN }>(float, src, scale, quants),
            Float::F16 => down::<1, { 2 * LEN }>(float, src, scale, quants),
            Float::Bf16 => down::<2, { 2 * LEN }>(float, src, scale, quants),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c,fma")]
    fn down<const FLOAT: u8, const SIZE: usize>(
        float: Float,
        (src, ahead): (&[u8], Option<usize>),
        scale: Scale,
        quants: &mut [u8],
    ) -> u32 {
        let (blocks, rest) = src.as_chunks::<SIZE>();
        let (outs, quants_rest) = quants.as_chunks_mut::<LEN>();
        let mut errors = [_mm256_setzero_si256(); 4];
        let near = if FLOAT == 2 { reciprocal(scale.amax, scale.id) } else { None };
        for (block, out) in blocks.iter().zip(outs) {
            match near {
                Some(near) => nearest::<FLOAT, SIZE>(block, (scale.d, near), out, &mut errors),
                None => quantize::<FLOAT, SIZE>(block, (scale.d, scale.id), out, &mut errors),
            }
            if let Some(ahead) = ahead {
                prefetch(block, ahead);
            }
        }
        largest(errors).max(portable_scale_down(float, rest, scale, quants_rest))
    }

    /// Blocks of a row that are done before the next row's.
    const TURN: usize = 2;

    /// [`super::Level::magnitudes`].
    ///
    /// # Safety
    /// The CPU has AVX2, F16C and FMA: the caller's `Level` says so.
    #[target_feature(enable = "avx2,f16c,fma")]
    pub(super) unsafe fn magnitudes(rows: [&[u8]; 4]) -> [u32; 4] {
        let [(a, rest), (b, _), (c, _), (d, _)] = rows.map(|row| row.as_chunks::<{ 2 * LEN }>());
        let mut top = [_mm256_setzero_si256(); 4];
        for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
            for (top, block) in top.iter_mut().zip([a, b, c, d]) {
                *top = max::<2>(*top, tops::<2, { 2 * LEN }>(block));
            }
        }
        let mut tops = [0; 4];
        for ((out, top), row) in tops.iter_mut().zip(top).zip(rows) {
            let zero = _mm256_setzero_si256();
            let tail = portable_magnitude(Float::Bf16, &row[row.len() - rest.len()..]);
            *out = largest([widen::<2>(top), zero, zero, zero]).max(tail);
        }
        tops
    }

    /// [`super::Level::scale_down_four`] where no error has to be looked for; `false`, and nothing is done, elsewhere.
    ///
    /// # Safety
    /// The CPU has AVX2, F16C and FMA: the caller's `Level` says so.
    #[target_feature(enable = "avx2,f16c,fma")]
    pub(super) unsafe fn scale_down_four(
        rows: [&[u8]; 4],
        scales: &[Scale; 4],
        quants: &mut [&mut [u8]; 4],
    ) -> bool {
        const TURN_BYTES: usize = TURN * 2 * LEN;
        let mut nears = [0.0; 4];
        for (near, &scale) in nears.iter_mut().zip(scales) {
            match reciprocal(scale.amax, scale.id) {
                Some(found) if is_known(scale) => *near = found,
                _ => return false,
            }
        }
        let (ahead, round) = (4 * rows[0].len(), _mm256_set1_ps(ROUND));
        let turns = rows[0].len() / TURN_BYTES;
        for turn in 0..turns {
            for r in 0..4 {
                let near = _mm256_set1_ps(nears[r]);
                let blocks = rows[r][turn * TURN_BYTES..][..TURN_BYTES].as_chunks::<{ 2 * LEN }>().0;
                let outs = quants[r][turn * TURN * LEN..][..TURN * LEN].as_chunks_mut::<LEN>().0;
                for (block, out) in blocks.iter().zip(outs) {
                    let mut q = [_mm256_setzero_si256(); 4];
                    for (q, x) in q.iter_mut().zip(values::<2, { 2 * LEN }>(block)) {
                        *q = _mm256_castps_si256(_mm256_fmadd_ps(x, near, round));
                    }
                    put::<2>(q, out);
                    prefetch(block, ahead);
                }
            }
        }
        for ((row, scale), quants) in rows.into_iter().zip(scales).zip(quants) {
            let rest = (&row[turns * TURN_BYTES..], &mut quants[turns * TURN * LEN..]);
            // Its errors are known too.
            portable_scale_down(Float::Bf16, rest.0, *scale, rest.1);
        }
        true
    }

    /// Whether no BF16 value of a row can have a larger error than is known, neither by itself nor over `amax`.
    fn is_known(scale: Scale) -> bool {
        let most = worst().channel[mantissa(scale.amax)];
        most * scale.amax * ROUNDED <= scale.known.0 && most <= scale.known.1
    }

    /// One block of BF16, with the reciprocal that [`reciprocal`] gives; `errors` take its errors.
    #[inline]
    #[target_feature(enable = "avx2,f16c,fma")]
    fn nearest<const FLOAT: u8, const SIZE: usize>(
        block: &[u8; SIZE],
        (d, near): (f32, f32),
        out: &mut [u8; LEN],
        errors: &mut [__m256i; 4],
    ) {
        let (d, near, round) = (_mm256_set1_ps(d), _mm256_set1_ps(near), _mm256_set1_ps(ROUND));
        let mut q = [_mm256_setzero_si256(); 4];
        for ((q, errors), x) in q.iter_mut().zip(errors).zip(values::<FLOAT, SIZE>(block)) {
            let sum = _mm256_fmadd_ps(x, near, round);
            *q = _mm256_castps_si256(sum);
            let error = _mm256_sub_ps(x, _mm256_mul_ps(d, _mm256_sub_ps(sum, round)));
            let error = _mm256_andnot_ps(_mm256_set1_ps(-0.0), error);
            *errors = _mm256_max_epu32(*errors, _mm256_castps_si256(error));
        }
        put::<FLOAT>(q, out);
    }

    /// One block; `errors` take its errors.
    #[inline]
    #[target_feature(enable = "avx2,f16c,fma")]
    fn quantize<const FLOAT: u8, const SIZE: usize>(
        block: &[u8; SIZE],
        (d, id): (f32, f32),
        out: &mut [u8; LEN],
        errors: &mut [__m256i; 4],
    ) {
        let (d, id) = (_mm256_set1_ps(d), _mm256_set1_ps(id));
        let sign = _mm256_set1_ps(-0.0);
        let mut q = [_mm256_setzero_si256(); 4];
        for ((q, errors), x) in q.iter_mut().zip(errors).zip(values::<FLOAT, SIZE>(block)) {
            let y = _mm256_mul_ps(x, id);
            let half = _mm256_or_ps(_mm256_and_ps(y, sign), _mm256_set1_ps(BELOW_HALF));
            *q = _mm256_cvttps_epi32(_mm256_add_ps(y, half));
            let error = _mm256_sub_ps(x, _mm256_mul_ps(d, _mm256_cvtepi32_ps(*q)));
            *errors = _mm256_max_epu32(*errors, _mm256_castps_si256(_mm256_andnot_ps(sign, error)));
        }
        put::<FLOAT>(q, out);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::super::avx512::{max, put, tops, values, widen};
    use super::super::nearest::{ROUND, reciprocal};
    use super::super::{AHEAD, prefetch};
    use super::{BELOW_HALF, Float, MAGNITUDE, Scale, portable_magnitude, portable_scale_down};
    use crate::q8_0::LEN;
    use std::arch::x86_64::*;

    /// # Safety
    /// The CPU has AVX-512 F, BW and VL: the caller's `Level` says so.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn magnitude(float: Float, src: &[u8]) -> u32 {
        match float {
            Float::F32 => top::<0, { 4 * LEN }>(float, src),
            Float::F16 => top::<1, { 2 * LEN }>(float, src),
            Float::Bf16 => top::<2, { 2 * LEN }>(float, src),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn top<const FLOAT: u8, const SIZE: usize>(float: Float, src: &[u8]) -> u32 {
        let (blocks, rest) = src.as_chunks::<SIZE>();
        let mut top = [_mm512_setzero_si512(); 2];
        let (pairs, last) = blocks.as_chunks::<2>();
        for pair in pairs {
            for (top, block) in top.iter_mut().zip(pair) {
                *top = max::<FLOAT>(*top, tops::<FLOAT, SIZE>(block));
                prefetch(block, AHEAD);
            }
        }
        for block in last {
            top[0] = max::<FLOAT>(top[0], tops::<FLOAT, SIZE>(block));
        }
        _mm512_reduce_max_epu32(widen::<FLOAT>(max::<FLOAT>(top[0], top[1])))
            .max(portable_magnitude(float, rest))
    }

    /// # Safety
    /// The CPU has AVX-512 F, BW and VL: the caller's `Level` says so.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn scale_down(
        float: Float,
        src: (&[u8], Option<usize>),
        scale: Scale,
        quants: &mut [u8],
    ) -> u32 {
        match float {
            Float::F32 => down::<0, { 4 * LEN }>(float, src, scale, quants),
            Float::F16 => down::<1, { 2 * LEN }>(float, src, scale, quants),
            Float::Bf16 => down::<2, { 2 * LEN }>(float, src, scale, quants),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn down<const FLOAT: u8, const SIZE: usize>(
        float: Float,
        (src, ahead): (&[u8], Option<usize>),
        scale: Scale,
        quants: &mut [u8],
    ) -> u32 {
        let (blocks, rest) = src.as_chunks::<SIZE>();
        let (outs, quants_rest) = quants.as_chunks_mut::<LEN>();
        let mut errors = [_mm512_setzero_si512(); 2];
        let near = if FLOAT == 2 { reciprocal(scale.amax, scale.id) } else { None };
        for (block, out) in blocks.iter().zip(outs) {
            match near {
                Some(near) => nearest::<FLOAT, SIZE>(block, (scale.d, near), out, &mut errors),
                None => quantize::<FLOAT, SIZE>(block, (scale.d, scale.id), out, &mut errors),
            }
            if let Some(ahead) = ahead {
                prefetch(block, ahead);
            }
        }
        let errors = _mm512_reduce_max_epu32(_mm512_max_epu32(errors[0], errors[1]));
        errors.max(portable_scale_down(float, rest, scale, quants_rest))
    }

    /// One block of BF16, with the reciprocal that [`reciprocal`] gives; `errors` take its errors.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn nearest<const FLOAT: u8, const SIZE: usize>(
        block: &[u8; SIZE],
        (d, near): (f32, f32),
        out: &mut [u8; LEN],
        errors: &mut [__m512i; 2],
    ) {
        let (d, near, round) = (_mm512_set1_ps(d), _mm512_set1_ps(near), _mm512_set1_ps(ROUND));
        let magnitude = _mm512_set1_epi32(MAGNITUDE);
        let mut q = [_mm512_setzero_si512(); 2];
        for ((q, errors), x) in q.iter_mut().zip(errors).zip(values::<FLOAT, SIZE>(block)) {
            let sum = _mm512_fmadd_ps(x, near, round);
            *q = _mm512_castps_si512(sum);
            let error = _mm512_sub_ps(x, _mm512_mul_ps(d, _mm512_sub_ps(sum, round)));
            let error = _mm512_and_si512(_mm512_castps_si512(error), magnitude);
            *errors = _mm512_max_epu32(*errors, error);
        }
        put::<FLOAT>(q, out);
    }

    /// One block; `errors` take its errors.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn quantize<const FLOAT: u8, const SIZE: usize>(
        block: &[u8; SIZE],
        (d, id): (f32, f32),
        out: &mut [u8; LEN],
        errors: &mut [__m512i; 2],
    ) {
        let (d, id) = (_mm512_set1_ps(d), _mm512_set1_ps(id));
        let magnitude = _mm512_set1_epi32(MAGNITUDE);
        let below_half = _mm512_castps_si512(_mm512_set1_ps(BELOW_HALF));
        let mut q = [_mm512_setzero_si512(); 2];
        for ((q, errors), x) in q.iter_mut().zip(errors).zip(values::<FLOAT, SIZE>(block)) {
            let y = _mm512_mul_ps(x, id);
            // magnitude ? below_half : y, bit by bit: the constant with y's sign.
            let half = _mm512_ternarylogic_epi32::<0xca>(magnitude, below_half, _mm512_castps_si512(y));
            *q = _mm512_cvttps_epi32(_mm512_add_ps(y, _mm512_castsi512_ps(half)));
            let error = _mm512_sub_ps(x, _mm512_mul_ps(d, _mm512_cvtepi32_ps(*q)));
            let error = _mm512_and_si512(_mm512_castps_si512(error), magnitude);
            *errors = _mm512_max_epu32(*errors, error);
        }
        put::<FLOAT>(q, out);
    }
}
