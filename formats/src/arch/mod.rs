//! Architecture tables: which keys and tensors a model of each architecture has, with their shapes.
//!
//! `gantry convert` checks a source against the table before it writes a byte; the runtime builds its graph from
//! the same names. Adding an architecture is one table here and one graph in `runtime::model`.

mod check;
mod hparams;
mod llama;

pub use check::{Finding, Problem, check};
pub use hparams::{Hparams, HparamsError, Metadata, RopeScaling, RopeType};

/// A dimension of a tensor, as the hyperparameters give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// `embedding_length`.
    Embd,
    /// Vocabulary size.
    Vocab,
    /// `head_count · key_length`: all query heads side by side.
    HeadsQ,
    /// `head_count_kv · key_length`.
    HeadsK,
    /// `head_count_kv · value_length`.
    HeadsV,
    /// `head_count · value_length`: what attention hands to its output projection.
    HeadsOut,
    /// `feed_forward_length`.
    Ff,
    /// `expert_feed_forward_length`, or `feed_forward_length` where that key is absent.
    ExpertFf,
    /// `expert_count`.
    Experts,
    /// Half of `rope.dimension_count`.
    HalfRot,
    /// Twice [`Dim::ExpertFf`]: fused gate and up.
    TwoExpertFf,
}

/// When a tensor must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Always.
    Required,
    /// May be absent.
    Optional,
    /// Where the model has no experts.
    Dense,
    /// Where the model has experts.
    WithExperts,
    /// May be absent, then it is an alias of this tensor.
    TiedTo(&'static str),
}

/// One row of an architecture table.
#[derive(Clone, Copy, Debug)]
pub struct TensorRule {
    /// Name, or for a layer's tensor the part after `blk.N.`.
    pub name: &'static str,
    /// Whether every layer has one.
    pub per_layer: bool,
    /// When it must be there.
    pub presence: Presence,
    /// Shape, `ne0` first.
    pub shape: &'static [Dim],
}

/// An architecture's table.
#[derive(Debug)]
pub struct Architecture {
    /// Value of `general.architecture`.
    pub name: &'static str,
    /// Keys without the architecture's prefix that must be there.
    pub required_keys: &'static [&'static str],
    /// Its tensors.
    pub tensors: &'static [TensorRule],
    /// How positions rotate queries and keys.
    pub rope: RopeType,
    /// Whether the runtime has a graph for the dense form.
    pub runs_dense: bool,
    /// Whether the runtime has a graph for the form with experts.
    pub runs_experts: bool,
}

/// Every architecture with a table.
pub const ARCHITECTURES: &[&Architecture] = &[&llama::LLAMA];

/// The table of the architecture called `name`.
pub fn find(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().copied().find(|a| a.name == name)
}

const fn layer(name: &'static str, presence: Presence, shape: &'static [Dim]) -> TensorRule {
    TensorRule { name, per_layer: true, presence, shape }
}

const fn global(name: &'static str, presence: Presence, shape: &'static [Dim]) -> TensorRule {
    TensorRule { name, per_layer: false, presence, shape }
}
