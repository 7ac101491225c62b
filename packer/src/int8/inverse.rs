//! From int8 planes back: to values, and to the blocks that they came from.

use super::pack::{Place, STRETCH, stride};
use super::{Extents, Form, exact};
use crate::PackError;
use crate::q8_0;
use crate::simd::{self, Level};
use gantry_formats::block::{GgmlType, fp16};
use gantry_formats::layout::Scales;

/// Calls `each(row, first column, weights)` for stretches of every row, their padding left out.
fn for_each_stretch(
    level: Level,
    form: Form,
    extents: &Extents,
    quants: &[u8],
    mut each: impl FnMut(usize, usize, &[u8]) -> Result<(), PackError>,
) -> Result<(), PackError> {
    const STRIDE: usize = stride(STRETCH);
    let mut scratch = [0; 16 * STRIDE];
    for row in (0..form.rows).step_by(16) {
        for first in (0..extents.cols).step_by(STRETCH) {
            let width = STRETCH.min(extents.cols - first);
            let place = Place { order: form.order, extents, row, first, width };
            place.unpack(level, quants, (&mut scratch, STRIDE));
            let width = width.min(form.cols - first);
            for (i, line) in scratch.chunks_exact(STRIDE).take(form.rows - row).enumerate() {
                each(row + i, first, &line[..width])?;
            }
        }
    }
    Ok(())
}

/// The values of a matrix, row-major `[rows, cols]`, without padding: weight times scale, rounded to f32 (exact
/// where the scales are per 32).
///
/// # Errors
/// [`PackError::Length`] where a slice has not the length that the form asks for, and what [`Form::plane_bytes`]
/// refuses.
pub fn dequantize(form: Form, quants: &[u8], scales: &[u8], out: &mut [f32]) -> Result<(), PackError> {
    dequantize_at(simd::level()?, form, quants, scales, out)
}

/// [`dequantize`] at a given level.
pub fn dequantize_at(
    level: Level,
    form: Form,
    quants: &[u8],
    scales: &[u8],
    out: &mut [f32],
) -> Result<(), PackError> {
    let extents = form.expect_planes(quants.len(), scales.len())?;
    PackError::expect_len("values", out.len(), extents.weights)?;
    for_each_stretch(level, form, &extents, quants, |row, first, weights| {
        let out = &mut out[row * form.cols + first..][..weights.len()];
        let scales = &scales[row * extents.row_scales..][..extents.row_scales];
        let times = |out: &mut [f32], weights: &[u8], d: f32| {
            for (out, weight) in out.iter_mut().zip(weights) {
                *out = f32::from(*weight as i8) * d;
            }
        };
        match form.scales {
            Scales::Channel => {
                times(out, weights, scales.first_chunk().map_or(0.0, |d| f32::from_le_bytes(*d)));
            }
            Scales::Block32 => {
                let scales = scales[first / 16..].as_chunks().0.iter();
                for ((out, weights), d) in out.chunks_mut(32).zip(weights.chunks(32)).zip(scales) {
                    times(out, weights, fp16::f16_to_f32(u16::from_le_bytes(*d)));
                }
            }
        }
        Ok(())
    })
}

/// The blocks, row-major, of Q8_0, or of the Q4_0, Q5_0 or IQ4_NL that the matrix was packed from: with the same
/// type, the inverse of [`super::quantize`], byte for byte.
///
/// # Errors
/// [`PackError::NotOfType`] for a weight that blocks of `ty` cannot hold, [`PackError::NoBlocks`] for other types
/// and for scales per channel, and what [`dequantize`] refuses.
pub fn to_blocks(
    form: Form,
    ty: GgmlType,
    quants: &[u8],
    scales: &[u8],
    out: &mut [u8],
) -> Result<(), PackError> {
    to_blocks_at(simd::level()?, form, ty, quants, scales, out)
}

/// [`to_blocks`] at a given level.
pub fn to_blocks_at(
    level: Level,
    form: Form,
    ty: GgmlType,
    quants: &[u8],
    scales: &[u8],
    out: &mut [u8],
) -> Result<(), PackError> {
    let extents = form.expect_planes(quants.len(), scales.len())?;
    if form.scales != Scales::Block32 || !(ty == GgmlType::Q8_0 || exact::is_exact(ty)) {
        return Err(PackError::NoBlocks { scales: form.scales, ty });
    }
    let size = ty.block_bytes() as usize;
    let bytes = (extents.weights / 32).checked_mul(size);
    let bytes = bytes.ok_or(PackError::TooLarge { rows: form.rows, cols: form.cols })?;
    PackError::expect_len("blocks", out.len(), bytes)?;
    for_each_stretch(level, form, &extents, quants, |row, first, weights| {
        let at = row * form.cols + first;
        let out = &mut out[at / 32 * size..][..weights.len() / 32 * size];
        let scales = &scales[row * extents.row_scales + first / 16..][..weights.len() / 16];
        if ty == GgmlType::Q8_0 {
            return q8_0::join_q8_0(weights, scales, out);
        }
        let planes = weights.as_chunks().0.iter().zip(scales.as_chunks().0);
        for (i, (block, (weights, scale))) in out.chunks_exact_mut(size).zip(planes).enumerate() {
            exact::write(ty, *scale, weights, block).map_err(|j| PackError::NotOfType {
                element: (at + 32 * i + j) as u64,
                quant: weights[j] as i8,
                ty,
            })?;
        }
        Ok(())
    })
}
