//! What of the hyperparameters an architecture has, and what must hold of them.

use super::hparams::{self, Compression, Deepseek4, Experts, Hyper, Indexer, Keys, Mla, Ple, Ssm};
use super::{Hparams, HparamsError, Metadata};

/// A subject of an architecture's hyperparameters: read and checked before anything else looks at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Query heads share key heads evenly.
    Heads,
    /// Every key head is a query head's own.
    HeadsAlone,
    /// Keys are as long as values.
    EqualLengths,
    /// Rotated values are even in number and part of a key.
    Rot,
    /// All values of a key are rotated.
    RotWhole,
    /// [`hparams::sections`].
    Sections,
    /// [`Experts`], where the model has any.
    Experts,
    /// [`Ssm`].
    Ssm,
    /// [`Hyper`].
    Hyper,
    /// [`Ple`].
    Ple,
    /// [`Indexer`].
    Indexer,
    /// [`Compression`].
    Compression,
    /// [`Mla`].
    Mla,
    /// [`Deepseek4`].
    Deepseek4,
}

impl Subject {
    /// The keys that it is read from, without the architecture's prefix, beside those of every architecture.
    pub(super) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Heads | Self::HeadsAlone | Self::EqualLengths | Self::Rot | Self::RotWhole => &[],
            Self::Sections => &["rope.dimension_sections"],
            Self::Experts => &[
                "expert_count",
                "expert_used_count",
                "expert_shared_count",
                "expert_feed_forward_length",
                "expert_shared_feed_forward_length",
                "expert_group_count",
                "expert_group_used_count",
                "expert_gating_func",
                "expert_weights_scale",
                "expert_weights_norm",
            ],
            Self::Ssm => &[
                "ssm.conv_kernel",
                "ssm.inner_size",
                "ssm.state_size",
                "ssm.time_step_rank",
                "ssm.group_count",
                "full_attention_interval",
                "attention.recurrent_layers",
            ],
            Self::Hyper => &[
                "hyper_connection.count",
                "hyper_connection.low_rank",
                "hyper_connection.sinkhorn_iterations",
                "hyper_connection.epsilon",
            ],
            Self::Ple => &[
                "ple.layers",
                "ple.ngram_size",
                "ple.heads_per_ngram",
                "ple.conv_kernel",
                "ple.eos_token_id",
                "ple.layer_multipliers",
                "ple.head_offsets",
                "ple.head_vocab_sizes",
                "embedding_length_per_layer_input",
            ],
            Self::Indexer => &[
                "attention.indexer.head_count",
                "attention.indexer.key_length",
                "attention.indexer.top_k",
                "attention.indexer.types",
            ],
            Self::Compression => &["attention.compress_ratios", "attention.compress_rope_freq_base"],
            Self::Mla => &[
                "leading_dense_block_count",
                "attention.q_lora_rank",
                "attention.kv_lora_rank",
                "attention.key_length_mla",
                "attention.value_length_mla",
            ],
            Self::Deepseek4 => &[
                // Of llama.cpp: the width of all streams.
                "embedding_length_out",
                "attention.q_lora_rank",
                "attention.sliding_window",
                "attention.output_group_count",
                "attention.output_lora_rank",
                "hash_layer_count",
                "swiglu_clamp_exp",
                "swiglu_clamp_shexp",
            ],
        }
    }
}

/// What the subjects say of one model; `None` where the architecture has none of it or it is wrong.
#[derive(Clone, Debug, Default)]
pub(super) struct Subjects {
    pub(super) ssm: Option<Ssm>,
    pub(super) hyper: Option<Hyper>,
    /// `Some(None)`: the model has none.
    pub(super) ple: Option<Option<Ple>>,
    pub(super) indexer: Option<Indexer>,
    pub(super) compression: Option<Compression>,
    pub(super) mla: Option<Mla>,
    pub(super) deepseek4: Option<Deepseek4>,
}

impl Subjects {
    /// Reads one subject into its field.
    pub(super) fn read(
        &mut self,
        subject: Subject,
        h: &Hparams,
        meta: &dyn Metadata,
    ) -> Result<(), HparamsError> {
        match subject {
            Subject::Experts if h.experts == 0 => {}
            Subject::Experts => {
                Experts::read(h, meta)?;
            }
            Subject::Sections => {
                hparams::sections(h, meta)?;
            }
            Subject::Ssm => self.ssm = Some(Ssm::read(h, meta)?),
            Subject::Hyper => self.hyper = Some(Hyper::read(h, meta)?),
            Subject::Ple => self.ple = Some(Ple::read(h, meta)?),
            Subject::Indexer => self.indexer = Some(Indexer::read(h, meta)?),
            Subject::Compression => self.compression = Some(Compression::read(h, meta)?),
            Subject::Mla => self.mla = Some(Mla::read(h, meta)?),
            Subject::Deepseek4 => self.deepseek4 = Some(Deepseek4::read(h, meta)?),
            Subject::Heads
            | Subject::HeadsAlone
            | Subject::EqualLengths
            | Subject::Rot
            | Subject::RotWhole => attention(subject, h, &Keys::new(h, meta))?,
        }
        Ok(())
    }
}

fn attention(subject: Subject, h: &Hparams, keys: &Keys<'_>) -> Result<(), HparamsError> {
    const KV: &str = "attention.head_count_kv";
    const ROT: &str = "rope.dimension_count";
    let heads = || keys.given(h.heads, "attention.head_count");
    let heads_kv = || keys.given(h.heads_kv, KV);
    let key_len = || keys.given(h.key_length, "attention.key_length");
    let rot = || keys.given(h.rot, ROT);
    let hold = |holds: bool, name: &str, found: usize, expected: String| match holds {
        true => Ok(()),
        false => Err(keys.wrong(name, found, expected)),
    };
    match subject {
        Subject::Heads => {
            let (all, kv) = (heads()?, heads_kv()?);
            hold(all % kv == 0, KV, kv, format!("a divisor of the {all} query heads"))
        }
        Subject::HeadsAlone => {
            let (all, kv) = (heads()?, heads_kv()?);
            hold(all == kv, KV, kv, format!("as many as query heads, {all}"))
        }
        Subject::EqualLengths => {
            const VALUE: &str = "attention.value_length";
            let (key, value) = (key_len()?, keys.given(h.value_length, VALUE)?);
            hold(key == value, VALUE, value, format!("the key length {key}"))
        }
        Subject::RotWhole => {
            let (rot, key) = (rot()?, key_len()?);
            hold(rot == key && rot % 2 == 0, ROT, rot, format!("the key length {key}, and even"))
        }
        _ => {
            let (rot, key) = (rot()?, key_len()?);
            hold(rot <= key && rot % 2 == 0, ROT, rot, format!("even, and at most the key length {key}"))
        }
    }
}
