//! A model as a program: a static list of coarse steps over named buffers.
//!
//! The list is built once, when a model is loaded, and knows neither positions nor token ids nor how many tokens
//! a batch has: those are data that each run brings. So a backend may walk the list, as the CPU does, or record
//! it once as a device graph and replay it.

use gantry_formats::arch::{RopeScaling, RopeType};
use gantry_formats::layout::Layout;
use std::fmt;
use std::ops::Range;

/// A buffer by its index in [`Program::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(pub usize);

/// How a buffer holds its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// f32 values.
    F32,
    /// Signed bytes with one scale per 32 values: what `q8_0.split` weights are multiplied with.
    Q8,
}

/// Working memory: one row of `width` values for each token of a batch.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// For messages.
    pub name: &'static str,
    /// Values in a row.
    pub width: usize,
    /// How they are held.
    pub format: Format,
}

/// A stretch of every row of a buffer: one part of what a fused matrix gives, or all of it.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// The buffer, of [`Format::F32`].
    pub buffer: BufferId,
    /// First value.
    pub start: usize,
    /// Number of values.
    pub len: usize,
}

/// Some rows of a stored matrix: where it lies and how to read it.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The tensor's name.
    pub name: String,
    /// Card.
    pub card: usize,
    /// First byte of the stored matrix inside the card's arena.
    pub offset: usize,
    /// Rows of the stored matrix.
    pub stored_rows: usize,
    /// The rows that are meant: one value comes out for each.
    pub rows: Range<usize>,
    /// Columns: values that go in.
    pub cols: usize,
    /// How the bytes are ordered.
    pub layout: Layout,
}

/// A small vector by its index in [`Program::vectors`]: a norm's weights, a bias, rotation factors. Stored as one
/// row, used as f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorId(pub usize);

/// How queries and keys are rotated: pair `j` by `position · base^(−2j/len) / divisors[j]` radians, scaled.
#[derive(Clone, Debug)]
pub struct Rotation {
    /// Values of a head that are rotated, from its start.
    pub len: usize,
    /// `rope.freq_base`.
    pub base: f64,
    /// How positions beyond the trained context are mapped.
    pub scaling: RopeScaling,
    /// One divisor for each pair, where the model has them.
    pub divisors: Option<VectorId>,
    /// Which values make a pair.
    pub pairs: RopeType,
}

/// The shape of one layer's attention.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads; each serves `query / kv` query heads.
    pub kv: usize,
    /// Values of a query or key head.
    pub key_len: usize,
    /// Values of a value head.
    pub value_len: usize,
    /// Factor of the scores.
    pub scale: f32,
}

/// One step. `y` is what it writes.
#[derive(Clone, Debug)]
pub enum Step {
    /// y = the row of each token's id.
    Embed {
        /// `[vocabulary][width of y]`.
        table: Matrix,
        /// Written.
        y: BufferId,
    },
    /// y = x / √(mean(x²) + eps) · weight.
    RmsNorm {
        /// Read.
        x: BufferId,
        /// One factor per value.
        weight: VectorId,
        /// Added to the mean.
        eps: f32,
        /// Written.
        y: BufferId,
    },
    /// y = x in blocks of 32 signed bytes with a scale.
    Quantize {
        /// Read, [`Format::F32`].
        x: BufferId,
        /// Written, [`Format::Q8`].
        y: BufferId,
    },
    /// y = W x + bias, into some columns of a buffer: parts that were not fused when they were packed lie side by
    /// side here as if they had been.
    Gemm {
        /// The weights.
        weight: Matrix,
        /// One value per output.
        bias: Option<VectorId>,
        /// Read, in the format that the weight's layout takes.
        x: BufferId,
        /// Written.
        y: Columns,
    },
    /// Rotates queries and keys by their positions and puts keys and values into the cache.
    Rope {
        /// The rotation, by its index in [`Program::rotations`].
        rotation: usize,
        /// The attention it is for.
        heads: Heads,
        /// Layer of the cache.
        layer: usize,
        /// Queries, rotated in place.
        q: Columns,
        /// Keys.
        k: Columns,
        /// Values.
        v: Columns,
    },
    /// y = softmax(scale · q·K) V over the positions up to each token's own.
    Attention {
        /// The shape.
        heads: Heads,
        /// Layer of the cache.
        layer: usize,
        /// Rotated queries.
        q: Columns,
        /// Written: all heads side by side.
        y: BufferId,
    },
    /// y = silu(gate) · up, where each row of x is the gates and then the ups.
    SiluMul {
        /// Read.
        x: BufferId,
        /// Written.
        y: BufferId,
    },
    /// y = y + x.
    Add {
        /// Read.
        x: BufferId,
        /// Added to.
        y: BufferId,
    },
}

/// The kinds of step that a backend has kernels for by layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// [`Step::Embed`].
    Embed,
    /// [`Step::Gemm`].
    Gemm,
    /// Reading a small vector: weights of a norm, a bias.
    Vector,
}

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Embed => "embed",
            Self::Gemm => "gemm",
            Self::Vector => "vector",
        })
    }
}

/// What one layer keeps for each position.
#[derive(Clone, Copy, Debug)]
pub struct CacheLayer {
    /// Key and value heads.
    pub heads: usize,
    /// Values of a key.
    pub key_len: usize,
    /// Values of a value.
    pub value_len: usize,
}

/// A model on one device.
#[derive(Clone, Debug)]
pub struct Program {
    /// Size of the vocabulary: width of the logits.
    pub vocab: usize,
    /// Longest context that the model was made for, where it says.
    pub context: Option<usize>,
    /// Small vectors.
    pub vectors: Vec<Matrix>,
    /// Rotations that steps refer to.
    pub rotations: Vec<Rotation>,
    /// Working memory.
    pub buffers: Vec<Buffer>,
    /// From token ids to the residual stream of every token.
    pub body: Vec<Step>,
    /// From the rows that logits are wanted of to logits.
    pub head: Vec<Step>,
    /// Where the body leaves its result and the head finds the chosen rows of it.
    pub residual: BufferId,
    /// Where the head leaves the logits.
    pub logits: BufferId,
    /// The cache, by layer.
    pub cache: Vec<CacheLayer>,
}

impl Program {
    /// Every stored tensor with the kind of step that reads it.
    pub fn tensors(&self) -> impl Iterator<Item = (StepKind, &Matrix)> {
        let matrices = self.body.iter().chain(&self.head).filter_map(|step| match step {
            Step::Embed { table, .. } => Some((StepKind::Embed, table)),
            Step::Gemm { weight, .. } => Some((StepKind::Gemm, weight)),
            _ => None,
        });
        matrices.chain(self.vectors.iter().map(|v| (StepKind::Vector, v)))
    }

    /// Values that the cache keeps for one position, over all layers.
    pub fn cache_values(&self) -> usize {
        self.cache.iter().map(|l| l.heads * (l.key_len + l.value_len)).sum()
    }
}

/// The format of activations that weights of this layout are multiplied with.
pub fn activations_for(layout: Layout) -> Format {
    match layout {
        Layout::Q8_0Split { .. } => Format::Q8,
        _ => Format::F32,
    }
}
