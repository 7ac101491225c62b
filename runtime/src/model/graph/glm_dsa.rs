//! `glm-dsa`: latent attention (MLA) in its absorbed form over the positions that an indexer chooses; dense layers
//! first, then experts with one that all tokens share.
//!
//! ```text
//! r = N(W_qa x);  q = W_qb r, of each head nope and rope values;  [c, k_pe] = W_kva x;  c = N(c)
//! query h = [W_kb[h] q_nope, rope(q_pe)];  key = [c, rope(k_pe)];  value = c
//! answer = W_o of all heads' W_vb[h] attention(query h)
//! indexer, where sequences outgrow top_k:  key = rope(LayerNorm(W_ik x)), first values rotated;
//!          score = Σ_h (W_p x)_h · max(0, rope(W_iq r)_h · key);  layers without their own take those before
//! ```

use super::Graph;
use super::experts::{Moe, Rule};
use crate::model::program::{
    BufferId, CacheShape, Chosen, Format, Gating, Heads, Kept, Part, Pieces, Program, Rotation, Selection,
    Step,
};
use crate::{Result, RuntimeError};
use gantry_formats::arch::{Experts, Indexer, Mla, RopeScaling};

/// What all layers share.
struct Layers {
    mla: Mla,
    heads: Heads,
    rotation: usize,
    indexer: Indexer,
    moe: Moe,
}

impl Layers {
    fn read(g: &mut Graph<'_>) -> Result<Self> {
        let mla = Mla::read(g.h, g.meta)?;
        let query = g.need(g.h.heads, "attention.head_count")?;
        let scaling = g.h.rope_scaling(g.meta)?;
        if scaling != RopeScaling::None {
            // How its factor enters the scale of the scores was compared with nothing yet.
            let what = "glm-dsa with scaled positions (rope.scaling) does not run here".into();
            return Err(RuntimeError::Incompatible(what));
        }
        let scale = (1.0 / (mla.key_len as f64).sqrt()) as f32;
        let (key_len, value_len) = (mla.kv_rank + mla.rot, mla.kv_rank);
        let heads = Heads { query, kv: 1, key_len, value_len, scale };
        let base = g.h.at_least(g.h.freq_base, f64::from(f32::MIN_POSITIVE), "rope.freq_base")?;
        let pairs = g.arch.rope;
        let rotation = g.b.rotation(Rotation { len: mla.rot, base, scaling, divisors: None, pairs });
        let experts = Experts::read(g.h, g.meta)?;
        let gating = match experts.gating {
            Some(1) => Gating::Softmax,
            Some(3) => Gating::SoftmaxWeight,
            Some(4) => Gating::SqrtSoftplus,
            _ => Gating::Sigmoid,
        };
        let normalize = experts.normalize.unwrap_or(false);
        let moe = Moe::read(g, Rule { gating, normalize, scale: experts.scale })?;
        Ok(Self { mla, heads, rotation, indexer: Indexer::read(g.h, g.meta)?, moe })
    }

    /// The answer of attention to `x`; `seen` is what the last layer with an indexer of its own chose.
    fn attend(&self, g: &mut Graph<'_>, x: BufferId, seen: &mut Option<Chosen>) -> Result<BufferId> {
        g.b.begin(Part::Attention);
        let Self { heads, rotation, .. } = *self;
        let Mla { q_rank, kv_rank, key_len, value_len, rot } = self.mla;
        let (count, wide, nope) = (heads.query, kv_rank + rot, key_len - rot);
        let r = g.product("attn_q_a.weight", q_rank, x, "low-rank query")?;
        let weight = g.vector("attn_q_a_norm.weight", q_rank)?;
        g.b.norm_in_place(g.b.piece(r), Some(weight), g.eps);
        let q = g.product("attn_q_b.weight", count * key_len, r, "queries")?;
        let kv = g.product("attn_kv_a_mqa.weight", wide, x, "keys")?;
        let weight = g.vector("attn_kv_a_norm.weight", kv_rank)?;
        let c = Pieces { len: kv_rank, ..g.b.piece(kv) };
        g.b.norm_in_place(c, Some(weight), g.eps);
        let k_pe = Pieces { start: kv_rank, len: rot, ..g.b.piece(kv) };
        g.b.push(Step::Rope { rotation, x: k_pe, start: 0, inverse: false });
        let shape = CacheShape {
            heads: 1,
            key_len: wide,
            value_len: kv_rank,
            shared: true,
            window: None,
            ratio: 1,
            exact: false,
        };
        let cache = g.b.keep(Kept::Cache(shape));
        g.b.push(Step::Store { cache, keys: g.b.whole(kv), values: None });

        let of_q = |start, len| Pieces { buffer: q, start, count, len, stride: key_len };
        let q_nope = g.b.rows("queries without position", count, nope, Format::F32);
        g.b.push(Step::Copy { x: of_q(0, nope), y: g.b.pieces(q_nope) });
        let absorbed = g.b.rows("absorbed queries", count, wide, Format::F32);
        let name = g.name("attn_k_b.weight");
        let each = g.w.experts(&name, count, kv_rank, nope)?;
        g.b.experts(None, vec![(each, None, q_nope, g.b.columns(absorbed, 0, kv_rank))]);
        let q_pe = Pieces { start: kv_rank, len: rot, ..g.b.pieces(absorbed) };
        g.b.push(Step::Copy { x: of_q(nope, rot), y: q_pe });
        g.b.push(Step::Rope { rotation, x: q_pe, start: 0, inverse: false });

        if self.indexer.full[g.layer] {
            *seen = self.select(g, x, r)?;
        }
        let y = g.b.rows("attention", count, kv_rank, Format::F32);
        let (window, entries, sinks, chosen) = (None, None, None, *seen);
        let q = g.b.columns(absorbed, 0, count * wide);
        g.b.push(Step::Attention { heads, cache, window, chosen, entries, sinks, q, y });
        let values = g.b.rows("values", count, value_len, Format::F32);
        let name = g.name("attn_v_b.weight");
        let each = g.w.experts(&name, count, value_len, kv_rank)?;
        g.b.experts(None, vec![(each, None, y, g.b.whole(values))]);
        g.product("attn_output.weight", g.embd, values, "projection")
    }

    /// The positions that the tokens see in this layer and those that follow.
    fn select(&self, g: &mut Graph<'_>, x: BufferId, r: BufferId) -> Result<Option<Chosen>> {
        let Indexer { heads, key_len: len, top_k, .. } = self.indexer;
        let by = Selection { heads, len, top: top_k, ratio: 1, expand: false };
        if by.whole(g.positions - 1) {
            return Ok(None);
        }
        let raw = g.product("indexer.attn_k.weight", len, x, "index keys")?;
        let weight = g.vector("indexer.k_norm.weight", len)?;
        let bias = g.vector("indexer.k_norm.bias", len)?;
        let k = g.b.buffer("normalised index keys", len, Format::F32);
        g.b.push(Step::LayerNorm { x: raw, weight, bias, eps: INDEX_EPS, y: k });
        let q = g.product("indexer.attn_q_b.weight", heads * len, r, "index queries")?;
        let q_heads = Pieces { buffer: q, start: 0, count: heads, len, stride: len };
        let rotation = self.rotation;
        for x in [g.b.piece(k), q_heads] {
            g.b.push(Step::Rope { rotation, x, start: 0, inverse: false });
        }
        let keys = g.b.keep_rows(len, None, 1);
        g.b.push(Step::Store { cache: keys, keys: g.b.whole(k), values: None });
        let weights = g.product("indexer.proj.weight", heads, x, "index weights")?;
        let ids = g.b.buffer("seen positions", by.per_token(), Format::Ids);
        let (q, weights) = (g.b.whole(q), Some(g.b.whole(weights)));
        g.b.push(Step::Select { selection: by, keys, q, weights, ids });
        Ok(Some(Chosen { ids, by }))
    }

    /// The answer of the feed-forward to `x`.
    fn answer(&self, g: &mut Graph<'_>, x: BufferId) -> Result<BufferId> {
        if (g.layer as u64) < g.h.leading_dense {
            g.b.begin(Part::FeedForward);
            let ff = g.need(g.h.ff, "feed_forward_length")?;
            return g.feed_forward(["ffn_gate", "ffn_up", "ffn_down"], ff, x, None);
        }
        let name = g.name("exp_probs_b.bias");
        let bias = g.w.optional(&name, self.moe.experts())?;
        let y = self.moe.routed(g, x, bias, None, None)?;
        g.b.begin(Part::SharedExpert);
        let ff = g.need(g.h.expert_shared_ff, "expert_shared_count")?;
        let shared = g.feed_forward(["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"], ff, x, None)?;
        g.b.push(Step::Add { x: shared, y });
        Ok(y)
    }
}

/// Of the indexer's LayerNorm, which no key gives.
const INDEX_EPS: f32 = 1e-6;

/// The program.
pub(super) fn build(mut g: Graph<'_>) -> Result<Program> {
    let layers = Layers::read(&mut g)?;
    let residual = g.embed(1)?;
    let mut seen = None;
    for layer in 0..g.layers {
        g.layer = layer;
        let x = g.norm(residual, "attn_norm.weight")?;
        let answer = layers.attend(&mut g, x, &mut seen)?;
        g.add(answer, residual);
        let x = g.norm(residual, "ffn_norm.weight")?;
        let answer = layers.answer(&mut g, x)?;
        g.add(answer, residual);
    }
    g.finish_plain(residual)
}
