//! Weight matrices where they lie, activations, and their product.

use std::ops::Range;

use half::{bf16, f16};

use super::disjoint::Disjoint;
use super::e8;
use super::float::{self, Element};
use super::isa::Isa;
use super::pool::Pool;
use super::q8::{self, BLOCK, Q8Rows};

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

    /// Some of its rows, as a matrix: a part of a fused one, an expert of a slab.
    ///
    /// # Panics
    /// Where the range is empty or leaves the matrix.
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
            Data::E8(weights) => {
                let supers = self.cols / e8::LEN;
                Data::E8(weights.range(range.start * supers..range.end * supers))
            }
        };
        MatrixView { rows: range.len(), cols: self.cols, data }
    }

    /// The values of one row (`cols` of them), exact: an embedding. `q8_0.split` gives scale × quant, E8 what is
    /// stored: of a rotated matrix the rotated values, a row of W·Q.
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
    if bytes.len() == need {
        return Ok(());
    }
    Err(MatrixError::Length { plane, rows, cols, need, have: bytes.len() })
}

/// The input of a product: `[rows = tokens][cols = n_in]`.
#[derive(Clone, Copy, Debug)]
pub enum Activations<'a> {
    /// As they are, row-major, `cols` to a row: for `raw.f32`, `raw.f16` and `raw.bf16`.
    F32(&'a [f32]),
    /// Quantized per 32, once for every matrix that takes them: for `q8_0.split` and `e8.*`.
    Q8(&'a Q8Rows),
}

/// y\[token\]\[row\] = Σ_k W\[row\]\[k\] · x\[token\]\[k\]; `y` is `[tokens][w.rows()]`.
///
/// The order of every sum is fixed, whatever the instruction set, the other tokens and the threads:
/// - `q8_0.split`: acc = 0; for block b ascending: acc = acc + f32(Σ q_w·q_x) · (d_w·d_x). The integer sum is
///   exact; each of the two products and the sum is rounded to f32.
/// - `e8.*`: the same, with d_w = d·(0.5 + c)·0.5·0.5 (exact) and the codebook's entries with their signs as q_w.
/// - `raw.*`: weights widened to f32 (exact); lane j of 16 starts at +0 and takes k = j, j+16, … ascending,
///   lane = lane + w·x, each operation rounded; then lanes i and i+8 are added, i and i+4, i+2, i+1.
///
/// # Panics
/// Where the shapes do not agree, or the activations are of the wrong kind: [`Activations::Q8`] for Q8_0 and E8
/// weights, [`Activations::F32`] for others.
pub fn gemm(isa: Isa, pool: &Pool, w: &MatrixView<'_>, x: Activations<'_>, y: &mut [f32]) {
    assert!(y.len().is_multiple_of(w.rows), "{} outputs of {} rows", y.len(), w.rows);
    let tokens = y.len() / w.rows;
    let have = match x {
        Activations::F32(x) => x.len(),
        Activations::Q8(x) => x.rows() * x.cols(),
    };
    assert_eq!(have, tokens * w.cols, "activations for {tokens} tokens of {} columns", w.cols);
    if let Activations::Q8(x) = x {
        assert_eq!(x.cols(), w.cols, "columns of the quantized activations");
    }
    if tokens == 0 {
        return;
    }
    let y = Disjoint::new(y);
    let tiles = w.rows.div_ceil(TILE);
    let chunk = (tiles / (16 * pool.threads())).max(1);
    match (w.data, x) {
        (Data::Q8_0Split { quants, scales }, Activations::Q8(x)) => {
            let job = q8::Job { rows: w.rows, quants, scales, x, y };
            pool.for_chunks(tiles, chunk, |tiles| q8::tiles(isa, &job, tiles));
        }
        (Data::E8(weights), Activations::Q8(x)) => {
            let job = e8::Job { rows: w.rows, weights, x, y };
            pool.for_chunks(tiles, chunk, |tiles| e8::tiles(isa, &job, tiles));
        }
        (Data::F32(w_bytes), Activations::F32(x)) => floats::<float::F32>(isa, pool, w, w_bytes, x, y, chunk),
        (Data::F16(w_bytes), Activations::F32(x)) => floats::<float::F16>(isa, pool, w, w_bytes, x, y, chunk),
        (Data::Bf16(w_bytes), Activations::F32(x)) => {
            floats::<float::Bf16>(isa, pool, w, w_bytes, x, y, chunk)
        }
        (_, Activations::F32(_)) => panic!("a quantized matrix takes quantized activations"),
        (_, Activations::Q8(_)) => panic!("a float matrix takes f32 activations"),
    }
}

fn floats<E: Element>(
    isa: Isa,
    pool: &Pool,
    w: &MatrixView<'_>,
    weights: &[u8],
    x: &[f32],
    y: Disjoint<'_, f32>,
    chunk: usize,
) {
    let job = float::Job { rows: w.rows, cols: w.cols, weights, x, y };
    pool.for_chunks(w.rows.div_ceil(TILE), chunk, |tiles| {
        isa.run(float::Tiles::<E> { job: &job, tiles, element: std::marker::PhantomData });
    });
}
