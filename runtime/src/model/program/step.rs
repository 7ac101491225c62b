//! The steps that a program is made of.

use super::{
    BufferId, Clamp, Columns, ConvShape, DeltaShape, ExpertMatrices, Gate, Heads, Holders, Hyper, KeptId,
    Matrix, Part, Pieces, Pool, Routing, Selection, VectorId,
};
use std::sync::Arc;

/// One product of [`Step::Experts`].
#[derive(Clone, Debug)]
pub struct ExpertProduct {
    /// The weights.
    pub weights: ExpertMatrices,
    /// Read, in the format that the weights' layout takes: a row for each token that all its experts take, or one
    /// for each expert of a token.
    pub x: BufferId,
    /// A factor of each expert's products.
    pub scale: Option<VectorId>,
    /// Written: a row for each expert of a token.
    pub y: Columns,
}

/// Chosen positions or entries of [`Step::Attention`].
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    /// [`Format::Ids`](super::Format::Ids), as [`Step::Select`] writes them.
    pub ids: BufferId,
    /// The selection they are from: while everything that a token sees fits it, nothing is left out.
    pub by: Selection,
}

/// Compressed entries that a query sees beside the positions of its cache.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// The cache of entries.
    pub cache: KeptId,
    /// Positions that an entry stands for.
    pub ratio: usize,
    /// Which of them; none: all that are complete.
    pub chosen: Option<Chosen>,
}

/// A write into the streams that waits for the next read: `x[h] += add · 2σ(inject[h] / streams)`.
#[derive(Clone, Copy, Debug)]
pub struct StreamWrite {
    /// Added to every stream.
    pub add: BufferId,
    /// A logit for each stream.
    pub inject: BufferId,
}

/// One step. `y` is what it writes.
#[derive(Clone, Debug)]
pub enum Step {
    /// What follows belongs to a part of the model: computes nothing, serves profiles.
    Begin(Part),
    /// y = the row of each token's id, in each row of y.
    Embed {
        /// `[vocabulary][width of y]`.
        table: Matrix,
        /// Written.
        y: BufferId,
    },
    /// y = the rows of an n-gram table that a token and its predecessors hash to, one for each hash. The table is
    /// left where it is and read by row.
    Ngram {
        /// `[rows][width of y]`.
        table: Matrix,
        /// The hashes, by their index in [`Program::ngrams`](super::Program::ngrams).
        hash: usize,
        /// Written: a row for each hash.
        y: BufferId,
    },
    /// y = x / √(mean(x²) + eps) · weight, for every piece.
    RmsNorm {
        /// Read; may be `y`.
        x: Pieces,
        /// One factor for each value of a piece, or of all pieces; none: 1.
        weight: Option<VectorId>,
        /// Added to the mean.
        eps: f32,
        /// Written.
        y: Pieces,
    },
    /// y = (x − mean) / √(variance + eps) · weight + bias.
    LayerNorm {
        /// Read.
        x: BufferId,
        /// One factor per value.
        weight: VectorId,
        /// One per value.
        bias: VectorId,
        /// Added to the variance.
        eps: f32,
        /// Written.
        y: BufferId,
    },
    /// y = x in signed bytes with scales.
    Quantize {
        /// Read, [`Format::F32`](super::Format::F32).
        x: BufferId,
        /// Written, [`Format::Q8`](super::Format::Q8) or [`Format::I8`](super::Format::I8).
        y: BufferId,
    },
    /// y = x with each row rotated as the rows of rotated weights were: their product is that of the unrotated.
    Rotate {
        /// Read.
        x: BufferId,
        /// Written.
        y: BufferId,
    },
    /// y = scale · W x + bias, into some columns of a buffer: parts that were not fused when they were packed lie side by
    /// side here as if they had been.
    Gemm {
        /// The weights.
        weight: Matrix,
        /// One factor of all.
        scale: Option<VectorId>,
        /// One value per output.
        bias: Option<VectorId>,
        /// Read, in the format that the weight's layout takes.
        x: BufferId,
        /// Written.
        y: Columns,
    },
    /// Rotates pairs of every piece by its token's position, in place.
    Rope {
        /// The rotation, by its index in [`Program::rotations`](super::Program::rotations).
        rotation: usize,
        /// Heads.
        x: Pieces,
        /// Values of a head before those that are rotated.
        start: usize,
        /// By the negative angle: back.
        inverse: bool,
    },
    /// Puts keys and values of these positions into a cache.
    Store {
        /// The cache.
        cache: KeptId,
        /// All key heads.
        keys: Columns,
        /// All value heads, in the same buffer; none where the cache takes them from the keys.
        values: Option<Columns>,
    },
    /// y = softmax(scale · q·K) V over the positions up to each token's own, as far as they are seen.
    Attention {
        /// The shape.
        heads: Heads,
        /// Keys and values.
        cache: KeptId,
        /// Positions that a token sees at most, its own the last.
        window: Option<usize>,
        /// Positions that it sees, where they are chosen.
        chosen: Option<Chosen>,
        /// Compressed entries that it sees as well.
        entries: Option<Entries>,
        /// A logit for each head that takes part in the softmax and adds nothing.
        sinks: Option<VectorId>,
        /// Rotated queries.
        q: Columns,
        /// Written: all heads side by side.
        y: BufferId,
    },
    /// Makes the entries of the blocks of positions that are complete now, and puts them into a cache.
    Compress {
        /// How a block becomes an entry.
        pool: Pool,
        /// Positions of a block.
        ratio: usize,
        /// The positions' values.
        rows: KeptId,
        /// Weight of the norm of an entry.
        norm: VectorId,
        /// Of that norm.
        eps: f32,
        /// How an entry is rotated, by the position at which its block starts.
        rotation: usize,
        /// Values of an entry before those that are rotated.
        start: usize,
        /// Where entries go.
        entries: KeptId,
    },
    /// ids = the entries with the highest scores Σ_h w_h · max(0, q_h·k), of those that a token sees.
    Select {
        /// The rule.
        selection: Selection,
        /// The keys that are scored.
        keys: KeptId,
        /// Queries, all heads side by side.
        q: Columns,
        /// One for each head; none: 1.
        weights: Option<Columns>,
        /// Written, [`Format::Ids`](super::Format::Ids), ascending, `u32::MAX` after the last.
        ids: BufferId,
    },
    /// y = causal convolution of x over the tokens, by channel.
    Conv {
        /// The shape.
        shape: ConvShape,
        /// What it keeps of earlier tokens.
        history: KeptId,
        /// `[channels][taps]`, the last tap for the token itself.
        weight: VectorId,
        /// Read.
        x: Columns,
        /// Whether y = silu(convolution).
        silu: bool,
        /// Written.
        y: BufferId,
    },
    /// One step of the gated delta rule for each token.
    DeltaNet {
        /// The shape.
        shape: DeltaShape,
        /// The state.
        state: KeptId,
        /// The factor of each value head: negative.
        decay: VectorId,
        /// Added to alpha.
        dt: VectorId,
        /// Queries, keys and values side by side.
        qkv: BufferId,
        /// A logit of the decay for each value head.
        alpha: Pieces,
        /// A logit of the write strength for each value head.
        beta: Pieces,
        /// Written: all value heads side by side.
        y: BufferId,
    },
    /// y = x.
    Copy {
        /// Read.
        x: Pieces,
        /// Written.
        y: Pieces,
    },
    /// y = y · act(gate). A gate of one value stands for a whole piece, or for all of a token.
    Gate {
        /// The activation.
        act: Gate,
        /// Read.
        gate: Pieces,
        /// Changed.
        y: Pieces,
    },
    /// y = silu(gate) · up, where each row of x is the gates and then the ups.
    SiluMul {
        /// Read.
        x: BufferId,
        /// Bounds of both before the product.
        clamp: Option<Clamp>,
        /// Written.
        y: BufferId,
    },
    /// x = silu(x · scale), in place.
    SiluScaled {
        /// Changed.
        x: BufferId,
        /// The factor.
        scale: f32,
    },
    /// Applies what waits to be written into the streams, then y = their norm, each stream's own, times gamma.
    StreamNorm {
        /// What waits.
        write: Option<StreamWrite>,
        /// The streams, a row each, changed by the write.
        x: BufferId,
        /// One factor for each value of all streams.
        gamma: VectorId,
        /// Added to the mean.
        eps: f32,
        /// Written: all streams side by side.
        y: BufferId,
    },
    /// Applies what waits to be written into the streams.
    StreamWrite {
        /// What waits.
        write: StreamWrite,
        /// The streams, a row each.
        x: BufferId,
    },
    /// y = mean over the streams of x · σ(gates).
    StreamMix {
        /// The normalised streams side by side.
        x: BufferId,
        /// A gate for each value.
        gates: BufferId,
        /// Written.
        y: BufferId,
    },
    /// Reads the streams through weights that a Sinkhorn iteration makes doubly stochastic.
    SinkhornRead {
        /// The constants.
        hyper: Hyper,
        /// The streams, a row each.
        x: BufferId,
        /// Logits: of the read, of the write, of the mixing of streams.
        mixes: BufferId,
        /// A factor for each of the three.
        scale: VectorId,
        /// Added to the logits.
        base: VectorId,
        /// Written: what is read.
        y: BufferId,
        /// Written: a write weight for each stream.
        post: BufferId,
        /// Written: how streams are mixed, `[from][to]`.
        comb: BufferId,
    },
    /// `x[d] = add · post[d] + Σ_s comb[s][d] · x[s]`.
    SinkhornWrite {
        /// The streams, a row each.
        x: BufferId,
        /// What is written.
        add: BufferId,
        /// From the read.
        post: BufferId,
        /// From the read.
        comb: BufferId,
    },
    /// y = the streams weighted by σ(mixes · scale + base) + eps.
    SinkhornHead {
        /// The constants.
        hyper: Hyper,
        /// The streams, a row each.
        x: BufferId,
        /// A logit for each stream.
        mixes: BufferId,
        /// One factor.
        scale: VectorId,
        /// Added to the logits.
        base: VectorId,
        /// Written.
        y: BufferId,
    },
    /// `y[h] = σ(±√abs(s)) · value` with `s = key[h]·query[h] / √width`, for each stream.
    NgramGate {
        /// A normalised key for each stream.
        key: BufferId,
        /// A normalised query for each stream.
        query: BufferId,
        /// One value for all.
        value: BufferId,
        /// Written.
        y: BufferId,
    },
    /// The experts of each token, best first, and their weights.
    Route {
        /// The rule.
        routing: Routing,
        /// Layer of the model, for statistics.
        layer: usize,
        /// Read: a logit for each expert.
        logits: BufferId,
        /// Added to probabilities where experts are chosen, and only there.
        bias: Option<VectorId>,
        /// Experts by token id, `[vocabulary][used]`, where the logits only give their weights.
        given: Option<Matrix>,
        /// Written, [`Format::Ids`](super::Format::Ids).
        ids: BufferId,
        /// Written.
        weights: BufferId,
    },
    /// y = W x for every token and every expert of it, for one matrix of the experts or several that are read
    /// together.
    Experts {
        /// Only for the experts that this card computes; none: for all.
        only: Option<usize>,
        /// The experts of each token; none: all of them, in order.
        ids: Option<BufferId>,
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
    /// Gives the rows of buffers to another card.
    Send {
        /// The card.
        to: usize,
        /// Layer of the model, for messages.
        layer: Option<usize>,
        /// The buffers.
        buffers: Vec<BufferId>,
    },
    /// Takes what another card sends.
    Receive {
        /// The card.
        from: usize,
        /// Layer of the model, for messages.
        layer: Option<usize>,
        /// The buffers.
        buffers: Vec<BufferId>,
    },
    /// Writes the rows of the experts that this card computes straight to the card that wants them.
    Return {
        /// The card that wants them.
        to: usize,
        /// Which experts are whose.
        holders: Arc<Holders>,
        /// The experts of each token.
        ids: BufferId,
        /// The rows, one for each expert of a token.
        y: BufferId,
    },
    /// Waits for the rows of other cards' experts.
    Collect {
        /// The cards.
        from: Vec<usize>,
        /// Layer of the model, for messages.
        layer: Option<usize>,
        /// Which experts are whose.
        holders: Arc<Holders>,
        /// The experts of each token.
        ids: BufferId,
        /// Written where another card computes; or, where this card computed all of them too, compared with.
        y: BufferId,
        /// Whether it did.
        compare: bool,
    },
    /// y = y + x.
    Add {
        /// Read.
        x: BufferId,
        /// Added to.
        y: BufferId,
    },
}

impl Step {
    /// What it is called, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Begin(_) => "Begin",
            Self::Embed { .. } => "Embed",
            Self::Ngram { .. } => "Ngram",
            Self::RmsNorm { .. } => "RmsNorm",
            Self::LayerNorm { .. } => "LayerNorm",
            Self::Quantize { .. } => "Quantize",
            Self::Rotate { .. } => "Rotate",
            Self::Gemm { .. } => "Gemm",
            Self::Rope { .. } => "Rope",
            Self::Store { .. } => "Store",
            Self::Attention { .. } => "Attention",
            Self::Compress { .. } => "Compress",
            Self::Select { .. } => "Select",
            Self::Conv { .. } => "Conv",
            Self::DeltaNet { .. } => "DeltaNet",
            Self::Copy { .. } => "Copy",
            Self::Gate { .. } => "Gate",
            Self::SiluMul { .. } => "SiluMul",
            Self::SiluScaled { .. } => "SiluScaled",
            Self::StreamNorm { .. } => "StreamNorm",
            Self::StreamWrite { .. } => "StreamWrite",
            Self::StreamMix { .. } => "StreamMix",
            Self::SinkhornRead { .. } => "SinkhornRead",
            Self::SinkhornWrite { .. } => "SinkhornWrite",
            Self::SinkhornHead { .. } => "SinkhornHead",
            Self::NgramGate { .. } => "NgramGate",
            Self::Route { .. } => "Route",
            Self::Experts { .. } => "Experts",
            Self::Mix { .. } => "Mix",
            Self::Send { .. } => "Send",
            Self::Receive { .. } => "Receive",
            Self::Return { .. } => "Return",
            Self::Collect { .. } => "Collect",
            Self::Add { .. } => "Add",
        }
    }
}
