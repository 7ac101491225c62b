//! Dimensions of tensors, as the hyperparameters give them.

/// A dimension of a tensor: its size in one model is [`Resolved::value`](super::Resolved::value).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// 1.
    One,
    /// 3.
    Three,
    /// Any size.
    Any,
    /// `embedding_length`.
    Embd,
    /// Twice [`Dim::Embd`]: a token's embedding and a hidden state side by side.
    TwoEmbd,
    /// Vocabulary size.
    Vocab,
    /// `attention.head_count`.
    Heads,
    /// `attention.key_length`.
    KeyLen,
    /// `head_count · key_length`: all query heads side by side.
    HeadsQ,
    /// Twice [`Dim::HeadsQ`]: each head's query and its gate.
    TwoHeadsQ,
    /// `head_count_kv · key_length`.
    HeadsK,
    /// `head_count_kv · value_length`.
    HeadsV,
    /// `head_count · value_length`: what attention hands to its output projection.
    HeadsOut,
    /// Half of `rope.dimension_count`.
    HalfRot,
    /// `feed_forward_length`.
    Ff,
    /// `expert_feed_forward_length`, or its default.
    ExpertFf,
    /// Twice [`Dim::ExpertFf`]: fused gate and up.
    TwoExpertFf,
    /// Width of the shared expert.
    SharedFf,
    /// `expert_count`.
    Experts,
    /// `expert_used_count`.
    ExpertsUsed,
    /// `hyper_connection.count`.
    Streams,
    /// `hyper_connection.count · embedding_length`: all streams side by side.
    Wide,
    /// `hyper_connection.low_rank`.
    Rank,
    /// Rank and streams: `down` with `inject` below it.
    RankAndStreams,
    /// `(2 + count) · count` of hyper-connections: pre, post and comb.
    Mix,
    /// `ssm.conv_kernel`.
    SsmTaps,
    /// `ssm.state_size`.
    SsmDim,
    /// `ssm.time_step_rank`.
    SsmHeads,
    /// Twice [`Dim::SsmHeads`]: beta and alpha.
    TwoSsmHeads,
    /// `state_size · time_step_rank`: all value heads side by side.
    SsmValues,
    /// All query, key and value heads side by side.
    SsmQkv,
    /// [`Dim::SsmQkv`] and the gate of the values.
    SsmQkvz,
    /// `embedding_length_per_layer_input`.
    PleDim,
    /// At least as many rows as the heads' ranges reach to.
    PleRows,
    /// `ple.conv_kernel`.
    PleTaps,
    /// `attention.indexer.head_count`.
    IndexHeads,
    /// `attention.indexer.key_length`.
    IndexKey,
    /// Twice [`Dim::IndexKey`].
    TwoIndexKey,
    /// `indexer.head_count · indexer.key_length`.
    IndexQ,
    /// `attention.q_lora_rank`.
    QRank,
    /// `attention.kv_lora_rank`.
    KvRank,
    /// `kv_lora_rank` and the rotated values of a key.
    KvRankRot,
    /// `key_length_mla` without the rotated values.
    MlaNope,
    /// `value_length_mla`.
    MlaValue,
    /// `head_count · key_length_mla`.
    MlaHeadsQ,
    /// `head_count · value_length_mla`.
    MlaHeadsOut,
    /// `compress_ratios[N]` of the block.
    Ratio,
    /// `key_length`, twice where the block's ratio is 4: its blocks overlap.
    CompressedKeys,
    /// `head_count · key_length / output_group_count`: a group of heads side by side.
    GroupIn,
    /// `output_group_count · output_lora_rank`.
    GroupsOut,
}
