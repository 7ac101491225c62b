//! `olmoe`: a llama with NEOX rope, routed experts in every layer, and norms over all queries and all keys at once.

use super::groups::{ATTENTION, EXPERTS, QKV_BIASES, UNTIED};
use super::{Architecture, BASIC_KEYS_MOE, Dim::*, Presence::*, RopeType, Subject as S, Where::*, rule::row};

pub(super) const OLMOE: Architecture = Architecture {
    name: "olmoe",
    version: 1,
    required_keys: BASIC_KEYS_MOE,
    subjects: &[S::HeadsAlone, S::EqualLengths, S::RotWhole, S::Experts],
    rope: RopeType::Neox,
    runs_dense: false,
    runs_experts: true,
    tensors: &[
        UNTIED,
        ATTENTION,
        QKV_BIASES,
        &[
            row("attn_q_norm.weight", Blocks, Required, &[HeadsQ]),
            row("attn_k_norm.weight", Blocks, Required, &[HeadsK]),
            row("ffn_norm.weight", Blocks, Required, &[Embd]),
        ],
        EXPERTS,
    ],
};
