//! `llama`: RMS norms, rotated grouped-query attention, SwiGLU, dense or as experts; output tied to the embeddings
//! or not.
//!
//! ```text
//! X = token_embd[token]
//! for each layer:  q, k, v = W N(X; attn_norm) + b;  X += W_o attention(rope(q), rope(k), v) + b_o
//!                  X += W_down (silu(W_gate N(X; ffn_norm)) · W_up N(X; ffn_norm))
//!                  with experts: the experts' answer to N(X; ffn_norm), see `moe`
//! logits = W_output N(X; output_norm)          N(x; w) = x / √(mean x² + eps) · w
//! ```

use super::builder::Builder;
use super::moe::Moe;
use super::program::{
    BufferId, CacheLayer, Columns, Format, Gating, Heads, Program, Rotation, Step, VectorId,
};
use super::weights::Weights;
use super::{SIZES, number, wrong};
use crate::{Container, Result};
use gantry_formats::arch::{Architecture, Hparams, Metadata};

const EPS: &str = "attention.layer_norm_rms_epsilon";

/// What the graph is shaped by.
struct Shape {
    embd: usize,
    blocks: usize,
    rot: usize,
    eps: f32,
    heads: Heads,
}

impl Shape {
    fn read(h: &Hparams) -> Result<Self> {
        let need = |value, name| number(h, value, name, SIZES);
        let shape = Self {
            embd: need(h.embd, "embedding_length")?,
            blocks: need(h.blocks, "block_count")?,
            rot: need(h.rot, "rope.dimension_count")?,
            eps: h.at_least(h.need(h.rms_eps, EPS)?, 0.0, EPS)? as f32,
            heads: Heads {
                query: need(h.heads, "attention.head_count")?,
                kv: need(h.heads_kv, "attention.head_count_kv")?,
                key_len: need(h.key_length, "attention.key_length")?,
                value_len: need(h.value_length, "attention.value_length")?,
                scale: 0.0,
            },
        };
        let Heads { query, kv, key_len, .. } = shape.heads;
        if query % kv != 0 {
            let expected = format!("a divisor of the {query} query heads");
            return Err(wrong(h, "attention.head_count_kv", kv.to_string(), expected));
        }
        if shape.rot != key_len || key_len % 2 != 0 {
            let expected = format!("the key length {key_len}, and even");
            return Err(wrong(h, "rope.dimension_count", shape.rot.to_string(), expected));
        }
        let scale = (1.0 / (key_len as f64).sqrt()) as f32;
        Ok(Self { heads: Heads { scale, ..shape.heads }, ..shape })
    }
}

/// What stands between the attention and the next layer.
enum FeedForward {
    /// Of this many values.
    Dense(usize),
    Experts(Moe),
}

/// The program of a llama.
pub(super) fn build(
    container: &Container,
    arch: &Architecture,
    hparams: &Hparams,
    meta: &dyn Metadata,
) -> Result<Program> {
    let shape = Shape::read(hparams)?;
    let mut weights = Weights::new(container);
    let mut b = Builder::default();
    let Shape { embd, eps, heads, .. } = shape;
    let feed_forward = if hparams.experts > 0 {
        FeedForward::Experts(Moe::read(hparams, meta, embd, Gating::Softmax, true)?)
    } else {
        FeedForward::Dense(number(hparams, hparams.ff, "feed_forward_length", SIZES)?)
    };
    let (q_len, out_len) = (heads.query * heads.key_len, heads.query * heads.value_len);
    let (k_len, v_len) = (heads.kv * heads.key_len, heads.kv * heads.value_len);

    let residual = b.buffer("residual", embd, Format::F32);
    let (vocab, _) = weights.shape("token_embd.weight")?;
    b.push(Step::Embed { table: weights.matrix("token_embd.weight", vocab, embd)?, y: residual });
    let scaling = hparams.rope_scaling(meta)?;
    let base = hparams.at_least(hparams.freq_base, f64::from(f32::MIN_POSITIVE), "rope.freq_base")?;
    let rotation = |divisors: Option<VectorId>, b: &mut Builder| {
        let (len, pairs) = (shape.rot, arch.rope);
        b.rotation(Rotation { len, base, scaling, divisors, pairs })
    };
    let shared = weights.optional("rope_freqs.weight", shape.rot / 2)?;
    let shared = rotation(shared, &mut b);
    for layer in 0..shape.blocks {
        let name = |base: &str| format!("blk.{layer}.{base}");
        let norm = weights.vector(&name("attn_norm.weight"), embd)?;
        let x = b.norm(residual, norm, eps);
        let qkv = b.buffer("queries, keys and values", q_len + k_len + v_len, Format::F32);
        let names = ["attn_q", "attn_k", "attn_v"].map(name);
        let [q, k, v] = projections(&mut b, &mut weights, x, names, [q_len, k_len, v_len], qkv)?;
        let own = weights.optional(&name("rope_freqs.weight"), shape.rot / 2)?;
        let rotation = own.map_or(shared, |own| rotation(Some(own), &mut b));
        b.push(Step::Rope { rotation, heads, layer, q, k, v });
        let y = b.buffer("attention", out_len, Format::F32);
        b.push(Step::Attention { heads, layer, q, y });
        project_back(&mut b, &mut weights, y, &name("attn_output"), (embd, out_len), residual)?;

        let norm = weights.vector(&name("ffn_norm.weight"), embd)?;
        let x = b.norm(residual, norm, eps);
        match &feed_forward {
            FeedForward::Dense(ff) => {
                let gate_up = b.buffer("gates and ups", 2 * ff, Format::F32);
                projections(&mut b, &mut weights, x, ["ffn_gate", "ffn_up"].map(name), [*ff; 2], gate_up)?;
                let y = b.buffer("feed-forward", *ff, Format::F32);
                b.push(Step::SiluMul { x: gate_up, y });
                project_back(&mut b, &mut weights, y, &name("ffn_down"), (embd, *ff), residual)?;
            }
            FeedForward::Experts(moe) => {
                let y = moe.routed(&mut b, &weights, layer, x, None)?;
                b.push(Step::Add { x: y, y: residual });
            }
        }
    }
    let body = b.take_steps();
    let norm = weights.vector("output_norm.weight", embd)?;
    let x = b.norm(residual, norm, eps);
    // A tied output is an alias in the manifest; a hand-made container may leave even that out.
    let tied = if weights.has("output.weight") { "output.weight" } else { "token_embd.weight" };
    let logits = b.buffer("logits", vocab, Format::F32);
    let output = weights.matrix(tied, vocab, embd)?;
    b.gemm(output, None, x, b.whole(logits));
    let head = b.take_steps();
    let cache = CacheLayer { heads: heads.kv, key_len: heads.key_len, value_len: heads.value_len };
    Ok(Program {
        vocab,
        context: hparams.context_length.and_then(|n| usize::try_from(n).ok()),
        body,
        head,
        residual,
        logits,
        cache: vec![cache; shape.blocks],
        buffers: b.buffers,
        rotations: b.rotations,
        vectors: weights.into_vectors(),
    })
}

/// Several projections of one input, side by side in `y`: one product where their matrices were fused and none
/// has a bias, else one each.
fn projections<const N: usize>(
    b: &mut Builder,
    weights: &mut Weights<'_>,
    x: BufferId,
    names: [String; N],
    lens: [usize; N],
    y: BufferId,
) -> Result<[Columns; N]> {
    let cols = b.buffers[x.0].width;
    let mut start = 0;
    let columns = lens.map(|len| {
        start += len;
        Columns { buffer: y, start: start - len, len }
    });
    let full = names.each_ref().map(|name| format!("{name}.weight"));
    let mut biases = [None; N];
    for ((bias, name), &len) in biases.iter_mut().zip(&names).zip(&lens) {
        *bias = weights.optional(&format!("{name}.bias"), len)?;
    }
    if biases.iter().all(Option::is_none)
        && let Some(matrix) = weights.fused(&full.each_ref().map(String::as_str), &lens, cols)?
    {
        b.gemm(matrix, None, x, b.whole(y));
        return Ok(columns);
    }
    for (i, name) in full.iter().enumerate() {
        let matrix = weights.matrix(name, lens[i], cols)?;
        b.gemm(matrix, biases[i], x, columns[i]);
    }
    Ok(columns)
}

/// residual += W y + bias.
fn project_back(
    b: &mut Builder,
    weights: &mut Weights<'_>,
    y: BufferId,
    name: &str,
    (rows, cols): (usize, usize),
    residual: BufferId,
) -> Result<()> {
    let matrix = weights.matrix(&format!("{name}.weight"), rows, cols)?;
    let bias = weights.optional(&format!("{name}.bias"), rows)?;
    let out = b.buffer("projection", rows, Format::F32);
    b.gemm(matrix, bias, y, b.whole(out));
    b.push(Step::Add { x: out, y: residual });
    Ok(())
}
