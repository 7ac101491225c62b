//! `qwen3next`: three of four layers are gated delta nets, the fourth gated attention; routed and shared experts.

use super::groups::{EXPERTS, MTP, SHARED_EXPERT, TIED};
use super::{Architecture, Dim::*, Presence::*, RopeType, Subject as S, Where::*, rule::row};

pub(super) const QWEN3NEXT: Architecture = Architecture {
    name: "qwen3next",
    version: 1,
    required_keys: &[
        "context_length",
        "embedding_length",
        "block_count",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
        "expert_count",
        "expert_used_count",
        "ssm.conv_kernel",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.time_step_rank",
        "ssm.group_count",
    ],
    subjects: &[S::Heads, S::EqualLengths, S::Rot, S::Experts, S::Ssm],
    rope: RopeType::Neox,
    runs_dense: false,
    runs_experts: true,
    tensors: &[
        TIED,
        &[
            row("attn_norm.weight", Blocks, Required, &[Embd]),
            row("post_attention_norm.weight", Blocks, Required, &[Embd]),
            // Each head's query and gate, one after the other.
            row("attn_q.weight", Full, Required, &[Embd, TwoHeadsQ]),
            row("attn_k.weight", Full, Required, &[Embd, HeadsK]),
            row("attn_v.weight", Full, Required, &[Embd, HeadsV]),
            row("attn_output.weight", Full, Required, &[HeadsOut, Embd]),
            row("attn_q.bias", Full, Optional, &[TwoHeadsQ]),
            row("attn_k.bias", Full, Optional, &[HeadsK]),
            row("attn_v.bias", Full, Optional, &[HeadsV]),
            row("attn_q_norm.weight", Full, Required, &[KeyLen]),
            row("attn_k_norm.weight", Full, Required, &[KeyLen]),
            // Older files hold both projections in ssm_in.
            row("attn_qkv.weight", Linear, Unless("ssm_in.weight"), &[Embd, SsmQkv]),
            row("attn_gate.weight", Linear, Unless("ssm_in.weight"), &[Embd, SsmValues]),
            row("ssm_in.weight", Linear, Optional, &[Embd, SsmQkvz]),
            row("ssm_conv1d.weight", Linear, Required, &[SsmTaps, SsmQkv]),
            row("ssm_dt.bias", Linear, Required, &[SsmHeads]),
            row("ssm_a", Linear, Required, &[SsmHeads]),
            row("ssm_ba.weight", Linear, Required, &[Embd, TwoSsmHeads]),
            row("ssm_norm.weight", Linear, Required, &[SsmDim]),
            row("ssm_out.weight", Linear, Required, &[SsmValues, Embd]),
            row("ffn_gate_inp_shexp.weight", Routed, Required, &[Embd]),
        ],
        EXPERTS,
        SHARED_EXPERT,
        MTP,
    ],
};
