//! Weight matrices where they lie, activations, and their product.

use std::ops::Range;

use gantry_formats::block::{GgmlType, dequantize};
use gantry_formats::layout::{Order, Scales};
use half::{bf16, f16};

use super::disjoint::Disjoint;
use super::float::{self, Element};
use super::int8::{self, I8Rows, I8Slice, MAX_COLS};
use super::isa::Isa;
use super::pool::Pool;
use super::q8::{self, BLOCK, Q8Rows, Q8Slice};
use super::scratch;

/// Rows per tile, the unit in which threads share a matrix.
pub(super) const TILE: usize = 16;

/// Bytes that cannot be the matrix that they are said to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// A plane has another length than rows × columns ask for.
    #[error("the {plane} of a {rows} x {cols} matrix need {need} bytes, not {have}")]
    Length {
        /// Which plane: `weights`, `quants` or `scales`.
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
    #[error("{cols} columns with one scale: at most {MAX_COLS} have an exact 32-bit sum; use block32 scales")]
    TooWide {
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
    rows: usize,
    cols: usize,
    data: Data<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Data<'a> {
    Q8_0Split { quants: &'a [u8], scales: &'a [u8] },
    F32(&'a [u8]),
    F16(&'a [u8]),
    Bf16(&'a [u8]),
    I8(int8::Planes<'a>),
    Block { ty: GgmlType, bytes: &'a [u8] },
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
            Data::Q8_0Split { .. } => ActivationKind::Q8,
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
        };
        MatrixView { rows: range.len(), cols: self.cols, data }
    }

    /// The values of one row (`cols` of them), exact: an embedding. `q8_0.split` and int8 layouts give scale ×
    /// quant (rounded to f32 where the scale is one), GGUF blocks what ggml's decoder gives.
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

/// The input of a product: `[rows = tokens][cols = n_in]`. [`MatrixView::activations`] says which kind a matrix
/// takes.
#[derive(Clone, Copy, Debug)]
pub enum Activations<'a> {
    /// As they are, row-major, `cols` to a row.
    F32(&'a [f32]),
    /// Quantized per 32, once for every matrix that takes them.
    Q8(&'a Q8Rows),
    /// Quantized per row, once for every matrix that takes them.
    I8(&'a I8Rows),
}

/// The kinds of [`Activations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationKind {
    /// [`Activations::F32`]: for `raw.*` and `gguf.*`.
    F32,
    /// [`Activations::Q8`]: for `q8_0.split` and int8 layouts with a scale per 32.
    Q8,
    /// [`Activations::I8`]: for int8 layouts with a scale per row.
    I8,
}

/// Consecutive rows of [`Activations`].
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    F32(&'a [f32]),
    Q8(Q8Slice<'a>),
    I8(I8Slice<'a>),
}

impl<'a> Activations<'a> {
    /// Tokens of `cols` columns.
    ///
    /// # Panics
    /// Where they have another number of columns.
    pub(super) fn tokens(&self, cols: usize) -> usize {
        let (rows, have) = match self {
            Self::F32(x) => {
                assert!(x.len().is_multiple_of(cols), "{} activations for {cols} columns", x.len());
                return x.len() / cols;
            }
            Self::Q8(x) => (x.rows(), x.cols()),
            Self::I8(x) => (x.rows(), x.cols()),
        };
        assert_eq!(have, cols, "columns of the quantized activations");
        rows
    }

    /// Some of the tokens, each of `cols` columns.
    ///
    /// # Panics
    /// Where they do not exist.
    pub(super) fn slice(&self, tokens: Range<usize>, cols: usize) -> Input<'a> {
        match self {
            Self::F32(x) => Input::F32(&x[tokens.start * cols..tokens.end * cols]),
            Self::Q8(x) => Input::Q8(x.slice(tokens)),
            Self::I8(x) => Input::I8(x.slice(tokens)),
        }
    }
}

/// y\[token\]\[row\] = Σ_k W\[row\]\[k\] · x\[token\]\[k\]; `y` is `[tokens][w.rows()]`.
///
/// The order of every sum is fixed, whatever the instruction set, the other tokens and the threads:
/// - `q8_0.split`, and int8 layouts with a scale per 32: acc = 0; for block b ascending:
///   acc = acc + f32(Σ q_w·q_x) · (d_w·d_x). The integer sum is exact; each of the two products and the sum is
///   rounded to f32.
/// - int8 layouts with a scale per row: (f32(Σ q_w·q_x) · d_x) · d_w. The integer sum is exact; its conversion
///   and each product is rounded to f32.
/// - `raw.*`: weights widened to f32 (exact); lane j of 16 starts at +0 and takes k = j, j+16, … ascending,
///   lane = lane + w·x, each operation rounded; then lanes i and i+8 are added, i and i+4, i+2, i+1.
/// - `gguf.*`: the weights as [`MatrixView::dequantize_row`] gives them, then as `raw.f32`.
///
/// # Panics
/// Where the shapes do not agree, or the activations are not of the kind that [`MatrixView::activations`] says.
pub fn gemm(isa: Isa, pool: &Pool, w: &MatrixView<'_>, x: Activations<'_>, y: &mut [f32]) {
    assert!(y.len().is_multiple_of(w.rows), "{} outputs of {} rows", y.len(), w.rows);
    let tokens = y.len() / w.rows;
    assert_eq!(x.tokens(w.cols), tokens, "tokens of the activations and of the outputs");
    let product = Product::new(*w, x.slice(0..tokens, w.cols), y);
    if tokens > 0 {
        let tiles = product.tiles();
        pool.for_chunks(tiles, chunk(tiles, pool), |tiles| product.run(isa, tiles));
    }
}

/// Tiles that a thread takes at a time.
pub(super) fn chunk(tiles: usize, pool: &Pool) -> usize {
    (tiles / (16 * pool.threads())).max(1)
}

/// One product, which threads compute in tiles of [`TILE`] rows.
pub(super) struct Product<'a> {
    w: MatrixView<'a>,
    x: Input<'a>,
    y: Disjoint<'a, f32>,
}

impl<'a> Product<'a> {
    /// `y` is `[tokens][w.rows()]`, for the tokens of `x`.
    ///
    /// # Panics
    /// Where `y` has another length or `x` is of the wrong kind.
    pub(super) fn new(w: MatrixView<'a>, x: Input<'a>, y: &'a mut [f32]) -> Self {
        let (kind, tokens) = match x {
            Input::F32(x) => (ActivationKind::F32, x.len() / w.cols),
            Input::Q8(x) => (ActivationKind::Q8, x.rows()),
            Input::I8(x) => (ActivationKind::I8, x.rows()),
        };
        assert_eq!(kind, w.activations(), "the kind of the activations, and that of the matrix");
        assert_eq!(y.len(), tokens * w.rows, "outputs for {tokens} tokens");
        Product { w, x, y: Disjoint::new(y) }
    }

    pub(super) fn tiles(&self) -> usize {
        self.w.rows.div_ceil(TILE)
    }

    /// All tokens of some tiles. No tile is run by two threads at once.
    pub(super) fn run(&self, isa: Isa, tiles: Range<usize>) {
        let (rows, y) = (self.w.rows, self.y);
        match (self.w.data, self.x) {
            (Data::Q8_0Split { quants, scales }, Input::Q8(x)) => {
                q8::tiles(isa, &q8::Job { rows, quants, scales, x, y }, tiles);
            }
            (Data::F32(w), Input::F32(x)) => self.floats::<float::F32>(isa, w, x, tiles),
            (Data::F16(w), Input::F32(x)) => self.floats::<float::F16>(isa, w, x, tiles),
            (Data::Bf16(w), Input::F32(x)) => self.floats::<float::Bf16>(isa, w, x, tiles),
            (Data::I8(w), Input::Q8(x)) => {
                let x = int8::Operand::Blocks(x);
                int8::tiles(isa, &int8::Job { rows, w, x, y }, tiles);
            }
            (Data::I8(w), Input::I8(x)) => {
                let x = int8::Operand::Rows(x);
                int8::tiles(isa, &int8::Job { rows, w, x, y }, tiles);
            }
            (Data::Block { .. }, Input::F32(x)) => self.blocks(isa, x, tiles),
            _ => unreachable!("`new` has compared the kinds"),
        }
    }

    fn floats<E: Element>(&self, isa: Isa, weights: &[u8], x: &[f32], tiles: Range<usize>) {
        let MatrixView { rows, cols, .. } = self.w;
        let job = float::Job { rows, stride: rows, cols, weights, x, y: self.y };
        isa.run(float::Tiles::<E> { job: &job, tiles, element: std::marker::PhantomData });
    }

    /// Tiles of a matrix that is dequantized on the way: 16 rows as f32, then their product.
    fn blocks(&self, isa: Isa, x: &[f32], tiles: Range<usize>) {
        let MatrixView { rows, cols, .. } = self.w;
        scratch::with_lines(cols, |lines| {
            for first in tiles.map(|tile| tile * TILE) {
                let live = (rows - first).min(TILE);
                for (i, out) in scratch::floats(lines).chunks_exact_mut(cols).take(live).enumerate() {
                    self.w.dequantize_row(first + i, out);
                }
                let weights = &scratch::bytes(lines)[..live * cols * 4];
                let job = float::Job { rows: live, stride: rows, cols, weights, x, y: self.y.skip(first) };
                isa.run(float::Tiles::<float::F32> {
                    job: &job,
                    tiles: 0..1,
                    element: std::marker::PhantomData,
                });
            }
        });
    }
}
