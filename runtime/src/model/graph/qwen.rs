//! `qwen3next` and `qwen4exp`: layers of gated delta nets with one of gated attention now and then, each followed by
//! routed experts and one that all tokens share.
//!
//! ```text
//! qwen3next:  X += mixer(N(X; attn_norm));  X += moe(N(X; post_attention_norm));  logits = W N(X; output_norm)
//! qwen4exp:   a residual of several streams, see `hyper`: each site reads m and writes its answer; no other norms
//! moe(m) = experts(m) + σ(w_g·m) · shared(m)
//! qwen4exp's draft block, from the next token t and the trunk's streams X:
//!             X'[s] = W_eh [N(embd[t]; enorm), N(X[s]; hnorm)];  a layer with dense attention;  its own mixer
//! ```

use super::delta::DeltaNet;
use super::experts::{Moe, Rule};
use super::gated::Gated;
use super::hyper::Streams;
use super::{Graph, Parts};
use crate::Result;
use crate::model::program::{BufferId, Draft, Gate, Gating, Part, Program, Step};
use gantry_formats::arch::{Compression, Hyper, Ple, Ssm};

/// What all layers share.
struct Layers {
    ssm: Ssm,
    delta: DeltaNet,
    gated: Gated,
    moe: Moe,
}

impl Layers {
    fn read(g: &mut Graph<'_>) -> Result<Self> {
        let ssm = Ssm::read(g.h, g.meta)?;
        let rule = Rule { gating: Gating::Softmax, normalize: true, scale: 1.0 };
        let moe = Moe::read(g, rule)?;
        Ok(Self { delta: DeltaNet::new(g, &ssm), gated: Gated::read(g)?, moe, ssm })
    }

    /// The answer of the current layer's mixer to `m`.
    fn mix(&self, g: &mut Graph<'_>, m: BufferId, ratio: usize) -> Result<BufferId> {
        match self.ssm.recurrent[g.layer] {
            true => self.delta.answer(g, m),
            false => self.gated.attend(g, m, ratio),
        }
    }

    /// The answer of the experts and of the shared one.
    fn experts(&self, g: &mut Graph<'_>, m: BufferId) -> Result<BufferId> {
        let routed = self.moe.routed(g, m, None, None, None)?;
        g.b.begin(Part::SharedExpert);
        let ff = g.need(g.h.expert_shared_ff, "expert_shared_feed_forward_length")?;
        let shared = g.feed_forward(["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"], ff, m, None)?;
        let gate = g.product("ffn_gate_inp_shexp.weight", 1, m, "shared expert's gate")?;
        let (gate, y) = (g.b.piece(gate), g.b.piece(shared));
        g.b.push(Step::Gate { act: Gate::Sigmoid, gate, y });
        g.b.push(Step::Add { x: shared, y: routed });
        Ok(routed)
    }
}

/// The program of one of them.
pub(super) fn build(mut g: Graph<'_>) -> Result<Program> {
    let layers = Layers::read(&mut g)?;
    if g.arch.name == "qwen3next" { plain(g, &layers) } else { streamed(g, &layers) }
}

fn plain(mut g: Graph<'_>, layers: &Layers) -> Result<Program> {
    let residual = g.embed(1)?;
    for layer in 0..g.layers {
        g.layer = layer;
        let m = g.norm(residual, "attn_norm.weight")?;
        let answer = layers.mix(&mut g, m, 0)?;
        g.add(answer, residual);
        let m = g.norm(residual, "post_attention_norm.weight")?;
        let answer = layers.experts(&mut g, m)?;
        g.add(answer, residual);
    }
    g.finish_plain(residual)
}

fn streamed(mut g: Graph<'_>, layers: &Layers) -> Result<Program> {
    let hyper = Hyper::read(g.h, g.meta)?;
    let rank = g.need(hyper.rank.map(|n| n as u64), "hyper_connection.low_rank")?;
    let compression = Compression::read(g.h, g.meta)?;
    let ple = Ple::read(g.h, g.meta)?;
    let residual = g.embed(hyper.streams)?;
    let mut streams = Streams::new(residual, hyper.streams, rank);
    for layer in 0..g.layers {
        g.layer = layer;
        if let Some(ple) = ple.as_ref().filter(|p| p.layer == layer) {
            g.ngram(ple, &mut streams)?;
        }
        block(&mut g, layers, &mut streams, compression.ratios[layer])?;
    }
    streams.settle(&mut g);
    let body = g.b.take_steps();
    let chosen = g.chosen(residual);
    let mut read = Streams::new(chosen, hyper.streams, rank);
    let (_, m) = read.mix(&mut g, "output_hc")?;
    let logits = g.logits(m)?;
    let head = g.b.take_steps();
    let draft = draft(&mut g, layers, &read, residual)?;
    g.finish(Parts { body, head, residual, chosen, logits, draft })
}

/// Mixer and experts of the current layer.
fn block(g: &mut Graph<'_>, layers: &Layers, streams: &mut Streams, ratio: usize) -> Result<()> {
    let read = streams.read(g, "hc_attn")?;
    let answer = layers.mix(g, read.m, ratio)?;
    streams.write(&read, answer);
    let read = streams.read(g, "hc_ffn")?;
    let answer = layers.experts(g, read.m)?;
    streams.write(&read, answer);
    Ok(())
}

/// The block that drafts tokens, where the model has one.
fn draft(g: &mut Graph<'_>, layers: &Layers, head: &Streams, trunk: BufferId) -> Result<Option<Draft>> {
    if g.h.nextn == 0 {
        return Ok(None);
    }
    g.layer = g.layers;
    let (count, rank) = (head.count, head.rank);
    let own = |g: &Graph<'_>, base: &str| Some(g.name(base)).filter(|name| g.w.has(name));
    let table = own(g, "nextn.embed_tokens.weight").unwrap_or_else(|| "token_embd.weight".into());
    let (hidden, residual) = g.draft_inputs(&table, count, true)?;
    let mut streams = Streams::new(residual, count, rank);
    block(g, layers, &mut streams, 0)?;
    streams.settle(g);
    let body = g.b.take_steps();
    let chosen = g.chosen(trunk);
    let full = g.name("nextn.hc_head");
    let (_, m) = Streams::new(chosen, count, rank).mix(g, &full)?;
    let output = own(g, "nextn.shared_head_head.weight");
    g.logits_by(output, m)?;
    let head = g.b.take_steps();
    Ok(Some(Draft { hidden, body, residual, head }))
}
