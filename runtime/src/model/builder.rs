//! Collects the buffers and steps of a program.

use super::program::{
    Buffer, BufferId, CacheShape, Columns, ExpertMatrices, ExpertProduct, Format, Kept, KeptId, Matrix,
    Ngram, Part, Pieces, Rotation, Step, VectorId, activations_for,
};
use gantry_formats::layout::Layout;
use std::collections::HashMap;

/// A program in the making. Buffers of the same name, shape and format are the same buffer: layers take turns
/// with them.
#[derive(Default)]
pub(super) struct Builder {
    pub(super) buffers: Vec<Buffer>,
    pub(super) rotations: Vec<Rotation>,
    pub(super) ngrams: Vec<Ngram>,
    pub(super) kept: Vec<Kept>,
    steps: Vec<Step>,
    /// The part that steps belong to now.
    part: Option<Part>,
    /// What was made of a buffer's current content, for all matrices that want it so.
    derived: HashMap<Derived, BufferId>,
}

/// What follows a product.
#[derive(Clone, Copy, Default)]
pub(super) struct Affine {
    /// One factor of all outputs.
    pub(super) scale: Option<VectorId>,
    /// One value per output.
    pub(super) bias: Option<VectorId>,
}

/// A form of a buffer's content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Derived {
    of: usize,
    cols: usize,
    rotated: bool,
    format: Format,
}

impl Builder {
    /// The buffer `name` of one row of `width` values per token.
    pub(super) fn buffer(&mut self, name: &'static str, width: usize, format: Format) -> BufferId {
        self.rows(name, 1, width, format)
    }

    /// The buffer `name` of `rows` rows of `width` values per token.
    pub(super) fn rows(&mut self, name: &'static str, rows: usize, width: usize, format: Format) -> BufferId {
        let same = |b: &Buffer| (b.name, b.rows, b.width, b.format) == (name, rows, width, format);
        let found = self.buffers.iter().position(same).unwrap_or_else(|| {
            self.buffers.push(Buffer { name, rows, width, format });
            self.buffers.len() - 1
        });
        BufferId(found)
    }

    /// All of a buffer.
    pub(super) fn whole(&self, buffer: BufferId) -> Columns {
        Columns { buffer, start: 0, len: self.buffers[buffer.0].width }
    }

    /// Some columns of a buffer.
    pub(super) fn columns(&self, buffer: BufferId, start: usize, len: usize) -> Columns {
        Columns { buffer, start, len }
    }

    /// All rows of a token, each a piece.
    pub(super) fn pieces(&self, buffer: BufferId) -> Pieces {
        let Buffer { rows, width, .. } = self.buffers[buffer.0];
        Pieces { buffer, start: 0, count: rows, len: width, stride: width }
    }

    /// All values of a token as one piece.
    pub(super) fn piece(&self, buffer: BufferId) -> Pieces {
        let len = self.values(buffer);
        Pieces { buffer, start: 0, count: 1, len, stride: len }
    }

    /// Values of a token.
    pub(super) fn values(&self, buffer: BufferId) -> usize {
        let Buffer { rows, width, .. } = self.buffers[buffer.0];
        rows * width
    }

    /// What follows belongs to `part`.
    pub(super) fn begin(&mut self, part: Part) {
        if self.part != Some(part) {
            self.part = Some(part);
            self.push(Step::Begin(part));
        }
    }

    /// Appends a step.
    pub(super) fn push(&mut self, step: Step) {
        for y in step.written() {
            // What was made of it is old, and so is what lay in it: two inputs of one shape share a buffer.
            self.derived.retain(|d, id| d.of != y.0 && *id != y);
        }
        self.steps.push(step);
    }

    /// The norm of `x`, in a buffer of its own.
    pub(super) fn norm(&mut self, x: BufferId, weight: VectorId, eps: f32) -> BufferId {
        let y = self.buffer("norm", self.values(x), Format::F32);
        self.push(Step::RmsNorm { x: self.piece(x), weight: Some(weight), eps, y: self.piece(y) });
        y
    }

    /// Each of `x` to its norm, where it stands.
    pub(super) fn norm_in_place(&mut self, x: Pieces, weight: Option<VectorId>, eps: f32) {
        self.push(Step::RmsNorm { x, weight, eps, y: x });
    }

    /// y = W x, `x` in f32.
    pub(super) fn gemm(&mut self, weight: Matrix, x: BufferId, y: Columns) {
        self.affine(weight, Affine::default(), x, y);
    }

    /// y = scale · W x + bias, `x` in f32.
    pub(super) fn affine(&mut self, weight: Matrix, by: Affine, x: BufferId, y: Columns) {
        let x = self.input(x, weight.layout, weight.cols);
        let Affine { scale, bias } = by;
        self.push(Step::Gemm { weight, scale, bias, x, y });
    }

    /// y = scale · W x for each expert of a token, for each of `products`: weights, scales, `x` in f32, `y`. Without `ids` every
    /// token uses all of them in order.
    pub(super) fn experts(
        &mut self,
        ids: Option<BufferId>,
        products: Vec<(ExpertMatrices, Option<VectorId>, BufferId, Columns)>,
    ) {
        let products = products.into_iter().map(|(weights, scale, x, y)| {
            let x = self.input(x, weights.layout(), weights.cols());
            ExpertProduct { weights, x, scale, y }
        });
        let products = products.collect();
        self.push(Step::Experts { only: None, ids, products });
    }

    /// A rotation for [`Step::Rope`].
    pub(super) fn rotation(&mut self, rotation: Rotation) -> usize {
        self.rotations.push(rotation);
        self.rotations.len() - 1
    }

    /// Hashes for [`Step::Ngram`].
    pub(super) fn ngram(&mut self, ngram: Ngram) -> usize {
        self.ngrams.push(ngram);
        self.ngrams.len() - 1
    }

    /// Something that each sequence keeps.
    pub(super) fn keep(&mut self, kept: Kept) -> KeptId {
        self.kept.push(kept);
        KeptId(self.kept.len() - 1)
    }

    /// A cache with one row of `len` exact values for a position, of which the last `window` stay.
    pub(super) fn keep_rows(&mut self, len: usize, window: Option<usize>, ratio: usize) -> KeptId {
        let shape =
            CacheShape { heads: 1, key_len: len, value_len: len, shared: true, window, ratio, exact: true };
        self.keep(Kept::Cache(shape))
    }

    /// The steps so far; what follows starts a new list.
    pub(super) fn take_steps(&mut self) -> Vec<Step> {
        self.derived.clear();
        self.part = None;
        std::mem::take(&mut self.steps)
    }

    /// `x` as weights of `layout` with `cols` columns take it, made once for all of them.
    fn input(&mut self, x: BufferId, layout: Layout, cols: usize) -> BufferId {
        let format = activations_for(layout);
        let plain = if layout.is_rotated() {
            self.derive(x, Derived { of: x.0, cols, rotated: true, format: Format::F32 }, x)
        } else {
            x
        };
        match format {
            Format::F32 => plain,
            _ => self.derive(x, Derived { of: x.0, cols, rotated: plain != x, format }, plain),
        }
    }

    /// The form `wanted` of the buffer `x`, made from `from`: rows as long as the weights', however `x` counts
    /// them.
    fn derive(&mut self, x: BufferId, wanted: Derived, from: BufferId) -> BufferId {
        if let Some(&y) = self.derived.get(&wanted) {
            return y;
        }
        let name = match (wanted.rotated, wanted.format) {
            (true, Format::F32) => "rotated",
            (true, _) => "rotated and quantized",
            (false, _) => "quantized",
        };
        let rows = self.values(x) / wanted.cols;
        let y = self.rows(name, rows, wanted.cols, wanted.format);
        self.push(match wanted.format {
            Format::F32 => Step::Rotate { x: from, y },
            _ => Step::Quantize { x: from, y },
        });
        self.derived.insert(wanted, y);
        y
    }
}
