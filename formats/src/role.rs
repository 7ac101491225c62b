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
    /// Token embeddings, also read row by row: quantizable.
    Embedding,
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
    // Routers choose experts: a rounding step can change which expert answers.
    const EXACT: &[&str] =
        &["ffn_gate_inp", "ffn_gate_inp_shexp", "rope_freqs", "position_embd", "ffn_gate_tid2eid"];
    let exact = EXACT.contains(&base)
        || base.ends_with("_norm")
        || base.contains("norm")
        || base.contains("conv1d")
        || base.starts_with("ssm_a")
        || base.starts_with("ssm_d")
        || base.contains("hc_")
            && (base.ends_with("inject") || base.ends_with("base") || base.ends_with("scale"));
    if exact {
        Kind::Exact
    } else if base.ends_with("_exps") {
        Kind::Experts
    } else if base == "token_embd" {
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
        assert_eq!(role("blk.1.ssm_conv1d.weight", 2).2, Kind::Exact);
    }
}
