//! The two planes of a stored int8 matrix.

use std::ops::Range;

use gantry_formats::layout::{Order, Scales};
use half::f16;

use crate::cpu::matrix::TILE;
use crate::cpu::q8::BLOCK;

/// The planes of a matrix and the part of its rows that is meant; lengths are checked by `MatrixView::i8`.
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct Planes<'a> {
    pub(in crate::cpu) order: Order,
    pub(in crate::cpu) scales: Scales,
    /// Rows of the planes, a multiple of 16.
    padded_rows: usize,
    /// Columns of the planes, a multiple of the order's tile.
    padded_cols: usize,
    /// The first row that is meant, a multiple of 16.
    first: usize,
    quants: &'a [u8],
    scale_plane: &'a [u8],
}

impl<'a> Planes<'a> {
    /// Rows and columns with padding; `None` where that overflows.
    pub(in crate::cpu) fn padded(order: Order, rows: usize, cols: usize) -> Option<(usize, usize)> {
        let col_tile = usize::try_from(order.col_tile()).ok()?;
        Some((rows.checked_next_multiple_of(TILE)?, cols.checked_next_multiple_of(col_tile)?))
    }

    /// Bytes of scales per row.
    pub(in crate::cpu) fn scale_bytes(scales: Scales, padded_cols: usize) -> usize {
        match scales {
            Scales::Channel => 4,
            Scales::Block32 => padded_cols / BLOCK * 2,
        }
    }

    /// All rows. The planes are as long as the shape with padding asks for.
    pub(in crate::cpu) fn new(
        order: Order,
        scales: Scales,
        (padded_rows, padded_cols): (usize, usize),
        quants: &'a [u8],
        scale_plane: &'a [u8],
    ) -> Self {
        debug_assert_eq!(quants.len(), padded_rows * padded_cols);
        debug_assert_eq!(scale_plane.len(), padded_rows * Self::scale_bytes(scales, padded_cols));
        Planes { order, scales, padded_rows, padded_cols, first: 0, quants, scale_plane }
    }

    /// The rows from `first` on, a multiple of 16.
    pub(in crate::cpu) fn starting_at(self, first: usize) -> Self {
        assert!(first.is_multiple_of(TILE), "row {first} is inside a tile of {TILE} rows");
        Planes { first: self.first + first, ..self }
    }

    /// Byte of element (row, col); row counts from the first that is meant.
    pub(super) fn offset(&self, row: usize, col: usize) -> usize {
        let (n, k) = ((self.first + row) as u64, col as u64);
        self.order.offset(n, k, self.padded_rows as u64, self.padded_cols as u64) as usize
    }

    /// All of the quants.
    pub(super) fn quants(&self) -> &'a [u8] {
        self.quants
    }

    /// Columns of the planes.
    pub(super) fn padded_cols(&self) -> usize {
        self.padded_cols
    }

    /// From the first byte of a tile on, in an order of whole tiles of 16 rows.
    pub(super) fn tile(&self, index: usize) -> &'a [u8] {
        let bytes = self.padded_cols * TILE;
        &self.quants[(self.first / TILE + index) * bytes..][..bytes]
    }

    /// The scales of a row and those after it.
    pub(super) fn row_scales(&self, row: usize) -> &'a [u8] {
        &self.scale_plane[(self.first + row) * Self::scale_bytes(self.scales, self.padded_cols)..]
    }

    /// The scale of block `block` of a row as f32; a row with one scale has it in every block.
    pub(super) fn scale(&self, row: usize, block: usize) -> f32 {
        let scales = self.row_scales(row);
        match self.scales {
            Scales::Channel => f32::from_le_bytes(scales.as_chunks().0[0]),
            Scales::Block32 => f16::from_le_bytes(scales.as_chunks().0[block]).to_f32(),
        }
    }

    /// The values of one row: scale × quant, rounded to f32.
    pub(in crate::cpu) fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        for (b, out) in out.chunks_mut(BLOCK).enumerate() {
            let scale = self.scale(row, b);
            for (i, out) in out.iter_mut().enumerate() {
                *out = scale * f32::from(self.quants[self.offset(row, b * BLOCK + i)] as i8);
            }
        }
    }

    /// Rows of the planes that `range` may name where `rows` of them are meant: it starts at a tile, and ends at
    /// one or with the last row.
    pub(in crate::cpu) fn check_range(range: &Range<usize>, rows: usize) {
        let whole = |row: usize| row.is_multiple_of(TILE);
        assert!(
            whole(range.start) && (whole(range.end) || range.end == rows),
            "rows {range:?} of {rows} are not whole tiles of {TILE}"
        );
    }
}
