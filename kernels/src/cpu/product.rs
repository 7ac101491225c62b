//! Activations, and their product with a matrix.

use std::ops::Range;

use super::disjoint::Disjoint;
use super::e8;
use super::float::{self, Element};
use super::int8::{self, I8Rows, I8Slice};
use super::isa::Isa;
use super::matrix::{Data, MatrixView, TILE};
use super::pool::Pool;
use super::q8::{self, Q8Rows, Q8Slice};
use super::scratch;

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
    /// [`Activations::Q8`]: for `q8_0.split`, `e8.*` and int8 layouts with a scale per 32.
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
/// - `e8.*`: the same, with d_w = d·(0.5 + c)·0.5·0.5 (exact) and the codebook's entries with their signs as q_w.
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
            (Data::E8(weights), Input::Q8(x)) => e8::tiles(isa, &e8::Job { rows, weights, x, y }, tiles),
            (Data::Block { .. }, Input::F32(x)) => self.blocks(isa, x, tiles),
            _ => unreachable!("`new` has compared the kinds"),
        }
    }

    fn floats<E: Element>(&self, isa: Isa, weights: &[u8], x: &[f32], tiles: Range<usize>) {
        let MatrixView { rows, cols, .. } = self.w;
        let job = float::Job { rows, stride: rows, cols, weights, x, y: self.y };
        float::tiles::<E>(isa, &job, tiles);
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
                float::tiles::<float::F32>(isa, &job, 0..1);
            }
        });
    }
}
