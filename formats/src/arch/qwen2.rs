//! `qwen2`: a dense llama with NEOX rope and biases on queries, keys and values.

use super::groups::{ATTENTION, DENSE, QKV_BIASES, TIED};
use super::{Architecture, BASIC_KEYS, Dim::*, Presence::*, RopeType, Subject as S, Where::*, rule::row};

pub(super) const QWEN2: Architecture = Architecture {
    name: "qwen2",
    version: 1,
    required_keys: BASIC_KEYS,
    subjects: &[S::Heads, S::RotWhole],
    rope: RopeType::Neox,
    runs_dense: true,
    runs_experts: false,
    tensors: &[
        TIED,
        ATTENTION,
        QKV_BIASES,
        &[
            row("output.bias", Model, Optional, &[Vocab]),
            row("attn_output.bias", Blocks, Optional, &[Embd]),
            row("ffn_norm.weight", Blocks, Required, &[Embd]),
        ],
        DENSE,
    ],
};
