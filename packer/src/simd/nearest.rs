//! Rounding BF16 half away from zero with two additions.
//!
//! Adding [`ROUND`] rounds to the nearest integer in one addition, with the integer in the sum's low bits, but halves go
//! to even. For BF16 there is little between a half and the next quotient: with x = X·2ⁱ, amax = M·2ʲ and 8-bit X and M,
//! 127·x/amax is a half or, relative to itself, at least 2⁻¹⁶ from one. So a reciprocal that is 2⁻¹⁹ larger takes all
//! halves away from zero and nothing else over a half, and one that is as much smaller takes them towards zero. Which of
//! them the rounded x·id does depends on how id was rounded, which is M's alone: it does with every half as with amax
//! itself, as the test sees for every M and X.

use super::portable::BELOW_HALF;
use gantry_formats::block::fp16;
use std::sync::OnceLock;

/// 1.5 · 2²³: the sum of it and |y| < 2²² is y rounded to an integer, half to even, which its low bits hold.
pub(super) const ROUND: f32 = 12_582_912.0;

/// What the reciprocal is multiplied with where amax·id is at least 127, and where it is less.
pub(super) const AWAY: f32 = 1.0 + 1.0 / 524_288.0;
pub(super) const TOWARDS: f32 = 1.0 - 1.0 / 524_288.0;

/// Largest magnitudes from here to [`LARGEST`], and 0: neither the scale nor its reciprocal is subnormal.
pub(super) const SMALLEST: f32 = 1e-30;
/// See [`SMALLEST`].
pub(super) const LARGEST: f32 = 1e30;

/// For the BF16 values of which `amax` is the largest magnitude and `id` the reciprocal scale: the reciprocal with which
/// x·it rounded half to even, the product rounded before or not, is x·id rounded half away from zero.
pub(super) fn reciprocal(amax: f32, id: f32) -> Option<f32> {
    let factor = if amax * id < 127.0 { TOWARDS } else { AWAY };
    (SMALLEST..=LARGEST).contains(&amax).then_some(id * factor)
}

/// The largest error that a BF16 value can have, over the largest magnitude, by that magnitude's mantissa (7 bits).
///
/// Powers of two scale values, scales and errors exactly, so that nothing else decides it as long as neither the scale
/// nor its reciprocal is subnormal. Errors are looked for only where one of this size would be larger than what was
/// found so far.
pub(super) struct Worst {
    /// Against the scale itself, which is f32; product and difference are rounded each.
    pub(super) channel: [f32; 128],
    /// Against the scale as a normal f16, whose products are exact.
    pub(super) block: [f32; 128],
}

/// [`Worst`], made on the first call.
pub(super) fn worst() -> &'static Worst {
    static WORST: OnceLock<Worst> = OnceLock::new();
    WORST.get_or_init(|| {
        let mut worst = Worst { channel: [0.0; 128], block: [0.0; 128] };
        for (m, (channel, block)) in worst.channel.iter_mut().zip(&mut worst.block).enumerate() {
            let amax = (128 + m) as f32;
            let d = amax / 127.0;
            let id = 1.0 / d;
            let stored = fp16::f16_to_f32(fp16::f32_to_f16(d));
            // Values of less than half a scale, the smaller ones here, have themselves as errors.
            for shift in 0..=8 {
                for x in
                    (128..256_u16).map(|x| f32::from(x) / f32::from(1_u16 << shift)).filter(|x| *x <= amax)
                {
                    let q = (x * id + BELOW_HALF).trunc();
                    *channel = channel.max((x - d * q).abs());
                    *block = block.max((x - stored * q).abs());
                }
            }
            *channel /= amax;
            *block /= amax;
        }
        worst
    })
}

/// Where a largest magnitude's entry is in the tables of [`Worst`].
pub(super) fn mantissa(amax: f32) -> usize {
    (amax.to_bits() >> 16 & 0x7f) as usize
}

/// What a product of an entry and a largest magnitude is multiplied with to be no less than the error: both were rounded.
pub(super) const ROUNDED: f32 = 1.0 + 1.0 / 1_048_576.0;

#[cfg(test)]
mod tests {
    use super::super::portable::SMALLEST_NORMAL_F16;
    use super::*;

    #[test]
    fn every_bf16_rounds_half_away_from_zero_for_every_scale() {
        for (m, exponent) in (128..256_u16).flat_map(|m| [-70, -7, 0, 60].map(|e| (m, e))) {
            let amax = f32::from(m) * 2_f32.powi(exponent);
            let id = 1.0 / (amax / 127.0);
            let near = reciprocal(amax, id).expect("in range");
            for (x, shift) in (128..256_u16).flat_map(|x| (-16..=0).map(move |s| (x, s))) {
                let x = f32::from(x) * 2_f32.powi(exponent + shift);
                for x in [x, -x].into_iter().filter(|x| x.abs() <= amax) {
                    let y = x * id;
                    let truth = (y + BELOW_HALF.copysign(y)).trunc();
                    assert_eq!(x.mul_add(near, ROUND) - ROUND, truth, "{x} of {amax}, fused");
                    assert_eq!((x * near + ROUND) - ROUND, truth, "{x} of {amax}");
                }
            }
        }
    }
    #[test]
    fn no_error_is_larger_than_the_worst_and_one_is_as_large() {
        for (m, exponent) in (128..256_u16).flat_map(|m| [-13, -7, 0, 9].map(|e| (m, e))) {
            let amax = f32::from(m) * 2_f32.powi(exponent);
            let (d, at) = (amax / 127.0, mantissa(amax));
            assert_eq!(at, usize::from(m) - 128);
            let stored = fp16::f16_to_f32(fp16::f32_to_f16(d));
            let (mut channel, mut block) = (0.0_f32, 0.0_f32);
            for (x, shift) in (128..256_u16).flat_map(|x| (-20..=0).map(move |s| (x, s))) {
                let x = f32::from(x) * 2_f32.powi(exponent + shift);
                if x <= amax {
                    let q = (x * (1.0 / d)).round();
                    channel = channel.max((x - d * q).abs());
                    block = block.max(stored.mul_add(-q, x).abs());
                }
            }
            assert_eq!(channel / amax, worst().channel[at], "{m}, {exponent}");
            assert!(worst().channel[at] * amax * ROUNDED >= channel, "{m}, {exponent}");
            if stored >= SMALLEST_NORMAL_F16 {
                assert_eq!(block / amax, worst().block[at], "{m}, {exponent}");
                assert!(worst().block[at] * amax * ROUNDED >= block, "{m}, {exponent}");
            }
        }
    }
}
