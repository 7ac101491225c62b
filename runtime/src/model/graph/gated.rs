//! Gated attention of `qwen3next` and `qwen4exp`, with the latter's selection of what is attended to.
//!
//! ```text
//! q, gate = W_q m, one after the other in each head;  k = W_k m;  v = W_v m
//! a = W_o (attention(rope(N(q)), rope(N(k)), v) · σ(gate))          N of each head
//!
//! selection, where attention.compress_ratios gives the layer a ratio r and the sequence outgrows top_k:
//! entry b = rope(N(mean of W_ik m over the positions of block b), at its first)
//! score_b = Σ_h max(0, rope(N(W_iq m))_h · entry_b);  the top_k / r best complete blocks and the positions after
//! the last complete one are seen
//! ```

use super::Graph;
use crate::Result;
use crate::model::program::{
    BufferId, CacheShape, Chosen, Format, Gate, Heads, Kept, Part, Pieces, Pool, Selection, Step,
};
use crate::model::wrong;
use gantry_formats::arch::Indexer;

/// What all layers with such attention share.
pub(super) struct Gated {
    pub(super) heads: Heads,
    pub(super) rotation: usize,
}

impl Gated {
    pub(super) fn read(g: &mut Graph<'_>) -> Result<Self> {
        let heads = super::decoder::heads(g)?;
        let rot = g.rotated(heads.key_len)?;
        Ok(Self { heads, rotation: g.rotation(rot, None)? })
    }

    /// The answer of the current layer to `m`; `ratio` is its compression ratio, 0 without selection.
    pub(super) fn attend(&self, g: &mut Graph<'_>, m: BufferId, ratio: usize) -> Result<BufferId> {
        g.b.begin(Part::Attention);
        let Self { heads, rotation } = *self;
        let Heads { query, kv, key_len, value_len, .. } = heads;
        let chosen = self.select(g, m, ratio)?;
        let lens = [2 * query * key_len, kv * key_len, kv * value_len];
        let qkv = g.b.buffer("queries, gates, keys and values", lens.iter().sum(), Format::F32);
        let [q, k, v] = g.projections(m, ["attn_q", "attn_k", "attn_v"], lens, qkv)?;
        let queries = g.b.buffer("queries", query * key_len, Format::F32);
        let heads_of = |buffer, start, count, stride| Pieces { buffer, start, count, len: key_len, stride };
        let weight = Some(g.vector("attn_q_norm.weight", key_len)?);
        let to = heads_of(queries, 0, query, key_len);
        let from = heads_of(q.buffer, q.start, query, 2 * key_len);
        g.b.push(Step::RmsNorm { x: from, weight, eps: g.eps, y: to });
        let keys = heads_of(k.buffer, k.start, kv, key_len);
        let weight = g.vector("attn_k_norm.weight", key_len)?;
        g.b.norm_in_place(keys, Some(weight), g.eps);
        for x in [to, keys] {
            g.b.push(Step::Rope { rotation, x, start: 0, inverse: false });
        }
        let shape =
            CacheShape { heads: kv, key_len, value_len, shared: false, window: None, ratio: 1, exact: false };
        let cache = g.b.keep(Kept::Cache(shape));
        g.b.push(Step::Store { cache, keys: k, values: Some(v) });
        let y = g.b.buffer("attention", query * value_len, Format::F32);
        let (window, entries, sinks) = (None, None, None);
        let q = g.b.whole(queries);
        g.b.push(Step::Attention { heads, cache, window, chosen, entries, sinks, q, y });
        let gate = heads_of(qkv, key_len, query, 2 * key_len);
        let y_heads = Pieces { buffer: y, start: 0, count: query, len: value_len, stride: value_len };
        g.b.push(Step::Gate { act: Gate::Sigmoid, gate, y: y_heads });
        g.product("attn_output.weight", g.embd, y, "projection")
    }

    /// The positions that each token sees, where sequences can outgrow what the layer selects.
    fn select(&self, g: &mut Graph<'_>, m: BufferId, ratio: usize) -> Result<Option<Chosen>> {
        if ratio == 0 {
            return Ok(None);
        }
        let Indexer { heads, key_len: len, top_k, .. } = Indexer::read(g.h, g.meta)?;
        if top_k < ratio {
            let expected = format!("at least the compression ratio {ratio}");
            return Err(wrong(g.h, "attention.indexer.top_k", top_k.to_string(), expected));
        }
        let by = Selection { heads, len, top: top_k / ratio, ratio, expand: true };
        if by.whole(g.positions - 1) {
            return Ok(None);
        }
        let rotation = self.rotation;
        let keys = g.product("indexer.k_proj.weight", len, m, "index keys")?;
        let rows = g.b.keep_rows(len, Some(ratio), 1);
        g.b.push(Step::Store { cache: rows, keys: g.b.whole(keys), values: None });
        let entries = g.b.keep_rows(len, None, ratio);
        let norm = g.vector("indexer.k_norm.weight", len)?;
        let (pool, eps) = (Pool::Mean, g.eps);
        g.b.push(Step::Compress { pool, ratio, rows, norm, eps, rotation, start: 0, entries });
        let queries = g.product("indexer.q_proj.weight", heads * len, m, "index queries")?;
        let x = Pieces { buffer: queries, start: 0, count: heads, len, stride: len };
        let weight = g.vector("indexer.q_norm.weight", len)?;
        g.b.norm_in_place(x, Some(weight), g.eps);
        g.b.push(Step::Rope { rotation, x, start: 0, inverse: false });
        let ids = g.b.buffer("seen positions", by.per_token(), Format::Ids);
        let q = g.b.whole(queries);
        g.b.push(Step::Select { selection: by, keys: entries, q, weights: None, ids });
        Ok(Some(Chosen { ids, by }))
    }
}
