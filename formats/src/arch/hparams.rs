//! Hyperparameters: the numbers that shape a model, read from GGUF metadata with llama.cpp's defaults.

use crate::exit::{Exit, ExitCode};

/// Typed look-ups in GGUF metadata. Keys are full names; an absent key or one of another kind is `None`.
pub trait Metadata {
    /// An unsigned integer of any width, or a non-negative signed one.
    fn u64(&self, key: &str) -> Option<u64>;
    /// A float, or an integer as a float.
    fn f64(&self, key: &str) -> Option<f64>;
    /// A string that is valid UTF-8.
    fn text(&self, key: &str) -> Option<String>;
    /// Length of an array.
    fn array_len(&self, key: &str) -> Option<u64>;
    /// An array of integers.
    fn u64_array(&self, key: &str) -> Option<Vec<u64>>;
}

/// Which values a rotation pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeType {
    /// `(x[2j], x[2j+1])`.
    Norm,
    /// `(x[j], x[j + n_rot/2])`.
    Neox,
}

/// `rope.scaling.*`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Positions as they are.
    None,
    /// Positions divided by the factor.
    Linear {
        /// `rope.scaling.factor`.
        factor: f64,
    },
    /// YaRN: low frequencies interpolated, high ones kept.
    Yarn {
        /// `rope.scaling.factor`.
        factor: f64,
        /// `rope.scaling.original_context_length`, or the context length.
        original_context: u64,
        /// `rope.scaling.attn_factor`, default 1.
        attn_factor: f64,
        /// `rope.scaling.yarn_ext_factor`, default 1.
        ext_factor: f64,
        /// `rope.scaling.yarn_beta_fast`, default 32.
        beta_fast: f64,
        /// `rope.scaling.yarn_beta_slow`, default 1.
        beta_slow: f64,
    },
}

/// Hyperparameters. A field is `None` where the file does not say and there is no default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hparams {
    /// `general.architecture`.
    pub architecture: String,
    /// `context_length`.
    pub context_length: Option<u64>,
    /// `embedding_length`.
    pub embd: Option<u64>,
    /// `block_count`.
    pub blocks: Option<u64>,
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
    /// `expert_feed_forward_length`, default `ff`.
    pub expert_ff: Option<u64>,
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
        let int = |name: &str| meta.u64(&key(name));
        let embd = int("embedding_length");
        let heads = int("attention.head_count").filter(|&n| n > 0);
        let head_dim = embd.zip(heads).map(|(e, h)| e / h);
        let key_length = int("attention.key_length").or(head_dim);
        let ff = int("feed_forward_length");
        Self {
            context_length: int("context_length"),
            embd,
            blocks: int("block_count"),
            vocab: int("vocab_size").or_else(|| meta.array_len("tokenizer.ggml.tokens")),
            ff,
            heads,
            heads_kv: int("attention.head_count_kv").or(heads),
            key_length,
            value_length: int("attention.value_length").or(head_dim),
            rot: int("rope.dimension_count").or(key_length),
            freq_base: meta.f64(&key("rope.freq_base")).unwrap_or(10_000.0),
            rms_eps: meta.f64(&key("attention.layer_norm_rms_epsilon")),
            experts: int("expert_count").unwrap_or(0),
            experts_used: int("expert_used_count").unwrap_or(0),
            expert_ff: int("expert_feed_forward_length").or(ff),
            hyper_connection_rank: int("hyper_connection.low_rank"),
            architecture,
        }
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

    /// The rope scaling that the metadata asks for, as llama.cpp reads it.
    pub fn rope_scaling(&self, meta: &dyn Metadata) -> Result<RopeScaling, HparamsError> {
        let key = |name: &str| format!("{}.rope.scaling.{name}", self.architecture);
        // Older files say `rope.scale_linear` alone; the newer keys win.
        let factor = meta
            .f64(&key("factor"))
            .or_else(|| meta.f64(&format!("{}.rope.scale_linear", self.architecture)))
            .filter(|&f| f != 0.0)
            .unwrap_or(1.0);
        let factor = self.at_least(factor, f64::from(f32::MIN_POSITIVE), "rope.scaling.factor")?;
        let number = |name: &str, default: f64| meta.f64(&key(name)).unwrap_or(default);
        // Absent means linear, where a factor of 1 changes nothing.
        let kind = meta.text(&key("type")).unwrap_or_else(|| "linear".into());
        match kind.as_str() {
            "none" => Ok(RopeScaling::None),
            "linear" if factor == 1.0 => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor }),
            "yarn" => Ok(RopeScaling::Yarn {
                factor,
                original_context: meta
                    .u64(&key("original_context_length"))
                    .or(self.context_length)
                    .unwrap_or(0),
                attn_factor: number("attn_factor", 1.0),
                ext_factor: number("yarn_ext_factor", 1.0),
                beta_fast: number("yarn_beta_fast", 32.0),
                beta_slow: number("yarn_beta_slow", 1.0),
            }),
            other => Err(HparamsError::Value {
                key: key("type"),
                found: other.into(),
                expected: "none, linear or yarn".into(),
            }),
        }
    }
}
