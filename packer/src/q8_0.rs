//! Q8_0 in two planes: all int8 quants, then all f16 scales, one per 32 values.
//!
//! The planes hold the bytes of the 34-byte blocks, reordered. What a block's bytes must be is defined by
//! [`gantry_formats::block::q8_0`]; everything here gives the same, faster.

use crate::simd::{self, Float, Level};
use crate::{PackError, finite};
use gantry_formats::block::q8_0::{self as truth, Q8Error};
use gantry_formats::block::{BlockError, GgmlType, dequantize};

/// Values per block.
pub const LEN: usize = truth::LEN;

/// Bytes of a block in a GGUF.
pub const BYTES: usize = truth::BYTES;

/// What quantizing did to the values. Counts add up and maxima are exact, so the order of merging does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Blocks written.
    pub blocks: u64,
    /// Blocks that were not zero and read as zero, because their scale rounds to 0.
    pub lost: u64,
    /// Blocks with a subnormal scale: it keeps fewer than 11 bits.
    pub subnormal: u64,
    /// Largest |x − d·q|, each in f32.
    pub max_abs_error: f32,
    /// Largest, over blocks, of the block's largest |x − d·q| over its largest |x|: about 1/254 where the scale is
    /// exact, 1 for a lost block.
    pub max_rel_error: f32,
}

impl Stats {
    /// Adds another piece's.
    pub fn merge(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.lost += other.lost;
        self.subnormal += other.subnormal;
        self.max_abs_error = self.max_abs_error.max(other.max_abs_error);
        self.max_rel_error = self.max_rel_error.max(other.max_rel_error);
    }
}

/// Blocks of 32 that `src` gives.
fn blocks_of(ty: GgmlType, src: &[u8]) -> Result<usize, PackError> {
    let size = ty.block_bytes() as usize;
    if !src.len().is_multiple_of(size) {
        return Err(BlockError::Ragged { ty, bytes: src.len() }.into());
    }
    let values = (src.len() / size) as u64 * ty.block_len();
    if !values.is_multiple_of(LEN as u64) {
        return Err(PackError::Ragged { ty, values });
    }
    Ok((values / LEN as u64) as usize)
}

fn expect_planes(blocks: usize, quants: usize, scales: usize) -> Result<(), PackError> {
    PackError::expect_len("quants", quants, blocks * LEN)?;
    PackError::expect_len("scales", scales, blocks * 2)
}

/// Quantizes `src`, little-endian values or blocks of `ty`, to Q8_0 in two planes: `quants`, one int8 per value,
/// and `scales`, one f16 per 32 values. Q8_0 itself is split as it is; other block types and numbers go through
/// f32. On an error the planes hold rubbish.
///
/// The bytes equal those of ggml's `quantize_row_q8_0_ref` and of `gguf.quants.quantize`.
pub fn quantize(ty: GgmlType, src: &[u8], quants: &mut [u8], scales: &mut [u8]) -> Result<Stats, PackError> {
    quantize_at(simd::level()?, ty, src, quants, scales)
}

/// [`quantize`] at a given level.
pub fn quantize_at(
    level: Level,
    ty: GgmlType,
    src: &[u8],
    quants: &mut [u8],
    scales: &mut [u8],
) -> Result<Stats, PackError> {
    quantize_more(level, ty, src, (quants, scales), &Stats::default())
}

/// [`quantize_at`] of a piece; errors that are no larger than those of `known` may be missing from its stats.
pub(crate) fn quantize_more(
    level: Level,
    ty: GgmlType,
    src: &[u8],
    (quants, scales): (&mut [u8], &mut [u8]),
    known: &Stats,
) -> Result<Stats, PackError> {
    expect_planes(blocks_of(ty, src)?, quants.len(), scales.len())?;
    if let Some(float) = Float::of(ty) {
        return quantize_floats(level, float, src, (quants, scales), known);
    }
    match ty {
        GgmlType::Q8_0 => split_q8_0_at(level, src, quants, scales),
        _ => quantize_other(level, ty, src, quants, scales),
    }
}

fn quantize_floats(
    level: Level,
    float: Float,
    src: &[u8],
    planes: (&mut [u8], &mut [u8]),
    known: &Stats,
) -> Result<Stats, PackError> {
    level.quantize(float, src, planes, known).map_err(|block| first_fault(float, src, block))
}

/// The error of the first block that has one, at or after block `from`: kernels only say that there is one.
fn first_fault(float: Float, src: &[u8], from: usize) -> PackError {
    let size = LEN * float.bytes();
    for (i, bytes) in src.chunks_exact(size).enumerate().skip(from) {
        let mut x = [0.0; LEN];
        if let Err(error) = dequantize(float.ty(), bytes, &mut x) {
            return error.into();
        }
        let at = (i * LEN) as u64;
        match truth::quantize_block(&x) {
            Ok(_) => {}
            Err(Q8Error::NonFinite { index, kind }) => {
                return PackError::NonFinite { element: at + index as u64, kind };
            }
            Err(Q8Error::ScaleOverflow { index, amax }) => {
                return PackError::ScaleOverflow { element: at + index as u64, amax };
            }
        }
    }
    unreachable!("a kernel refused a block that the scalar truth takes");
}

/// Values decoded at a time: a multiple of every block, and at home in the first-level cache.
const STRIDE: usize = 2048;

fn quantize_other(
    level: Level,
    ty: GgmlType,
    src: &[u8],
    quants: &mut [u8],
    scales: &mut [u8],
) -> Result<Stats, PackError> {
    let (size, len) = (ty.block_bytes() as usize, ty.block_len() as usize);
    let mut values = [0.0_f32; STRIDE];
    let mut bytes = [0_u8; STRIDE * 4];
    let mut stats = Stats::default();
    let chunks =
        src.chunks(STRIDE / len * size).zip(quants.chunks_mut(STRIDE)).zip(scales.chunks_mut(STRIDE / 16));
    for (i, ((src, quants), scales)) in chunks.enumerate() {
        let moved = |error: PackError| error.moved((i * STRIDE) as u64, (i * STRIDE / len) as u64);
        finite::check_finite_at(level, ty, src).map_err(moved)?;
        let n = quants.len();
        let (values, bytes) = (&mut values[..n], &mut bytes[..4 * n]);
        dequantize(ty, src, values)?;
        for (b, v) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(&*values) {
            *b = v.to_le_bytes();
        }
        let piece = quantize_floats(level, Float::F32, bytes, (quants, scales), &stats);
        stats.merge(&piece.map_err(moved)?);
    }
    Ok(stats)
}

/// Splits Q8_0 blocks into their quants and scales, byte for byte; refuses scales that are no number. Negative
/// scales, subnormal scales and q = −128 pass. The stats count subnormal scales; nothing is lost.
pub fn split_q8_0(src: &[u8], quants: &mut [u8], scales: &mut [u8]) -> Result<Stats, PackError> {
    split_q8_0_at(simd::level()?, src, quants, scales)
}

/// [`split_q8_0`] at a given level.
pub fn split_q8_0_at(
    level: Level,
    src: &[u8],
    quants: &mut [u8],
    scales: &mut [u8],
) -> Result<Stats, PackError> {
    let blocks = blocks_of(GgmlType::Q8_0, src)?;
    expect_planes(blocks, quants.len(), scales.len())?;
    level.split(src, quants, scales);
    if let Err(fault) = finite::check_finite_at(level, GgmlType::F16, scales) {
        // Element i of the scale plane is the scale of block i.
        return Err(match fault {
            PackError::NonFinite { element, kind } => {
                PackError::NonFiniteScale { block: element, field: "scale", kind }
            }
            other => other,
        });
    }
    Ok(Stats { blocks: blocks as u64, subnormal: count_subnormal(scales), ..Stats::default() })
}

pub(crate) fn count_subnormal(scales: &[u8]) -> u64 {
    let is_subnormal = |s: &[u8; 2]| {
        let magnitude = u16::from_le_bytes(*s) & 0x7fff;
        u64::from(magnitude.wrapping_sub(1) < 0x03ff)
    };
    scales.as_chunks().0.iter().map(is_subnormal).sum()
}

/// The 34-byte blocks of two planes: the inverse of [`split_q8_0`] for any bytes.
pub fn join_q8_0(quants: &[u8], scales: &[u8], out: &mut [u8]) -> Result<(), PackError> {
    let blocks = scales.len() / 2;
    expect_planes(blocks, quants.len(), scales.len())?;
    PackError::expect_len("blocks", out.len(), blocks * BYTES)?;
    let planes = quants.as_chunks::<LEN>().0.iter().zip(scales.as_chunks::<2>().0);
    for (out, (quants, scale)) in out.as_chunks_mut::<BYTES>().0.iter_mut().zip(planes) {
        out[..2].copy_from_slice(scale);
        out[2..].copy_from_slice(quants);
    }
    Ok(())
}
