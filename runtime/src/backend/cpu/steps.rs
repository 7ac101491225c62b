//! Steps, one by one.

use super::workspace::{Batch, Walker};
use super::{Loaded, attend, shapes, view};
use crate::Result;
use crate::model::program::{BufferId, Columns, Pieces, Step, StepKind};
use gantry_kernels::cpu::{
    self as kernels, ExpertOutputs, MatrixView, RopeHeads, Sinkhorn, Streams, add, copy_pieces, gate_pieces,
    gemm, layer_norm, ngram_gate, rms_norm_pieces, rope, rotate, route, route_given, silu_mul, silu_scaled,
    sinkhorn_head, sinkhorn_read, sinkhorn_write, stream_mix, stream_norm, stream_write, weighted_sum,
};
use std::mem;

impl Walker {
    /// Runs one step for the tokens of `batch`.
    pub(super) fn step(&mut self, loaded: &Loaded, step: &Step, batch: &mut Batch<'_, '_>) -> Result<()> {
        let (isa, pool) = (loaded.isa, &*loaded.pool);
        let values = |id: BufferId| loaded.program.values(id);
        let width = |id: BufferId| loaded.program.buffers[id.0].width;
        let rows = |id: BufferId| loaded.program.buffers[id.0].rows;
        let vector = |id: crate::model::program::VectorId| loaded.vectors[id.0].as_slice();
        let pieces = |p: &Pieces| kernels::Pieces {
            row: values(p.buffer),
            start: p.start,
            count: p.count,
            len: p.len,
            stride: p.stride,
        };
        let streams = |id: BufferId| Streams { count: rows(id), len: width(id) };
        let n = batch.tokens.len();
        match step {
            Step::Begin(_) => {}
            Step::Embed { table, y } => {
                let table = view(loaded, StepKind::Embed, table)?;
                let (width, rows) = (width(*y), rows(*y));
                let mut out = self.buffers.take(*y, n * values(*y));
                for (row, &token) in out.chunks_exact_mut(rows * width).zip(batch.tokens) {
                    let (first, others) = row.split_at_mut(width);
                    table.dequantize_row(token as usize, first);
                    others.chunks_exact_mut(width).for_each(|other| other.copy_from_slice(first));
                }
                self.buffers.give(*y, out);
            }
            Step::Ngram { table, hash, y } => self.ngram(loaded, table, *hash, *y, batch)?,
            Step::RmsNorm { x, weight, eps, y } => {
                let (len, weight) = (n * values(y.buffer), weight.map(vector));
                let mut out = self.buffers.take(y.buffer, len);
                let from = (x.buffer != y.buffer).then(|| (self.buffers.f32(x.buffer), pieces(x)));
                rms_norm_pieces(isa, pool, n, from, weight, *eps, &mut out[..len], pieces(y));
                self.buffers.give(y.buffer, out);
            }
            Step::LayerNorm { x, weight, bias, eps, y } => {
                let len = n * values(*y);
                let mut out = self.buffers.take(*y, len);
                let x = &self.buffers.f32(*x)[..len];
                layer_norm(isa, pool, x, vector(*weight), vector(*bias), *eps, &mut out[..len]);
                self.buffers.give(*y, out);
            }
            Step::Quantize { x, y } => {
                self.buffers.quantize(isa, pool, *x, (n * values(*x), width(*y)), *y)?;
            }
            Step::Rotate { x, y } => {
                let len = n * values(*x);
                let mut out = self.buffers.take(*y, len);
                out[..len].copy_from_slice(&self.buffers.f32(*x)[..len]);
                rotate(isa, pool, &mut out[..len], width(*y));
                self.buffers.give(*y, out);
            }
            Step::Gemm { weight, scale, bias, x, y } => {
                let weight = view(loaded, StepKind::Gemm, weight)?;
                self.gemm(loaded, &weight, [scale.map(vector), bias.map(vector)], *x, *y, n)?;
            }
            Step::Rope { rotation, x, start, inverse } => {
                let style = attend::style(loaded.program.rotations[*rotation].pairs);
                let at = RopeHeads {
                    stride: values(x.buffer),
                    heads: x.count,
                    head_stride: x.stride,
                    start: *start,
                };
                let rows = &mut self.buffers.f32_mut(x.buffer)[x.start..];
                rope(style, &self.angles[*rotation], *inverse, rows, at);
            }
            Step::Store { .. } | Step::Attention { .. } | Step::Compress { .. } | Step::Select { .. } => {
                self.look_back(loaded, step, batch)?;
            }
            Step::Conv { .. } | Step::DeltaNet { .. } => self.recur(loaded, step, batch)?,
            Step::Copy { x, y } => {
                let len = n * values(y.buffer);
                let mut out = self.buffers.take(y.buffer, len);
                copy_pieces(isa, pool, n, self.buffers.f32(x.buffer), pieces(x), &mut out[..len], pieces(y));
                self.buffers.give(y.buffer, out);
            }
            Step::Gate { act, gate, y } => {
                let len = n * values(y.buffer);
                let mut out = self.buffers.take(y.buffer, len);
                let (act, from) = (shapes::gate(*act), self.buffers.f32(gate.buffer));
                gate_pieces(isa, pool, n, act, from, pieces(gate), &mut out[..len], pieces(y));
                self.buffers.give(y.buffer, out);
            }
            Step::SiluMul { x, clamp, y } => {
                let (cols, len) = (width(*y), n * values(*y));
                let mut out = self.buffers.take(*y, len);
                let limit = clamp.map(|c| c.limit);
                silu_mul(isa, pool, &self.buffers.f32(*x)[..2 * len], cols, limit, &mut out[..len]);
                self.buffers.give(*y, out);
            }
            Step::SiluScaled { x, scale } => {
                let len = n * values(*x);
                silu_scaled(isa, pool, &mut self.buffers.f32_mut(*x)[..len], *scale);
            }
            Step::StreamNorm { write, x, gamma, eps, y } => {
                let len = n * values(*x);
                let (mut all, mut out) = (self.buffers.take(*x, len), self.buffers.take(*y, len));
                let write = write.map(|w| kernels::StreamWrite {
                    add: &self.buffers.f32(w.add)[..n * values(w.add)],
                    inject: Some((self.buffers.f32(w.inject), values(w.inject))),
                });
                let (gamma, s) = (vector(*gamma), streams(*x));
                stream_norm(isa, pool, s, write, &mut all[..len], gamma, *eps, &mut out[..len]);
                self.buffers.give(*x, all);
                self.buffers.give(*y, out);
            }
            Step::StreamWrite { write, x } => {
                let len = n * values(*x);
                let mut all = self.buffers.take(*x, len);
                let add = &self.buffers.f32(write.add)[..n * values(write.add)];
                let inject = Some((self.buffers.f32(write.inject), values(write.inject)));
                stream_write(isa, pool, streams(*x), &mut all[..len], add, inject);
                self.buffers.give(*x, all);
            }
            Step::StreamMix { x, gates, y } => {
                let (len, wide) = (n * values(*y), n * values(*x));
                let mut out = self.buffers.take(*y, len);
                let s = Streams { count: values(*x) / values(*y), len: values(*y) };
                let (x, gates) = (&self.buffers.f32(*x)[..wide], &self.buffers.f32(*gates)[..wide]);
                stream_mix(isa, pool, s, x, gates, &mut out[..len]);
                self.buffers.give(*y, out);
            }
            Step::SinkhornRead { hyper, x, mixes, scale, base, y, post, comb } => {
                let s = Sinkhorn { streams: streams(*x), eps: hyper.eps, iterations: hyper.iterations };
                let lens = [*y, *post, *comb].map(|id| n * values(id));
                let [mut out, mut posts, mut combs] =
                    [0, 1, 2].map(|i| self.buffers.take([*y, *post, *comb][i], lens[i]));
                let all = &self.buffers.f32(*x)[..n * values(*x)];
                let logits = &self.buffers.f32(*mixes)[..n * values(*mixes)];
                let (scale, base) = (vector(*scale), vector(*base));
                let (o, p, c) = (&mut out[..lens[0]], &mut posts[..lens[1]], &mut combs[..lens[2]]);
                sinkhorn_read(isa, pool, &s, all, logits, scale, base, o, p, c);
                self.buffers.give(*y, out);
                self.buffers.give(*post, posts);
                self.buffers.give(*comb, combs);
            }
            Step::SinkhornWrite { x, add, post, comb } => {
                let len = n * values(*x);
                let mut all = self.buffers.take(*x, len);
                let [add, post, comb] =
                    [*add, *post, *comb].map(|id| &self.buffers.f32(id)[..n * values(id)]);
                sinkhorn_write(isa, pool, streams(*x), &mut all[..len], add, post, comb);
                self.buffers.give(*x, all);
            }
            Step::SinkhornHead { hyper, x, mixes, scale, base, y } => {
                let s = Sinkhorn { streams: streams(*x), eps: hyper.eps, iterations: hyper.iterations };
                let len = n * values(*y);
                let mut out = self.buffers.take(*y, len);
                let [all, logits] = [*x, *mixes].map(|id| &self.buffers.f32(id)[..n * values(id)]);
                let (scale, base) = (vector(*scale), vector(*base));
                sinkhorn_head(isa, pool, &s, all, logits, scale, base, &mut out[..len]);
                self.buffers.give(*y, out);
            }
            Step::NgramGate { key, query, value, y } => {
                let len = n * values(*y);
                let mut out = self.buffers.take(*y, len);
                let [key, query, value] =
                    [*key, *query, *value].map(|id| &self.buffers.f32(id)[..n * values(id)]);
                ngram_gate(isa, pool, streams(*y), key, query, value, &mut out[..len]);
                self.buffers.give(*y, out);
            }
            Step::Route { routing, layer, logits, bias, given, ids, weights } => {
                let len = n * values(*ids);
                let mut shares = self.buffers.take(*weights, len);
                let mut chosen = self.buffers.take_ids(*ids, len);
                let logits = &self.buffers.f32(*logits)[..n * values(*logits)];
                let (ids_out, shares_out) = (&mut chosen[..len], &mut shares[..len]);
                let routing = shapes::routing(routing);
                match given {
                    Some(table) => {
                        loaded.given(table, batch.tokens, routing.experts, ids_out)?;
                        route_given(isa, pool, &routing, logits, ids_out, shares_out);
                    }
                    None => route(isa, pool, &routing, logits, bias.map(vector), ids_out, shares_out),
                }
                loaded.count(*layer, ids_out);
                self.buffers.give(*weights, shares);
                self.buffers.give_ids(*ids, chosen);
            }
            Step::Experts { only, ids, products } => {
                let Self { experts, buffers, positions, .. } = self;
                experts.products(loaded, buffers, *only, *ids, products, &positions[..n])?;
            }
            Step::Send { .. } | Step::Receive { .. } | Step::Return { .. } | Step::Collect { .. } => {
                self.exchange(loaded, step, n)?;
            }
            Step::Mix { x, weights, y } => {
                let len = n * values(*y);
                let mut out = self.buffers.take(*y, len);
                let outputs = ExpertOutputs {
                    x: &self.buffers.f32(*x)[..n * values(*x)],
                    weights: &self.buffers.f32(*weights)[..n * values(*weights)],
                    used: values(*weights),
                    n: width(*x),
                };
                weighted_sum(isa, pool, &outputs, &mut out[..len]);
                self.buffers.give(*y, out);
            }
            Step::Add { x, y } => {
                let len = n * values(*y);
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
        [scale, bias]: [Option<&[f32]>; 2],
        x: BufferId,
        y: Columns,
        n: usize,
    ) -> Result<()> {
        let width = loaded.program.values(y.buffer);
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
        if let Some(&[scale]) = scale {
            product.iter_mut().for_each(|y| *y *= scale);
        }
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
