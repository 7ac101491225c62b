//! Collects the buffers and steps of a program.

use super::program::{
    Buffer, BufferId, Columns, ExpertMatrices, ExpertProduct, Format, Matrix, Rotation, Step, VectorId,
    activations_for,
};
use gantry_formats::layout::Layout;
use std::collections::HashMap;

/// A program in the making. Buffers of the same name, shape and format are the same buffer: layers take turns
/// with them.
#[derive(Default)]
pub(super) struct Builder {
    pub(super) buffers: Vec<Buffer>,
    pub(super) rotations: Vec<Rotation>,
    steps: Vec<Step>,
    /// What was made of a buffer's current content, for all matrices that want it so.
    derived: HashMap<Derived, BufferId>,
}

/// A form of a buffer's content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Derived {
    of: usize,
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

    /// Appends a step.
    pub(super) fn push(&mut self, step: Step) {
        for y in written(&step) {
            // What was made of it is old, and so is what lay in it: two inputs of one shape share a buffer.
            self.derived.retain(|d, id| d.of != y.0 && *id != y);
        }
        self.steps.push(step);
    }

    /// The norm of `x`, in a buffer of its own.
    pub(super) fn norm(&mut self, x: BufferId, weight: VectorId, eps: f32) -> BufferId {
        let y = self.buffer("norm", self.buffers[x.0].width, Format::F32);
        self.push(Step::RmsNorm { x, weight, eps, y });
        y
    }

    /// y = W x + bias, `x` in f32.
    pub(super) fn gemm(&mut self, weight: Matrix, bias: Option<VectorId>, x: BufferId, y: Columns) {
        let x = self.input(x, weight.layout);
        self.push(Step::Gemm { weight, bias, x, y });
    }

    /// y = W x for each expert of a token, for each of `products`: weights, `x` in f32, `y`.
    pub(super) fn experts(&mut self, ids: BufferId, products: Vec<(ExpertMatrices, BufferId, Columns)>) {
        let products = products.into_iter().map(|(weights, x, y)| {
            let x = self.input(x, weights.layout());
            ExpertProduct { weights, x, y }
        });
        let products = products.collect();
        self.push(Step::Experts { ids, products });
    }

    /// A rotation for [`Step::Rope`].
    pub(super) fn rotation(&mut self, rotation: Rotation) -> usize {
        self.rotations.push(rotation);
        self.rotations.len() - 1
    }

    /// The steps so far; what follows starts a new list.
    pub(super) fn take_steps(&mut self) -> Vec<Step> {
        self.derived.clear();
        std::mem::take(&mut self.steps)
    }

    /// `x` as weights of `layout` take it, made once for all of them.
    fn input(&mut self, x: BufferId, layout: Layout) -> BufferId {
        let format = activations_for(layout);
        let plain = if layout.is_rotated() {
            self.derive(x, Derived { of: x.0, rotated: true, format: Format::F32 }, x)
        } else {
            x
        };
        match format {
            Format::F32 => plain,
            _ => self.derive(x, Derived { of: x.0, rotated: plain != x, format }, plain),
        }
    }

    /// The form `wanted` of the buffer `x`, made from `from`.
    fn derive(&mut self, x: BufferId, wanted: Derived, from: BufferId) -> BufferId {
        if let Some(&y) = self.derived.get(&wanted) {
            return y;
        }
        let name = match (wanted.rotated, wanted.format) {
            (true, Format::F32) => "rotated",
            (true, _) => "rotated and quantized",
            (false, _) => "quantized",
        };
        let Buffer { rows, width, .. } = self.buffers[x.0];
        let y = self.rows(name, rows, width, wanted.format);
        self.push(match wanted.format {
            Format::F32 => Step::Rotate { x: from, y },
            _ => Step::Quantize { x: from, y },
        });
        self.derived.insert(wanted, y);
        y
    }
}

fn written(step: &Step) -> Vec<BufferId> {
    match step {
        Step::Embed { y, .. }
        | Step::RmsNorm { y, .. }
        | Step::Quantize { y, .. }
        | Step::Rotate { y, .. }
        | Step::Attention { y, .. }
        | Step::SiluMul { y, .. }
        | Step::Mix { y, .. }
        | Step::Add { y, .. } => vec![*y],
        Step::Gemm { y, .. } => vec![y.buffer],
        Step::Route { ids, weights, .. } => vec![*ids, *weights],
        Step::Experts { products, .. } => products.iter().map(|p| p.y.buffer).collect(),
        // Rotates in place what is read once, by the attention step that follows.
        Step::Rope { q, .. } => vec![q.buffer],
    }
}
