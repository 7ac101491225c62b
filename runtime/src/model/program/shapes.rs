//! The shapes and constants of steps.

use super::VectorId;
use gantry_formats::arch::{RopeScaling, RopeType};

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

/// A part of a model, for profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Looking tokens up.
    #[default]
    Embedding,
    /// The n-gram table and what is made of it.
    Ngram,
    /// Reads and writes of several residual streams.
    HyperConnections,
    /// Attention, with its projections, norms and indexer.
    Attention,
    /// Delta nets, with their projections and convolutions.
    DeltaNet,
    /// Dense feed-forwards.
    FeedForward,
    /// Routing and the experts that are chosen.
    Experts,
    /// The expert that all tokens share.
    SharedExpert,
    /// Norms and sums between them.
    Residual,
    /// From the last layer to logits.
    Head,
}

impl Part {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Ngram => "n-gram embedding",
            Self::HyperConnections => "hyper-connections",
            Self::Attention => "attention",
            Self::DeltaNet => "delta net",
            Self::FeedForward => "feed-forward",
            Self::Experts => "experts",
            Self::SharedExpert => "shared expert",
            Self::Residual => "norms and sums",
            Self::Head => "head",
        }
    }
}

/// An activation that gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// 1 / (1 + e^−x).
    Sigmoid,
    /// x / (1 + e^−x).
    Silu,
}

/// Bounds in [`Step::SiluMul`](super::Step::SiluMul): the gate at most `limit`, the up between −`limit` and `limit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clamp {
    /// `swiglu_clamp_exp`.
    pub limit: f32,
}

/// A causal convolution, by channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Channels.
    pub channels: usize,
    /// Tokens that an output sees.
    pub taps: usize,
    /// Distance of two of them.
    pub dilation: usize,
}

/// The shape of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaShape {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Values of a head of either.
    pub dim: usize,
    /// Which key head a value head reads.
    pub keys: KeyHeads,
    /// In the Euclidean norm of queries and keys: x / √(Σx² + eps).
    pub eps: f32,
}

/// Which key head a value head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeads {
    /// Value head modulo key heads.
    Tiled,
    /// Value head divided by the value heads of a key head.
    Grouped,
}

/// The constants of hyper-connections whose streams a Sinkhorn iteration mixes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// Rounds.
    pub iterations: usize,
    /// Added where a quotient or a weight must not be 0.
    pub eps: f32,
}

/// The hashes of an n-gram table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ngram {
    /// Tokens of the longest.
    pub size: usize,
    /// The token that ends a text: nothing is seen beyond it.
    pub eos: u32,
    /// One odd factor for each token of the window.
    pub multipliers: Vec<u64>,
    /// First row of each hash.
    pub offsets: Vec<u64>,
    /// Rows of each hash.
    pub vocabs: Vec<u64>,
}

/// How a block of positions becomes one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Their mean.
    Mean,
    /// Σ softmax(score + ape) · value, by channel.
    Softmax {
        /// The cache with the scores; their rows are as wide as the values'.
        scores: super::KeptId,
        /// `[ratio][width of a row]`.
        ape: VectorId,
        /// Whether a block also pools its predecessor: with the first half of their rows, its own with the second.
        overlap: bool,
    },
}

/// How entries are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Query heads.
    pub heads: usize,
    /// Values of a head.
    pub len: usize,
    /// Entries that are chosen at most.
    pub top: usize,
    /// Positions that an entry stands for.
    pub ratio: usize,
    /// Whether ids are those of positions: of the chosen entries', and of those after the last complete one.
    pub expand: bool,
}

impl Selection {
    /// Ids of a token, at most.
    pub fn per_token(&self) -> usize {
        if self.expand { self.top * self.ratio + self.ratio - 1 } else { self.top }
    }

    /// Whether a token at `position` and all before it see everything that there is.
    pub fn whole(&self, position: usize) -> bool {
        (position + 1) / self.ratio <= self.top
    }
}
