//! Packing, 16 rows and a stretch of columns at a time, so that what is quantized stays in the first-level cache
//! until it lies in its order.

use super::{Extents, Form, exact};
use crate::q8_0::{self, Stats};
use crate::simd::{Float, Level, strips};
use crate::{PackError, finite, fragment};
use gantry_formats::block::fp16::F32_EXPONENT;
use gantry_formats::block::{GgmlType, dequantize};
use gantry_formats::layout::{Order, Scales};

/// Columns at a time: a multiple of every block and every tile.
pub(super) const STRETCH: usize = 2048;

/// Bytes from row to row of the scratch: no power of two, for 16 lines of such rows share few sets of a cache.
pub(super) const STRIDE: usize = STRETCH + 64;

/// 16 rows of int8, of which columns past the matrix are zero.
pub(super) type Scratch = [u8; 16 * STRIDE];

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
#[derive(Clone, Copy, Default)]
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
    let mut stats = Stats::default();
    let mut scratch = [0; 16 * STRIDE];
    let stream = quants.len() >= fragment::STREAM_FROM;
    for row in (0..extents.rows).step_by(16) {
        let rows = 16.min(form.rows - row);
        let scales = &mut scales[row * extents.row_scales..][..16 * extents.row_scales];
        if rows < 16 {
            scales.fill(0);
            scratch.fill(0);
        }
        let mut channels = [Channel::default(); 16];
        if form.scales == Scales::Channel {
            for (i, (channel, scale)) in
                channels.iter_mut().zip(scales.as_chunks_mut().0).take(rows).enumerate()
            {
                *channel = Channel::new(amax(level, source, (row + i) * form.cols, form.cols)?);
                *scale = channel.d.to_le_bytes();
            }
        }
        for first in (0..extents.cols).step_by(STRETCH) {
            let (width, padded) = (STRETCH.min(form.cols - first), STRETCH.min(extents.cols - first));
            for (i, line) in scratch.chunks_exact_mut(STRIDE).take(rows).enumerate() {
                let (line, padding) = line[..padded].split_at_mut(width);
                padding.fill(0);
                let at = (row + i) * form.cols + first;
                let part = source.part(at, width);
                match form.scales {
                    Scales::Channel => scale_down(level, source.ty, part, &mut channels[i], line)?,
                    Scales::Block32 => {
                        let scales = &mut scales[i * extents.row_scales + first / 16..][..padded / 16];
                        let (scales, padding) = scales.split_at_mut(width / 16);
                        padding.fill(0);
                        let piece = quantize_blocks(level, source.ty, part, line, scales);
                        stats.merge(&piece.map_err(|error| source.moved(error, at))?);
                    }
                }
            }
            let place = Place { order: form.order, extents, row, first, width: padded };
            place.pack(level, &scratch, quants, stream);
        }
        channels.iter().take(rows).filter(|_| form.scales == Scales::Channel).for_each(|channel| {
            stats.merge(&channel.stats());
        });
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
    fn strips(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let height = strips::rows_of(self.order);
        (0..16).step_by(height).map(move |i| {
            let start = (self.row + i) * self.extents.cols + self.first * height;
            (start, i * STRIDE, height * self.width)
        })
    }

    fn pack(&self, level: Level, scratch: &Scratch, quants: &mut [u8], stream: bool) {
        let Self { order, extents, row, first, width } = *self;
        match order {
            Order::NMajor => {
                for (i, line) in scratch.chunks_exact(STRIDE).enumerate() {
                    quants[(row + i) * extents.cols + first..][..width].copy_from_slice(&line[..width]);
                }
            }
            Order::KMajor => {
                let to = &mut quants[first * extents.rows + row..];
                level.transpose((16, width), (scratch, STRIDE), (to, extents.rows), false);
            }
            _ => {
                for (start, line, len) in self.strips() {
                    level.pack_strip(order, &scratch[line..], STRIDE, &mut quants[start..][..len], stream);
                }
            }
        }
    }

    /// The inverse of [`Self::pack`].
    pub(super) fn unpack(&self, level: Level, quants: &[u8], scratch: &mut Scratch) {
        let Self { order, extents, row, first, width } = *self;
        match order {
            Order::NMajor => {
                for (i, line) in scratch.chunks_exact_mut(STRIDE).enumerate() {
                    line[..width].copy_from_slice(&quants[(row + i) * extents.cols + first..][..width]);
                }
            }
            Order::KMajor => {
                let from = &quants[first * extents.rows + row..];
                level.transpose((width, 16), (from, extents.rows), (scratch, STRIDE), false);
            }
            _ => {
                for (start, line, len) in self.strips() {
                    level.unpack_strip(order, &quants[start..][..len], &mut scratch[line..], STRIDE);
                }
            }
        }
    }
}

/// Q8_0's weights and scales of whole blocks.
fn quantize_blocks(
    level: Level,
    ty: GgmlType,
    src: &[u8],
    weights: &mut [u8],
    scales: &mut [u8],
) -> Result<Stats, PackError> {
    if !exact::is_exact(ty) {
        return q8_0::quantize_at(level, ty, src, weights, scales);
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

/// The weights of a stretch of a row, and its error.
fn scale_down(
    level: Level,
    ty: GgmlType,
    part: &[u8],
    channel: &mut Channel,
    weights: &mut [u8],
) -> Result<(), PackError> {
    let scale = (channel.d, channel.id);
    let worst = match Float::of(ty) {
        Some(float) => level.scale_down(float, part, scale, weights),
        None => with_values(ty, part, |values| Ok(level.scale_down(Float::F32, values, scale, weights)))?,
    };
    channel.worst = channel.worst.max(worst);
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
