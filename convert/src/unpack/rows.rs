//! Values of layouts that take whole rows: read by groups of rows, each unpacked as if it were a matrix by itself.

use super::{Piece, Scratch, Unpacker};
use crate::plan::chunk_elements;
use crate::rows::{self, Buffers, Group};
use std::ops::Range;

impl Unpacker<'_> {
    /// Reads `rows` rows of a piece's matrix from row `row` on, both on tiles, into the planes of `buffers`.
    ///
    /// # Errors
    /// Where the container cannot be read.
    pub(crate) fn read_group(
        &self,
        piece: &Piece,
        row: u64,
        rows: u64,
        buffers: &mut Buffers,
    ) -> anyhow::Result<Group> {
        let (layout, cols) = (piece.layout, piece.matrix_cols);
        let group = Group { layout, ty: piece.source_ty, rows, cols };
        buffers.resize(group);
        for run in rows::runs(layout, (piece.matrix_rows, cols), row, rows) {
            let out = &mut buffers.planes[run.plane][run.from..][..run.len];
            self.read_at(piece.card, piece.at + piece.planes[run.plane] + run.to, out)?;
        }
        Ok(group)
    }

    /// Reads groups of rows from value `stored` on, and gives each with the range of its values that is wanted and
    /// the place of the first of these.
    fn groups(
        &self,
        piece: &Piece,
        stored: u64,
        count: u64,
        buffers: &mut Buffers,
        mut each: impl FnMut(&mut Buffers, Group, Range<usize>, usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (layout, cols) = (piece.layout, piece.matrix_cols);
        let step = (chunk_elements(layout, cols) / cols.max(1)).max(1);
        let (first, last) = (stored / cols, (stored + count).div_ceil(cols));
        let tile = layout.row_tile();
        // Not into the next part, which may come from another type; parts begin on tiles.
        let end = last.next_multiple_of(tile).min(piece.matrix_rows);
        let mut row = first / tile * tile;
        while row < last {
            let rows = step.min(end - row);
            let group = self.read_group(piece, row, rows, buffers)?;
            let (start, end) = (row * cols, (row + rows) * cols);
            let (from, to) = (stored.max(start), (stored + count).min(end));
            each(buffers, group, (from - start) as usize..(to - start) as usize, (from - stored) as usize)?;
            row += rows;
        }
        Ok(())
    }

    pub(super) fn row_bytes(
        &self,
        piece: &Piece,
        stored: u64,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> anyhow::Result<()> {
        let ty = piece.ty();
        let bytes = |n: usize| n / ty.block_len() as usize * ty.block_bytes() as usize;
        let count = out.len() as u64 / ty.block_bytes() * ty.block_len();
        let mut whole = std::mem::take(&mut scratch.quants);
        let result = self.groups(piece, stored, count, &mut scratch.rows, |buffers, group, wanted, at| {
            whole.resize(bytes((group.rows * group.cols) as usize), 0);
            buffers.unpack(group, &mut whole)?;
            let wanted = &whole[bytes(wanted.start)..bytes(wanted.end)];
            out[bytes(at)..bytes(at) + wanted.len()].copy_from_slice(wanted);
            Ok(())
        });
        scratch.quants = whole;
        result
    }

    pub(super) fn row_values(
        &self,
        piece: &Piece,
        stored: u64,
        out: &mut [f32],
        scratch: &mut Scratch,
    ) -> anyhow::Result<()> {
        let mut whole = std::mem::take(&mut scratch.values);
        let count = out.len() as u64;
        let result = self.groups(piece, stored, count, &mut scratch.rows, |buffers, group, wanted, at| {
            whole.resize((group.rows * group.cols) as usize, 0.0);
            buffers.values(group, &mut whole)?;
            out[at..at + wanted.len()].copy_from_slice(&whole[wanted]);
            Ok(())
        });
        scratch.values = whole;
        result
    }
}
