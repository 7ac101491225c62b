//! Hyperparameters: the numbers that shape a model, read from GGUF metadata with llama.cpp's defaults.
//!
//! [`Hparams`] has what every architecture has; each subject beside it has what some have, and its `read` refuses
//! everything about it that no model can have.

mod compression;
mod deepseek4;
mod experts;
mod hyper;
mod indexer;
mod keys;
mod mla;
mod ple;
mod rope;
mod ssm;
#[cfg(test)]
mod tests;

pub use compression::Compression;
pub use deepseek4::Deepseek4;
pub use experts::Experts;
pub use hyper::Hyper;
pub use indexer::Indexer;
pub use mla::Mla;
pub use ple::Ple;
pub use rope::{RopeScaling, RopeType, sections};
pub use ssm::Ssm;

pub(super) use keys::{Keys, MAX_BLOCKS};

use crate::exit::{Exit, ExitCode};

/// Typed look-ups in GGUF metadata. Keys are full names; an absent key or one of another kind is `None`.
pub trait Metadata {
    /// An unsigned integer of any width, or a non-negative signed one.
    fn u64(&self, key: &str) -> Option<u64>;
    /// A float, or an integer as a float.
    fn f64(&self, key: &str) -> Option<f64>;
    /// A truth value.
    fn bool(&self, key: &str) -> Option<bool>;
    /// A string that is valid UTF-8.
    fn text(&self, key: &str) -> Option<String>;
    /// Length of an array.
    fn array_len(&self, key: &str) -> Option<u64>;
    /// An array of integers, or of truth values as 0 and 1.
    fn u64_array(&self, key: &str) -> Option<Vec<u64>>;
    /// An array of floats or integers.
    fn f64_array(&self, key: &str) -> Option<Vec<f64>>;
}

/// Hyperparameters. A field is `None` where the file does not say and there is no default. A number that the file
/// gives per block is taken where it is the same in all of them, and `None` otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hparams {
    /// `general.architecture`.
    pub architecture: String,
    /// `context_length`.
    pub context_length: Option<u64>,
    /// `embedding_length`.
    pub embd: Option<u64>,
    /// `block_count`: the trunk's layers and the blocks that predict further tokens.
    pub blocks: Option<u64>,
    /// `nextn_predict_layers`, default 0: blocks at the end that predict further tokens (MTP).
    pub nextn: u64,
    /// Layers of the trunk: `blocks` without `nextn`.
    pub layers: Option<u64>,
    /// `leading_dense_block_count`, default 0: first layers whose feed-forward has no experts.
    pub leading_dense: u64,
    /// `vocab_size`, or the number of tokens.
    pub vocab: Option<u64>,
    /// `feed_forward_length`.
    pub ff: Option<u64>,
    /// `attention.head_count`.
    pub heads: Option<u64>,
    /// `attention.head_count_kv`, default `heads`.
    pub heads_kv: Option<u64>,
    /// `attention.key_length`, default `embd / heads`.
    pub key_length: Option<u64>,
    /// `attention.value_length`, default `embd / heads`.
    pub value_length: Option<u64>,
    /// `rope.dimension_count`, default `key_length`.
    pub rot: Option<u64>,
    /// `rope.freq_base`, default 10000.
    pub freq_base: f64,
    /// `attention.layer_norm_rms_epsilon`.
    pub rms_eps: Option<f64>,
    /// `expert_count`, 0 in a dense model.
    pub experts: u64,
    /// `expert_used_count`.
    pub experts_used: u64,
    /// `expert_feed_forward_length`. Default: `ff`; of Qwen's `ff / experts_used`; of `glm-dsa` and `deepseek4` none.
    pub expert_ff: Option<u64>,
    /// `expert_shared_count`, default 0.
    pub expert_shared: u64,
    /// Width of the shared expert: `expert_shared_feed_forward_length`, default `ff`; of `glm-dsa` and `deepseek4`
    /// always `expert_ff` times `expert_shared`.
    pub expert_shared_ff: Option<u64>,
    /// `hyper_connection.low_rank`: rows of a hyper-connection's `down`.
    pub hyper_connection_rank: Option<u64>,
}

/// A hyperparameter that is missing or cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HparamsError {
    /// A required key is absent or of another type.
    #[error("metadata key {key} is missing or not a number; the model cannot run without it")]
    Missing {
        /// Full key.
        key: String,
    },
    /// A value that no model can have.
    #[error("metadata key {key} is {found}, expected {expected}")]
    Value {
        /// Full key.
        key: String,
        /// What the file says.
        found: String,
        /// What it must be.
        expected: String,
    },
}

impl HparamsError {
    /// The full key that it is about.
    pub fn key(&self) -> &str {
        match self {
            Self::Missing { key } | Self::Value { key, .. } => key,
        }
    }
}

impl ExitCode for HparamsError {
    fn exit(&self) -> Exit {
        Exit::Input
    }
}

impl Hparams {
    /// Reads what every architecture has. Never fails: what is missing stays `None` and is asked for with
    /// [`need`](Self::need) where it matters.
    pub fn read(meta: &dyn Metadata) -> Self {
        let architecture = meta.text("general.architecture").unwrap_or_default();
        let key = |name: &str| format!("{architecture}.{name}");
        let or = |name: &str, default: Option<u64>| {
            let key = key(name);
            match meta.array_len(&key) {
                // One that differs between blocks must not be taken for an absent one.
                Some(_) => meta.u64_array(&key).and_then(|list| uniform(&list)),
                None => meta.u64(&key).or(default),
            }
        };
        let int = |name: &str| or(name, None);
        // llama.cpp writes 0 for a length that an architecture does not use, and reads it as absent.
        let length = |name: &str, default: Option<u64>| or(name, None).filter(|&n| n > 0).or(default);
        let embd = int("embedding_length");
        let heads = length("attention.head_count", None);
        let head_dim = embd.zip(heads).map(|(e, h)| e / h);
        let key_length = length("attention.key_length", head_dim);
        let ff = int("feed_forward_length");
        let (blocks, nextn) = (int("block_count"), int("nextn_predict_layers").unwrap_or(0));
        let experts_used = int("expert_used_count").unwrap_or(0);
        let expert_shared = int("expert_shared_count").unwrap_or(0);
        let expert_ff = match architecture.as_str() {
            "glm-dsa" | "deepseek4" => None,
            "qwen3moe" | "qwen3next" | "qwen4exp" => ff.and_then(|ff| ff.checked_div(experts_used)),
            _ => ff,
        };
        let expert_ff = given(meta, &key("expert_feed_forward_length"), expert_ff);
        let expert_shared_ff = match architecture.as_str() {
            "glm-dsa" | "deepseek4" => expert_ff.and_then(|ff| ff.checked_mul(expert_shared)),
            _ => length("expert_shared_feed_forward_length", ff),
        };
        Self {
            context_length: int("context_length"),
            embd,
            blocks,
            nextn,
            layers: blocks.and_then(|n| n.checked_sub(nextn)),
            // Other architectures' files may carry the key; it means nothing to them.
            leading_dense: match architecture.as_str() {
                "glm-dsa" => int("leading_dense_block_count").unwrap_or(0),
                _ => 0,
            },
            vocab: int("vocab_size").or_else(|| meta.array_len("tokenizer.ggml.tokens")),
            ff,
            heads,
            heads_kv: or("attention.head_count_kv", heads),
            key_length,
            value_length: length("attention.value_length", head_dim),
            rot: length("rope.dimension_count", key_length),
            freq_base: meta.f64(&key("rope.freq_base")).unwrap_or(10_000.0),
            rms_eps: meta.f64(&key("attention.layer_norm_rms_epsilon")),
            experts: int("expert_count").unwrap_or(0),
            experts_used,
            expert_ff,
            expert_shared,
            expert_shared_ff,
            hyper_connection_rank: int("hyper_connection.low_rank").filter(|&n| n > 0),
            architecture,
        }
    }

    /// Drops the announced MTP blocks where the model has none, as llama.cpp does when it loads one: files may keep
    /// the key when their MTP blocks were left out. `has` says whether a tensor is there. In `glm-dsa` the blocks are
    /// then the trunk alone; in `deepseek4` what was announced is part of the trunk; others must have them.
    pub fn drop_absent_nextn(&mut self, has: impl Fn(&str) -> bool) {
        let Some(layers) = self.layers.filter(|_| self.nextn > 0) else { return };
        if has(&format!("blk.{layers}.nextn.eh_proj.weight")) {
            return;
        }
        match self.architecture.as_str() {
            "glm-dsa" => self.blocks = self.layers,
            "deepseek4" => self.layers = self.blocks,
            _ => return,
        }
        self.nextn = 0;
    }

    /// `value`, or an error naming the key `{architecture}.{name}`.
    pub fn need<T: Copy>(&self, value: Option<T>, name: &str) -> Result<T, HparamsError> {
        value.ok_or_else(|| HparamsError::Missing { key: format!("{}.{name}", self.architecture) })
    }

    /// `value`, or an error naming the key `{architecture}.{name}` where it is not finite or below `least`: such a
    /// model would compute nothing but NaN.
    pub fn at_least(&self, value: f64, least: f64, name: &str) -> Result<f64, HparamsError> {
        if value.is_finite() && value >= least {
            return Ok(value);
        }
        Err(HparamsError::Value {
            key: format!("{}.{name}", self.architecture),
            found: value.to_string(),
            expected: format!("a finite number of at least {least}"),
        })
    }
}

/// The value that all have.
fn uniform(list: &[u64]) -> Option<u64> {
    let first = *list.first()?;
    list.iter().all(|&n| n == first).then_some(first)
}

/// A length that may be given per block; 0 counts as absent.
fn given(meta: &dyn Metadata, key: &str, default: Option<u64>) -> Option<u64> {
    match meta.array_len(key) {
        Some(_) => meta.u64_array(key).and_then(|list| uniform(&list)).filter(|&n| n > 0),
        None => meta.u64(key).filter(|&n| n > 0).or(default),
    }
}
