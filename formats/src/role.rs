//! Roles: what a tensor is for, read off its name.
//!
//! GGUF names are `blk.N.BASE.weight` for a layer's tensors and `BASE.weight` for the rest. The base name *is*
//! the role: `attn_q`, `ffn_down_exps`, `token_embd`. Its [`Kind`] decides which layouts make sense.

/// What a role may become when it is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A weight matrix: quantizable.
    Matrix,
    /// One matrix per expert, stacked: quantizable, kept in a bank.
    Experts,
    /// Token embeddings and n-gram tables, also read row by row: quantizable.
    Embedding,
    /// `down` and `up` of a hyper-connection, which every token reads twice a layer: quantizable.
    HyperConnection,
    /// Small or sensitive, always exact: norms, biases, routers, convolutions, state-space constants, tables.
    Exact,
}

/// A tensor's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role<'a> {
    /// Layer, for `blk.N.…`.
    pub layer: Option<u32>,
    /// Base name, e.g. `attn_q`; the whole name where it does not follow the scheme.
    pub base: &'a str,
    /// What it may become.
    pub kind: Kind,
}

impl<'a> Role<'a> {
    /// The role of the tensor called `name`, which has `dims` dimensions above size 1.
    pub fn of(name: &'a str, dims: usize) -> Self {
        let (layer, rest) = split_layer(name);
        let (base, weight) = match rest.strip_suffix(".weight") {
            Some(base) => (base, true),
            None => (rest, false),
        };
        Self { layer, base, kind: if weight && dims > 1 { kind(base) } else { Kind::Exact } }
    }
}

fn split_layer(name: &str) -> (Option<u32>, &str) {
    let parsed = name.strip_prefix("blk.").and_then(|rest| {
        let (number, rest) = rest.split_once('.')?;
        let layer: u32 = number.parse().ok().filter(|n: &u32| n.to_string() == number)?;
        Some((Some(layer), rest))
    });
    parsed.unwrap_or((None, name))
}

fn kind(base: &str) -> Kind {
    // Routers choose experts: a rounding step can change which expert answers. The decay and step of a state space
    // act through exponentials. The rest is small, and added or multiplied in where it stands.
    const EXACT: &[&str] = &[
        "ffn_gate_inp",
        "ffn_gate_inp_shexp",
        "ffn_gate_tid2eid",
        "indexer.proj",
        "position_embd",
        "rope_freqs",
        "ssm_alpha",
        "ssm_beta",
        "ssm_ba",
    ];
    let hyper_connection = base.contains("hc_");
    let part = |ends: &[&str]| hyper_connection && ends.iter().any(|end| base.ends_with(end));
    if EXACT.contains(&base)
        || base.contains("norm")
        || base.contains("conv1d")
        || base.ends_with("_ape")
        || base == "ssm_a"
        || base.starts_with("ssm_d")
        || part(&["_inject", "_fn", "_base", "_scale"]) && !base.ends_with("_down_inject")
    {
        Kind::Exact
    } else if part(&["_down", "_up", "_down_inject"]) {
        Kind::HyperConnection
    } else if base.ends_with("_exps") {
        Kind::Experts
    } else if base.ends_with("token_embd") || base == "nextn.embed_tokens" {
        Kind::Embedding
    } else {
        Kind::Matrix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_layer_base_and_kind() {
        let role = |name, dims| {
            let Role { layer, base, kind } = Role::of(name, dims);
            (layer, base, kind)
        };
        assert_eq!(role("blk.12.attn_q.weight", 2), (Some(12), "attn_q", Kind::Matrix));
        assert_eq!(role("blk.0.ffn_down_exps.weight", 3), (Some(0), "ffn_down_exps", Kind::Experts));
        assert_eq!(role("blk.0.ffn_gate_inp.weight", 2), (Some(0), "ffn_gate_inp", Kind::Exact));
        assert_eq!(role("blk.0.attn_q.bias", 1), (Some(0), "attn_q.bias", Kind::Exact));
        assert_eq!(role("token_embd.weight", 2), (None, "token_embd", Kind::Embedding));
        assert_eq!(role("output_norm.weight", 1), (None, "output_norm", Kind::Exact));
        assert_eq!(role("blk.007.attn_q.weight", 2), (None, "blk.007.attn_q", Kind::Matrix));
        for exact in
            ["ssm_conv1d", "ssm_alpha", "hc_attn_inject", "hc_ffn_fn", "attn_compressor_ape", "hc_attn_norm"]
        {
            let name = format!("blk.1.{exact}.weight");
            assert_eq!(Role::of(&name, 2).kind, Kind::Exact, "{exact}");
        }
        for name in ["blk.3.hc_attn_down", "blk.3.hc_ffn_up", "output_hc_down", "blk.48.nextn.hc_head_up"] {
            let name = format!("{name}.weight");
            assert_eq!(Role::of(&name, 2).kind, Kind::HyperConnection, "{name}");
        }
        assert_eq!(role("blk.3.hc_ffn_down_inject.weight", 2).2, Kind::HyperConnection);
        assert_eq!(role("output_hc_fn.weight", 2).2, Kind::Exact);
        assert_eq!(role("per_layer_token_embd.weight", 2).2, Kind::Embedding);
        assert_eq!(role("blk.48.nextn.embed_tokens.weight", 2).2, Kind::Embedding);
        assert_eq!(role("blk.2.ssm_out.weight", 2).2, Kind::Matrix);
    }
}
