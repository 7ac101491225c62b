//! The way back: a source tensor's values, chunk by chunk, from the stored matrices that hold its rows.
//!
//! Everything that looks into a container's weights comes through here, so that parts, planes, banks and replicas
//! are understood in one place.

mod rows;

use crate::failure::Refusal;
use crate::rows::Buffers;
use anyhow::Context;
use gantry_formats::block::{self, GgmlType};
use gantry_formats::container::{Container, Part};
use gantry_formats::exit::Exit;
use gantry_formats::layout::Layout;
use gantry_formats::source::ReadAt;
use gantry_packer::q8_0;
use std::cmp::Reverse;
use std::io;
use std::ops::Range;

/// Values that are read at a time: a multiple of every block.
pub(crate) const CHUNK: u64 = 1 << 20;

/// What stores a piece, as an index into the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A stored tensor.
    Tensor(usize),
    /// A matrix of an expert: bank, matrix, slot.
    Expert(usize, usize, usize),
}

/// Rows of a source tensor and where they are stored.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Rows of the source, all dims above the first counted through.
    pub(crate) rows: Range<u64>,
    /// Columns of the source.
    pub(crate) cols: Range<u64>,
    /// Layout of the stored matrix.
    pub(crate) layout: Layout,
    /// Card that holds it.
    pub(crate) card: usize,
    /// What stores it.
    pub(crate) owner: Owner,
    /// First byte of the stored matrix in the card's segment.
    pub(crate) at: u64,
    /// Columns of the stored matrix.
    matrix_cols: u64,
    /// Row of the stored matrix that is the first of `rows`.
    first_row: u64,
    /// Rows of the stored matrix.
    matrix_rows: u64,
    /// First byte of each plane in the stored matrix.
    planes: Vec<u64>,
    /// Type of the source.
    source_ty: GgmlType,
}

/// A run of values that lie side by side, in the source and in a stored matrix.
struct Run<'a> {
    piece: &'a Piece,
    source: Range<u64>,
    stored: u64,
}

/// Buffers that reading uses again and again: one per thread.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    quants: Vec<u8>,
    scales: Vec<u8>,
    bytes: Vec<u8>,
    values: Vec<f32>,
    mixed: Vec<f32>,
    rows: Buffers,
}

/// A container's pieces, by source tensor.
pub(crate) struct Unpacker<'c> {
    container: &'c Container,
    /// Every piece, replicas too, in order of rows.
    pieces: Vec<Vec<Piece>>,
    /// Of these, enough to hold every value once; or why that cannot be.
    covers: Vec<Result<Vec<u32>, String>>,
}

impl<'c> Unpacker<'c> {
    /// Sorts out which rows lie where.
    pub(crate) fn new(container: &'c Container) -> Self {
        let manifest = container.manifest();
        let mut pieces = vec![Vec::new(); manifest.source_tensors.len()];
        for (i, t) in manifest.tensors.iter().enumerate() {
            let shape = matrix_dims(&t.shape);
            let base = Base { layout: t.layout, card: t.card, owner: Owner::Tensor(i), at: t.offset, shape };
            add(container, &mut pieces, &base, &t.parts, None);
        }
        for (i, bank) in manifest.banks.iter().enumerate() {
            for (slot, &expert) in bank.experts.iter().enumerate() {
                for (j, m) in bank.matrices.iter().enumerate() {
                    let owner = Owner::Expert(i, j, slot);
                    let at = bank.offset + slot as u64 * bank.stride + m.offset;
                    let shape = matrix_dims(&m.shape);
                    let base = Base { layout: m.layout, card: bank.card, owner, at, shape };
                    add(container, &mut pieces, &base, &m.parts, Some(expert));
                }
            }
        }
        for list in &mut pieces {
            // Of what holds the same values the source's own bytes come first.
            let packed = |p: &Piece| p.layout != Layout::identity(p.source_ty);
            list.sort_by_key(|p| {
                (p.rows.start, Reverse(p.rows.end), p.cols.start, p.cols.end, packed(p), p.card)
            });
        }
        let tensors = manifest.source_tensors.iter().zip(&pieces);
        let covers = tensors.map(|(t, pieces)| cover(&t.dims, pieces)).collect();
        Self { container, pieces, covers }
    }

    /// The container.
    pub(crate) fn container(&self) -> &'c Container {
        self.container
    }

    /// All pieces of a source tensor, replicas too.
    pub(crate) fn pieces(&self, source: usize) -> &[Piece] {
        &self.pieces[source]
    }

    /// The pieces that a source tensor is read from, in order of rows.
    ///
    /// # Errors
    /// Where the container does not hold all of it.
    pub(crate) fn cover(&self, source: usize) -> anyhow::Result<impl Iterator<Item = &Piece>> {
        let name = || &self.container.manifest().source_tensors[source].name;
        let cover = self.covers[source].as_ref();
        let cover = cover.map_err(|why| Refusal::new(Exit::Input, format!("tensor {}: {why}", name())))?;
        Ok(cover.iter().map(move |&i| &self.pieces[source][i as usize]))
    }

    /// The type that a source tensor comes back as; f32 where its pieces differ.
    ///
    /// # Errors
    /// Where the container does not hold all of it.
    pub(crate) fn ty(&self, source: usize) -> anyhow::Result<GgmlType> {
        let mut types = self.cover(source)?.map(Piece::ty);
        let own = self.container.manifest().source_tensors[source].ty;
        let first = types.next().unwrap_or(own);
        Ok(if types.all(|ty| ty == first) { first } else { GgmlType::F32 })
    }

    /// Reads values `elements` of a source tensor, whole blocks, as bytes of its [`ty`](Self::ty).
    ///
    /// # Errors
    /// Where the container does not hold all of it or cannot be read.
    pub(crate) fn read(
        &self,
        source: usize,
        elements: Range<u64>,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        let ty = self.ty(source)?;
        if self.cover(source)?.any(|p| p.ty() != ty) {
            let mut values = std::mem::take(&mut scratch.mixed);
            self.values(source, elements, scratch, &mut values)?;
            out.clear();
            out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
            scratch.mixed = values;
            return Ok(());
        }
        let bytes = |elements: u64| (elements / ty.block_len() * ty.block_bytes()) as usize;
        out.clear();
        out.resize(bytes(elements.end - elements.start), 0);
        self.runs(source, elements.clone(), |run| {
            let from = bytes(run.source.start - elements.start);
            let to = bytes(run.source.end - elements.start);
            self.read_run(run.piece, run.stored, &mut out[from..to], scratch)
        })
    }

    /// Reads values `elements` of a source tensor, whole blocks, as f32.
    ///
    /// # Errors
    /// Where the container does not hold all of it or cannot be read.
    pub(crate) fn values(
        &self,
        source: usize,
        elements: Range<u64>,
        scratch: &mut Scratch,
        out: &mut Vec<f32>,
    ) -> anyhow::Result<()> {
        out.clear();
        out.resize((elements.end - elements.start) as usize, 0.0);
        self.runs(source, elements.clone(), |run| {
            let count = run.source.end - run.source.start;
            let from = (run.source.start - elements.start) as usize;
            let out = &mut out[from..from + count as usize];
            if run.piece.layout.takes_whole_rows() {
                return self.row_values(run.piece, run.stored, out, scratch);
            }
            let ty = run.piece.ty();
            let mut bytes = std::mem::take(&mut scratch.bytes);
            bytes.clear();
            bytes.resize((count / ty.block_len() * ty.block_bytes()) as usize, 0);
            self.read_run(run.piece, run.stored, &mut bytes, scratch)?;
            block::dequantize(ty, &bytes, out)?;
            scratch.bytes = bytes;
            Ok(())
        })
    }

    /// Calls `each` for the runs that hold values `elements` of a source tensor.
    fn runs(
        &self,
        source: usize,
        elements: Range<u64>,
        mut each: impl FnMut(Run<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let dims = &self.container.manifest().source_tensors[source].dims;
        let cols = dims.first().copied().unwrap_or(1);
        if elements.is_empty() || cols == 0 {
            return Ok(());
        }
        let cover = self.cover(source)?;
        let end_row = elements.end.div_ceil(cols);
        let pieces = cover.skip_while(|p| p.rows.end <= elements.start / cols);
        for piece in pieces.take_while(|p| p.rows.start < end_row) {
            for (own, stored) in piece.lines(cols, &elements) {
                let start = own.start.max(elements.start);
                let end = own.end.min(elements.end);
                if start < end {
                    each(Run { piece, source: start..end, stored: stored + start - own.start })?;
                }
            }
        }
        Ok(())
    }

    /// Fills `out` with the bytes, of type [`Piece::ty`], from value `stored` of the piece's matrix on.
    fn read_run(
        &self,
        piece: &Piece,
        stored: u64,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> anyhow::Result<()> {
        match piece.layout {
            Layout::Raw(ty) | Layout::Block(ty) => {
                self.read_at(piece.card, piece.at + stored / ty.block_len() * ty.block_bytes(), out)
            }
            Layout::Q8_0Split { .. } => {
                let blocks = out.len() / q8_0::BYTES;
                let mut planes = (std::mem::take(&mut scratch.quants), std::mem::take(&mut scratch.scales));
                self.read_planes(piece, stored, blocks, &mut planes)?;
                q8_0::join_q8_0(&planes.0, &planes.1, out)?;
                (scratch.quants, scratch.scales) = planes;
                Ok(())
            }
            Layout::I8 { .. } | Layout::E8Block98 { .. } | Layout::E8Planar { .. } => {
                self.row_bytes(piece, stored, out, scratch)
            }
        }
    }

    /// Reads the quants and scales of `blocks` blocks from value `stored` of a `q8_0.split` matrix on.
    fn read_planes(
        &self,
        piece: &Piece,
        stored: u64,
        blocks: usize,
        (quants, scales): &mut (Vec<u8>, Vec<u8>),
    ) -> anyhow::Result<()> {
        quants.resize(blocks * q8_0::LEN, 0);
        scales.resize(blocks * 2, 0);
        self.read_at(piece.card, piece.at + stored, quants)?;
        self.read_at(piece.card, piece.at + piece.planes[1] + stored / q8_0::LEN as u64 * 2, scales)
    }

    /// Reads stored values of one piece, `elements` of the source and inside it, side by side, as bytes.
    ///
    /// # Errors
    /// Where the container cannot be read.
    pub(crate) fn read_piece(
        &self,
        piece: &Piece,
        stored: u64,
        count: u64,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        let ty = piece.ty();
        out.clear();
        out.resize((count / ty.block_len() * ty.block_bytes()) as usize, 0);
        self.read_run(piece, stored, out, scratch)
    }

    fn read_at(&self, card: usize, at: u64, out: &mut [u8]) -> anyhow::Result<()> {
        let source = self.container.card(card)?;
        let read = source.file.read_exact_at(source.offset + at, out).map_err(changed);
        read.with_context(|| format!("card {card}: cannot read {} bytes at {at}", out.len()))
    }
}

impl Piece {
    /// The type whose bytes it gives back.
    pub(crate) fn ty(&self) -> GgmlType {
        self.layout.unpacked_type(self.source_ty)
    }

    /// The longest runs of this piece that meet `elements` of a source whose rows have `cols` values: their place in
    /// the source, and the first value of the stored matrix.
    pub(crate) fn lines(
        &self,
        cols: u64,
        elements: &Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, u64)> + use<> {
        let (rows, own, first, width) =
            (self.rows.clone(), self.cols.clone(), self.first_row, self.matrix_cols);
        let whole = own == (0..cols);
        let from = rows.start.max(elements.start / cols.max(1));
        let to = rows.end.min(elements.end.div_ceil(cols.max(1)));
        let steps = if whole { u64::from(from < to) } else { to.saturating_sub(from) };
        (0..steps).map(move |i| {
            if whole {
                return (rows.start * cols..rows.end * cols, first * cols);
            }
            let row = from + i;
            let start = row * cols;
            (start + own.start..start + own.end, (row - rows.start + first) * width)
        })
    }
}

/// A read that finds fewer bytes than there were at open: the file changed.
pub(crate) fn changed(error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Refusal::new(
            Exit::Integrity,
            "file changed while reading: it is shorter than when it was opened",
        );
    }
    error.into()
}

struct Base {
    layout: u32,
    card: u32,
    owner: Owner,
    at: u64,
    shape: (u64, u64),
}

/// Adds the parts of one stored matrix. Indices were checked when the container was opened.
fn add(container: &Container, pieces: &mut [Vec<Piece>], base: &Base, parts: &[Part], expert: Option<u32>) {
    let layout = container.layouts()[base.layout as usize];
    let (matrix_rows, matrix_cols) = base.shape;
    let planes = layout.planes(matrix_rows, matrix_cols).unwrap_or_default();
    let planes: Vec<u64> = planes.iter().map(|p| p.offset).collect();
    let mut first_row = 0;
    for part in parts {
        let source = &container.manifest().source_tensors[part.source as usize];
        let cols = source.dims.first().copied().unwrap_or(1);
        let [from, to] = part.rows;
        let base_row =
            expert.map_or(0, |e| u64::from(e).saturating_mul(source.dims.get(1).copied().unwrap_or(1)));
        let [left, right] = part.cols.unwrap_or([0, cols]);
        pieces[part.source as usize].push(Piece {
            // Beside a dim of zero another may be so large that this overflows; there are no values then.
            rows: base_row.saturating_add(from)..base_row.saturating_add(to),
            cols: left..right,
            layout,
            card: base.card as usize,
            owner: base.owner,
            at: base.at,
            matrix_cols,
            first_row,
            matrix_rows,
            planes: planes.clone(),
            source_ty: source.ty,
        });
        first_row += to - from;
    }
}

/// `(rows, cols)` of a shape given outermost first, whose product was checked.
pub(crate) fn matrix_dims(shape: &[u64]) -> (u64, u64) {
    match shape {
        [] => (1, 1),
        [rows @ .., cols] => (gantry_formats::size::product(rows).unwrap_or(0), *cols),
    }
}

/// Picks, from sorted pieces, bands of rows that tile the tensor, each band complete in its columns.
fn cover(dims: &[u64], pieces: &[Piece]) -> Result<Vec<u32>, String> {
    let cols = dims.first().copied().unwrap_or(1);
    let rows = gantry_formats::size::product(dims.get(1..).unwrap_or(&[])).unwrap_or(0);
    let mut picked = Vec::new();
    let (mut row, mut i) = (0, 0);
    while row < rows && cols > 0 {
        let Some(first) = pieces.get(i) else {
            return Err(format!("the container does not hold its rows {row} to {rows}"));
        };
        if first.rows.end <= row {
            i += 1;
            continue;
        }
        if first.rows.start != row {
            return Err(format!("the container does not hold its row {row} as a whole"));
        }
        let band = first.rows.clone();
        let mut col = 0;
        while let Some(piece) = pieces.get(i).filter(|p| p.rows == band) {
            if piece.cols.start == col && piece.cols.end > col {
                if !col.is_multiple_of(piece.ty().block_len()) {
                    return Err(format!("its column {col}, where a slice begins, lies inside a block"));
                }
                col = piece.cols.end;
                picked.push(i as u32);
            }
            i += 1;
        }
        if col != cols {
            return Err(format!("the container does not hold its columns {col} to {cols} of row {row}"));
        }
        row = band.end;
    }
    Ok(picked)
}

#[cfg(test)]
mod tests;
