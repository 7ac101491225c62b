//! Collects the buffers and steps of a program.

use super::program::{Buffer, BufferId, Columns, Format, Matrix, Rotation, Step, VectorId, activations_for};
use std::collections::HashMap;

/// A program in the making. Buffers of the same name, width and format are the same buffer: layers take turns
/// with them.
#[derive(Default)]
pub(super) struct Builder {
    pub(super) buffers: Vec<Buffer>,
    pub(super) rotations: Vec<Rotation>,
    steps: Vec<Step>,
    /// The quantized copy of a buffer's current content.
    quantized: HashMap<usize, BufferId>,
}

impl Builder {
    /// The buffer `name` of `width` values per row.
    pub(super) fn buffer(&mut self, name: &'static str, width: usize, format: Format) -> BufferId {
        let same = |b: &Buffer| b.name == name && b.width == width && b.format == format;
        let found = self.buffers.iter().position(same).unwrap_or_else(|| {
            self.buffers.push(Buffer { name, width, format });
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
        if let Some(y) = written(&step) {
            self.quantized.remove(&y.0);
        }
        self.steps.push(step);
    }

    /// The norm of `x`, in a buffer of its own.
    pub(super) fn norm(&mut self, x: BufferId, weight: VectorId, eps: f32) -> BufferId {
        let y = self.buffer("norm", self.buffers[x.0].width, Format::F32);
        self.push(Step::RmsNorm { x, weight, eps, y });
        y
    }

    /// y = W x + bias, `x` in f32: it is quantized once for all products that want it so.
    pub(super) fn gemm(&mut self, weight: Matrix, bias: Option<VectorId>, x: BufferId, y: Columns) {
        let x = match activations_for(weight.layout) {
            Format::F32 => x,
            Format::Q8 => self.quantize(x),
        };
        self.push(Step::Gemm { weight, bias, x, y });
    }

    /// A rotation for [`Step::Rope`].
    pub(super) fn rotation(&mut self, rotation: Rotation) -> usize {
        self.rotations.push(rotation);
        self.rotations.len() - 1
    }

    /// The steps so far; what follows starts a new list.
    pub(super) fn take_steps(&mut self) -> Vec<Step> {
        self.quantized.clear();
        std::mem::take(&mut self.steps)
    }

    fn quantize(&mut self, x: BufferId) -> BufferId {
        if let Some(&y) = self.quantized.get(&x.0) {
            return y;
        }
        let y = self.buffer("quantized", self.buffers[x.0].width, Format::Q8);
        // Two inputs of one width share the quantized buffer: the older content is gone.
        self.quantized.retain(|_, &mut other| other != y);
        self.push(Step::Quantize { x, y });
        self.quantized.insert(x.0, y);
        y
    }
}

fn written(step: &Step) -> Option<BufferId> {
    match *step {
        Step::Embed { y, .. }
        | Step::RmsNorm { y, .. }
        | Step::Quantize { y, .. }
        | Step::Attention { y, .. }
        | Step::SiluMul { y, .. }
        | Step::Add { y, .. } => Some(y),
        Step::Gemm { y, .. } => Some(y.buffer),
        // Rotates in place what is read once, by the attention step that follows.
        Step::Rope { q, .. } => Some(q.buffer),
    }
}
