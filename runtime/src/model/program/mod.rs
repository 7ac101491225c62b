//! A model as a program: a static list of coarse steps over named buffers.
//!
//! The list is built once, when a model is loaded, and knows neither positions nor token ids nor how many tokens
//! a batch has: those are data that each run brings. So a backend may walk the list, as the CPU does, or record
//! it once as a device graph and replay it.

mod access;
mod cards;
mod kept;
mod matrix;
mod shapes;
mod step;

pub use access::Access;
pub use cards::{CardPrograms, ExpertCheck, Split};
pub use kept::{CacheShape, Kept, KeptId};
pub use matrix::{ExpertMatrices, Holders, Matrix};
pub use shapes::{
    Clamp, ConvShape, DeltaShape, Gate, Gating, Heads, Hyper, KeyHeads, Ngram, Part, Pool, Rotation, Routing,
    Selection,
};
pub use step::{Chosen, Entries, ExpertProduct, Step, StreamWrite};

use gantry_formats::layout::{Layout, Scales};
use std::fmt;

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

#[cfg(feature = "cards")]
impl Buffer {
    /// Bytes for `tokens` tokens: of values, ids or quants, and of scales.
    pub(crate) fn bytes(&self, tokens: usize) -> [u64; 2] {
        let rows = self.rows as u64 * tokens as u64;
        let values = rows.saturating_mul(self.width as u64);
        match self.format {
            Format::F32 | Format::Ids => [values.saturating_mul(4), 0],
            Format::Q8 => [values, values / 32 * 4],
            Format::I8 => [values, rows * 4],
        }
    }
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

/// `count` stretches of `len` values, `stride` apart, of all that a buffer has for a token: heads, streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// The buffer, of [`Format::F32`].
    pub buffer: BufferId,
    /// First value of the first.
    pub start: usize,
    /// How many.
    pub count: usize,
    /// Values of each.
    pub len: usize,
    /// From the first value of one to that of the next.
    pub stride: usize,
}

/// A small vector by its index in [`Program::vectors`]: a norm's weights, a bias, rotation factors. Stored as one
/// row, used as f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorId(pub usize);

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
    /// Reading a row of ids.
    Ids,
    /// Reading rows of a table that stays in its file.
    Rows,
}

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Embed => "embed",
            Self::Gemm => "gemm",
            Self::Experts => "experts",
            Self::Vector => "vector",
            Self::Ids => "ids",
            Self::Rows => "rows",
        })
    }
}

/// What drafts tokens: a block that goes on from what the trunk made of the token before.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Where its body finds the trunk's streams, or its own of the token before.
    pub hidden: BufferId,
    /// From the next token's id and `hidden` to its own streams.
    pub body: Vec<Step>,
    /// Where they are.
    pub residual: BufferId,
    /// As [`Program::head`], from [`Program::chosen`].
    pub head: Vec<Step>,
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
    /// Hashes that steps refer to.
    pub ngrams: Vec<Ngram>,
    /// Working memory.
    pub buffers: Vec<Buffer>,
    /// From token ids to the residual stream of every token.
    pub body: Vec<Step>,
    /// From the rows that logits are wanted of to logits.
    pub head: Vec<Step>,
    /// Where the body leaves its result.
    pub residual: BufferId,
    /// Where the head finds the rows of it that logits are wanted of.
    pub chosen: BufferId,
    /// Where the head leaves the logits.
    pub logits: BufferId,
    /// What a sequence keeps from step to step, by [`KeptId`].
    pub kept: Vec<Kept>,
    /// The block that drafts, where the model has one.
    pub draft: Option<Draft>,
}

impl Program {
    /// Steps over buffers and nothing else, for tests: `body` leaves its result in `residual`, `head` makes `logits` of
    /// what it finds in `chosen`.
    #[cfg(test)]
    pub(crate) fn bare(
        buffers: Vec<Buffer>,
        [body, head]: [Vec<Step>; 2],
        [residual, chosen, logits]: [BufferId; 3],
    ) -> Self {
        Self {
            vocab: buffers[logits.0].width,
            context: None,
            vectors: Vec::new(),
            rotations: Vec::new(),
            ngrams: Vec::new(),
            buffers,
            body,
            head,
            residual,
            chosen,
            logits,
            kept: Vec::new(),
            draft: None,
        }
    }

    /// Values that a buffer has for a token.
    pub fn values(&self, buffer: BufferId) -> usize {
        let Buffer { rows, width, .. } = self.buffers[buffer.0];
        rows * width
    }

    /// All steps.
    pub fn steps(&self) -> impl Iterator<Item = &Step> + Clone {
        let draft = self.draft.iter().flat_map(|d| d.body.iter().chain(&d.head));
        self.body.iter().chain(&self.head).chain(draft)
    }

    /// Every stored tensor with the kind of step that reads it.
    pub fn tensors(&self) -> impl Iterator<Item = (StepKind, &Matrix)> {
        let single = self.steps().filter_map(|step| match step {
            Step::Embed { table, .. } => Some((StepKind::Embed, table)),
            Step::Gemm { weight, .. } => Some((StepKind::Gemm, weight)),
            Step::Ngram { table, .. } => Some((StepKind::Rows, table)),
            Step::Route { given: Some(table), .. } => Some((StepKind::Ids, table)),
            _ => None,
        });
        let products = self.steps().filter_map(|step| match step {
            Step::Experts { products, .. } => Some(products),
            _ => None,
        });
        let experts = products.flatten().flat_map(|p| p.weights.iter()).map(|m| (StepKind::Experts, m));
        single.chain(experts).chain(self.vectors.iter().map(|v| (StepKind::Vector, v)))
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
