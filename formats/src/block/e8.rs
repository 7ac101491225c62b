//! E8 super-blocks, the scalar truth: 256 values as 64 codebook indices, signs, eight 4-bit sub-scales and one f16
//! scale, 98 bytes (3.0625 bits per value).
//!
//! | offset | content |
//! |---|---|
//! | 0..64 | 64 × u8: the [codebook](super::iq3xxs_grid) index of values 4k..4k+4 |
//! | 64..96 | 8 × u32, one per 32 values: bits 7l..7l+7 (l = 0..4) the signs of values 8l..8l+7, bits 28..32 the code c |
//! | 96..98 | f16 super-scale d |
//!
//! A set sign bit means negative. The sign of value 8l+7 is not stored: every eight values hold an even number of
//! negatives. value = ±(step·g)·0.5 with step = (d·(0.5 + c))·0.5 and g the codebook's 4..62, each operation in f32
//! in that order; all but the multiplication by g are exact.
//!
//! ggml's IQ3_XXS holds the same in another order (scale, indices, words) and half the scale.

use super::finite::NonFinite;
use super::{fp16, grids};

/// Values per block.
pub const LEN: usize = 256;

/// Bytes per block: indices, words, scale.
pub const BYTES: usize = INDICES + WORDS + SCALE;

/// Bytes of a block's codebook indices, one per 4 values.
pub const INDICES: usize = LEN / 4;

/// Bytes of a block's words, 4 per 32 values.
pub const WORDS: usize = LEN / 8;

/// Bytes of a block's scale.
pub const SCALE: usize = 2;

/// Why a block has no counterpart in the other format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum E8Error {
    /// The scale is NaN or infinite.
    #[error("scale {0}")]
    NonFinite(NonFinite),
    /// An IQ3_XXS scale of 32768 or more: twice it is no f16.
    #[error("scale {:04x} ({}): twice that does not fit fp16", .0, fp16::f16_to_f32(*.0))]
    Overflow(u16),
    /// An E8 scale below 2⁻¹³ with an odd mantissa: half of it would be subnormal and lose its last bit.
    #[error("scale {:04x} ({}): half of that is not exact in fp16", .0, fp16::f16_to_f32(*.0))]
    Inexact(u16),
}

/// What a sub-block of code `code` (0..16) multiplies half the codebook's values by, in a block of scale `d`.
#[inline(always)]
pub fn step(d: f32, code: u8) -> f32 {
    d * (0.5 + f32::from(code)) * 0.5
}

/// The values of a block.
pub fn decode(block: &[u8; BYTES]) -> [f32; LEN] {
    let (indices, rest) = block.split_at(INDICES);
    let (words, scale) = rest.split_at(WORDS);
    let d = fp16::f16_to_f32(u16::from_le_bytes([scale[0], scale[1]]));
    let mut out = [0.0; LEN];
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let word = words.as_chunks().0[sub];
        let word = u32::from_le_bytes(word);
        let step = step(d, (word >> 28) as u8);
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let signs = grids::even_signs(word >> (7 * l));
            for (j, x) in out.iter_mut().enumerate() {
                let entry = grids::iq3xxs(indices[8 * sub + 2 * l + j / 4].into());
                *x = grids::signed(step * f32::from(entry[j % 4]) * 0.5, signs, j);
            }
        }
    }
    out
}

/// The E8 block of the same values as an IQ3_XXS block: twice the scale, moved to the end. Refuses scales of
/// magnitude 32768 and more, infinities and NaNs.
pub fn from_iq3_xxs(block: &[u8; BYTES]) -> Result<[u8; BYTES], E8Error> {
    let [lo, hi, rest @ ..] = *block;
    let mut out = [0; BYTES];
    out[..INDICES + WORDS].copy_from_slice(&rest);
    out[INDICES + WORDS..].copy_from_slice(&double(u16::from_le_bytes([lo, hi]))?.to_le_bytes());
    Ok(out)
}

/// The IQ3_XXS block of the same values: the inverse of [`from_iq3_xxs`]. Refuses scales below 2⁻¹³ with an odd
/// mantissa, infinities and NaNs.
pub fn to_iq3_xxs(block: &[u8; BYTES]) -> Result<[u8; BYTES], E8Error> {
    let [rest @ .., lo, hi] = *block;
    let mut out = [0; BYTES];
    out[2..].copy_from_slice(&rest);
    out[..2].copy_from_slice(&halve(u16::from_le_bytes([lo, hi]))?.to_le_bytes());
    Ok(out)
}

/// Twice an f16, exactly.
fn double(d: u16) -> Result<u16, E8Error> {
    let value = fp16::f16_to_f32(d);
    if let Some(kind) = NonFinite::of(value) {
        return Err(E8Error::NonFinite(kind));
    }
    let twice = fp16::f32_to_f16(2.0 * value);
    if fp16::f16_is_finite(twice) { Ok(twice) } else { Err(E8Error::Overflow(d)) }
}

/// Half an f16, exactly.
fn halve(d: u16) -> Result<u16, E8Error> {
    let value = fp16::f16_to_f32(d);
    if let Some(kind) = NonFinite::of(value) {
        return Err(E8Error::NonFinite(kind));
    }
    let half = fp16::f32_to_f16(0.5 * value);
    if 2.0 * fp16::f16_to_f32(half) == value { Ok(half) } else { Err(E8Error::Inexact(d)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{GgmlType, dequantize};

    /// xorshift64*: the same numbers everywhere.
    fn bytes(n: usize, mut state: u64) -> Vec<u8> {
        let next = |_| {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(2_685_821_657_736_338_717) >> 56) as u8
        };
        (0..n).map(next).collect()
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    /// The published block: x[i] = ((37i mod 101) − 50)/64, encoded by the reference.
    const VECTOR: &str = "e159cb31dc31dc5f68526875406b126b59f131dc5fb284b2524075126b1b6b1bf131dc5fb284b2bc\
                          9fbc7bd459cb31dc31dc5fb2849ebc9ebc59e159cb31dc314badd422160bad44a5562b2de9e5524b\
                          52a9c522345aa925ad567a294bad562ad725";

    #[test]
    fn the_published_vector_decodes() {
        let hex = |i: usize| u8::from_str_radix(&VECTOR[2 * i..2 * i + 2], 16).expect("hex");
        let block: [u8; BYTES] = std::array::from_fn(hex);
        let x = decode(&block);
        for (got, want) in x.into_iter().zip([-0.88396072, -0.17108917, 0.28514862, -0.74138641_f64]) {
            assert_eq!(got, want as f32);
        }
    }

    #[test]
    fn iq3_xxs_blocks_keep_their_values_and_come_back() {
        let random = bytes(4000 * BYTES, 1);
        for (i, block) in random.as_chunks::<BYTES>().0.iter().enumerate() {
            let mut block = *block;
            // Every exponent a scale can have; every second block has a subnormal one, or zero.
            block[1] &= if i % 2 == 0 { 0xf7 } else { 0x83 };
            let Ok(e8) = from_iq3_xxs(&block) else {
                assert!(fp16::f16_to_f32(u16::from_le_bytes([block[0], block[1]])).abs() >= 32768.0);
                continue;
            };
            let mut want = [0.0; LEN];
            dequantize(GgmlType::IQ3_XXS, &block, &mut want).expect("one block");
            assert_eq!(bits(&decode(&e8)), bits(&want));
            assert_eq!(to_iq3_xxs(&e8), Ok(block));
        }
    }

    #[test]
    fn every_scale_is_exact_or_refused() {
        for d in 0..=u16::MAX {
            let value = f64::from(fp16::f16_to_f32(d));
            match double(d) {
                Ok(twice) => {
                    assert_eq!(f64::from(fp16::f16_to_f32(twice)), 2.0 * value);
                    assert_eq!(halve(twice), Ok(d));
                }
                Err(E8Error::Overflow(_)) => assert!(value.abs() >= 32768.0),
                Err(_) => assert!(!value.is_finite()),
            }
            match halve(d) {
                Ok(half) => assert_eq!(f64::from(fp16::f16_to_f32(half)), value / 2.0),
                Err(E8Error::Inexact(_)) => {
                    assert!(d & 0x7fff < 0x0800 && d & 1 == 1)
                }
                Err(_) => assert!(!value.is_finite()),
            }
        }
        assert_eq!(
            double(0xf800).expect_err("large").to_string(),
            "scale f800 (-32768): twice that does not fit fp16"
        );
        assert_eq!(double(0x7e00).expect_err("nan").to_string(), "scale nan");
        assert!(halve(0x0003).expect_err("odd").to_string().starts_with("scale 0003 ("));
    }
}
