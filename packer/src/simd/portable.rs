//! Plain Rust, shaped so that a compiler can vectorize it.

use super::{Float, MAGNITUDE};
use crate::q8_0::{BYTES, LEN, Stats};
use gantry_formats::block::{GgmlType, fp16};

/// The largest f32 below one half. trunc(y + copysign(this, y)) rounds half away from zero for every f32 |y| < 2²²:
/// with 0.5 itself, 0.49999997 + 0.5 would round up to 1.
pub(super) const BELOW_HALF: f32 = 0.499_999_97;

/// 2⁻¹⁴: scales below it are subnormal.
pub(super) const SMALLEST_NORMAL_F16: f32 = 1.0 / 16_384.0;

pub(super) fn quantize(
    float: Float,
    src: &[u8],
    quants: &mut [u8],
    scales: &mut [u8],
) -> Result<Stats, usize> {
    match float {
        Float::F32 => run::<{ 4 * LEN }>(src, quants, scales, |bytes| {
            let (values, _) = bytes.as_chunks::<4>();
            std::array::from_fn(|i| f32::from_le_bytes(values[i]))
        }),
        Float::F16 => run::<{ 2 * LEN }>(src, quants, scales, |bytes| {
            let (values, _) = bytes.as_chunks::<2>();
            std::array::from_fn(|i| fp16::f16_to_f32(u16::from_le_bytes(values[i])))
        }),
        Float::Bf16 => run::<{ 2 * LEN }>(src, quants, scales, |bytes| {
            let (values, _) = bytes.as_chunks::<2>();
            std::array::from_fn(|i| fp16::bf16_to_f32(u16::from_le_bytes(values[i])))
        }),
    }
}

#[inline(always)]
fn run<const SIZE: usize>(
    src: &[u8],
    quants: &mut [u8],
    scales: &mut [u8],
    load: impl Fn(&[u8; SIZE]) -> [f32; LEN],
) -> Result<Stats, usize> {
    let mut stats = Stats::default();
    let planes = quants.as_chunks_mut::<LEN>().0.iter_mut().zip(scales.as_chunks_mut::<2>().0);
    for (i, (block, (quants, scale))) in src.as_chunks::<SIZE>().0.iter().zip(planes).enumerate() {
        *scale = one(&load(block), quants, &mut stats).ok_or(i)?.to_le_bytes();
    }
    Ok(stats)
}

/// One block: its scale, or `None` where it has no Q8_0 form.
#[inline(always)]
fn one(x: &[f32; LEN], quants: &mut [u8; LEN], stats: &mut Stats) -> Option<u16> {
    // Magnitudes order like their bits, infinities and then NaNs on top: one maximum finds both.
    let top = x.iter().fold(0, |top: i32, v| top.max(v.to_bits() as i32 & MAGNITUDE)) as u32;
    if top >= fp16::F32_EXPONENT {
        return None;
    }
    let amax = f32::from_bits(top);
    let d = amax / 127.0;
    let reciprocal = 1.0 / d;
    let id = if reciprocal.is_infinite() { 0.0 } else { reciprocal };
    let half = fp16::f32_to_f16(d);
    if !fp16::f16_is_finite(half) {
        return None;
    }
    let stored = fp16::f16_to_f32(half);
    let mut worst = 0_i32;
    for (quant, &v) in quants.iter_mut().zip(x) {
        let y = v * id;
        let q = (y + BELOW_HALF.copysign(y)) as i32;
        *quant = q as u8;
        let error = v - stored * q as f32;
        worst = worst.max(error.to_bits() as i32 & MAGNITUDE);
    }
    let worst = f32::from_bits(worst as u32);
    stats.blocks += 1;
    stats.lost += u64::from(half == 0 && amax > 0.0);
    stats.subnormal += u64::from(half.wrapping_sub(1) < 0x03ff);
    stats.max_abs_error = stats.max_abs_error.max(worst);
    // 0/0 for an all-zero block: `max` ignores a NaN.
    stats.max_rel_error = stats.max_rel_error.max(worst / amax);
    Some(half)
}

#[inline(always)]
pub(super) fn split(src: &[u8], quants: &mut [u8], scales: &mut [u8]) {
    let planes = quants.as_chunks_mut::<LEN>().0.iter_mut().zip(scales.as_chunks_mut::<2>().0);
    for (block, (quants, scale)) in src.as_chunks::<BYTES>().0.iter().zip(planes) {
        scale.copy_from_slice(&block[..2]);
        quants.copy_from_slice(&block[2..]);
    }
}

#[inline(always)]
pub(super) fn any_non_finite(ty: GgmlType, bytes: &[u8]) -> bool {
    match ty {
        GgmlType::F32 => {
            any::<4>(bytes, |b| u32::from_le_bytes(b) & fp16::F32_EXPONENT == fp16::F32_EXPONENT)
        }
        GgmlType::F16 => {
            any::<2>(bytes, |b| u16::from_le_bytes(b) & fp16::F16_EXPONENT == fp16::F16_EXPONENT)
        }
        GgmlType::BF16 => {
            any::<2>(bytes, |b| u16::from_le_bytes(b) & fp16::BF16_EXPONENT == fp16::BF16_EXPONENT)
        }
        _ => any::<8>(bytes, |b| !f64::from_le_bytes(b).is_finite()),
    }
}

/// No early way out, so that it vectorizes: callers give a stretch at a time.
#[inline(always)]
fn any<const N: usize>(bytes: &[u8], is: impl Fn([u8; N]) -> bool) -> bool {
    bytes.as_chunks::<N>().0.iter().fold(false, |any, &b| any | is(b))
}
