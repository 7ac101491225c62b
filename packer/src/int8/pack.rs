//! Packing, 16 rows at a time: row by row as the source lies, into scratch that stays in the second-level cache until
//! it lies in its order. A kernel that jumps between rows every few KiB waits for memory at each jump.

use super::{Extents, Form, exact};
use crate::q8_0::{self, Stats};
use crate::simd::{self, Float, Level, strips};
use crate::{PackError, finite, fragment};
use gantry_formats::block::fp16::F32_EXPONENT;
use gantry_formats::block::{GgmlType, dequantize};
use gantry_formats::layout::{Order, Scales};

/// Columns at a time where they stay in the first-level cache: a multiple of every block and every tile.
pub(super) const STRETCH: usize = 2048;

/// Columns at a time of rows that are read side by side.
const PIECE: usize = 512;

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
    let side_by_side = if Float::of(source.ty).is_some() { level.rows_at_once() } else { 1 };
    let packed = pack_by(level, side_by_side, form, extents, source, (&mut *quants, &mut *scales));
    if packed.is_err() && side_by_side > 1 {
        // Of several faults the first in the order of rows is named.
        return pack_by(level, 1, form, extents, source, (quants, scales));
    }
    packed
}

/// [`pack`], `side_by_side` rows at a time, a divisor of 16.
fn pack_by(
    level: Level,
    side_by_side: usize,
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
            for i in (0..rows).step_by(side_by_side) {
                let group = Group {
                    at: (row + i) * form.cols + first,
                    apart: form.cols,
                    count: side_by_side.min(rows - i),
                    width,
                };
                let lines = (&mut scratch[i * stride..], stride);
                for line in lines.0.chunks_mut(stride).take(group.count) {
                    line[width..padded].fill(0);
                }
                let scales = (&mut scales[i * extents.row_scales..], extents.row_scales);
                match form.scales {
                    Scales::Channel => quantize_rows(level, source, &group, lines, scales, &mut stats)?,
                    Scales::Block32 => {
                        for scales in scales.0.chunks_exact_mut(scales.1).take(group.count) {
                            scales[(first + width) / 16..(first + padded) / 16].fill(0);
                        }
                        let scales = (&mut scales.0[first / 16..], scales.1);
                        quantize_blocks(level, source, &group, lines, scales, &mut stats)?;
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

/// Values of some rows that are quantized side by side: `width` of each, the first of which is value `at` of the source,
/// and from row to row values that are `apart`.
struct Group {
    at: usize,
    apart: usize,
    count: usize,
    width: usize,
}

impl Group {
    /// Calls `each(row of the group, first column, columns)` for all of it, piece by piece.
    fn for_each_piece(
        &self,
        piece: usize,
        mut each: impl FnMut(usize, usize, usize) -> Result<(), PackError>,
    ) -> Result<(), PackError> {
        let piece = if self.count == 1 { self.width.max(1) } else { piece };
        for first in (0..self.width).step_by(piece) {
            for row in 0..self.count {
                each(row, first, piece.min(self.width - first))?;
            }
        }
        Ok(())
    }

    fn at(&self, row: usize, col: usize) -> usize {
        self.at + row * self.apart + col
    }
}

/// Q8_0's weights and scales of a group of whole blocks; lines and scales are that far apart.
fn quantize_blocks(
    level: Level,
    source: Source<'_>,
    group: &Group,
    (lines, line): (&mut [u8], usize),
    (scales, row_scales): (&mut [u8], usize),
    stats: &mut Stats,
) -> Result<(), PackError> {
    group.for_each_piece(PIECE, |row, first, count| {
        let at = group.at(row, first);
        let weights = &mut lines[row * line + first..][..count];
        let scales = &mut scales[row * row_scales + first / 16..][..count / 16];
        let piece = quantize_piece(level, source.ty, source.part(at, count), (weights, scales), stats);
        stats.merge(&piece.map_err(|error| source.moved(error, at))?);
        Ok(())
    })
}

/// Q8_0's weights and scales of whole blocks.
fn quantize_piece(
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

/// Largest magnitude of each row of a group; refuses what is no number.
fn magnitudes(level: Level, source: Source<'_>, group: &Group) -> Result<[f32; 16], PackError> {
    let mut tops = [0; 16];
    if let Some(float) = Float::of(source.ty) {
        group.for_each_piece(PIECE, |row, first, count| {
            let (at, top) = (group.at(row, first), &mut tops[row]);
            let part = source.part(at, count);
            *top = level.magnitude(float, part).max(*top);
            if *top >= F32_EXPONENT {
                finite::check_finite_at(level, source.ty, part).map_err(|error| source.moved(error, at))?;
            }
            Ok(())
        })?;
        return Ok(tops.map(f32::from_bits));
    }
    for (row, top) in tops.iter_mut().enumerate().take(group.count) {
        let (at, count) = (group.at(row, 0), group.width);
        let part = source.part(at, count);
        finite::check_finite_at(level, source.ty, part).map_err(|error| source.moved(error, at))?;
        for first in (at..at + count).step_by(STRETCH) {
            let part = source.part(first, STRETCH.min(at + count - first));
            *top = (*top).max(with_values(source.ty, part, |values| {
                let top = level.magnitude(Float::F32, values);
                if top >= F32_EXPONENT {
                    // Numbers, each of them, whose product or rounding is none.
                    let checked = finite::check_finite_at(level, GgmlType::F32, values);
                    checked.map_err(|error| error.moved(first as u64, 0))?;
                }
                Ok(top)
            })?);
        }
    }
    Ok(tops.map(f32::from_bits))
}

/// The weights and the scales of a group of whole rows; lines and scales are that far apart.
fn quantize_rows(
    level: Level,
    source: Source<'_>,
    group: &Group,
    (lines, line): (&mut [u8], usize),
    (scales, row_scales): (&mut [u8], usize),
    stats: &mut Stats,
) -> Result<(), PackError> {
    let mut channels = magnitudes(level, source, group)?.map(Channel::new);
    for (scale, channel) in scales.chunks_exact_mut(row_scales).zip(&channels[..group.count]) {
        scale.copy_from_slice(&channel.d.to_le_bytes());
    }
    let known = (stats.max_abs_error, stats.max_rel_error);
    let scale = |channel: &Channel| simd::Scale { amax: channel.amax, d: channel.d, id: channel.id, known };
    if let Some(float) = Float::of(source.ty) {
        // The next rows, fetched while these are in the cache.
        let ahead = Some(group.count * group.apart * float.bytes());
        group.for_each_piece(PIECE, |row, first, count| {
            let part = (source.part(group.at(row, first), count), ahead);
            let worst = level.scale_down(
                float,
                part,
                scale(&channels[row]),
                &mut lines[row * line + first..][..count],
            );
            channels[row].worst = channels[row].worst.max(worst);
            Ok(())
        })?;
    } else {
        for (row, channel) in channels.iter_mut().enumerate().take(group.count) {
            for (i, weights) in lines[row * line..][..group.width].chunks_mut(STRETCH).enumerate() {
                let part = source.part(group.at(row, i * STRETCH), weights.len());
                let worst = with_values(source.ty, part, |values| {
                    Ok(level.scale_down(Float::F32, (values, None), scale(channel), weights))
                })?;
                channel.worst = channel.worst.max(worst);
            }
        }
    }
    for channel in &channels[..group.count] {
        stats.merge(&channel.stats());
    }
    Ok(())
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
