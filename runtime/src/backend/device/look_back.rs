//! Steps that look back: caches and attention, convolutions, delta nets.

use super::attend;
use super::batch::Span;
use super::driver::Family;
use super::kernels::{Args, groups};
use super::loaded::wrong;
use super::sequence::kept_type;
use super::steps::{Around, EACH, Runner};
use super::undo;
use crate::backend::{KvType, Settings, no_int8_entries};
use crate::model::program::{CacheShape, DeltaShape, Kept, KeptId, KeyHeads, Pieces, Pool, Program, Step};
use crate::{Result, RuntimeError};
use gantry_formats::arch::RopeType;

/// Entries that a group scores.
const ENTRIES: usize = 32;

pub(super) fn cache_of(program: &Program, id: KeptId) -> Result<CacheShape> {
    match program.kept.get(id.0) {
        Some(Kept::Cache(shape)) => Ok(*shape),
        _ => Err(wrong("program", "a step reads something kept of another kind".into())),
    }
}

/// Bytes of partial results of a step for batches of `tokens`.
pub(super) fn partial_bytes(
    step: &Step,
    program: &Program,
    settings: &Settings,
    (tokens, family): (usize, Family),
) -> u64 {
    let floats = match step {
        Step::Attention { .. } => return attend::partial_bytes(step, program, settings, (tokens, family)),
        Step::DeltaNet { shape, .. } => {
            // What tokens that are repeated bring forth goes there too.
            let repeated = undo::output_bytes(*shape, settings.window);
            let floats = 2 * shape.key_heads * shape.dim + 2 * shape.value_heads;
            return (floats as u64).saturating_mul(4 * tokens as u64).saturating_add(512).max(repeated);
        }
        Step::Select { selection, .. } => settings.context / selection.ratio + 1,
        _ => 0,
    };
    (floats as u64).saturating_mul(tokens as u64).saturating_mul(4).saturating_add(512)
}

impl Runner {
    pub(super) fn look_back(&self, around: &Around<'_, '_>, step: &Step, n: usize) -> Result<()> {
        let (loaded, batch) = (around.loaded, around.batch);
        let program = &loaded.program;
        let Some(sequence) = around.sequences.first() else { return Ok(()) };
        match step {
            Step::Store { cache, keys, values } => {
                let shape = cache_of(program, *cache)?;
                let (key_values, value_values) = (keys.len, values.map_or(0, |v| v.len));
                let addresses =
                    [self.buffers.at(keys.buffer), 0, batch.kept(*cache), batch.positions(), batch.slots()];
                let long = [program.values(keys.buffer), keys.start, values.map_or(0, |v| v.start)];
                let args = Args::at(&addresses).long(&long).long(&[sequence.place(*cache).capacity]);
                let args = args.int(&[n, key_values, value_values]);
                let each = [groups(key_values + value_values, EACH), n, 1];
                match kept_type(shape, sequence.settings()) {
                    KvType::F32 => self.launch(loaded, "gantry_store_f32", each, &args),
                    KvType::F16 => self.launch(loaded, "gantry_store_f16", each, &args),
                    KvType::Int8 => {
                        let planes = if shape.shared { 1 } else { 2 };
                        let args = args.int(&[shape.heads]);
                        self.launch(loaded, "gantry_store_i8", [planes * shape.heads, n, 1], &args)
                    }
                }
            }
            Step::Attention { .. } => self.attend(around, step, n),
            Step::Compress { .. } => self.compress(around, step),
            Step::Select { selection, keys, q, weights, ids } => {
                let whole = |s: &Span| s.tokens == 0 || selection.whole(s.start + s.tokens - 1);
                if batch.spans.iter().all(whole) {
                    return Ok(());
                }
                let longest = batch.spans.iter().map(|s| s.start + s.tokens).max().unwrap_or(0);
                let entries = longest / selection.ratio;
                let scores = self.partial.address();
                let addresses = [
                    self.buffers.at(q.buffer),
                    weights.map_or(0, |w| self.buffers.at(w.buffer)),
                    0,
                    batch.kept(*keys),
                    batch.positions(),
                    batch.slots(),
                    scores,
                ];
                let long = [
                    program.values(q.buffer),
                    q.start,
                    weights.map_or(0, |w| program.values(w.buffer)),
                    weights.map_or(0, |w| w.start),
                    sequence.place(*keys).capacity,
                    entries,
                ];
                let args = Args::at(&addresses).long(&long);
                let args = args.int(&[selection.heads, selection.len, selection.ratio]);
                let grid = [groups(entries, ENTRIES), n, 1];
                self.launch(loaded, "gantry_select_scores", grid, &args)?;
                let args = Args::at(&[scores, batch.positions(), self.buffers.at(*ids)]).long(&[entries]);
                let args = args.int(&[selection.top, selection.ratio, selection.expand.into()]);
                self.launch(loaded, "gantry_select", [n, 1, 1], &args)
            }
            _ => Err(unsupported(step)),
        }
    }

    fn compress(&self, around: &Around<'_, '_>, step: &Step) -> Result<()> {
        let Step::Compress { pool, ratio, rows, norm, eps, rotation, start, entries } = step else {
            return Err(unsupported(step));
        };
        let (loaded, batch) = (around.loaded, around.batch);
        let program = &loaded.program;
        let Some(sequence) = around.sequences.first() else { return Ok(()) };
        let shape = cache_of(program, *entries)?;
        let (angles, blocks) = batch.blocks(*rotation, *ratio);
        let [_, span_tokens, span_start] = batch.spans();
        let (scores, ape, overlap) = match pool {
            Pool::Mean => (None, None, false),
            Pool::Softmax { scores, ape, overlap } => (Some(*scores), Some(*ape), *overlap),
        };
        let addresses = [
            0,
            batch.kept(*rows),
            scores.map_or(0, |id| batch.kept(id)),
            loaded.vector(ape),
            loaded.vector(Some(*norm)),
            angles,
            batch.kept(*entries),
            span_tokens,
            span_start,
        ];
        let capacity = |id: KeptId| sequence.place(id).capacity;
        let long = [capacity(*rows), scores.map_or(1, capacity), capacity(*entries)];
        let turned = &program.rotations[*rotation];
        let neox = turned.pairs != RopeType::Norm;
        let int = [*ratio, overlap.into(), shape.key_len, *start, turned.len / 2, neox.into(), blocks];
        let name = match kept_type(shape, sequence.settings()) {
            KvType::F32 => "gantry_compress_f32",
            KvType::F16 => "gantry_compress_f16",
            KvType::Int8 => return Err(no_int8_entries()),
        };
        let args = Args::at(&addresses).long(&long).int(&int).float(*eps);
        self.launch(loaded, name, [blocks, batch.spans.len(), 1], &args)
    }

    pub(super) fn recur(&self, around: &Around<'_, '_>, step: &Step, n: usize) -> Result<()> {
        let (loaded, batch) = (around.loaded, around.batch);
        let program = &loaded.program;
        let Some(sequence) = around.sequences.first() else { return Ok(()) };
        let [span_row, span_tokens, span_start] = batch.spans();
        match step {
            Step::Conv { shape, history, weight, x, silu, y } => {
                let kept = batch.kept(*history);
                let x_at = self.buffers.at(x.buffer);
                let long = [program.values(x.buffer), x.start, sequence.place(*history).capacity];
                let addresses = [
                    x_at,
                    loaded.vector(Some(*weight)),
                    0,
                    kept,
                    batch.positions(),
                    batch.slots(),
                    span_row,
                    self.buffers.at(*y),
                ];
                let single = batch.spans.iter().all(|span| span.tokens <= 1);
                let int = [n, shape.channels, shape.taps, shape.dilation, (*silu).into(), single.into()];
                let grid = [groups(shape.channels, EACH), n, 1];
                self.launch(loaded, "gantry_conv", grid, &Args::at(&addresses).long(&long).int(&int))?;
                if single {
                    return Ok(());
                }
                let addresses = [x_at, 0, kept, batch.positions(), batch.slots(), span_row, span_tokens];
                let args = Args::at(&addresses).long(&long).int(&[n, shape.channels]);
                self.launch(loaded, "gantry_conv_keep", grid, &args)
            }
            Step::DeltaNet { .. } if sequence.settings().window > 0 => self.delta_undoable(around, step),
            Step::DeltaNet { shape, state, decay, dt, qkv, alpha, beta, y } => {
                let DeltaShape { key_heads, value_heads, dim, keys, eps } = *shape;
                let qk = self.partial.address();
                let gates = qk + (n as u64 * 2 * key_heads as u64 * dim as u64 * 4).next_multiple_of(256);
                let qkv = self.buffers.at(*qkv);
                let logits = |p: &Pieces| [program.values(p.buffer), p.start, p.stride];
                let addresses = [
                    qkv,
                    self.buffers.at(beta.buffer),
                    self.buffers.at(alpha.buffer),
                    loaded.vector(Some(*decay)),
                    loaded.vector(Some(*dt)),
                    qk,
                    gates,
                ];
                let args = Args::at(&addresses).long(&logits(beta)).long(&logits(alpha));
                let args = args.int(&[key_heads, value_heads, dim, beta.len, alpha.len]).float(eps);
                self.launch(loaded, "gantry_delta_prepare", [2 * key_heads + 1, n, 1], &args)?;
                let kept = batch.kept(*state);
                let addresses =
                    [qk, gates, qkv, 0, kept, kept, span_row, span_tokens, span_start, self.buffers.at(*y)];
                let grouped = usize::from(keys == KeyHeads::Grouped);
                let args = Args::at(&addresses).int(&[key_heads, value_heads, dim, grouped]);
                let grid = [groups(dim, 32), value_heads, batch.spans.len()];
                self.launch(loaded, "gantry_delta_net", grid, &args)
            }
            _ => Err(unsupported(step)),
        }
    }
}

/// A step that this device has no kernel for: refused before weights are read.
pub(super) fn unsupported(step: &Step) -> RuntimeError {
    RuntimeError::Incompatible(format!(
        "cards have no kernel for the step {}; give --device cpu",
        step.name()
    ))
}
