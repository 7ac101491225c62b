//! Half floats: f16 (IEEE binary16) and bf16, to and from f32.
//!
//! Widening is exact. Narrowing rounds to nearest, ties to even, keeps subnormals, and gives infinity where the
//! rounded value does not fit: 65520 and up for f16. A NaN stays a NaN and becomes quiet.

/// Exponent bits of an f16: all set in infinities and NaNs.
pub const F16_EXPONENT: u16 = 0x7c00;

/// Exponent bits of a bf16.
pub const BF16_EXPONENT: u16 = 0x7f80;

/// Exponent bits of an f32.
pub const F32_EXPONENT: u32 = 0x7f80_0000;

/// What an f32's exponent field is above an f16's for the same value, in place: 127 - 15.
const REBIAS: u32 = 112 << 23;

/// The value of an f16, subnormals included (mantissa · 2⁻²⁴).
#[inline]
pub fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff);
    let bits = if magnitude >= u32::from(F16_EXPONENT) {
        (magnitude << 13) | F32_EXPONENT
    } else if magnitude >= 0x0400 {
        (magnitude << 13) + REBIAS
    } else {
        (magnitude as f32 * (1.0 / 16_777_216.0)).to_bits()
    };
    f32::from_bits(sign | bits)
}

/// The f16 nearest to `x`.
#[inline]
pub fn f32_to_f16(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) as u16 & 0x8000;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let half = if magnitude > F32_EXPONENT {
        0x7e00 | (magnitude >> 13 & 0x03ff)
    } else if magnitude >= 65536.0_f32.to_bits() {
        u32::from(F16_EXPONENT)
    } else if magnitude >= REBIAS + (1 << 23) {
        // A carry out of the mantissa raises the exponent, up to infinity, as it should.
        let rebased = magnitude - REBIAS;
        (rebased + 0x0fff + (rebased >> 13 & 1)) >> 13
    } else {
        // In [0.5, 1) one unit of the last f32 bit is 2⁻²⁴, an f16 subnormal's unit: the addition rounds for us.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5_f32.to_bits()
    };
    sign | half as u16
}

/// The value of a bf16.
#[inline]
pub fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// The bf16 nearest to `x`.
#[inline]
pub fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x0040;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Whether an f16 is neither infinite nor NaN.
#[inline]
pub fn f16_is_finite(half: u16) -> bool {
    half & F16_EXPONENT != F16_EXPONENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_and_comes_back() {
        for h in 0..=u16::MAX {
            let (wide, theirs) = (f16_to_f32(h), half::f16::from_bits(h).to_f32());
            assert!(wide.to_bits() == theirs.to_bits() || wide.is_nan() && theirs.is_nan(), "{h:04x}");
            if !wide.is_nan() {
                assert_eq!(f32_to_f16(wide), h);
                assert_eq!(f16_is_finite(h), wide.is_finite());
            }
            let (wide, theirs) = (bf16_to_f32(h), half::bf16::from_bits(h).to_f32());
            assert!(wide.to_bits() == theirs.to_bits() || wide.is_nan() && theirs.is_nan(), "{h:04x}");
            if !wide.is_nan() {
                assert_eq!(f32_to_bf16(wide), h);
            }
        }
    }

    #[test]
    fn narrowing_agrees_with_half_near_every_boundary_and_far_from_it() {
        let check = |bits: u32| {
            let x = f32::from_bits(bits);
            if x.is_nan() {
                assert!(
                    f16_to_f32(f32_to_f16(x)).is_nan() && bf16_to_f32(f32_to_bf16(x)).is_nan(),
                    "{bits:08x}"
                );
                return;
            }
            assert_eq!(f32_to_f16(x), half::f16::from_f32(x).to_bits(), "{bits:08x}");
            assert_eq!(f32_to_bf16(x), half::bf16::from_f32(x).to_bits(), "{bits:08x}");
        };
        // Halfway between two f16 neighbours, and one f32 to either side; then a stride coprime to all else.
        for h in 0..0x7c00_u16 {
            let middle = (f64::from(f16_to_f32(h)) + f64::from(f16_to_f32(h + 1).min(65536.0))) / 2.0;
            let bits = (middle as f32).to_bits();
            for b in [bits.wrapping_sub(1), bits, bits + 1] {
                check(b);
                check(b | 0x8000_0000);
            }
        }
        for i in 0..=u32::MAX / 251 {
            check(i * 251);
        }
    }
}
