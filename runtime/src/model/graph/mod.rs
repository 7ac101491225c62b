//! Graphs: what each architecture computes, as a program.

mod decoder;
mod deepseek4;
mod delta;
mod draft;
mod experts;
mod feed_forward;
mod gated;
mod glm_dsa;
mod hyper;
mod ngram;
mod qwen;

use super::builder::{Affine, Builder};
use super::program::{BufferId, Columns, Draft, Format, Matrix, Part, Program, Rotation, Step, VectorId};
use super::weights::Weights;
use super::{SIZES, header, number, wrong};
use crate::load::Places;
use crate::{Container, Result, RuntimeError};
use gantry_formats::arch::{Architecture, Hparams, Metadata, Resolved, RopeType};

const EPS: &str = "attention.layer_norm_rms_epsilon";

/// The program of `container` at `places`, for sequences of at most `positions` tokens.
pub(super) fn build(
    (container, places): (&Container, &Places),
    resolved: &Resolved,
    positions: usize,
) -> Result<Program> {
    let graph = Graph::new((container, places), resolved, positions)?;
    match resolved.arch.name {
        "llama" | "qwen2" | "qwen3" | "qwen3moe" | "olmoe" => decoder::build(graph),
        "qwen3next" | "qwen4exp" => qwen::build(graph),
        "deepseek4" => deepseek4::build(graph),
        "glm-dsa" => glm_dsa::build(graph),
        other => Err(RuntimeError::Incompatible(format!("this program has no graph for {other}"))),
    }
}

/// A graph in the making, and what it is made from.
struct Graph<'a> {
    b: Builder,
    w: Weights<'a>,
    arch: &'a Architecture,
    h: &'a Hparams,
    meta: &'a dyn Metadata,
    /// Most tokens of a sequence.
    positions: usize,
    embd: usize,
    /// Layers of the trunk.
    layers: usize,
    vocab: usize,
    eps: f32,
    /// The layer that is being made.
    layer: usize,
}

impl<'a> Graph<'a> {
    fn new(
        (container, places): (&'a Container, &'a Places),
        resolved: &'a Resolved,
        positions: usize,
    ) -> Result<Self> {
        let (arch, h, meta) = (resolved.arch, &resolved.hparams, header(container));
        let w = Weights::new(container, places);
        let embd = number(h, h.embd, "embedding_length", SIZES)?;
        let layers = number(h, h.layers, "block_count", SIZES)?;
        let eps = h.at_least(h.need(h.rms_eps, EPS)?, 0.0, EPS)? as f32;
        let (vocab, _) = w.shape("token_embd.weight")?;
        let b = Builder::default();
        Ok(Self { b, w, arch, h, meta, positions, embd, layers, vocab, eps, layer: 0 })
    }

    /// The hyperparameter `name`.
    fn need(&self, value: Option<u64>, name: &str) -> Result<usize> {
        number(self.h, value, name, SIZES)
    }

    /// The full name of this layer's `base`.
    fn name(&self, base: &str) -> String {
        format!("blk.{}.{base}", self.layer)
    }

    /// This layer's vector `base`, of `len` values.
    fn vector(&mut self, base: &str, len: usize) -> Result<VectorId> {
        let name = self.name(base);
        self.w.vector(&name, len)
    }

    /// This layer's matrix `base`.
    fn matrix(&mut self, base: &str, rows: usize, cols: usize) -> Result<Matrix> {
        self.w.matrix(&self.name(base), rows, cols)
    }

    /// The norm of `x` with this layer's weight `base`.
    fn norm(&mut self, x: BufferId, base: &str) -> Result<BufferId> {
        self.b.begin(Part::Residual);
        let weight = self.vector(base, self.b.values(x))?;
        Ok(self.b.norm(x, weight, self.eps))
    }

    /// W x in a buffer `called`, W this layer's `base` of `rows` rows.
    fn product(&mut self, base: &str, rows: usize, x: BufferId, called: &'static str) -> Result<BufferId> {
        let weight = self.matrix(base, rows, self.b.values(x))?;
        let scale = self.scale(base, 1)?;
        let y = self.b.buffer(called, rows, Format::F32);
        self.b.affine(weight, Affine { scale, bias: None }, x, self.b.whole(y));
        Ok(y)
    }

    /// What this layer's products with `base` (`….weight`) are scaled by, one factor or one for each expert: a file
    /// may bring a factor beside each matrix.
    fn scale(&mut self, base: &str, len: usize) -> Result<Option<VectorId>> {
        if self.omits(base) {
            return Ok(None);
        }
        let name = self.name(&format!("{}.scale", base.trim_end_matches(".weight")));
        self.w.optional(&name, len)
    }

    /// Whether the factors of a tensor of this base name are left out: llama.cpp's graph of qwen2 does so with those of
    /// the feed-forward, and its golden logits say so. (So does its qwen3next with that of `ssm_out`, in one of its
    /// graphs of delta nets; there the others are followed, see docs/PARITY.md.)
    fn omits(&self, base: &str) -> bool {
        self.arch.name == "qwen2" && base.starts_with("ffn_")
    }

    /// Several projections of one input, side by side in `y`: one product where their matrices were fused and none
    /// has a bias, else one each.
    fn projections<const N: usize>(
        &mut self,
        x: BufferId,
        names: [&str; N],
        lens: [usize; N],
        y: BufferId,
    ) -> Result<[Columns; N]> {
        let cols = self.b.values(x);
        let mut start = 0;
        let columns = lens.map(|len| {
            start += len;
            Columns { buffer: y, start: start - len, len }
        });
        let full = names.map(|name| self.name(&format!("{name}.weight")));
        let mut by = [Affine::default(); N];
        for ((by, name), &len) in by.iter_mut().zip(names).zip(&lens) {
            *by = self.affine(name, len)?;
        }
        if by.iter().all(|by| by.scale.is_none() && by.bias.is_none())
            && let Some(matrix) = self.w.fused(&full.each_ref().map(String::as_str), &lens, cols)?
        {
            self.b.gemm(matrix, x, self.b.whole(y));
            return Ok(columns);
        }
        for (i, name) in full.iter().enumerate() {
            let matrix = self.w.matrix(name, lens[i], cols)?;
            self.b.affine(matrix, by[i], x, columns[i]);
        }
        Ok(columns)
    }

    /// W y + bias, W this layer's `base` of `rows` rows.
    fn project(&mut self, base: &str, rows: usize, y: BufferId, called: &'static str) -> Result<BufferId> {
        let matrix = self.matrix(&format!("{base}.weight"), rows, self.b.values(y))?;
        let by = self.affine(base, rows)?;
        let out = self.b.buffer(called, rows, Format::F32);
        self.b.affine(matrix, by, y, self.b.whole(out));
        Ok(out)
    }

    /// What follows the product with this layer's `base` of `rows` rows.
    fn affine(&mut self, base: &str, rows: usize) -> Result<Affine> {
        let bias = self.name(&format!("{base}.bias"));
        Ok(Affine { scale: self.scale(base, 1)?, bias: self.w.optional(&bias, rows)? })
    }

    /// A rotation of `len` values, as the architecture pairs them and the metadata scales them.
    fn rotation(&mut self, len: usize, divisors: Option<VectorId>) -> Result<usize> {
        let scaling = self.h.rope_scaling(self.meta)?;
        let base = self.h.at_least(self.h.freq_base, f64::from(f32::MIN_POSITIVE), "rope.freq_base")?;
        Ok(self.b.rotation(Rotation { len, base, scaling, divisors, pairs: self.arch.rope }))
    }

    /// Values of a head that are rotated: `rope.dimension_count`, even and no more than `head`.
    fn rotated(&self, head: usize) -> Result<usize> {
        let rot = self.need(self.h.rot, "rope.dimension_count")?;
        let fits = if self.arch.name == "llama" { rot == head } else { rot <= head };
        if !fits || rot % 2 != 0 {
            let most = if self.arch.name == "llama" { "" } else { "at most " };
            let expected = format!("even and {most}the {head} values of a head");
            return Err(wrong(self.h, "rope.dimension_count", rot.to_string(), expected));
        }
        Ok(rot)
    }

    /// The trunk's streams, each token's embedding in every row.
    fn embed(&mut self, streams: usize) -> Result<BufferId> {
        self.b.begin(Part::Embedding);
        let y = self.b.rows("residual", streams, self.embd, Format::F32);
        let table = self.w.matrix("token_embd.weight", self.vocab, self.embd)?;
        self.b.push(Step::Embed { table, y });
        Ok(y)
    }

    /// residual += x.
    fn add(&mut self, x: BufferId, residual: BufferId) {
        self.b.begin(Part::Residual);
        self.b.push(Step::Add { x, y: residual });
    }

    /// Logits from `x` through the trunk's output matrix.
    fn logits(&mut self, x: BufferId) -> Result<BufferId> {
        self.logits_by(None, x)
    }

    /// The rows that logits are wanted of.
    fn chosen(&mut self, residual: BufferId) -> BufferId {
        self.b.begin(Part::Head);
        let buffer = self.b.buffers[residual.0].clone();
        self.b.rows("chosen", buffer.rows, buffer.width, Format::F32)
    }

    /// The program, once the body is made, where the head is a norm and the output matrix.
    fn finish_plain(mut self, residual: BufferId) -> Result<Program> {
        let body = self.b.take_steps();
        let chosen = self.chosen(residual);
        let norm = self.w.vector("output_norm.weight", self.embd)?;
        let x = self.b.norm(chosen, norm, self.eps);
        let logits = self.logits(x)?;
        let head = self.b.take_steps();
        self.finish(Parts { body, head, residual, chosen, logits, draft: None })
    }

    /// The program, once body and head are made.
    ///
    /// # Errors
    /// Where the container has a factor for a matrix that is computed without it here.
    fn finish(self, parts: Parts) -> Result<Program> {
        let omitted = |name: &str| name.splitn(3, '.').nth(2).is_some_and(|base| self.omits(base));
        if let Some(name) = self.w.ignored_scale(omitted) {
            return Err(RuntimeError::Incompatible(format!(
                "{name}: this program computes {} without a factor beside its matrix",
                self.arch.name
            )));
        }
        let Parts { body, head, residual, chosen, logits, draft } = parts;
        Ok(Program {
            vocab: self.vocab,
            context: self.h.context_length.and_then(|n| usize::try_from(n).ok()),
            vectors: self.w.into_vectors(),
            rotations: self.b.rotations,
            ngrams: self.b.ngrams,
            buffers: self.b.buffers,
            body,
            head,
            residual,
            chosen,
            logits,
            kept: self.b.kept,
            draft,
        })
    }
}

/// What a graph comes to.
struct Parts {
    body: Vec<Step>,
    head: Vec<Step>,
    residual: BufferId,
    chosen: BufferId,
    logits: BufferId,
    draft: Option<Draft>,
}

/// How pairs lie for text: with one position for all sections the interleaved form is the plain one.
fn text_pairs(pairs: RopeType) -> RopeType {
    match pairs {
        RopeType::Imrope => RopeType::Neox,
        other => other,
    }
}
