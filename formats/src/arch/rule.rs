//! Rows of an architecture's table: a tensor, where it is, whether it must be there, and its shape.

use super::Dim;

/// Where a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// Once, outside the blocks.
    Model,
    /// Once, outside the blocks, where the model has per-layer embeddings.
    ModelWithPle,
    /// In every block, those of MTP included.
    Blocks,
    /// In full-attention blocks, those of MTP included.
    Full,
    /// In linear-attention layers.
    Linear,
    /// In the layer with per-layer embeddings.
    Ple,
    /// In blocks whose feed-forward is dense: all of a model without experts, else the leading ones.
    Dense,
    /// In blocks whose feed-forward has experts.
    Routed,
    /// In the first layers, whose experts are chosen by the token.
    Hash,
    /// In blocks whose experts are chosen by a router's scores.
    Scored,
    /// In blocks whose attention is compressed.
    Compressed,
    /// In blocks whose attention is compressed by 4, and that index what they attend to.
    Indexed,
    /// In MTP blocks.
    Mtp,
}

/// Whether a tensor must be there, where its row says it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Always.
    Required,
    /// May be absent.
    Optional,
    /// May be absent, then it is an alias of this tensor.
    TiedTo(&'static str),
    /// Unless this tensor is in the same block, which holds it.
    Unless(&'static str),
    /// Where the block has an indexer of its own; may be in those that have none.
    OwnIndexer,
}

/// One row of an architecture's table.
#[derive(Clone, Copy, Debug)]
pub struct TensorRule {
    /// Name, or for a block's tensor the part after `blk.N.`.
    pub name: &'static str,
    /// Where it is.
    pub at: Where,
    /// Whether it must be there.
    pub presence: Presence,
    /// Shape, `ne0` first.
    pub shape: &'static [Dim],
}

impl TensorRule {
    /// Whether it is a block's tensor.
    pub fn in_blocks(&self) -> bool {
        !matches!(self.at, Where::Model | Where::ModelWithPle)
    }

    /// Its full name, in `block` where it is a block's.
    pub fn full_name(&self, block: u64) -> String {
        match self.in_blocks() {
            true => format!("blk.{block}.{}", self.name),
            false => self.name.to_string(),
        }
    }
}

pub(super) const fn row(
    name: &'static str,
    at: Where,
    presence: Presence,
    shape: &'static [Dim],
) -> TensorRule {
    TensorRule { name, at, presence, shape }
}
