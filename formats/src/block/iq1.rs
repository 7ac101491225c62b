//! IQ1: ternary codebook entries of eight, shifted by ±1/8; value = (d·(2·scale + 1))·(entry ± 0.125).

use super::dequantize::{half, part};
use super::{fp16, grids};

const SHIFT: f32 = 0.125;

#[inline(always)]
fn eight(out: &mut [f32], d: f32, index: usize, negative: bool) {
    let shift = if negative { -SHIFT } else { SHIFT };
    for (x, &g) in out.iter_mut().zip(grids::iq1s(index)) {
        *x = d * (f32::from(g as i8) + shift);
    }
}

/// f16 d; 32 bytes of low index bits, one per eight values; 8 words, one per 32 values: four times three upper
/// index bits, three bits of scale, the top bit the sign of the shift.
pub(super) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let d = half(block, 0);
    let (low, _) = part::<32, 50>(block, 2).as_chunks::<4>();
    let (words, _) = part::<16, 50>(block, 34).as_chunks::<2>();
    for ((low, word), out) in low.iter().zip(words).zip(out.chunks_exact_mut(32)) {
        let word = u16::from_le_bytes(*word);
        let dl = d * f32::from(2 * (word >> 12 & 7) + 1);
        for (l, (&low, out)) in low.iter().zip(out.chunks_exact_mut(8)).enumerate() {
            let index = usize::from(low) | usize::from(word >> (3 * l) & 7) << 8;
            eight(out, dl, index, word & 0x8000 != 0);
        }
    }
}

/// The f16 that IQ1_M keeps in the top nibbles of its four scale words, given the words' upper bytes.
pub(super) fn packed_scale(upper: [u8; 4]) -> u16 {
    let [a, b, c, d] = upper.map(|byte| u16::from(byte >> 4));
    a | b << 4 | c << 8 | d << 12
}

/// 32 bytes of low index bits, one per eight values; 16 bytes, one nibble per eight values: three upper index bits
/// and the sign of the shift; 4 words: three bits of scale per 16 values and a nibble of the f16 d.
pub(super) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let (low, high) = (part::<32, 56>(block, 0), part::<16, 56>(block, 32));
    let &[_, a, _, b, _, c, _, d] = part::<8, 56>(block, 48);
    let d = fp16::f16_to_f32(packed_scale([a, b, c, d]));
    let (words, _) = part::<8, 56>(block, 48).as_chunks::<2>();
    for (i, (&low, out)) in low.iter().zip(out.chunks_exact_mut(8)).enumerate() {
        let scale = u16::from_le_bytes(words[i / 8]) >> (3 * (i / 2 % 4)) & 7;
        let nibble = high[i / 2] >> (4 * (i % 2));
        let index = usize::from(low) | usize::from(nibble & 7) << 8;
        eight(out, d * f32::from(2 * scale + 1), index, nibble & 8 != 0);
    }
}
