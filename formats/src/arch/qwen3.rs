//! `qwen3`: a dense llama with NEOX rope and norms of each head's query and key.

use super::groups::{ATTENTION, DENSE, HEAD_NORMS, QKV_BIASES, TIED};
use super::{Architecture, BASIC_KEYS, Dim::*, Presence::*, RopeType, Subject as S, Where::*, rule::row};

pub(super) const QWEN3: Architecture = Architecture {
    name: "qwen3",
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
        HEAD_NORMS,
        &[
            // The head of a reranker.
            row("cls.output.weight", Model, Optional, &[Embd, Any]),
            row("ffn_norm.weight", Blocks, Required, &[Embd]),
        ],
        DENSE,
    ],
};
