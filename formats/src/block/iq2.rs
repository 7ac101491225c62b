//! IQ2: codebook entries of eight magnitudes, signs apart; value = ±(d·(0.5 + scale)·0.25)·entry.

use super::dequantize::{half, part};
use super::grids;

#[inline(always)]
fn eight(out: &mut [f32], d: f32, grid: &[u8; 8], signs: u8) {
    for (j, (x, &g)) in out.iter_mut().zip(grid).enumerate() {
        *x = grids::signed(d * f32::from(g), signs, j);
    }
}

#[inline(always)]
fn scaled(d: f32, code: u8) -> f32 {
    d * (0.5 + f32::from(code)) * 0.25
}

/// f16 d; per 32 values 4 index bytes and a word: bits 7l..7l+6 the signs of eight l, the top four bits the scale.
pub(super) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half(block, 0);
    let (groups, _) = part::<64, 66>(block, 2).as_chunks::<8>();
    for (&[a, b, c, e, word @ ..], out) in groups.iter().zip(out.chunks_exact_mut(32)) {
        let word = u32::from_le_bytes(word);
        let db = scaled(d, (word >> 28) as u8);
        for (l, (index, out)) in [a, b, c, e].into_iter().zip(out.chunks_exact_mut(8)).enumerate() {
            eight(out, db, grids::iq2xxs(index.into()), grids::even_signs(word >> (7 * l)));
        }
    }
}

/// f16 d; 32 × u16, one per eight values: 9 bits of index, 7 of signs; 8 bytes of scale nibbles, one per 16.
pub(super) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let d = half(block, 0);
    let (words, _) = part::<64, 74>(block, 2).as_chunks::<2>();
    let scales = part::<8, 74>(block, 66);
    for (i, (word, out)) in words.iter().zip(out.chunks_exact_mut(8)).enumerate() {
        let word = u16::from_le_bytes(*word);
        let db = scaled(d, scales[i / 4] >> (4 * (i / 2 % 2)) & 15);
        eight(out, db, grids::iq2xs(usize::from(word & 511)), grids::even_signs(u32::from(word >> 9)));
    }
}

/// f16 d; 32 bytes of low index bits, one per eight values; 32 bytes of signs; 8 bytes of upper index bits, two
/// per eight values; 8 bytes of scale nibbles, one per 16.
pub(super) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = half(block, 0);
    let (low, signs) = (part::<32, 82>(block, 2), part::<32, 82>(block, 34));
    let (high, scales) = (part::<8, 82>(block, 66), part::<8, 82>(block, 74));
    for (i, ((&low, &signs), out)) in low.iter().zip(signs).zip(out.chunks_exact_mut(8)).enumerate() {
        let index = usize::from(low) | usize::from(high[i / 4] >> (2 * (i % 4)) & 3) << 8;
        let db = scaled(d, scales[i / 4] >> (4 * (i / 2 % 2)) & 15);
        eight(out, db, grids::iq2s(index), signs);
    }
}
