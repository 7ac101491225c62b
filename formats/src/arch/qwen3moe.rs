//! `qwen3moe`: qwen3 with routed experts in every layer.

use super::groups::{ATTENTION, EXPERTS, HEAD_NORMS, QKV_BIASES, TIED};
use super::{Architecture, BASIC_KEYS_MOE, Dim::*, Presence::*, RopeType, Subject as S, Where::*, rule::row};

pub(super) const QWEN3MOE: Architecture = Architecture {
    name: "qwen3moe",
    version: 1,
    required_keys: BASIC_KEYS_MOE,
    subjects: &[S::Heads, S::RotWhole, S::Experts],
    rope: RopeType::Neox,
    runs_dense: false,
    runs_experts: true,
    tensors: &[
        TIED,
        ATTENTION,
        QKV_BIASES,
        HEAD_NORMS,
        &[row("ffn_norm.weight", Blocks, Required, &[Embd])],
        EXPERTS,
    ],
};
