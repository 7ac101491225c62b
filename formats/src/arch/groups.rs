//! Rows that several architectures share.

use super::rule::row;
use super::{Dim::*, Presence::*, TensorRule, Where::*};

/// Embeddings in, a norm, and embeddings out, which may be those in.
pub(super) const TIED: &[TensorRule] = &[
    row("token_embd.weight", Model, Required, &[Embd, Vocab]),
    row("output_norm.weight", Model, Required, &[Embd]),
    row("output.weight", Model, TiedTo("token_embd.weight"), &[Embd, Vocab]),
];

/// Likewise, with embeddings out of their own.
pub(super) const UNTIED: &[TensorRule] = &[
    row("token_embd.weight", Model, Required, &[Embd, Vocab]),
    row("output_norm.weight", Model, Required, &[Embd]),
    row("output.weight", Model, Required, &[Embd, Vocab]),
];

/// Grouped-query attention.
pub(super) const ATTENTION: &[TensorRule] = &[
    row("attn_norm.weight", Blocks, Required, &[Embd]),
    row("attn_q.weight", Blocks, Required, &[Embd, HeadsQ]),
    row("attn_k.weight", Blocks, Required, &[Embd, HeadsK]),
    row("attn_v.weight", Blocks, Required, &[Embd, HeadsV]),
    row("attn_output.weight", Blocks, Required, &[HeadsOut, Embd]),
];

/// Biases that some converters write, and llama.cpp adds where they are.
pub(super) const QKV_BIASES: &[TensorRule] = &[
    row("attn_q.bias", Blocks, Optional, &[HeadsQ]),
    row("attn_k.bias", Blocks, Optional, &[HeadsK]),
    row("attn_v.bias", Blocks, Optional, &[HeadsV]),
];

/// Norms of each head's query and key.
pub(super) const HEAD_NORMS: &[TensorRule] = &[
    row("attn_q_norm.weight", Blocks, Required, &[KeyLen]),
    row("attn_k_norm.weight", Blocks, Required, &[KeyLen]),
];

/// A dense feed-forward.
pub(super) const DENSE: &[TensorRule] = &[
    row("ffn_gate.weight", Dense, Required, &[Embd, Ff]),
    row("ffn_up.weight", Dense, Required, &[Embd, Ff]),
    row("ffn_down.weight", Dense, Required, &[Ff, Embd]),
];

/// Routed experts; gates and ups may be one tensor.
pub(super) const EXPERTS: &[TensorRule] = &[
    row("ffn_gate_inp.weight", Routed, Required, &[Embd, Experts]),
    row("ffn_gate_exps.weight", Routed, Unless("ffn_gate_up_exps.weight"), &[Embd, ExpertFf, Experts]),
    row("ffn_up_exps.weight", Routed, Unless("ffn_gate_up_exps.weight"), &[Embd, ExpertFf, Experts]),
    row("ffn_gate_up_exps.weight", Routed, Optional, &[Embd, TwoExpertFf, Experts]),
    row("ffn_down_exps.weight", Routed, Required, &[ExpertFf, Embd, Experts]),
];

/// The expert that every token uses.
pub(super) const SHARED_EXPERT: &[TensorRule] = &[
    row("ffn_gate_shexp.weight", Routed, Required, &[Embd, SharedFf]),
    row("ffn_up_shexp.weight", Routed, Required, &[Embd, SharedFf]),
    row("ffn_down_shexp.weight", Routed, Required, &[SharedFf, Embd]),
];

/// What an MTP block has besides a layer's tensors; tables of its own are the trunk's where they are absent.
pub(super) const MTP: &[TensorRule] = &[
    row("nextn.eh_proj.weight", Mtp, Required, &[TwoEmbd, Embd]),
    row("nextn.enorm.weight", Mtp, Required, &[Embd]),
    row("nextn.hnorm.weight", Mtp, Required, &[Embd]),
    row("nextn.embed_tokens.weight", Mtp, Optional, &[Embd, Vocab]),
    row("nextn.shared_head_head.weight", Mtp, Optional, &[Embd, Vocab]),
    row("nextn.shared_head_norm.weight", Mtp, Optional, &[Embd]),
];
