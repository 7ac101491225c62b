//! Packing, 16 rows at a time: row by row as the source lies, or some of four rows in turn, into scratch that stays in
//! the second-level cache until it lies in its order. A kernel that jumps between rows every few KiB waits for memory at
//! each jump; four rows in turn are streams that a processor fetches by itself.

use super::{Extents, Form, exact};
use crate::q8_0::{self, Stats};
use crate::simd::{self, Float, Level, strips};
use crate::{PackError, finite, fragment};
use gantry_formats::block::fp16::F32_EXPONENT;
use gantry_formats::block::{GgmlType, dequantize};
use gantry_formats::layout::{Order, Scales};

/// Columns at a time where they stay in the first-level cache: a multiple of every block and every tile.
pub(super) const STRETCH: usize = 2048;

/// Columns at a time where they stay in the second-level cache. Scales per channel take a whole row, which is not
/// much longer.
const WIDE: usize = 16_384;

/// Bytes from row to row of scratch for `cols` columns: no power of two, for 16 lines of such rows share few sets of a
/// cache.
pub(super) const fn stride(cols: usize) -> usize {
    cols + 64
}

/// Rows of blocks.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) ty: GgmlType,
    pub(super) bytes: &'a [u8],
}

impl<'a> Source<'a> {
    /// `count` values from `first` on; both are whole blocks.
    fn part(self, first: usize, count: usize) -> &'a [u8] {
        let (len, size) = (self.ty.block_len() as usize, self.ty.block_bytes() as usize);
        &self.bytes[first / len * size..][..count / len * size]
    }

    /// `error` of the part from value `first` on, as seen from the start.
    fn moved(self, error: PackError, first: usize) -> PackError {
        error.moved(first as u64, first as u64 / self.ty.block_len())
    }
}

/// One row's scale per channel.
struct Channel {
    amax: f32,
    d: f32,
    id: f32,
    /// Bits of the largest error so far.
    worst: u32,
}

impl Channel {
    fn new(amax: f32) -> Self {
        let d = amax / 127.0;
        let reciprocal = 1.0 / d;
        let id = if reciprocal.is_infinite() { 0.0 } else { reciprocal };
        Self { amax, d, id, worst: 0 }
    }

    /// With the largest errors that are known.
    fn scale(&self, known: (f32, f32)) -> simd::Scale {
        simd::Scale { amax: self.amax, d: self.d, id: self.id, known }
    }

    fn stats(&self) -> Stats {
        let error = f32::from_bits(self.worst);
        let lost = self.amax > 0.0 && self.id == 0.0;
        Stats {
            blocks: 1,
            lost: u64::from(lost),
            subnormal: u64::from(self.d.is_subnormal()),
            max_abs_error: error,
            max_rel_error: if self.amax > 0.0 { error / self.amax } else { 0.0 },
        }
    }
}

/// [`super::quantize_at`], lengths checked.
pub(super) fn pack(
    level: Level,
    form: Form,
    extents: &Extents,
    source: Source<'_>,
    (quants, scales): (&mut [u8], &mut [u8]),
) -> Result<Stats, PackError> {
    let mut stats = Stats::default();
    let wide = if form.scales == Scales::Channel { extents.cols } else { WIDE.min(extents.cols) }.max(1);
    let stride = stride(wide);
    let mut scratch = vec![0; 16 * stride];
    let stream = quants.len() >= fragment::STREAM_FROM;
    for row in (0..extents.rows).step_by(16) {
        let rows = 16.min(form.rows - row);
        let scales = &mut scales[row * extents.row_scales..][..16 * extents.row_scales];
        if rows < 16 {
            scales.fill(0);
            scratch.fill(0);
        }
        for first in (0..extents.cols).step_by(wide) {
            let (width, padded) = (wide.min(form.cols - first), wide.min(extents.cols - first));
            let mut done = 0;
            if form.scales == Scales::Channel && level.reads_rows_together() {
                // Four rows at a time, as many as there are of them.
                let fours = scratch.chunks_exact_mut(4 * stride).take(rows / 4);
                for (lines, scales) in fours.zip(scales.as_chunks_mut::<16>().0) {
                    let at = (row + done) * form.cols;
                    if !quantize_four(level, (source, at), (lines, stride, width), scales, &mut stats)? {
                        break;
                    }
                    done += 4;
                }
            }
            if form.scales == Scales::Block32 && source.ty == GgmlType::BF16 {
                let columns = (form.cols, first, width);
                let fours = scratch.chunks_exact_mut(4 * stride).take(rows / 4);
                for (lines, scales) in fours.zip(scales.chunks_exact_mut(4 * extents.row_scales)) {
                    let (at, lines) = ((row + done) * form.cols, (lines, stride));
                    let scales = (scales, extents.row_scales);
                    match quantize_four_blocks(level, (source, at, columns), lines, scales, &stats) {
                        Some(piece) => stats.merge(&piece),
                        None => break,
                    }
                    done += 4;
                }
            }
            for (i, line) in scratch.chunks_exact_mut(stride).take(rows).enumerate() {
                let (line, padding) = line[..padded].split_at_mut(width);
                padding.fill(0);
                if i < done {
                    if form.scales == Scales::Block32 {
                        let scales = &mut scales[i * extents.row_scales..][..extents.row_scales];
                        scales[(first + width) / 16..(first + padded) / 16].fill(0);
                    }
                    continue;
                }
                let at = (row + i) * form.cols + first;
                let scales = &mut scales[i * extents.row_scales..][..extents.row_scales];
                match form.scales {
                    Scales::Channel => stats.merge(&quantize_row(level, (source, at), line, scales)?),
                    Scales::Block32 => {
                        let (scales, padding) = scales[first / 16..][..padded / 16].split_at_mut(width / 16);
                        padding.fill(0);
                        let part = source.part(at, width);
                        let piece = quantize_blocks(level, source.ty, part, (line, scales), &stats);
                        stats.merge(&piece.map_err(|error| source.moved(error, at))?);
                    }
                }
            }
            let place = Place { order: form.order, extents, row, first, width: padded };
            place.pack(level, (&scratch, stride), quants, stream);
        }
    }
    Ok(stats)
}

/// 16 rows and some columns, whole tiles, of a matrix with its padding.
pub(super) struct Place<'a> {
    pub(super) order: Order,
    pub(super) extents: &'a Extents,
    pub(super) row: usize,
    pub(super) first: usize,
    pub(super) width: usize,
}

impl Place<'_> {
    /// First bytes, in the quants and in the scratch, and length of the strips of the order.
    fn strips(&self, stride: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let height = strips::rows_of(self.order);
        (0..16).step_by(height).map(move |i| {
            let start = (self.row + i) * self.extents.cols + self.first * height;
            (start, i * stride, height * self.width)
        })
    }

    fn pack(&self, level: Level, (scratch, stride): (&[u8], usize), quants: &mut [u8], stream: bool) {
        let Self { order, extents, row, first, width } = *self;
        match order {
            Order::NMajor => {
                for (i, line) in scratch.chunks_exact(stride).enumerate() {
                    quants[(row + i) * extents.cols + first..][..width].copy_from_slice(&line[..width]);
                }
            }
            Order::KMajor => {
                let to = &mut quants[first * extents.rows + row..];
                level.transpose((16, width), (scratch, stride), (to, extents.rows), false);
            }
            _ => {
                for (start, line, len) in self.strips(stride) {
                    level.pack_strip(order, &scratch[line..], stride, &mut quants[start..][..len], stream);
                }
            }
        }
    }

    /// The inverse of [`Self::pack`].
    pub(super) fn unpack(&self, level: Level, quants: &[u8], (scratch, stride): (&mut [u8], usize)) {
        let Self { order, extents, row, first, width } = *self;
        match order {
            Order::NMajor => {
                for (i, line) in scratch.chunks_exact_mut(stride).enumerate() {
                    line[..width].copy_from_slice(&quants[(row + i) * extents.cols + first..][..width]);
                }
            }
            Order::KMajor => {
                let from = &quants[first * extents.rows + row..];
                level.transpose((width, 16), (from, extents.rows), (scratch, stride), false);
            }
            _ => {
                for (start, line, len) in self.strips(stride) {
                    level.unpack_strip(order, &quants[start..][..len], &mut scratch[line..], stride);
                }
            }
        }
    }
}

/// Q8_0's weights and scales of whole blocks; errors no larger than those of `known` may be missing.
fn quantize_blocks(
    level: Level,
    ty: GgmlType,
    src: &[u8],
    (weights, scales): (&mut [u8], &mut [u8]),
    known: &Stats,
) -> Result<Stats, PackError> {
    if !exact::is_exact(ty) {
        return q8_0::quantize_more(level, ty, src, (weights, scales), known);
    }
    finite::check_finite_at(level, ty, src)?;
    let blocks = src.chunks_exact(ty.block_bytes() as usize);
    let planes = weights.as_chunks_mut::<32>().0.iter_mut().zip(scales.as_chunks_mut::<2>().0);
    for (block, (weights, scale)) in blocks.zip(planes) {
        scale.copy_from_slice(&block[..2]);
        *weights = exact::weights(ty, block).map(|weight| weight as u8);
    }
    let subnormal = q8_0::count_subnormal(scales);
    Ok(Stats { blocks: scales.len() as u64 / 2, subnormal, ..Stats::default() })
}

/// [`quantize_blocks`] of some columns of four rows of BF16, the first of which is at `at`; lines and the scales of rows are
/// that far apart. `None`, and rubbish, where they are better taken one by one.
fn quantize_four_blocks(
    level: Level,
    (source, at, (cols, first, width)): (Source<'_>, usize, (usize, usize, usize)),
    (lines, stride): (&mut [u8], usize),
    (scales, row_scales): (&mut [u8], usize),
    known: &Stats,
) -> Option<Stats> {
    let parts = std::array::from_fn(|row| source.part(at + row * cols + first, width));
    let mut planes = lines.chunks_exact_mut(stride).zip(scales.chunks_exact_mut(row_scales));
    let planes = std::array::from_fn(|_| {
        let (line, scales) = planes.next().unwrap_or_default();
        (&mut line[..width], &mut scales[first / 16..][..width / 16])
    });
    level.quantize_four(parts, planes, known)
}

/// Largest magnitude of `count` values from `at` on; refuses what is no number.
fn amax(level: Level, source: Source<'_>, at: usize, count: usize) -> Result<f32, PackError> {
    let part = source.part(at, count);
    if let Some(float) = Float::of(source.ty) {
        let top = level.magnitude(float, part);
        if top >= F32_EXPONENT {
            finite::check_finite_at(level, source.ty, part).map_err(|error| source.moved(error, at))?;
        }
        return Ok(f32::from_bits(top));
    }
    finite::check_finite_at(level, source.ty, part).map_err(|error| source.moved(error, at))?;
    let mut top = 0;
    for first in (at..at + count).step_by(STRETCH) {
        let part = source.part(first, STRETCH.min(at + count - first));
        top = top.max(with_values(source.ty, part, |values| {
            let top = level.magnitude(Float::F32, values);
            if top >= F32_EXPONENT {
                // Numbers, each of them, whose product or rounding is none.
                let checked = finite::check_finite_at(level, GgmlType::F32, values);
                checked.map_err(|error| error.moved(first as u64, 0))?;
            }
            Ok(top)
        })?);
    }
    Ok(f32::from_bits(top))
}

/// The weights and scales of four rows of floats, the first of whose values are at `at` and whose lines are `stride`
/// apart; or `false`, and nothing is written, where the values are no floats of BF16.
fn quantize_four(
    level: Level,
    (source, at): (Source<'_>, usize),
    (lines, stride, width): (&mut [u8], usize, usize),
    scales: &mut [u8; 16],
    stats: &mut Stats,
) -> Result<bool, PackError> {
    if source.ty != GgmlType::BF16 || width == 0 {
        return Ok(false);
    }
    let parts: [&[u8]; 4] = std::array::from_fn(|row| source.part(at + row * width, width));
    let tops = level.magnitudes(parts);
    for (row, (part, top)) in parts.into_iter().zip(tops).enumerate() {
        if top >= F32_EXPONENT {
            let checked = finite::check_finite_at(level, source.ty, part);
            checked.map_err(|error| source.moved(error, at + row * width))?;
        }
    }
    let mut channels = tops.map(|top| Channel::new(f32::from_bits(top)));
    for (scale, channel) in scales.as_chunks_mut().0.iter_mut().zip(&channels) {
        *scale = channel.d.to_le_bytes();
    }
    let known = (stats.max_abs_error, stats.max_rel_error);
    let mut lines = lines.chunks_exact_mut(stride).map(|line| &mut line[..width]);
    let weights = std::array::from_fn(|_| lines.next().unwrap_or_default());
    let worst =
        level.scale_down_four(parts, channels.each_ref().map(|channel| channel.scale(known)), weights);
    for (channel, worst) in channels.iter_mut().zip(worst) {
        channel.worst = worst;
        stats.merge(&channel.stats());
    }
    Ok(true)
}

/// The weights and the scale of a row whose values start at `at`.
fn quantize_row(
    level: Level,
    (source, at): (Source<'_>, usize),
    weights: &mut [u8],
    scale: &mut [u8],
) -> Result<Stats, PackError> {
    let mut channel = Channel::new(amax(level, source, at, weights.len())?);
    scale.copy_from_slice(&channel.d.to_le_bytes());
    let scale = channel.scale((0.0, 0.0));
    if let Some(float) = Float::of(source.ty) {
        // The next row, fetched while this one is in the cache.
        let ahead = Some(weights.len() * float.bytes());
        channel.worst = level.scale_down(float, (source.part(at, weights.len()), ahead), scale, weights);
        return Ok(channel.stats());
    }
    for (i, weights) in weights.chunks_mut(STRETCH).enumerate() {
        let part = source.part(at + i * STRETCH, weights.len());
        let worst = with_values(source.ty, part, |values| {
            Ok(level.scale_down(Float::F32, (values, None), scale, weights))
        })?;
        channel.worst = channel.worst.max(worst);
    }
    Ok(channel.stats())
}

/// Calls `then` with the values, as little-endian f32, of blocks that hold at most [`STRETCH`].
fn with_values<T>(
    ty: GgmlType,
    part: &[u8],
    then: impl FnOnce(&[u8]) -> Result<T, PackError>,
) -> Result<T, PackError> {
    let (mut values, mut bytes) = ([0.0; STRETCH], [0; 4 * STRETCH]);
    let count = part.len() / ty.block_bytes() as usize * ty.block_len() as usize;
    dequantize(ty, part, &mut values[..count])?;
    for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(&values[..count]) {
        *bytes = value.to_le_bytes();
    }
    then(&bytes[..4 * count])
}
