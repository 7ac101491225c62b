//! A model as a program: a static list of coarse steps over named buffers.
//!
//! The list is built once, when a model is loaded, and knows neither positions nor token ids nor how many tokens
//! a batch has: those are data that each run brings. So a backend may walk the list, as the CPU does, or record
//! it once as a device graph and replay it.

use gantry_formats::arch::{RopeScaling, RopeType};
use gantry_formats::layout::{Layout, Scales};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A buffer by its index in [`Program::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(pub usize);

/// How a buffer holds its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// f32 values.
    F32,
    /// Signed bytes with one scale per 32 values: what weights with a scale per block are multiplied with.
    Q8,
    /// Signed bytes with one scale per row: what weights with a scale per channel are multiplied with.
    I8,
    /// Ids of experts, 32 bits each.
    Ids,
}

/// Working memory: some rows of `width` values for each token of a batch.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// For messages.
    pub name: &'static str,
    /// Rows for each token: 1, or one for each expert that a token uses.
    pub rows: usize,
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
    pub name: Arc<str>,
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

/// One matrix of every expert of a layer, by expert: alike in layout, rows and columns, each where its card has it.
#[derive(Clone, Debug)]
pub struct ExpertMatrices(Vec<Matrix>);

impl ExpertMatrices {
    /// `None` where there are none, or where they are not alike.
    pub fn new(matrices: Vec<Matrix>) -> Option<Self> {
        let alike = |w: &[Matrix]| {
            let [a, b] = [&w[0], &w[1]].map(|m| (m.layout, m.rows.len(), m.cols));
            a == b
        };
        (!matrices.is_empty() && matrices.windows(2).all(alike)).then_some(Self(matrices))
    }

    /// The matrix of `expert`.
    pub fn get(&self, expert: usize) -> Option<&Matrix> {
        self.0.get(expert)
    }

    /// All of them, by expert.
    pub fn iter(&self) -> std::slice::Iter<'_, Matrix> {
        self.0.iter()
    }

    /// One matrix for each expert of both, stacked, where they were fused in this order; else `None`.
    pub fn fused(&self, below: &Self) -> Option<Self> {
        let joined = self.iter().zip(below.iter()).map(|(a, b)| {
            let follows = (a.card, a.offset, a.rows.end) == (b.card, b.offset, b.rows.start);
            follows.then(|| Matrix { rows: a.rows.start..b.rows.end, ..a.clone() })
        });
        Self::new(joined.collect::<Option<Vec<_>>>()?)
    }

    /// How their bytes are ordered.
    pub fn layout(&self) -> Layout {
        self.0[0].layout
    }

    /// Rows of each: values that come out.
    pub fn rows(&self) -> usize {
        self.0[0].rows.len()
    }

    /// Columns of each: values that go in.
    pub fn cols(&self) -> usize {
        self.0[0].cols
    }
}

/// How a router's logits become experts and their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Experts: logits of a token.
    pub experts: usize,
    /// Experts that a token uses.
    pub used: usize,
    /// From logits to probabilities.
    pub gating: Gating,
    /// Groups that the experts are in, in order; 1 where all compete with all.
    pub groups: usize,
    /// Groups that a token chooses from: those whose two best experts have the largest sum.
    pub groups_used: usize,
    /// Whether the weights of a token are divided by their sum.
    pub normalize: bool,
    /// Factor of the weights.
    pub scale: f32,
}

/// How logits become probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// 1 / (1 + e^−x).
    Sigmoid,
    /// √ln(1 + e^x).
    SqrtSoftplus,
    /// The logits themselves, with a softmax over those that were chosen.
    SoftmaxWeight,
}

/// One product of [`Step::Experts`].
#[derive(Clone, Debug)]
pub struct ExpertProduct {
    /// The weights.
    pub weights: ExpertMatrices,
    /// Read, in the format that the weights' layout takes: a row for each token that all its experts take, or one
    /// for each expert of a token.
    pub x: BufferId,
    /// Written: a row for each expert of a token.
    pub y: Columns,
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
    /// y = x in signed bytes with scales.
    Quantize {
        /// Read, [`Format::F32`].
        x: BufferId,
        /// Written, [`Format::Q8`] or [`Format::I8`].
        y: BufferId,
    },
    /// y = x with each row rotated as the rows of rotated weights were: their product is that of the unrotated.
    Rotate {
        /// Read.
        x: BufferId,
        /// Written.
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
    /// The experts of each token, best first, and their weights.
    Route {
        /// The rule.
        routing: Routing,
        /// Read: a logit for each expert.
        logits: BufferId,
        /// Added to probabilities where experts are chosen, and only there.
        bias: Option<VectorId>,
        /// Written, [`Format::Ids`].
        ids: BufferId,
        /// Written.
        weights: BufferId,
    },
    /// y = W x for every token and every expert of it, for one matrix of the experts or several that are read
    /// together.
    Experts {
        /// The experts of each token.
        ids: BufferId,
        /// The products.
        products: Vec<ExpertProduct>,
    },
    /// y = Σ weight · x over the experts of each token, in the order in which they were chosen.
    Mix {
        /// Read: a row for each expert of a token.
        x: BufferId,
        /// Read.
        weights: BufferId,
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
    /// [`Step::Experts`].
    Experts,
    /// Reading a small vector: weights of a norm, a bias.
    Vector,
}

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Embed => "embed",
            Self::Gemm => "gemm",
            Self::Experts => "experts",
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
        let steps = self.body.iter().chain(&self.head);
        let single = steps.clone().filter_map(|step| match step {
            Step::Embed { table, .. } => Some((StepKind::Embed, table)),
            Step::Gemm { weight, .. } => Some((StepKind::Gemm, weight)),
            _ => None,
        });
        let products = steps.filter_map(|step| match step {
            Step::Experts { products, .. } => Some(products),
            _ => None,
        });
        let experts = products.flatten().flat_map(|p| p.weights.iter()).map(|m| (StepKind::Experts, m));
        single.chain(experts).chain(self.vectors.iter().map(|v| (StepKind::Vector, v)))
    }

    /// Values that the cache keeps for one position, over all layers.
    pub fn cache_values(&self) -> usize {
        self.cache.iter().map(|l| l.heads * (l.key_len + l.value_len)).sum()
    }
}

/// The format of activations that weights of this layout are multiplied with.
pub fn activations_for(layout: Layout) -> Format {
    match layout {
        Layout::Raw(_) | Layout::Block(_) => Format::F32,
        Layout::Q8_0Split { .. }
        | Layout::E8Block98 { .. }
        | Layout::E8Planar { .. }
        | Layout::I8 { scales: Scales::Block32, .. } => Format::Q8,
        Layout::I8 { scales: Scales::Channel, .. } => Format::I8,
    }
}
