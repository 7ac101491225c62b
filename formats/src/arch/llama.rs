//! `llama`: RMS norms, NORM rope, grouped-query attention, SwiGLU; dense or with Mixtral-style experts.

use super::groups::{ATTENTION, DENSE, EXPERTS, QKV_BIASES, TIED};
use super::{Architecture, BASIC_KEYS, Dim::*, Presence::*, RopeType, Subject as S, Where::*, rule::row};

pub(super) const LLAMA: Architecture = Architecture {
    name: "llama",
    version: 1,
    required_keys: BASIC_KEYS,
    subjects: &[S::Heads, S::RotWhole, S::Experts],
    rope: RopeType::Norm,
    runs_dense: true,
    runs_experts: true,
    tensors: &[
        TIED,
        ATTENTION,
        QKV_BIASES,
        &[
            row("rope_freqs.weight", Model, Optional, &[HalfRot]),
            row("rope_freqs.weight", Blocks, Optional, &[HalfRot]),
            row("attn_output.bias", Blocks, Optional, &[Embd]),
            row("ffn_norm.weight", Blocks, Required, &[Embd]),
            row("ffn_gate.bias", Dense, Optional, &[Ff]),
            row("ffn_up.bias", Dense, Optional, &[Ff]),
            row("ffn_down.bias", Dense, Optional, &[Embd]),
        ],
        DENSE,
        EXPERTS,
    ],
};
