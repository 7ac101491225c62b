//! `llama`, `qwen2`, `qwen3`, `qwen3moe`, `olmoe`: RMS norms, rotated grouped-query attention, SwiGLU, dense or as
//! experts; output tied to the embeddings or not.
//!
//! ```text
//! X = token_embd[token]
//! for each layer:  q, k, v = W N(X; attn_norm) + b;  X += W_o attention(rope(q), rope(k), v) + b_o
//!                  X += W_down (silu(W_gate N(X; ffn_norm)) · W_up N(X; ffn_norm))
//!                  with experts: the experts' answer to N(X; ffn_norm), see `experts`
//! logits = W_output N(X; output_norm)          N(x; w) = x / √(mean x² + eps) · w
//! qwen3, qwen3moe:  q, k = N of each head before rope
//! olmoe:            q, k = N over all heads before rope
//! ```

use super::Graph;
use super::experts::{Moe, Rule};
use crate::Result;
use crate::model::program::{CacheShape, Format, Gating, Heads, Kept, Part, Pieces, Program, Step};
use crate::model::{SIZES, number, wrong};

/// What queries and keys are normalised over before they are rotated.
#[derive(Clone, Copy, PartialEq)]
enum QkNorm {
    None,
    Head,
    All,
}

/// The program of one of them.
pub(super) fn build(mut g: Graph<'_>) -> Result<Program> {
    let heads = heads(&g)?;
    let rot = g.rotated(heads.key_len)?;
    let qk_norm = match g.arch.name {
        "qwen3" | "qwen3moe" => QkNorm::Head,
        "olmoe" => QkNorm::All,
        _ => QkNorm::None,
    };
    let moe = if g.h.experts > 0 {
        let rule = Rule { gating: Gating::Softmax, normalize: g.arch.name != "olmoe", scale: 1.0 };
        Some(Moe::read(&g, rule)?)
    } else {
        None
    };
    let (q_len, out_len) = (heads.query * heads.key_len, heads.query * heads.value_len);
    let (k_len, v_len) = (heads.kv * heads.key_len, heads.kv * heads.value_len);

    let residual = g.embed(1)?;
    let shared = g.w.optional("rope_freqs.weight", rot / 2)?;
    let shared = g.rotation(rot, shared)?;
    for layer in 0..g.layers {
        g.layer = layer;
        let x = g.norm(residual, "attn_norm.weight")?;
        g.b.begin(Part::Attention);
        let qkv = g.b.buffer("queries, keys and values", q_len + k_len + v_len, Format::F32);
        let [q, k, v] = g.projections(x, ["attn_q", "attn_k", "attn_v"], [q_len, k_len, v_len], qkv)?;
        let each = |start, count, len| Pieces { buffer: qkv, start, count, len, stride: len };
        for (columns, name, count) in
            [(q, "attn_q_norm.weight", heads.query), (k, "attn_k_norm.weight", heads.kv)]
        {
            let (count, len) = match qk_norm {
                QkNorm::None => continue,
                QkNorm::Head => (count, heads.key_len),
                QkNorm::All => (1, columns.len),
            };
            let weight = g.vector(name, len)?;
            g.b.norm_in_place(each(columns.start, count, len), Some(weight), g.eps);
        }
        let own = g.name("rope_freqs.weight");
        let rotation = match g.w.optional(&own, rot / 2)? {
            Some(own) => g.rotation(rot, Some(own))?,
            None => shared,
        };
        // Keys follow queries, and their heads are as long.
        let x = each(q.start, heads.query + heads.kv, heads.key_len);
        g.b.push(Step::Rope { rotation, x, start: 0, inverse: false });
        let cache = CacheShape {
            heads: heads.kv,
            key_len: heads.key_len,
            value_len: heads.value_len,
            shared: false,
            window: None,
            ratio: 1,
            exact: false,
        };
        let cache = g.b.keep(Kept::Cache(cache));
        g.b.push(Step::Store { cache, keys: k, values: Some(v) });
        let y = g.b.buffer("attention", out_len, Format::F32);
        let (window, chosen, entries, sinks) = (None, None, None, None);
        g.b.push(Step::Attention { heads, cache, window, chosen, entries, sinks, q, y });
        let out = g.project("attn_output", g.embd, y, "projection")?;
        g.add(out, residual);

        let x = g.norm(residual, "ffn_norm.weight")?;
        let y = match &moe {
            Some(moe) => moe.routed(&mut g, x, None, None, None)?,
            None => {
                g.b.begin(Part::FeedForward);
                let ff = g.need(g.h.ff, "feed_forward_length")?;
                g.feed_forward(["ffn_gate", "ffn_up", "ffn_down"], ff, x, None)?
            }
        };
        g.add(y, residual);
    }
    g.finish_plain(residual)
}

/// The shape of attention, with 1/√(length of a key) as its scale.
pub(super) fn heads(g: &Graph<'_>) -> Result<Heads> {
    let need = |value, name| number(g.h, value, name, SIZES);
    let query = need(g.h.heads, "attention.head_count")?;
    let kv = need(g.h.heads_kv, "attention.head_count_kv")?;
    let key_len = need(g.h.key_length, "attention.key_length")?;
    let value_len = need(g.h.value_length, "attention.value_length")?;
    if query % kv != 0 {
        let expected = format!("a divisor of the {query} query heads");
        return Err(wrong(g.h, "attention.head_count_kv", kv.to_string(), expected));
    }
    let scale = (1.0 / (key_len as f64).sqrt()) as f32;
    Ok(Heads { query, kv, key_len, value_len, scale })
}
