//! IQ4: four-bit codes of sixteen uneven levels.

use super::dequantize::{half, part};
use super::legacy::nibbles;

/// The level of each code, in units of the scale: all are int8, so IQ4_NL is exactly int8 with a scale per 32.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn level(code: u8) -> f32 {
    f32::from(LEVELS[usize::from(code & 15)])
}

/// f16 d; 16 bytes of nibbles: d·level.
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    nibbles(part(block, 2), out, |_, code| d * level(code));
}

/// f16 d; u16 with the upper two bits of eight scales; 4 bytes with their lower nibbles; 8 × 16 bytes of nibbles:
/// (d·(scale − 32))·level.
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = half(block, 0);
    let high = u16::from_le_bytes(*part(block, 2));
    let low = part::<4, 136>(block, 4);
    let (codes, _) = part::<128, 136>(block, 8).as_chunks::<16>();
    let (rows, _) = out.as_chunks_mut::<32>();
    for (i, (codes, row)) in codes.iter().zip(rows).enumerate() {
        let scale = u16::from(low[i / 2] >> (4 * (i % 2)) & 15) | (high >> (2 * i) & 3) << 4;
        let dl = d * (f32::from(scale) - 32.0);
        nibbles(codes, row, |_, code| dl * level(code));
    }
}
