//! Architecture tables: which keys and tensors a model of each architecture has, with their shapes.
//!
//! `gantry convert` checks a source against the table before it writes a byte; the runtime builds its graph from
//! the same names. Adding an architecture is one table here and one graph in `runtime::model::graph`.

mod check;
mod deepseek4;
mod dim;
mod glm_dsa;
mod groups;
mod hparams;
mod llama;
mod olmoe;
mod qwen2;
mod qwen3;
mod qwen3moe;
mod qwen3next;
mod qwen4exp;
mod resolve;
mod rule;
#[cfg(test)]
mod samples;
mod scratch;
mod state;
mod subject;
#[cfg(test)]
mod tests;

pub use check::{Finding, Problem, check};
pub use dim::Dim;
pub use hparams::{
    Compression, Deepseek4, Experts, Hparams, HparamsError, Hyper, Indexer, Metadata, Mla, Ple, RopeScaling,
    RopeType, Ssm, sections,
};
pub use resolve::{Expected, Resolved};
pub use rule::{Presence, TensorRule, Where};
pub use scratch::{Run, SCRATCH_THREADS, scratch};
pub use state::{BlockState, NO_INT8_ENTRIES, states};
pub use subject::Subject;

use crate::exit::{Exit, ExitCode};

/// An architecture's table.
#[derive(Debug)]
pub struct Architecture {
    /// Value of `general.architecture`.
    pub name: &'static str,
    /// Version of the table, which counts up where the same tensors come to mean something else. A container records
    /// it, so that an older program refuses what it would misread; see [`supported`].
    pub version: u32,
    /// Keys without the architecture's prefix that must be there; the others have defaults, see [`Hparams`].
    pub required_keys: &'static [&'static str],
    /// What its hyperparameters consist of, in the order in which they are checked.
    pub subjects: &'static [Subject],
    /// Its tensors, in groups.
    pub tensors: &'static [&'static [TensorRule]],
    /// How positions rotate queries and keys.
    pub rope: RopeType,
    /// Whether the runtime has a graph for the dense form.
    pub runs_dense: bool,
    /// Whether the runtime has a graph for the form with experts.
    pub runs_experts: bool,
}

impl Architecture {
    /// Every row of its table.
    pub fn rules(&self) -> impl Iterator<Item = &'static TensorRule> + use<> {
        self.tensors.iter().flat_map(|group| group.iter())
    }

    /// The keys without the architecture's prefix that mean something to its models, those of llama.cpp among them;
    /// sorted.
    pub fn keys(&self) -> Vec<&'static str> {
        let subjects = self.subjects.iter().flat_map(|subject| subject.keys());
        let mtp: &[&str] = if self.mtp() { &["nextn_predict_layers"] } else { &[] };
        let mut keys: Vec<&str> = COMMON_KEYS.iter().chain(subjects).chain(mtp).copied().collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Whether its models may have MTP blocks.
    fn mtp(&self) -> bool {
        self.rules().any(|rule| rule.at == Where::Mtp)
    }
}

/// Every architecture with a table.
pub const ARCHITECTURES: &[&Architecture] = &[
    &llama::LLAMA,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &qwen3moe::QWEN3MOE,
    &olmoe::OLMOE,
    &qwen3next::QWEN3NEXT,
    &qwen4exp::QWEN4EXP,
    &deepseek4::DEEPSEEK4,
    &glm_dsa::GLM_DSA,
];

/// The table of the architecture called `name`.
pub fn find(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().copied().find(|a| a.name == name)
}

/// The table that a container was made with: the architecture called `name`, in the version that it records.
///
/// # Errors
/// [`ArchError`] where this program has no such table, or only an older one.
pub fn supported(name: &str, version: u32) -> Result<&'static Architecture, ArchError> {
    let Some(arch) = find(name) else {
        let known = ARCHITECTURES.iter().map(|a| a.name).collect::<Vec<_>>().join(", ");
        return Err(ArchError::Unknown { name: name.into(), known });
    };
    match version <= arch.version {
        true => Ok(arch),
        false => Err(ArchError::Newer { name: name.into(), found: version, known: arch.version }),
    }
}

/// An architecture that this program cannot read a model of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArchError {
    /// There is no table of that name.
    #[error("architecture {name:?} is unknown to this program; it knows {known}")]
    Unknown {
        /// What the model says.
        name: String,
        /// What this program knows.
        known: String,
    },
    /// The container was made with a later version of the table.
    #[error(
        "the container was made for version {found} of architecture {name}, this program knows versions up to {known}; \
         use a newer gantry, or convert the source again with this one"
    )]
    Newer {
        /// The architecture.
        name: String,
        /// What the container says.
        found: u32,
        /// What this program knows.
        known: u32,
    },
}

impl ExitCode for ArchError {
    fn exit(&self) -> Exit {
        Exit::Incompatible
    }
}

/// What means something to every architecture, or is none of a subject's.
const COMMON_KEYS: &[&str] = &[
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
];

/// What every architecture with grouped-query attention needs.
const BASIC_KEYS: &[&str] = &[
    "context_length",
    "embedding_length",
    "block_count",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
];

/// And with experts in every layer.
const BASIC_KEYS_MOE: &[&str] = &[
    "context_length",
    "embedding_length",
    "block_count",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
    "expert_count",
    "expert_used_count",
];
