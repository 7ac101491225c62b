//! Whole blocks of any type to f32.

use super::GgmlType;
use super::{fp4, iq1, iq2, iq3, iq4, k, legacy, plain, ternary};

/// Why bytes were not decoded. Any bytes of a block are legal; only lengths can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// Not a whole number of blocks.
    #[error("{bytes} bytes are no whole number of {ty} blocks of {} bytes", ty.block_bytes())]
    Ragged {
        /// The type.
        ty: GgmlType,
        /// Bytes given.
        bytes: usize,
    },
    /// The output is not as long as the blocks say.
    #[error("room for {got} values where {bytes} bytes of {ty} hold {expected}")]
    Room {
        /// The type.
        ty: GgmlType,
        /// Bytes given.
        bytes: usize,
        /// Values that they hold.
        expected: usize,
        /// Values that the output has room for.
        got: usize,
    },
}

/// Decodes whole blocks of `ty` into `out`, one f32 per value.
///
/// Bit for bit what ggml's decoders (and `gguf.quants.dequantize`) give: the same operations in the same order,
/// each rounded to f32, none fused. Integers and doubles are rounded to the nearest f32. Non-finite scales give
/// what arithmetic gives; [`super::finite::first_fault`] finds them.
pub fn dequantize(ty: GgmlType, bytes: &[u8], out: &mut [f32]) -> Result<(), BlockError> {
    let (size, len) = (ty.block_bytes() as usize, ty.block_len() as usize);
    if !bytes.len().is_multiple_of(size) {
        return Err(BlockError::Ragged { ty, bytes: bytes.len() });
    }
    let expected = (bytes.len() / size).saturating_mul(len);
    if out.len() != expected {
        return Err(BlockError::Room { ty, bytes: bytes.len(), expected, got: out.len() });
    }
    match ty {
        GgmlType::F32 => each(bytes, out, plain::f32),
        GgmlType::F16 => each(bytes, out, plain::f16),
        GgmlType::BF16 => each(bytes, out, plain::bf16),
        GgmlType::F64 => each(bytes, out, plain::f64),
        GgmlType::I8 => each(bytes, out, plain::i8),
        GgmlType::I16 => each(bytes, out, plain::i16),
        GgmlType::I32 => each(bytes, out, plain::i32),
        GgmlType::I64 => each(bytes, out, plain::i64),
        GgmlType::Q4_0 => each(bytes, out, legacy::q4_0),
        GgmlType::Q4_1 => each(bytes, out, legacy::q4_1),
        GgmlType::Q5_0 => each(bytes, out, legacy::q5_0),
        GgmlType::Q5_1 => each(bytes, out, legacy::q5_1),
        GgmlType::Q8_0 => each(bytes, out, legacy::q8_0),
        GgmlType::Q8_1 => each(bytes, out, legacy::q8_1),
        GgmlType::Q2_K => each(bytes, out, k::q2_k),
        GgmlType::Q3_K => each(bytes, out, k::q3_k),
        GgmlType::Q4_K => each(bytes, out, k::q4_k),
        GgmlType::Q5_K => each(bytes, out, k::q5_k),
        GgmlType::Q6_K => each(bytes, out, k::q6_k),
        GgmlType::Q8_K => each(bytes, out, k::q8_k),
        GgmlType::IQ2_XXS => each(bytes, out, iq2::iq2_xxs),
        GgmlType::IQ2_XS => each(bytes, out, iq2::iq2_xs),
        GgmlType::IQ2_S => each(bytes, out, iq2::iq2_s),
        GgmlType::IQ3_XXS => each(bytes, out, iq3::iq3_xxs),
        GgmlType::IQ3_S => each(bytes, out, iq3::iq3_s),
        GgmlType::IQ1_S => each(bytes, out, iq1::iq1_s),
        GgmlType::IQ1_M => each(bytes, out, iq1::iq1_m),
        GgmlType::IQ4_NL => each(bytes, out, iq4::iq4_nl),
        GgmlType::IQ4_XS => each(bytes, out, iq4::iq4_xs),
        GgmlType::TQ1_0 => each(bytes, out, ternary::tq1_0),
        GgmlType::TQ2_0 => each(bytes, out, ternary::tq2_0),
        GgmlType::Q1_0 => each(bytes, out, ternary::q1_0),
        GgmlType::Q2_0 => each(bytes, out, ternary::q2_0),
        GgmlType::MXFP4 => each(bytes, out, fp4::mxfp4),
        GgmlType::NVFP4 => each(bytes, out, fp4::nvfp4),
    }
    Ok(())
}

/// Runs one block decoder over all blocks. Sizes come from the decoder's own signature and were checked above
/// against the type's; the tests below hold the two together.
fn each<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, rest) = bytes.as_chunks::<BYTES>();
    let (outs, room) = out.as_chunks_mut::<LEN>();
    debug_assert!(rest.is_empty() && room.is_empty() && blocks.len() == outs.len());
    for (block, out) in blocks.iter().zip(outs) {
        decode(block, out);
    }
}

/// `N` bytes at `at`; the constants in the block decoders keep this in bounds, and the optimizer drops the check.
#[inline(always)]
pub(super) fn part<const N: usize, const BYTES: usize>(block: &[u8; BYTES], at: usize) -> &[u8; N] {
    const { assert!(N <= BYTES) };
    let mut found = &[0; N];
    if let Some(chunk) = block.get(at..).and_then(<[u8]>::first_chunk::<N>) {
        found = chunk;
    }
    found
}

/// The f16 at byte `at`, as f32.
#[inline(always)]
pub(super) fn half<const BYTES: usize>(block: &[u8; BYTES], at: usize) -> f32 {
    super::fp16::f16_to_f32(u16::from_le_bytes(*part(block, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_decodes_whole_blocks_of_any_bytes() {
        for &ty in GgmlType::ALL {
            let (size, len) = (ty.block_bytes() as usize, ty.block_len() as usize);
            for fill in [0x00, 0x55, 0x7c, 0xaa, 0xff] {
                // NaN in every value tells which ones a decoder left alone.
                let mut out = vec![f32::from_bits(0x7fc0_1234); 3 * len];
                dequantize(ty, &vec![fill; 3 * size], &mut out).expect("whole blocks");
                assert!(out.iter().all(|x| x.to_bits() != 0x7fc0_1234), "{ty} {fill:02x}");
            }
            let mut out = vec![0.0; len];
            if size > 1 {
                let ragged = dequantize(ty, &vec![0; size + 1], &mut out);
                assert_eq!(ragged, Err(BlockError::Ragged { ty, bytes: size + 1 }));
            }
            assert!(matches!(dequantize(ty, &vec![0; 2 * size], &mut out), Err(BlockError::Room { .. })));
            assert_eq!(dequantize(ty, &[], &mut []), Ok(()));
        }
    }

    #[test]
    fn errors_say_what_was_expected() {
        let mut out = [0.0; 31];
        assert_eq!(
            dequantize(GgmlType::Q8_0, &[0; 33], &mut out).expect_err("ragged").to_string(),
            "33 bytes are no whole number of Q8_0 blocks of 34 bytes"
        );
        assert_eq!(
            dequantize(GgmlType::Q8_0, &[0; 34], &mut out).expect_err("no room").to_string(),
            "room for 31 values where 34 bytes of Q8_0 hold 32"
        );
    }
}
