//! One and two bits per value, and ternary values packed by base 3: one f16 scale per block.

use super::dequantize::{half, part};

/// 48 bytes with five ternary digits each, 4 bytes with four, f16 d: d·(t − 1).
///
/// A byte is its number as a fraction of 256, rounded up: multiplied by 3ⁿ modulo 256, digit n is the whole part
/// of three times it. The first 32 bytes hold values 0..159 with digit n of byte j at 32n + j, the next 16 values
/// 160..239 with a stride of 16, the last 4 values 240..255 with a stride of 4.
pub(super) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = half(block, 52);
    let (first, rest) = out.split_at_mut(160);
    let (second, third) = rest.split_at_mut(80);
    for (bytes, out) in [(&block[..32], first), (&block[32..48], second), (&block[48..52], third)] {
        let mut power = 1_u8;
        for row in out.chunks_exact_mut(bytes.len()) {
            for (x, &byte) in row.iter_mut().zip(bytes) {
                let digit = u16::from(byte.wrapping_mul(power)) * 3;
                *x = d * (f32::from(digit >> 8) - 1.0);
            }
            power = power.wrapping_mul(3);
        }
    }
}

/// 64 bytes of two-bit values, f16 d: d·(q − 1). Byte j of each 32 holds values j, j + 32, j + 64, j + 96.
pub(super) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half(block, 64);
    for (bytes, out) in part::<64, 66>(block, 0).chunks_exact(32).zip(out.chunks_exact_mut(128)) {
        for (n, row) in out.chunks_exact_mut(32).enumerate() {
            for (x, &byte) in row.iter_mut().zip(bytes) {
                *x = d * (f32::from(byte >> (2 * n) & 3) - 1.0);
            }
        }
    }
}

/// f16 d; 16 bytes, bit j of byte i is value 8i + j: d where set, −d where clear.
pub(super) fn q1_0(block: &[u8; 18], out: &mut [f32; 128]) {
    let d = half(block, 0);
    for (row, &byte) in out.chunks_exact_mut(8).zip(part::<16, 18>(block, 2)) {
        for (j, x) in row.iter_mut().enumerate() {
            *x = if byte >> j & 1 == 1 { d } else { -d };
        }
    }
}

/// f16 d; 16 bytes, bits 2j..2j+1 of byte i are value 4i + j: d·(q − 1), so −1, 0, 1 or 2 of d.
pub(super) fn q2_0(block: &[u8; 18], out: &mut [f32; 64]) {
    let d = half(block, 0);
    for (row, &byte) in out.chunks_exact_mut(4).zip(part::<16, 18>(block, 2)) {
        for (j, x) in row.iter_mut().enumerate() {
            *x = d * (f32::from(byte >> (2 * j) & 3) - 1.0);
        }
    }
}
