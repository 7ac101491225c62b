//! Int8 weights with their scales, in the order of a matrix instruction.
//!
//! Two planes: `quants`, one byte per weight in an [`Order`] with its padding, and `scales` in natural order, with
//! padding as zeros: per channel one f32 a row, per 32 one f16 for each 32 columns of a row.
//!
//! * [`Scales::Block32`]: Q8_0 as it is; Q4_0, Q5_0 and IQ4_NL exactly, for they are integers times an f16 per 32
//!   as well; everything else as [`crate::q8_0::quantize`] gives it.
//! * [`Scales::Channel`]: per row amax = max|x|, d = amax/127 in f32, id = 1/d (0 where d is 0 or 1/d overflows),
//!   q = x·id rounded half away from zero, the scale d. Not x/d, as for Q8_0. Blocks go through f32.
//!
//! A group of rows is packed as if it were a matrix by itself, as [`crate::fragment`] has it; its scales are then a
//! contiguous stretch of the whole matrix's.

mod exact;
mod inverse;
mod pack;

pub use inverse::{dequantize, dequantize_at, to_blocks, to_blocks_at};

use crate::simd::{self, Level};
use crate::{PackError, fragment, q8_0::Stats};
use gantry_formats::block::GgmlType;
use gantry_formats::layout::{Order, Scales};

/// Columns up to which every int32 sum of int8 products over a row is exact: 131,072 · (−128)² is 2³¹.
pub const MAX_CHANNEL_COLS: usize = gantry_formats::layout::MAX_WHOLE_ROW as usize;

/// An int8 matrix: how its weights are ordered and scaled, and its extents without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The order of the weights.
    pub order: Order,
    /// How they are scaled.
    pub scales: Scales,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

/// Bytes and padded extents of a [`Form`].
struct Extents {
    /// Weights without padding.
    weights: usize,
    /// Rows with padding.
    rows: usize,
    /// Columns with padding.
    cols: usize,
    /// Bytes of the scales of one row.
    row_scales: usize,
}

impl Form {
    /// Bytes of the quants and of the scales, padding included.
    ///
    /// # Errors
    /// [`PackError::ScalesOfOrder`], [`PackError::RaggedRows`] for scales per 32, [`PackError::LongRows`] for
    /// scales per channel, [`PackError::TooLarge`].
    pub fn plane_bytes(&self) -> Result<(usize, usize), PackError> {
        let extents = self.extents()?;
        Ok((extents.rows * extents.cols, extents.rows * extents.row_scales))
    }

    fn extents(&self) -> Result<Extents, PackError> {
        let Self { order, scales, rows, cols } = *self;
        if !order.takes(scales) {
            return Err(PackError::ScalesOfOrder { order, scales });
        }
        if scales == Scales::Channel && cols > MAX_CHANNEL_COLS {
            return Err(PackError::LongRows { cols });
        }
        if scales == Scales::Block32 && !cols.is_multiple_of(32) {
            return Err(PackError::RaggedRows { cols, len: 32 });
        }
        let (weights, n, k) = fragment::extents(order, rows, cols)?;
        let row_scales = if scales == Scales::Channel { 4 } else { k / 32 * 2 };
        n.checked_mul(row_scales).ok_or(PackError::TooLarge { rows, cols })?;
        Ok(Extents { weights, rows: n, cols: k, row_scales })
    }

    /// The extents, and both planes' lengths checked.
    fn expect_planes(&self, quants: usize, scales: usize) -> Result<Extents, PackError> {
        let extents = self.extents()?;
        PackError::expect_len("quants", quants, extents.rows * extents.cols)?;
        PackError::expect_len("scales", scales, extents.rows * extents.row_scales)?;
        Ok(extents)
    }
}

/// Quantizes `src`, row-major little-endian values or blocks of `ty`, to the planes of `form`. On an error they hold
/// rubbish.
///
/// The stats count blocks, or rows where the scales are per channel; `subnormal` are scales that are subnormal f16,
/// or f32. What is carried exactly has no error.
///
/// # Errors
/// Values and scales that are no number, Q8_0 scales that overflow, slices of another length than the form asks
/// for, and what [`Form::plane_bytes`] refuses.
pub fn quantize(
    form: Form,
    ty: GgmlType,
    src: &[u8],
    quants: &mut [u8],
    scales: &mut [u8],
) -> Result<Stats, PackError> {
    quantize_at(simd::level()?, form, ty, src, quants, scales)
}

/// [`quantize`] at a given level.
pub fn quantize_at(
    level: Level,
    form: Form,
    ty: GgmlType,
    src: &[u8],
    quants: &mut [u8],
    scales: &mut [u8],
) -> Result<Stats, PackError> {
    let extents = form.expect_planes(quants.len(), scales.len())?;
    if !(form.cols as u64).is_multiple_of(ty.block_len()) {
        return Err(PackError::RaggedRows { cols: form.cols, len: ty.block_len() });
    }
    let blocks = extents.weights as u64 / ty.block_len();
    let bytes = blocks.checked_mul(ty.block_bytes()).and_then(|n| usize::try_from(n).ok());
    let bytes = bytes.ok_or(PackError::TooLarge { rows: form.rows, cols: form.cols })?;
    PackError::expect_len("source", src.len(), bytes)?;
    pack::pack(level, form, &extents, pack::Source { ty, bytes: src }, (quants, scales))
}
