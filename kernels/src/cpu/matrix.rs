//! Weight matrices where they lie.

use std::ops::Range;

use gantry_formats::block::{GgmlType, dequantize};
use gantry_formats::layout::{Order, Scales};
use half::{bf16, f16};

use super::e8;
use super::int8::{self, MAX_COLS};
use super::product::ActivationKind;
use super::q8::BLOCK;

/// Rows per tile, the unit in which threads share a matrix.
pub(super) const TILE: usize = 16;

/// Bytes that cannot be the matrix that they are said to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// A plane has another length than rows × columns ask for.
    #[error("the {plane} of a {rows} x {cols} matrix need {need} bytes, not {have}")]
    Length {
        /// Which plane: `weights`, `quants`, `scales`, `indices`, `words` or `blocks`.
        plane: &'static str,
        /// Rows (n_out).
        rows: usize,
        /// Columns (n_in).
        cols: usize,
        /// Bytes that the shape asks for.
        need: usize,
        /// Bytes given.
        have: usize,
    },
    /// The layout stores blocks of 32 columns.
    #[error("{cols} columns are not a multiple of {BLOCK}")]
    Columns {
        /// Columns (n_in).
        cols: usize,
    },
    /// The type stores blocks of some columns.
    #[error("{cols} columns are no whole number of {ty} blocks of {}", ty.block_len())]
    Blocks {
        /// The type.
        ty: GgmlType,
        /// Columns (n_in).
        cols: usize,
    },
    /// The type has no blocks.
    #[error("{ty} is no block type; use the view of its float format")]
    NoBlocks {
        /// The type.
        ty: GgmlType,
    },
    /// One instruction of the order would sum over values with two scales.
    #[error("{order} does not take {scales} scales")]
    Scales {
        /// The order.
        order: Order,
        /// The scales.
        scales: Scales,
    },
    /// The sum of a row with one scale would not fit 32 bits.
    #[error("{cols} columns with one scale: at most {MAX_COLS} have an exact 32-bit sum; use q8_0.split")]
    TooWide {
        /// Columns (n_in).
        cols: usize,
    },
    /// The layout stores super-blocks of 256 columns.
    #[error("{cols} columns are not a multiple of {}, the weights of an E8 super-block", e8::LEN)]
    SuperBlocks {
        /// Columns (n_in).
        cols: usize,
    },
    /// The shape overflows or has a zero.
    #[error("no {rows} x {cols} matrix")]
    Shape {
        /// Rows (n_out).
        rows: usize,
        /// Columns (n_in).
        cols: usize,
    },
}

/// A weight matrix `[rows = n_out][cols = n_in]`, row-major, borrowed from where it lies (any alignment),
/// its lengths checked.
#[derive(Clone, Copy, Debug)]
pub struct MatrixView<'a> {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) data: Data<'a>,
}

/// The bytes of a matrix, by layout.
#[derive(Clone, Copy, Debug)]
pub(super) enum Data<'a> {
    Q8_0Split { quants: &'a [u8], scales: &'a [u8] },
    F32(&'a [u8]),
    F16(&'a [u8]),
    Bf16(&'a [u8]),
    I8(int8::Planes<'a>),
    Block { ty: GgmlType, bytes: &'a [u8] },
    E8(e8::Weights<'a>),
}

impl<'a> MatrixView<'a> {
    /// Layout `q8_0.split`: `quants` int8 `[rows][cols]`, `scales` little-endian fp16 `[rows][cols/32]`.
    pub fn q8_0_split(
        rows: usize,
        cols: usize,
        quants: &'a [u8],
        scales: &'a [u8],
    ) -> Result<Self, MatrixError> {
        if !cols.is_multiple_of(BLOCK) {
            return Err(MatrixError::Columns { cols });
        }
        check("quants", rows, cols, cols, quants)?;
        check("scales", rows, cols, cols / BLOCK * 2, scales)?;
        Ok(MatrixView { rows, cols, data: Data::Q8_0Split { quants, scales } })
    }

    /// Layout `raw.f32`: little-endian f32 `[rows][cols]`.
    pub fn f32(rows: usize, cols: usize, bytes: &'a [u8]) -> Result<Self, MatrixError> {
        check("weights", rows, cols, cols.saturating_mul(4), bytes)?;
        Ok(MatrixView { rows, cols, data: Data::F32(bytes) })
    }

    /// Layout `raw.f16`: little-endian IEEE half `[rows][cols]`.
    pub fn f16(rows: usize, cols: usize, bytes: &'a [u8]) -> Result<Self, MatrixError> {
        check("weights", rows, cols, cols.saturating_mul(2), bytes)?;
        Ok(MatrixView { rows, cols, data: Data::F16(bytes) })
    }

    /// Layout `raw.bf16`: little-endian bfloat16 `[rows][cols]`.
    pub fn bf16(rows: usize, cols: usize, bytes: &'a [u8]) -> Result<Self, MatrixError> {
        check("weights", rows, cols, cols.saturating_mul(2), bytes)?;
        Ok(MatrixView { rows, cols, data: Data::Bf16(bytes) })
    }

    /// Layouts `i8.*`: `quants` int8 in the given order, with rows padded to a multiple of 16 and columns to one
    /// of [`Order::col_tile`]; `scales_plane` in natural order with the same padding: [`Scales::Channel`]
    /// little-endian f32 `[padded rows]`, [`Scales::Block32`] fp16 `[padded rows][padded cols/32]`. What the
    /// padding holds does not matter. [`Order::Vnni16`] is read where it lies; tiles of other orders are brought
    /// into it first, which costs time.
    pub fn i8(
        order: Order,
        scales: Scales,
        rows: usize,
        cols: usize,
        quants: &'a [u8],
        scales_plane: &'a [u8],
    ) -> Result<Self, MatrixError> {
        if !order.takes(scales) {
            return Err(MatrixError::Scales { order, scales });
        }
        match scales {
            Scales::Block32 if !cols.is_multiple_of(BLOCK) => return Err(MatrixError::Columns { cols }),
            Scales::Channel if cols > MAX_COLS => return Err(MatrixError::TooWide { cols }),
            _ => {}
        }
        let shape = int8::Planes::padded(order, rows, cols).filter(|_| rows > 0 && cols > 0);
        let (padded_rows, padded_cols) = shape.ok_or(MatrixError::Shape { rows, cols })?;
        let shape = |_| MatrixError::Shape { rows, cols };
        let plane = |plane, row_bytes: usize, bytes: &[u8]| {
            let need = row_bytes.checked_mul(padded_rows).ok_or(()).map_err(shape)?;
            length(plane, (rows, cols), need, bytes)
        };
        plane("quants", padded_cols, quants)?;
        plane("scales", int8::Planes::scale_bytes(scales, padded_cols), scales_plane)?;
        let padded = (padded_rows, padded_cols);
        let data = Data::I8(int8::Planes::new(order, scales, padded, quants, scales_plane));
        Ok(MatrixView { rows, cols, data })
    }

    /// Layouts `gguf.*`: blocks of a quantized type as a GGUF has them, row-major.
    pub fn block(ty: GgmlType, rows: usize, cols: usize, bytes: &'a [u8]) -> Result<Self, MatrixError> {
        if !ty.is_quantized() {
            return Err(MatrixError::NoBlocks { ty });
        }
        let row_bytes = block_row(ty, cols).ok_or(MatrixError::Blocks { ty, cols })?;
        check("weights", rows, cols, row_bytes, bytes)?;
        Ok(MatrixView { rows, cols, data: Data::Block { ty, bytes } })
    }

    /// Layout `e8.planar`: `indices` u8 `[rows][cols/4]`, `words` little-endian u32 `[rows][cols/32]`, `scales`
    /// little-endian fp16 `[rows][cols/256]`. Where the layout is rotated, the matrix is W·Q, and its product wants
    /// activations that [`super::rotate()`] has seen.
    pub fn e8_planar(
        rows: usize,
        cols: usize,
        indices: &'a [u8],
        words: &'a [u8],
        scales: &'a [u8],
    ) -> Result<Self, MatrixError> {
        if !cols.is_multiple_of(e8::LEN) {
            return Err(MatrixError::SuperBlocks { cols });
        }
        check("indices", rows, cols, cols / e8::LEN * e8::INDICES, indices)?;
        check("words", rows, cols, cols / e8::LEN * e8::WORDS, words)?;
        check("scales", rows, cols, cols / e8::LEN * e8::SCALE, scales)?;
        Ok(MatrixView { rows, cols, data: Data::E8(e8::Weights::planar(indices, words, scales)) })
    }

    /// Layout `e8.block98`: super-blocks of 98 bytes, `[rows][cols/256]`; rotated as for [`MatrixView::e8_planar`].
    pub fn e8_block98(rows: usize, cols: usize, bytes: &'a [u8]) -> Result<Self, MatrixError> {
        if !cols.is_multiple_of(e8::LEN) {
            return Err(MatrixError::SuperBlocks { cols });
        }
        check("blocks", rows, cols, (cols / e8::LEN).saturating_mul(e8::BYTES), bytes)?;
        Ok(MatrixView { rows, cols, data: Data::E8(e8::Weights::block98(bytes)) })
    }

    /// Rows: n_out.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: n_in.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The kind of activations that it is multiplied with.
    pub fn activations(&self) -> ActivationKind {
        match self.data {
            Data::Q8_0Split { .. } | Data::E8(_) => ActivationKind::Q8,
            Data::F32(_) | Data::F16(_) | Data::Bf16(_) | Data::Block { .. } => ActivationKind::F32,
            Data::I8(planes) if planes.scales == Scales::Channel => ActivationKind::I8,
            Data::I8(_) => ActivationKind::Q8,
        }
    }

    /// Some of its rows, as a matrix: a part of a fused one, an expert of a slab.
    ///
    /// # Panics
    /// Where the range is empty or leaves the matrix; for an int8 layout, whose rows are interleaved, where it does
    /// not start at a multiple of 16 and end at one or with the last row.
    pub fn row_range(&self, range: Range<usize>) -> MatrixView<'a> {
        assert!(range.start < range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let cut = |bytes: &'a [u8], row: usize| &bytes[range.start * row..range.end * row];
        let data = match self.data {
            Data::Q8_0Split { quants, scales } => {
                Data::Q8_0Split { quants: cut(quants, self.cols), scales: cut(scales, self.cols / BLOCK * 2) }
            }
            Data::F32(bytes) => Data::F32(cut(bytes, self.cols * 4)),
            Data::F16(bytes) => Data::F16(cut(bytes, self.cols * 2)),
            Data::Bf16(bytes) => Data::Bf16(cut(bytes, self.cols * 2)),
            Data::I8(planes) => {
                int8::Planes::check_range(&range, self.rows);
                Data::I8(planes.starting_at(range.start))
            }
            Data::Block { ty, bytes } => Data::Block { ty, bytes: cut(bytes, bytes.len() / self.rows) },
            Data::E8(weights) => {
                let supers = self.cols / e8::LEN;
                Data::E8(weights.range(range.start * supers..range.end * supers))
            }
        };
        MatrixView { rows: range.len(), cols: self.cols, data }
    }

    /// The values of one row (`cols` of them), exact: an embedding. `q8_0.split` and int8 layouts give scale ×
    /// quant (rounded to f32 where the scale is one), GGUF blocks what ggml's decoder gives, E8
    /// what is stored: of a rotated matrix the rotated values, a row of W·Q.
    ///
    /// # Panics
    /// Where the row does not exist or `out` has another length.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "row {row} of {} x {}", self.rows, self.cols);
        let two = |bytes: &'a [u8]| bytes[row * self.cols * 2..].as_chunks::<2>().0.iter();
        match self.data {
            Data::Q8_0Split { quants, scales } => {
                let quants = &quants[row * self.cols..][..self.cols];
                let scales = scales[row * (self.cols / BLOCK) * 2..].as_chunks::<2>().0;
                for ((out, quants), scale) in
                    out.chunks_exact_mut(BLOCK).zip(quants.chunks_exact(BLOCK)).zip(scales)
                {
                    let scale = f16::from_le_bytes(*scale).to_f32();
                    for (out, &q) in out.iter_mut().zip(quants) {
                        *out = scale * f32::from(q as i8);
                    }
                }
            }
            Data::I8(planes) => planes.dequantize_row(row, out),
            Data::Block { ty, bytes } => {
                let row_bytes = bytes.len() / self.rows;
                dequantize(ty, &bytes[row * row_bytes..][..row_bytes], out).expect("lengths are checked");
            }
            Data::F32(bytes) => {
                let values = bytes[row * self.cols * 4..].as_chunks::<4>().0;
                out.iter_mut().zip(values).for_each(|(out, b)| *out = f32::from_le_bytes(*b));
            }
            Data::F16(bytes) => {
                out.iter_mut().zip(two(bytes)).for_each(|(out, b)| *out = f16::from_le_bytes(*b).to_f32());
            }
            Data::Bf16(bytes) => {
                out.iter_mut().zip(two(bytes)).for_each(|(out, b)| *out = bf16::from_le_bytes(*b).to_f32());
            }
            Data::E8(weights) => weights.dequantize(row * (self.cols / e8::LEN), out),
        }
    }
}

fn check(
    plane: &'static str,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    bytes: &[u8],
) -> Result<(), MatrixError> {
    let need = row_bytes.checked_mul(rows).filter(|_| rows > 0 && cols > 0 && row_bytes < usize::MAX);
    let need = need.ok_or(MatrixError::Shape { rows, cols })?;
    length(plane, (rows, cols), need, bytes)
}

fn length(
    plane: &'static str,
    (rows, cols): (usize, usize),
    need: usize,
    bytes: &[u8],
) -> Result<(), MatrixError> {
    if bytes.len() == need {
        return Ok(());
    }
    Err(MatrixError::Length { plane, rows, cols, need, have: bytes.len() })
}

/// Bytes of a row of blocks; `None` where they do not tile it.
fn block_row(ty: GgmlType, cols: usize) -> Option<usize> {
    usize::try_from(ty.bytes_for(cols as u64)?).ok()
}
