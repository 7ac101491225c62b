//! Int8 with one f32 scale for a whole row: the row's largest magnitude, then its quants, a stretch at a time.
//!
//! Per value q = x·id rounded half away from zero; the error is |x − d·q|, product and difference each rounded to
//! f32, as in plain Rust: here d·q is inexact, so no level may fuse them.

use super::portable::BELOW_HALF;
use super::{Float, Kind, Level, MAGNITUDE};
use gantry_formats::block::fp16;

impl Level {
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

    /// Quantizes values whose magnitude times `id` is at most 127 and a bit, one byte each to `quants`, which is as
    /// long as they are. Gives the bits of the largest error against scale `d`.
    pub(crate) fn scale_down(self, float: Float, src: &[u8], (d, id): (f32, f32), quants: &mut [u8]) -> u32 {
        assert_eq!(src.len(), quants.len() * float.bytes());
        match self.0 {
            Kind::Portable => portable_scale_down(float, src, (d, id), quants),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx2 => unsafe { avx2::scale_down(float, src, (d, id), quants) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx512 => unsafe { avx512::scale_down(float, src, (d, id), quants) },
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

fn portable_scale_down(float: Float, src: &[u8], (d, id): (f32, f32), quants: &mut [u8]) -> u32 {
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
    use super::super::avx2::load;
    use super::{BELOW_HALF, Float, MAGNITUDE, portable_magnitude, portable_scale_down};
    use crate::q8_0::LEN;
    use std::arch::x86_64::*;

    /// # Safety
    /// The CPU has AVX2 and F16C: the caller's `Level` says so.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn magnitude(float: Float, src: &[u8]) -> u32 {
        match float {
            Float::F32 => top::<0, { 4 * LEN }>(float, src),
            Float::F16 => top::<1, { 2 * LEN }>(float, src),
            Float::Bf16 => top::<2, { 2 * LEN }>(float, src),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn top<const FLOAT: u8, const SIZE: usize>(float: Float, src: &[u8]) -> u32 {
        let (blocks, rest) = src.as_chunks::<SIZE>();
        let mut tops = [_mm256_setzero_si256(); 4];
        for block in blocks {
            for (part, top) in tops.iter_mut().enumerate() {
                let bits = _mm256_castps_si256(load::<FLOAT, SIZE>(block, part));
                *top = _mm256_max_epu32(*top, _mm256_and_si256(bits, _mm256_set1_epi32(MAGNITUDE)));
            }
        }
        largest(tops).max(portable_magnitude(float, rest))
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
    /// The CPU has AVX2 and F16C: the caller's `Level` says so.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn scale_down(float: Float, src: &[u8], scale: (f32, f32), quants: &mut [u8]) -> u32 {
        match float {
            Float::F32 => down::<0, { 4 * LEN }>(float, src, scale, quants),
            Float::F16 => down::<1, { 2 * LEN }>(float, src, scale, quants),
            Float::Bf16 => down::<2, { 2 * LEN }>(float, src, scale, quants),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn down<const FLOAT: u8, const SIZE: usize>(
        float: Float,
        src: &[u8],
        scale: (f32, f32),
        quants: &mut [u8],
    ) -> u32 {
        let (blocks, rest) = src.as_chunks::<SIZE>();
        let (outs, quants_rest) = quants.as_chunks_mut::<LEN>();
        let (d, id) = (_mm256_set1_ps(scale.0), _mm256_set1_ps(scale.1));
        let sign = _mm256_set1_ps(-0.0);
        let mut errors = [_mm256_setzero_si256(); 4];
        for (block, out) in blocks.iter().zip(outs) {
            let mut q = [_mm256_setzero_si256(); 4];
            for part in 0..4 {
                let x = load::<FLOAT, SIZE>(block, part);
                let y = _mm256_mul_ps(x, id);
                let half = _mm256_or_ps(_mm256_and_ps(y, sign), _mm256_set1_ps(BELOW_HALF));
                q[part] = _mm256_cvttps_epi32(_mm256_add_ps(y, half));
                let error = _mm256_sub_ps(x, _mm256_mul_ps(d, _mm256_cvtepi32_ps(q[part])));
                let error = _mm256_castps_si256(_mm256_andnot_ps(sign, error));
                errors[part] = _mm256_max_epu32(errors[part], error);
            }
            let words = [_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])];
            // Packing works within 128-bit halves: dwords come out as 0 2 4 6 1 3 5 7.
            let bytes = _mm256_permutevar8x32_epi32(
                _mm256_packs_epi16(words[0], words[1]),
                _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7),
            );
            // SAFETY: `out` is 32 bytes.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes) };
        }
        largest(errors).max(portable_scale_down(float, rest, scale, quants_rest))
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::super::avx512::{load, tops};
    use super::{BELOW_HALF, Float, MAGNITUDE, portable_magnitude, portable_scale_down};
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
            top[0] = _mm512_max_epu32(top[0], tops::<FLOAT, SIZE>(&pair[0]));
            top[1] = _mm512_max_epu32(top[1], tops::<FLOAT, SIZE>(&pair[1]));
        }
        for block in last {
            top[0] = _mm512_max_epu32(top[0], tops::<FLOAT, SIZE>(block));
        }
        _mm512_reduce_max_epu32(_mm512_max_epu32(top[0], top[1])).max(portable_magnitude(float, rest))
    }

    /// # Safety
    /// The CPU has AVX-512 F, BW and VL: the caller's `Level` says so.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn scale_down(float: Float, src: &[u8], scale: (f32, f32), quants: &mut [u8]) -> u32 {
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
        src: &[u8],
        scale: (f32, f32),
        quants: &mut [u8],
    ) -> u32 {
        let (blocks, rest) = src.as_chunks::<SIZE>();
        let (outs, quants_rest) = quants.as_chunks_mut::<LEN>();
        let (d, id) = (_mm512_set1_ps(scale.0), _mm512_set1_ps(scale.1));
        let magnitude = _mm512_set1_epi32(MAGNITUDE);
        let below_half = _mm512_castps_si512(_mm512_set1_ps(BELOW_HALF));
        let mut errors = [_mm512_setzero_si512(); 2];
        for (block, out) in blocks.iter().zip(outs) {
            for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let x = load::<FLOAT, SIZE>(block, part);
                let y = _mm512_mul_ps(x, id);
                // magnitude ? below_half : y, bit by bit: the constant with y's sign.
                let half = _mm512_ternarylogic_epi32::<0xca>(magnitude, below_half, _mm512_castps_si512(y));
                let q = _mm512_cvttps_epi32(_mm512_add_ps(y, _mm512_castsi512_ps(half)));
                let error = _mm512_sub_ps(x, _mm512_mul_ps(d, _mm512_cvtepi32_ps(q)));
                let error = _mm512_and_si512(_mm512_castps_si512(error), magnitude);
                errors[part] = _mm512_max_epu32(errors[part], error);
                // SAFETY: `out` is 16 bytes.
                unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(q)) };
            }
        }
        let errors = _mm512_reduce_max_epu32(_mm512_max_epu32(errors[0], errors[1]));
        errors.max(portable_scale_down(float, rest, scale, quants_rest))
    }
}
