//! `deepseek4`: a residual of several streams that a Sinkhorn iteration mixes; attention on one key-value head over a
//! sliding window and compressed entries; experts, some routed by token id.
//!
//! ```text
//! read:   mixes = W_fn (X / √(mean X² + eps));  pre, post, comb of them;  m = Σ_h pre[h] · X[h]
//! write:  X[d] = answer · post[d] + Σ_s comb[s][d] · X[s]
//! layer:  answer = attention(N(m; attn_norm));  answer = experts(N(m; ffn_norm)) + shared(N(m; ffn_norm))
//! attention(x):  r = N(W_qa x);  q = rope(n(W_qb r)) of each head;  kv = rope(N(W_kv x)), key and value in one
//!                over the last positions and the entries of complete blocks, with sinks;  then rope back, and
//!                W_ob (W_oa of each group of heads)
//! entries:       of `ratio` positions: N(Σ softmax(W_gate x + ape) · W_kv x), rotated by the block's first
//! ```

use super::experts::{Moe, Rule};
use super::{Graph, Parts, text_pairs};
use crate::model::program::{
    BufferId, CacheShape, Chosen, Clamp, Columns, Draft, Entries, Format, Gating, Heads, Hyper, Kept, KeptId,
    Part, Pieces, Pool, Program, Rotation, Selection, Step,
};
use crate::model::wrong;
use crate::{Result, RuntimeError};
use gantry_formats::arch::{self, Compression, Deepseek4, Experts, Indexer, RopeScaling};
use gantry_formats::block::GgmlType;
use gantry_formats::layout::Layout;

/// What all layers share.
struct Layers {
    heads: Heads,
    /// Values of a head that are rotated: its last.
    rot: usize,
    /// The rotation of layers without compression, and of those with it.
    rotations: [usize; 2],
    hyper: Hyper,
    streams: usize,
    own: Deepseek4,
    ratios: Vec<usize>,
    moe: Moe,
}

impl Layers {
    fn read(g: &mut Graph<'_>) -> Result<Self> {
        let heads = super::decoder::heads(g)?;
        if heads.kv != 1 || heads.key_len != heads.value_len {
            let expected = "1, with keys as long as values".into();
            return Err(wrong(g.h, "attention.head_count_kv", heads.kv.to_string(), expected));
        }
        let rot = g.rotated(heads.key_len)?;
        let hyper = arch::Hyper::read(g.h, g.meta)?;
        let own = Deepseek4::read(g.h, g.meta)?;
        let compression = Compression::read(g.h, g.meta)?;
        let pairs = text_pairs(g.arch.rope);
        let rotation = |base, scaling| Rotation { len: rot, base, scaling, divisors: None, pairs };
        let plain = rotation(g.h.freq_base, RopeScaling::None);
        // The factor of cos and sin that comes with YaRN is taken back.
        let scaling = match g.h.rope_scaling(g.meta)? {
            RopeScaling::Yarn { factor, original_context, ext_factor, beta_fast, beta_slow, .. } => {
                let attn_factor = if ext_factor == 0.0 { 1.0 } else { 1.0 / (1.0 + 0.1 * factor.ln()) };
                RopeScaling::Yarn { factor, original_context, attn_factor, ext_factor, beta_fast, beta_slow }
            }
            other => other,
        };
        let compressed = rotation(compression.freq_base, scaling);
        let rotations = [g.b.rotation(plain), g.b.rotation(compressed)];
        let experts = Experts::read(g.h, g.meta)?;
        let normalize = experts.normalize.unwrap_or(true);
        let rule = Rule { gating: Gating::SqrtSoftplus, normalize, scale: experts.scale };
        let moe = Moe::read(g, rule)?;
        if heads.query % own.out_groups != 0 {
            let expected = format!("a divisor of the {} query heads", heads.query);
            return Err(wrong(g.h, "attention.output_group_count", own.out_groups.to_string(), expected));
        }
        let streams = hyper.streams;
        let hyper = Hyper { iterations: hyper.iterations, eps: hyper.eps };
        Ok(Self { heads, rot, rotations, hyper, streams, own, ratios: compression.ratios, moe })
    }

    /// Reads the streams at `site`, lets `answer` answer, and writes that.
    fn site(
        &self,
        g: &mut Graph<'_>,
        x: BufferId,
        site: &str,
        norm: &str,
        answer: impl FnOnce(&mut Graph<'_>, BufferId) -> Result<BufferId>,
    ) -> Result<()> {
        g.b.begin(Part::HyperConnections);
        let (count, hyper) = (self.streams, self.hyper);
        let logits = (2 + count) * count;
        let mixes = self.mixes(g, x, &g.name(&format!("{site}_fn.weight")), logits)?;
        let scale = g.vector(&format!("{site}_scale.weight"), 3)?;
        let base = g.vector(&format!("{site}_base.weight"), logits)?;
        let m = g.b.buffer("read", g.embd, Format::F32);
        let post = g.b.buffer("write weights", count, Format::F32);
        let comb = g.b.buffer("stream weights", count * count, Format::F32);
        g.b.push(Step::SinkhornRead { hyper, x, mixes, scale, base, y: m, post, comb });
        let m = g.norm(m, norm)?;
        let add = answer(g, m)?;
        g.b.begin(Part::HyperConnections);
        g.b.push(Step::SinkhornWrite { x, add, post, comb });
        Ok(())
    }

    /// `rows` logits of all streams, normalised together.
    fn mixes(&self, g: &mut Graph<'_>, x: BufferId, name: &str, rows: usize) -> Result<BufferId> {
        let wide = self.streams * g.embd;
        let u = g.b.buffer("normalised streams", wide, Format::F32);
        let (from, to) = (Pieces { count: 1, len: wide, stride: wide, ..g.b.pieces(x) }, g.b.piece(u));
        g.b.push(Step::RmsNorm { x: from, weight: None, eps: g.eps, y: to });
        let mixes = g.b.buffer("stream logits", rows, Format::F32);
        let weight = g.w.matrix(name, rows, wide)?;
        g.b.gemm(weight, u, g.b.whole(mixes));
        Ok(mixes)
    }

    /// The answer of attention to `x`; `ratio` is the layer's compression, 0 without.
    fn attend(&self, g: &mut Graph<'_>, x: BufferId, ratio: usize) -> Result<BufferId> {
        g.b.begin(Part::Attention);
        let Self { heads, rot, .. } = *self;
        let Heads { query, key_len: len, .. } = heads;
        let rotation = self.rotations[usize::from(ratio > 0)];
        let start = len - rot;
        let r = g.product("attn_q_a.weight", self.own.q_rank, x, "low-rank query")?;
        let weight = g.vector("attn_q_a_norm.weight", self.own.q_rank)?;
        g.b.norm_in_place(g.b.piece(r), Some(weight), g.eps);
        let q = g.product("attn_q_b.weight", query * len, r, "queries")?;
        let q_heads = Pieces { buffer: q, start: 0, count: query, len, stride: len };
        g.b.norm_in_place(q_heads, None, g.eps);
        let kv = g.product("attn_kv.weight", len, x, "keys")?;
        let weight = g.vector("attn_kv_a_norm.weight", len)?;
        g.b.norm_in_place(g.b.piece(kv), Some(weight), g.eps);
        for x in [q_heads, g.b.piece(kv)] {
            g.b.push(Step::Rope { rotation, x, start, inverse: false });
        }
        let window = Some(self.own.window);
        let shape = CacheShape {
            heads: 1,
            key_len: len,
            value_len: len,
            shared: true,
            window,
            ratio: 1,
            exact: false,
        };
        let cache = g.b.keep(Kept::Cache(shape));
        g.b.push(Step::Store { cache, keys: g.b.whole(kv), values: None });
        let entries = match ratio {
            0 => None,
            _ => Some(self.entries(g, x, r, ratio, shape)?),
        };
        let sinks = Some(g.vector("attn_sinks.weight", query)?);
        let groups = self.own.out_groups;
        let y = g.b.rows("attention", groups, query * len / groups, Format::F32);
        let (chosen, q) = (None, g.b.whole(q));
        g.b.push(Step::Attention { heads, cache, window, chosen, entries, sinks, q, y });
        let x = Pieces { buffer: y, start: 0, count: query, len, stride: len };
        g.b.push(Step::Rope { rotation, x, start, inverse: true });
        let (name, rank) = (g.name("attn_output_a.weight"), self.own.out_rank);
        let each = g.w.experts(&name, groups, rank, query * len / groups)?;
        let low = g.b.rows("grouped outputs", groups, rank, Format::F32);
        g.b.experts(None, vec![(each, None, y, g.b.whole(low))]);
        g.product("attn_output_b.weight", g.embd, low, "projection")
    }

    /// The compressed entries that the queries of a layer see; `shape` is that of its keys.
    fn entries(
        &self,
        g: &mut Graph<'_>,
        x: BufferId,
        r: BufferId,
        ratio: usize,
        shape: CacheShape,
    ) -> Result<Entries> {
        let overlap = ratio == OVERLAP_RATIO;
        let cache = g.b.keep(Kept::Cache(CacheShape { window: None, ratio, ..shape }));
        self.compress(g, x, ["attn_compressor", "key entries"], (shape.key_len, ratio), cache)?;
        if !overlap {
            return Ok(Entries { cache, ratio, chosen: None });
        }
        let Indexer { heads, key_len: len, top_k, .. } = Indexer::read(g.h, g.meta)?;
        let by = Selection { heads, len, top: top_k, ratio, expand: false };
        if by.whole(g.positions - 1) {
            return Ok(Entries { cache, ratio, chosen: None });
        }
        let keys = g.b.keep_rows(len, None, ratio);
        self.compress(g, x, ["indexer_compressor", "index entries"], (len, ratio), keys)?;
        let q = g.product("indexer.attn_q_b.weight", heads * len, r, "index queries")?;
        let q_heads = Pieces { buffer: q, start: 0, count: heads, len, stride: len };
        let (rotation, start) = (self.rotations[1], len.saturating_sub(self.rot));
        g.b.push(Step::Rope { rotation, x: q_heads, start, inverse: false });
        let weights = g.product("indexer.proj.weight", heads, x, "index weights")?;
        let ids = g.b.buffer("seen entries", by.per_token(), Format::Ids);
        let (q, weights) = (g.b.whole(q), Some(g.b.whole(weights)));
        g.b.push(Step::Select { selection: by, keys, q, weights, ids });
        Ok(Entries { cache, ratio, chosen: Some(Chosen { ids, by }) })
    }

    /// Entries of `len` values from `x` into the cache `entries`, by the weights that begin with `base`.
    fn compress(
        &self,
        g: &mut Graph<'_>,
        x: BufferId,
        [base, called]: [&'static str; 2],
        (len, ratio): (usize, usize),
        entries: KeptId,
    ) -> Result<()> {
        let overlap = ratio == OVERLAP_RATIO;
        let (width, blocks) = if overlap { (2 * len, 2) } else { (len, 1) };
        let both = g.b.buffer(called, 2 * width, Format::F32);
        let names = ["kv", "gate"].map(|end| format!("{base}_{end}"));
        let columns = g.projections(x, names.each_ref().map(String::as_str), [width; 2], both)?;
        let [rows, scores] = columns.map(|keys: Columns| {
            let cache = g.b.keep_rows(width, Some(blocks * ratio), 1);
            g.b.push(Step::Store { cache, keys, values: None });
            cache
        });
        let ape = g.vector(&format!("{base}_ape.weight"), ratio * width)?;
        let norm = g.vector(&format!("{base}_norm.weight"), len)?;
        let (pool, rotation) = (Pool::Softmax { scores, ape, overlap }, self.rotations[1]);
        let start = len.saturating_sub(self.rot);
        g.b.push(Step::Compress { pool, ratio, rows, norm, eps: g.eps, rotation, start, entries });
        Ok(())
    }

    /// The answer of the experts and of the shared one.
    fn experts(&self, g: &mut Graph<'_>, x: BufferId) -> Result<BufferId> {
        let clamp = |limits: &[f32]| limits.get(g.layer).filter(|&&l| l > 1e-6).map(|&limit| Clamp { limit });
        let [routed, shared] = [&self.own.clamp, &self.own.clamp_shared].map(|l| clamp(l));
        let (bias, given) = if g.layer < self.own.hash_layers {
            let table = g.matrix("ffn_gate_tid2eid.weight", g.vocab, self.moe.used())?;
            if table.layout != Layout::Raw(GgmlType::I32) {
                let what = format!("its layout is {}, expected ids of 32 bits", table.layout);
                return Err(RuntimeError::Tensor { tensor: table.name.to_string(), what });
            }
            (None, Some(table))
        } else {
            (Some(g.vector("exp_probs_b.bias", self.moe.experts())?), None)
        };
        let y = self.moe.routed(g, x, bias, given, routed)?;
        g.b.begin(Part::SharedExpert);
        let ff = g.need(g.h.expert_shared_ff, "expert_shared_count")?;
        let shared = g.feed_forward(["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"], ff, x, shared)?;
        g.b.push(Step::Add { x: shared, y });
        Ok(y)
    }

    /// Attention and experts of the current layer.
    fn block(&self, g: &mut Graph<'_>, x: BufferId, ratio: usize) -> Result<()> {
        self.site(g, x, "hc_attn", "attn_norm.weight", |g, m| self.attend(g, m, ratio))?;
        self.site(g, x, "hc_ffn", "ffn_norm.weight", |g, m| self.experts(g, m))
    }

    /// One stream from all, as the output reads them.
    fn head(&self, g: &mut Graph<'_>, x: BufferId) -> Result<BufferId> {
        let mixes = self.mixes(g, x, "output_hc_fn.weight", self.streams)?;
        let scale = g.w.vector("output_hc_scale.weight", 1)?;
        let base = g.w.vector("output_hc_base.weight", self.streams)?;
        let y = g.b.buffer("read", g.embd, Format::F32);
        g.b.push(Step::SinkhornHead { hyper: self.hyper, x, mixes, scale, base, y });
        Ok(y)
    }

    /// The block that drafts tokens, where the model has one.
    fn draft(&self, g: &mut Graph<'_>, trunk: BufferId) -> Result<Option<Draft>> {
        g.layer = g.layers;
        if g.h.nextn == 0 || !g.w.has(&g.name("nextn.eh_proj.weight")) {
            return Ok(None);
        }
        let own = |g: &Graph<'_>, base: &str| Some(g.name(base)).filter(|name| g.w.has(name));
        let table = own(g, "nextn.embed_tokens.weight").unwrap_or_else(|| "token_embd.weight".into());
        let (hidden, residual) = g.draft_inputs(&table, self.streams, false)?;
        self.block(g, residual, 0)?;
        let body = g.b.take_steps();
        let chosen = g.chosen(trunk);
        let m = self.head(g, chosen)?;
        let norm = own(g, "nextn.shared_head_norm.weight").unwrap_or_else(|| "output_norm.weight".into());
        let norm = g.w.vector(&norm, g.embd)?;
        let x = g.b.norm(m, norm, g.eps);
        g.logits_by(own(g, "nextn.shared_head_head.weight"), x)?;
        let head = g.b.take_steps();
        Ok(Some(Draft { hidden, body, residual, head }))
    }
}

/// The ratio whose blocks also pool their predecessor, and are chosen from by an indexer.
const OVERLAP_RATIO: usize = 4;

/// The program.
pub(super) fn build(mut g: Graph<'_>) -> Result<Program> {
    let layers = Layers::read(&mut g)?;
    let residual = g.embed(layers.streams)?;
    for layer in 0..g.layers {
        g.layer = layer;
        layers.block(&mut g, residual, layers.ratios[layer])?;
    }
    let body = g.b.take_steps();
    let chosen = g.chosen(residual);
    let m = layers.head(&mut g, chosen)?;
    let norm = g.w.vector("output_norm.weight", g.embd)?;
    let x = g.b.norm(m, norm, g.eps);
    let logits = g.logits(x)?;
    let head = g.b.take_steps();
    let draft = layers.draft(&mut g, residual)?;
    g.finish(Parts { body, head, residual, chosen, logits, draft })
}
