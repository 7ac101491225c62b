//! Four-bit floats (E2M1) with shared scales.

use super::dequantize::part;

/// Twice the value of each E2M1 code; the scales below are halved to match, as ggml does.
const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The value of an E8M0 scale: 2^(e − 127), and NaN for 0xff.
pub fn e8m0_to_f32(e: u8) -> f32 {
    match e {
        0 => f32::from_bits(0x0040_0000),
        0xff => f32::NAN,
        _ => f32::from_bits(u32::from(e) << 23),
    }
}

/// Half of an E8M0 scale as ggml's decoder reads it: 2^(e − 128), with 0xff no NaN but 2^127.
pub fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}

/// Half of a UE4M3 scale as ggml's decoder reads it: bias 7, the top bit ignored except that only the byte 0x7f,
/// the standard's NaN, reads as 0.
pub fn ue4m3_half(byte: u8) -> f32 {
    if byte == 0x7f {
        return 0.0;
    }
    let (exponent, mantissa) = (byte >> 3 & 15, f32::from(byte & 7));
    if exponent == 0 {
        mantissa / 1024.0
    } else {
        // (1 + m/8) · 2^(exponent − 7) / 2
        (1.0 + mantissa / 8.0) * f32::from_bits((u32::from(exponent) + 119) << 23)
    }
}

fn e2m1(code: u8) -> f32 {
    f32::from(E2M1_DOUBLED[usize::from(code & 15)])
}

/// E8M0 scale; 16 bytes of nibbles, byte j holding values j and j + 16.
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let d = e8m0_half(block[0]);
    super::legacy::nibbles(part(block, 1), out, |_, code| d * e2m1(code));
}

/// Four UE4M3 scales, one per 16 values; 4 × 8 bytes of nibbles, byte j of each 8 holding values j and j + 8.
pub(super) fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    let (scales, codes) = block.split_at(4);
    for ((&scale, codes), out) in scales.iter().zip(codes.chunks_exact(8)).zip(out.chunks_exact_mut(16)) {
        let d = ue4m3_half(scale);
        let (low, high) = out.split_at_mut(8);
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(codes) {
            *low = d * e2m1(byte);
            *high = d * e2m1(byte >> 4);
        }
    }
}
