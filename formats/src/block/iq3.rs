//! IQ3: codebook entries of four magnitudes, signs apart.

use super::dequantize::{half, part};
use super::grids;

/// Eight values from two entries.
#[inline(always)]
fn eight(out: &mut [f32], d: f32, first: &[u8; 4], second: &[u8; 4], signs: u8) {
    for (j, (x, &g)) in out.iter_mut().zip(first.iter().chain(second)).enumerate() {
        *x = grids::signed(d * f32::from(g), signs, j);
    }
}

/// f16 d; 64 index bytes, one per four values; 8 words, one per 32 values: bits 7l..7l+6 the signs of eight l, the
/// top four bits the scale: ±(d·(0.5 + scale)·0.5)·entry.
pub(super) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let d = half(block, 0);
    let (indices, _) = part::<64, 98>(block, 2).as_chunks::<8>();
    let (words, _) = part::<32, 98>(block, 66).as_chunks::<4>();
    for ((indices, word), out) in indices.iter().zip(words).zip(out.chunks_exact_mut(32)) {
        let word = u32::from_le_bytes(*word);
        let db = d * (0.5 + (word >> 28) as f32) * 0.5;
        let (pairs, _) = indices.as_chunks::<2>();
        for (l, (&[a, b], out)) in pairs.iter().zip(out.chunks_exact_mut(8)).enumerate() {
            let signs = grids::even_signs(word >> (7 * l));
            eight(out, db, grids::iq3xxs(a.into()), grids::iq3xxs(b.into()), signs);
        }
    }
}

/// f16 d; 64 bytes of low index bits, one per four values; 8 bytes of ninth bits; 32 bytes of signs; 4 bytes of
/// scale nibbles, one per 32 values: ±(d·(1 + 2·scale))·entry.
pub(super) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half(block, 0);
    let (low, _) = part::<64, 110>(block, 2).as_chunks::<2>();
    let (ninth, signs) = (part::<8, 110>(block, 66), part::<32, 110>(block, 74));
    let scales = part::<4, 110>(block, 106);
    for (i, ((&[a, b], &signs), out)) in low.iter().zip(signs).zip(out.chunks_exact_mut(8)).enumerate() {
        let bits = usize::from(ninth[i / 4] >> (2 * (i % 4)));
        let db = d * f32::from(1 + 2 * (scales[i / 8] >> (4 * (i / 4 % 2)) & 15));
        let first = grids::iq3s(usize::from(a) | (bits & 1) << 8);
        let second = grids::iq3s(usize::from(b) | (bits >> 1 & 1) << 8);
        eight(out, db, first, second, signs);
    }
}
