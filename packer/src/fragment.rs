//! Int8 weights between row-major and the order in which a matrix instruction loads them.
//!
//! Where each byte goes is [`Order::offset`]'s to say; everything here gives the same, at the speed of memory.
//!
//! A group of rows, a multiple of 16 or the last ones of a matrix, is packed as if it were a matrix by itself. In
//! every order but `i8.kmajor` its bytes are then a contiguous stretch of the whole matrix's, at its first row
//! times the columns with padding, so that groups can be packed in any order and by any number of threads. In
//! `i8.kmajor` a group gives its own lines, `[K][rows of the group with padding]`: line k belongs at byte
//! `k · N + first row` of the whole.

use crate::PackError;
use crate::simd::{self, Level, strips};
use gantry_formats::layout::Order;
use gantry_formats::size;

/// Outputs from here on are written past the cache, which could not hold them: that saves reading them first, some 20 %
/// of packing a whole matrix. A conversion packs in smaller steps, for it hashes what it packed, from the cache.
pub(crate) const STREAM_FROM: usize = 32 << 20;

/// Columns that are padded at a time, a multiple of every tile.
const STRETCH: usize = 1024;

/// Bytes of a row-major `[rows, cols]` matrix, and its rows and columns with the padding of `order`.
pub(crate) fn extents(order: Order, rows: usize, cols: usize) -> Result<(usize, usize, usize), PackError> {
    let padded = |n: usize, tile: u64| n.checked_next_multiple_of(tile as usize);
    let extents = || {
        let (n, k) = (padded(rows, Order::ROW_TILE)?, padded(cols, order.col_tile())?);
        // What fits with padding fits without.
        size::to_usize(size::mul(n as u64, k as u64)?)?;
        Some((rows * cols, n, k))
    };
    extents().ok_or(PackError::TooLarge { rows, cols })
}

/// Brings int8 weights into `order`: `src` is row-major `[rows, cols]`; `dst` has the extents of
/// [`gantry_formats::layout::Layout::padded`], and the padding is written as zeros.
///
/// # Errors
/// [`PackError::Length`] where a slice has not the length that the extents ask for, [`PackError::TooLarge`].
pub fn permute(order: Order, rows: usize, cols: usize, src: &[u8], dst: &mut [u8]) -> Result<(), PackError> {
    permute_at(simd::level()?, order, rows, cols, src, dst)
}

/// [`permute`] at a given level.
pub fn permute_at(
    level: Level,
    order: Order,
    rows: usize,
    cols: usize,
    src: &[u8],
    dst: &mut [u8],
) -> Result<(), PackError> {
    let (bytes, n, k) = extents(order, rows, cols)?;
    PackError::expect_len("source", src.len(), bytes)?;
    PackError::expect_len("quants", dst.len(), n * k)?;
    if bytes == 0 {
        dst.fill(0);
        return Ok(());
    }
    let stream = dst.len() >= STREAM_FROM;
    match order {
        Order::NMajor => {
            for (row, line) in src.chunks_exact(cols).zip(dst.chunks_exact_mut(k)) {
                line[..cols].copy_from_slice(row);
                line[cols..].fill(0);
            }
            dst[rows * k..].fill(0);
        }
        Order::KMajor => {
            let inner = (rows / 16 * 16, cols / 16 * 16);
            level.transpose(inner, (src, cols), (dst, n), stream);
            for (c, line) in dst.chunks_exact_mut(n).enumerate() {
                let done = if c < inner.1 { inner.0 } else { 0 };
                for (r, to) in line.iter_mut().enumerate().skip(done) {
                    *to = if r < rows && c < cols { src[r * cols + c] } else { 0 };
                }
            }
        }
        _ => {
            let height = strips::rows_of(order);
            for (i, strip) in dst.chunks_exact_mut(height * k).enumerate() {
                let rows = src.get(i * height * cols..).unwrap_or_default();
                pack_padded(level, order, (rows, cols), strip, stream);
            }
        }
    }
    Ok(())
}

/// Packs one strip from as many of its rows as there are.
fn pack_padded(level: Level, order: Order, (rows, cols): (&[u8], usize), strip: &mut [u8], stream: bool) {
    let (height, tile) = (strips::rows_of(order), order.col_tile() as usize);
    let whole = if rows.len() >= height * cols { cols / tile * tile } else { 0 };
    let (inner, edge) = strip.split_at_mut(whole * height);
    level.pack_strip(order, rows, cols, inner, stream);
    let mut padded = [0; 16 * STRETCH];
    for (i, strip) in edge.chunks_mut(height * STRETCH).enumerate() {
        let first = whole + i * STRETCH;
        let width = STRETCH.min(cols - first.min(cols));
        padded.fill(0);
        for (row, line) in rows.chunks_exact(cols).zip(padded.chunks_exact_mut(STRETCH).take(height)) {
            line[..width].copy_from_slice(&row[first..first + width]);
        }
        level.pack_strip(order, &padded, STRETCH, strip, false);
    }
}

/// The inverse of [`permute`]: `src` has the extents with padding, at which nothing looks, and `dst` is row-major
/// `[rows, cols]`.
///
/// # Errors
/// As [`permute`].
pub fn unpermute(
    order: Order,
    rows: usize,
    cols: usize,
    src: &[u8],
    dst: &mut [u8],
) -> Result<(), PackError> {
    unpermute_at(simd::level()?, order, rows, cols, src, dst)
}

/// [`unpermute`] at a given level.
pub fn unpermute_at(
    level: Level,
    order: Order,
    rows: usize,
    cols: usize,
    src: &[u8],
    dst: &mut [u8],
) -> Result<(), PackError> {
    let (bytes, n, k) = extents(order, rows, cols)?;
    PackError::expect_len("quants", src.len(), n * k)?;
    PackError::expect_len("rows", dst.len(), bytes)?;
    if bytes == 0 {
        return Ok(());
    }
    match order {
        Order::NMajor => {
            for (line, row) in src.chunks_exact(k).zip(dst.chunks_exact_mut(cols)) {
                row.copy_from_slice(&line[..cols]);
            }
        }
        Order::KMajor => {
            let inner = (cols / 16 * 16, rows / 16 * 16);
            let dst_len = dst.len();
            level.transpose(inner, (src, n), (dst, cols), dst_len >= STREAM_FROM);
            for (r, row) in dst.chunks_exact_mut(cols).enumerate() {
                let done = if r < inner.1 { inner.0 } else { 0 };
                for (c, to) in row.iter_mut().enumerate().skip(done) {
                    *to = src[c * n + r];
                }
            }
        }
        _ => {
            let height = strips::rows_of(order);
            for (strip, rows) in src.chunks_exact(height * k).zip(dst.chunks_mut(height * cols)) {
                unpack_padded(level, order, strip, (rows, cols));
            }
        }
    }
    Ok(())
}

/// Unpacks one strip into as many of its rows as there are.
fn unpack_padded(level: Level, order: Order, strip: &[u8], (rows, cols): (&mut [u8], usize)) {
    let (height, tile) = (strips::rows_of(order), order.col_tile() as usize);
    let whole = if rows.len() == height * cols { cols / tile * tile } else { 0 };
    let (inner, edge) = strip.split_at(whole * height);
    level.unpack_strip(order, inner, rows, cols);
    let mut padded = [0; 16 * STRETCH];
    for (i, strip) in edge.chunks(height * STRETCH).enumerate() {
        let first = whole + i * STRETCH;
        let width = STRETCH.min(cols - first.min(cols));
        level.unpack_strip(order, strip, &mut padded, STRETCH);
        for (row, line) in rows.chunks_exact_mut(cols).zip(padded.chunks_exact(STRETCH)) {
            row[first..first + width].copy_from_slice(&line[..width]);
        }
    }
}
