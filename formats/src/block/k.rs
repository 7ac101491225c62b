//! The k-quants: 256 values per super-block, with sub-scales of their own per 16 or 32 values.

use super::dequantize::{half, part};

/// 16 bytes of 4-bit scales (low nibble) and minima (high nibble), one byte per 16 values; 64 bytes of two-bit
/// quants; f16 d, f16 dmin: (d·scale)·q − dmin·min. Byte j of each 32 holds values j, j + 32, j + 64, j + 96.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (half(block, 80), half(block, 82));
    let (scales, quants) = (part::<16, 84>(block, 0), part::<64, 84>(block, 16));
    for (i, (run, &scale)) in out.chunks_exact_mut(16).zip(scales).enumerate() {
        let (multiplier, minimum) = (d * f32::from(scale & 15), dmin * f32::from(scale >> 4));
        let from = 32 * (i / 8) + 16 * (i % 2);
        let shift = 2 * (i / 2 % 4);
        for (x, &byte) in run.iter_mut().zip(&quants[from..from + 16]) {
            *x = multiplier * f32::from(byte >> shift & 3) - minimum;
        }
    }
}

/// 32 bytes of third bits, 64 bytes of two-bit quants as in Q2_K, 12 bytes of 6-bit scales, f16 d:
/// (d·(scale − 32))·(q − 4), with q's third bit from bit n of byte j of the first 32 for value 32n + j.
///
/// The low four bits of scales 0..7 and 8..15 are the nibbles of the first 8 scale bytes; the last 4 bytes hold
/// the upper two bits of scale 4n + j at bits 2n of byte j.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half(block, 108);
    let (thirds, quants) = (part::<32, 110>(block, 0), part::<64, 110>(block, 32));
    let (low, high) = (part::<8, 110>(block, 96), part::<4, 110>(block, 104));
    for (i, run) in out.chunks_exact_mut(16).enumerate() {
        let scale = low[i % 8] >> (4 * (i / 8)) & 15 | (high[i % 4] >> (2 * (i / 4)) & 3) << 4;
        let multiplier = d * (f32::from(scale) - 32.0);
        let half_row = 16 * (i % 2);
        let from = 32 * (i / 8) + half_row;
        let shift = 2 * (i / 2 % 4);
        let bytes = quants[from..from + 16].iter().zip(&thirds[half_row..half_row + 16]);
        for (x, (&byte, &third)) in run.iter_mut().zip(bytes) {
            let q = byte >> shift & 3 | (third >> (i / 2) & 1) << 2;
            *x = multiplier * (f32::from(q) - 4.0);
        }
    }
}

/// The eight 6-bit (scale, minimum) pairs in 12 bytes: pairs 0..3 are the low six bits of bytes j and j + 4; pairs
/// 4..7 have their low four bits in the nibbles of byte j + 8 and the upper two in the top of bytes j and j + 4.
fn scales_and_minima(bytes: &[u8; 12]) -> [(u8, u8); 8] {
    std::array::from_fn(|i| {
        let j = i % 4;
        let (scale, minimum, mixed) = (bytes[j], bytes[j + 4], bytes[j + 8]);
        if i < 4 {
            (scale & 63, minimum & 63)
        } else {
            (mixed & 15 | scale >> 6 << 4, mixed >> 4 | minimum >> 6 << 4)
        }
    })
}

/// f16 d, f16 dmin; 12 bytes of scales and minima; 4 × 32 bytes of nibbles, byte j of each 32 holding values j
/// and j + 32 of its 64: (d·scale)·q − dmin·min.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let quants = part::<128, 144>(block, 16);
    minimum_rows(half(block, 0), half(block, 2), part(block, 4), out, |row, j| {
        quants[32 * (row / 2) + j] >> (4 * (row % 2)) & 15
    });
}

/// Q4_K with 32 bytes of fifth bits before the nibbles: bit n of byte j belongs to value 32n + j.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (fifths, quants) = (part::<32, 176>(block, 16), part::<128, 176>(block, 48));
    minimum_rows(half(block, 0), half(block, 2), part(block, 4), out, |row, j| {
        quants[32 * (row / 2) + j] >> (4 * (row % 2)) & 15 | (fifths[j] >> row & 1) << 4
    });
}

#[inline(always)]
fn minimum_rows(
    d: f32,
    dmin: f32,
    scales: &[u8; 12],
    out: &mut [f32; 256],
    quant: impl Fn(usize, usize) -> u8,
) {
    let pairs = scales_and_minima(scales);
    for (row, (values, (scale, minimum))) in out.chunks_exact_mut(32).zip(pairs).enumerate() {
        let (multiplier, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        for (j, x) in values.iter_mut().enumerate() {
            *x = multiplier * f32::from(quant(row, j)) - minimum;
        }
    }
}

/// 2 × 64 bytes of low nibbles, 2 × 32 bytes of upper bit pairs, 16 × int8 scales, f16 d: (d·scale)·(q − 32).
/// In each half of 128 values, value 32n + j has its nibble in byte 32·(n mod 2) + j (low for n < 2) and its pair
/// at bits 2n of byte j.
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half(block, 208);
    let (low, high) = (part::<128, 210>(block, 0), part::<64, 210>(block, 128));
    let scales = part::<16, 210>(block, 192).map(|s| d * f32::from(s as i8));
    for (row, values) in out.chunks_exact_mut(32).enumerate() {
        let (half_block, n) = (row / 4, row % 4);
        for (j, x) in values.iter_mut().enumerate() {
            let nibble = low[64 * half_block + 32 * (n % 2) + j] >> (4 * (n / 2)) & 15;
            let pair = high[32 * half_block + j] >> (2 * n) & 3;
            *x = scales[2 * row + j / 16] * (f32::from(nibble | pair << 4) - 32.0);
        }
    }
}

/// f32 d; 256 × int8; 16 × int16 sums, which the values do not need: d·q.
pub(super) fn q8_k(block: &[u8; 292], out: &mut [f32; 256]) {
    let d = f32::from_le_bytes(*part(block, 0));
    *out = part::<256, 292>(block, 4).map(|q| d * f32::from(q as i8));
}
