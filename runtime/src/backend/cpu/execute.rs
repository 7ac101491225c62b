//! Walks a program's steps.

use super::buffers::Buffers;
use super::experts::Experts;
use super::{HEAD_ROWS, Loaded, view};
use crate::backend::{Executable, KvType, Settings, State, Wanted};
use crate::model::program::{Buffer, BufferId, Columns, Gating, Heads, Routing, Step, StepKind};
use crate::{Result, RuntimeError};
use gantry_formats::arch::RopeType;
use gantry_kernels::cpu::{
    self as kernels, ExpertOutputs, Keys, KvCache, KvShape, MatrixView, RopeAngles, RopeHeads, RopeStyle,
    add, attention, gemm, rms_norm, rope, rotate, route, silu_mul, weighted_sum,
};
use std::mem;
use std::sync::Arc;

impl Executable for Arc<Loaded> {
    fn start(&self, settings: &Settings) -> Result<Box<dyn State>> {
        let kind = match settings.kv {
            KvType::F32 => gantry_kernels::cpu::KvType::F32,
            KvType::F16 => gantry_kernels::cpu::KvType::F16,
        };
        let mut caches = Vec::with_capacity(self.program.cache.len());
        for layer in &self.program.cache {
            let values = layer.heads.saturating_mul(layer.key_len).saturating_mul(settings.context);
            can_have(values.saturating_mul(8))?;
            let (heads, len) = (layer.heads, layer.key_len);
            let shape = KvShape { heads, key_len: len, value_len: len, shared: false };
            caches.push(KvCache::new(kind, shape, settings.context, None));
        }
        let angles = self.program.rotations.iter().map(|_| RopeAngles::default()).collect();
        Ok(Box::new(Walker {
            loaded: Arc::clone(self),
            caches,
            buffers: Buffers::new(&self.program.buffers),
            angles,
            positions: Vec::new(),
            aside: Vec::new(),
            experts: Experts::default(),
            rows: 0,
        }))
    }
}

/// An allocation that fails inside a collection ends the process; one that is tried first is an error. It is tried
/// with a mapping of its own: memory that went through the heap would come back from it not known to be zero, and
/// zeroing it would make the whole cache resident before a token is in it.
fn can_have(bytes: usize) -> Result<()> {
    let tried = memmap2::MmapOptions::new().len(bytes.max(1)).map_anon();
    tried.map(drop).map_err(|source| RuntimeError::Allocation {
        what: "the KV cache",
        bytes: bytes as u64,
        source,
    })
}

/// One session on this device.
struct Walker {
    loaded: Arc<Loaded>,
    caches: Vec<KvCache>,
    buffers: Buffers,
    /// By rotation, for the current positions.
    angles: Vec<RopeAngles>,
    positions: Vec<u32>,
    /// A product on its way to some columns of a wider buffer.
    aside: Vec<f32>,
    experts: Experts,
    /// Rows of logits that the head computed last.
    rows: usize,
}

impl State for Walker {
    fn run(
        &mut self,
        tokens: &[u32],
        start: usize,
        wanted: Wanted,
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let program = &loaded.program;
        self.positions.clear();
        self.positions.extend((start..start + tokens.len()).map(|p| p as u32));
        for (table, angles) in loaded.tables.iter().zip(&mut self.angles) {
            table.angles(&self.positions, angles);
        }
        for step in &program.body {
            self.step(&loaded, step, tokens, start)?;
        }
        let chosen = match wanted {
            Wanted::None => tokens.len()..tokens.len(),
            Wanted::Last => tokens.len().saturating_sub(1)..tokens.len(),
            Wanted::All => 0..tokens.len(),
        };
        let width = program.buffers[program.residual.0].width;
        for first in chosen.clone().step_by(HEAD_ROWS) {
            let rows = HEAD_ROWS.min(chosen.end - first);
            // The head works on the first rows of the residual; those were done before or are these very rows.
            self.buffers.f32_mut(program.residual).copy_within(first * width..(first + rows) * width, 0);
            for step in &program.head {
                self.step(&loaded, step, &tokens[first..first + rows], start)?;
            }
            self.rows = rows;
            sink(&self.buffers.f32(program.logits)[..rows * program.vocab]);
        }
        Ok(())
    }

    fn logits(&self) -> &[f32] {
        let program = &self.loaded.program;
        match self.rows {
            0 => &[],
            n => &self.buffers.f32(program.logits)[(n - 1) * program.vocab..n * program.vocab],
        }
    }
}

impl Walker {
    /// Runs one step for `tokens`, the first at position `start`.
    fn step(&mut self, loaded: &Loaded, step: &Step, tokens: &[u32], start: usize) -> Result<()> {
        let (isa, pool) = (loaded.isa, &*loaded.pool);
        let width = |id: BufferId| loaded.program.buffers[id.0].width;
        // Of one token.
        let values = |id: BufferId| {
            let Buffer { rows, width, .. } = loaded.program.buffers[id.0];
            rows * width
        };
        let n = tokens.len();
        match step {
            Step::Embed { table, y } => {
                let table = view(&loaded.arenas, StepKind::Embed, table)?;
                let mut out = self.buffers.take(*y, n * width(*y));
                for (row, &token) in out[..n * width(*y)].chunks_exact_mut(width(*y)).zip(tokens) {
                    table.dequantize_row(token as usize, row);
                }
                self.buffers.give(*y, out);
            }
            Step::RmsNorm { x, weight, eps, y } => {
                let len = n * width(*x);
                let mut out = self.buffers.take(*y, len);
                let weight = &loaded.vectors[weight.0];
                rms_norm(isa, pool, &self.buffers.f32(*x)[..len], weight, *eps, &mut out[..len]);
                self.buffers.give(*y, out);
            }
            Step::Quantize { x, y } => {
                let (len, cols) = (n * values(*x), width(*x));
                self.buffers.quantize(isa, pool, *x, (len, cols), *y)?;
            }
            Step::Rotate { x, y } => {
                let len = n * values(*x);
                let mut out = self.buffers.take(*y, len);
                out[..len].copy_from_slice(&self.buffers.f32(*x)[..len]);
                rotate(isa, pool, &mut out[..len], width(*x));
                self.buffers.give(*y, out);
            }
            Step::Gemm { weight, bias, x, y } => {
                let weight = view(&loaded.arenas, StepKind::Gemm, weight)?;
                let bias = bias.map(|id| loaded.vectors[id.0].as_slice());
                self.gemm(loaded, &weight, bias, *x, *y, n)?;
            }
            Step::Rope { rotation, heads, layer, q, k, v } => {
                let Heads { query, kv, key_len, .. } = *heads;
                let style = match loaded.program.rotations[*rotation].pairs {
                    RopeType::Norm => RopeStyle::Norm,
                    RopeType::Neox | RopeType::Imrope => RopeStyle::Neox,
                };
                let angles = &self.angles[*rotation];
                let qkv = self.buffers.f32_mut(q.buffer);
                let stride = width(q.buffer);
                let at = |heads| RopeHeads { stride, heads, head_stride: key_len, start: 0 };
                rope(style, angles, false, &mut qkv[q.start..], at(query));
                rope(style, angles, false, &mut qkv[k.start..], at(kv));
                self.caches[*layer].write(start, n, &qkv[k.start..], Some(&qkv[v.start..]), stride);
            }
            Step::Attention { heads, layer, q, y } => {
                let len = n * width(*y);
                let mut out = self.buffers.take(*y, len);
                let (cache, from) = (&self.caches[*layer], &self.buffers.f32(q.buffer)[q.start..]);
                let keys = Keys { cache, window: None, chosen: None, more: None, sinks: None };
                let (stride, out_rows) = (width(q.buffer), &mut out[..len]);
                attention(isa, pool, heads.query, heads.scale, &keys, start, from, stride, out_rows);
                self.buffers.give(*y, out);
            }
            Step::SiluMul { x, y } => {
                let (cols, len) = (width(*y), n * values(*y));
                let mut out = self.buffers.take(*y, len);
                silu_mul(isa, pool, &self.buffers.f32(*x)[..2 * len], cols, &mut out[..len]);
                self.buffers.give(*y, out);
            }
            Step::Route { routing, logits, bias, ids, weights } => {
                let (len, bias) = (n * values(*ids), bias.map(|id| loaded.vectors[id.0].as_slice()));
                let mut shares = self.buffers.take(*weights, len);
                let mut chosen = self.buffers.take_ids(*ids, len);
                let logits = &self.buffers.f32(*logits)[..n * values(*logits)];
                let (ids_out, shares_out) = (&mut chosen[..len], &mut shares[..len]);
                route(isa, pool, &kernel_routing(routing), logits, bias, ids_out, shares_out);
                self.buffers.give(*weights, shares);
                self.buffers.give_ids(*ids, chosen);
            }
            Step::Experts { ids, products } => {
                self.experts.products(loaded, &mut self.buffers, *ids, products, n)?;
            }
            Step::Mix { x, weights, y } => {
                let len = n * values(*y);
                let mut out = self.buffers.take(*y, len);
                let outputs = ExpertOutputs {
                    x: &self.buffers.f32(*x)[..n * values(*x)],
                    rows: None,
                    weights: &self.buffers.f32(*weights)[..n * values(*weights)],
                    used: values(*weights),
                    n: width(*x),
                };
                weighted_sum(isa, pool, &outputs, false, &mut out[..len]);
                self.buffers.give(*y, out);
            }
            Step::Add { x, y } => {
                let len = n * width(*y);
                let mut sum = self.buffers.take(*y, len);
                add(isa, &mut sum[..len], &self.buffers.f32(*x)[..len]);
                self.buffers.give(*y, sum);
            }
        }
        Ok(())
    }

    fn gemm(
        &mut self,
        loaded: &Loaded,
        weight: &MatrixView<'_>,
        bias: Option<&[f32]>,
        x: BufferId,
        y: Columns,
        n: usize,
    ) -> Result<()> {
        let width = loaded.program.buffers[y.buffer.0].width;
        // One row, or all columns: the product is one stretch of the buffer.
        let direct = n == 1 || y.len == width;
        let mut out = self.buffers.take(y.buffer, n * width);
        let mut aside = mem::take(&mut self.aside);
        let product = if direct {
            &mut out[y.start..y.start + n * y.len]
        } else {
            aside.resize(n * y.len, 0.0);
            &mut aside[..]
        };
        let input = self.buffers.activations(x, n * weight.cols())?;
        gemm(loaded.isa, &loaded.pool, weight, input, product);
        if let Some(bias) = bias {
            product.chunks_exact_mut(y.len).for_each(|row| add(loaded.isa, row, bias));
        }
        if !direct {
            for (row, from) in out.chunks_exact_mut(width).zip(aside.chunks_exact(y.len)) {
                row[y.start..y.start + y.len].copy_from_slice(from);
            }
        }
        self.aside = aside;
        self.buffers.give(y.buffer, out);
        Ok(())
    }
}

/// The kernel's words for the program's.
fn kernel_routing(r: &Routing) -> kernels::Routing {
    kernels::Routing {
        experts: r.experts,
        used: r.used,
        gating: match r.gating {
            Gating::Softmax => kernels::Gating::Softmax,
            Gating::Sigmoid => kernels::Gating::Sigmoid,
            Gating::SqrtSoftplus => kernels::Gating::SqrtSoftplus,
            Gating::SoftmaxWeight => kernels::Gating::SoftmaxWeight,
        },
        groups: r.groups,
        groups_used: r.groups_used,
        normalize: r.normalize,
        scale: r.scale,
    }
}
