//! The 32-value block types: an f16 scale, perhaps an f16 minimum, then the quants.
//!
//! Four-bit quants: byte j holds value j in its low nibble and value j + 16 in its high one. Five-bit types keep
//! the fifth bits of values 0..31 in a 32-bit word before the nibbles.

use super::dequantize::{half, part};

/// Spreads 16 bytes of nibbles over 32 values.
#[inline(always)]
pub(super) fn nibbles(bytes: &[u8; 16], out: &mut [f32; 32], value: impl Fn(usize, u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for (j, ((low, high), &byte)) in low.iter_mut().zip(high).zip(bytes).enumerate() {
        *low = value(j, byte & 15);
        *high = value(j + 16, byte >> 4);
    }
}

#[inline(always)]
fn fifth(word: &[u8; 4]) -> impl Fn(usize, u8) -> u8 {
    let word = u32::from_le_bytes(*word);
    move |j, nibble| nibble | ((word >> j & 1) as u8) << 4
}

/// f16 d; 16 bytes of nibbles: d·(q − 8).
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    nibbles(part(block, 2), out, |_, q| d * (f32::from(q) - 8.0));
}

/// f16 d, f16 m; 16 bytes of nibbles: d·q + m.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    nibbles(part(block, 4), out, |_, q| d * f32::from(q) + m);
}

/// f16 d; 4 bytes of fifth bits; 16 bytes of nibbles: d·(q − 16).
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half(block, 0);
    let q5 = fifth(part(block, 2));
    nibbles(part(block, 6), out, |j, q| d * (f32::from(q5(j, q)) - 16.0));
}

/// f16 d, f16 m; 4 bytes of fifth bits; 16 bytes of nibbles: d·q + m.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    let q5 = fifth(part(block, 4));
    nibbles(part(block, 8), out, |j, q| d * f32::from(q5(j, q)) + m);
}

/// f16 d; 32 × int8: d·q.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    *out = super::q8_0::Block::from_bytes(block).values();
}

/// f16 d, f16 d·Σq (which the values do not need); 32 × int8: d·q.
pub(super) fn q8_1(block: &[u8; 36], out: &mut [f32; 32]) {
    let d = half(block, 0);
    *out = part::<32, 36>(block, 4).map(|q| d * f32::from(q as i8));
}
