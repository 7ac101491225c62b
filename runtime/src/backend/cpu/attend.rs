//! Steps that look back: caches, attention, compression, selection.

use super::sequence::{Lent, State};
use super::workspace::{Batch, Span, Walker};
use super::{Loaded, shapes};
use crate::model::program::{
    CacheShape, Chosen, Columns, Entries, Heads, KeptId, Pool, Selection, Step, VectorId,
};
use crate::{Result, RuntimeError};
use gantry_formats::arch::RopeType;
use gantry_kernels::cpu::{
    self as kernels, KvCache, Pieces, Pooling, RopeAngles, RopeHeads, RopeStyle, attention, mean_pool,
    rms_norm_pieces, rope, select, softmax_pool,
};
use std::ops::Range;

/// The fields of [`Step::Compress`].
struct Compression {
    pool: Pool,
    ratio: usize,
    rows: KeptId,
    norm: VectorId,
    eps: f32,
    rotation: usize,
    start: usize,
    entries: KeptId,
}

pub(super) fn style(pairs: RopeType) -> RopeStyle {
    match pairs {
        RopeType::Norm => RopeStyle::Norm,
        RopeType::Neox | RopeType::Imrope => RopeStyle::Neox,
    }
}

fn wrong_state() -> RuntimeError {
    RuntimeError::Tensor {
        tensor: "program".into(),
        what: "a step reads something kept of another kind".into(),
    }
}

/// The cache `id`.
fn cache<'a>(sequence: &'a Lent<'_>, id: KeptId) -> Result<&'a KvCache> {
    match sequence.state(id)? {
        State::Cache(cache, _) => Ok(cache),
        _ => Err(wrong_state()),
    }
}

fn cache_mut<'a>(sequence: &'a mut Lent<'_>, id: KeptId) -> Result<(&'a mut KvCache, CacheShape)> {
    match sequence.state_mut(id)? {
        State::Cache(cache, shape) => Ok((cache, *shape)),
        _ => Err(wrong_state()),
    }
}

impl Walker {
    /// Runs a step that reads or writes what sequences keep of earlier positions.
    pub(super) fn look_back(
        &mut self,
        loaded: &Loaded,
        step: &Step,
        batch: &mut Batch<'_, '_>,
    ) -> Result<()> {
        match step {
            Step::Store { cache, keys, values } => {
                let stride = loaded.program.values(keys.buffer);
                let from = self.buffers.f32(keys.buffer);
                for (span, sequence) in batch.spans.iter().zip(batch.sequences.iter_mut()) {
                    let row = &from[span.row * stride..];
                    let values = values.map(|v| &row[v.start..]);
                    let (cache, _) = cache_mut(sequence, *cache)?;
                    cache.write(span.start, span.tokens, &row[keys.start..], values, stride);
                }
                Ok(())
            }
            Step::Attention { heads, cache, window, chosen, entries, sinks, q, y } => {
                let n = batch.tokens.len();
                let width = loaded.program.values(*y);
                let mut out = self.buffers.take(*y, n * width);
                let sinks = sinks.map(|id| loaded.vectors[id.0].as_slice());
                for (span, sequence) in batch.spans.iter().zip(batch.sequences.iter()) {
                    let out = &mut out[span.row * width..][..span.tokens * width];
                    let seen = Seen { cache: *cache, window: *window, chosen: *chosen, entries: *entries };
                    self.attend(loaded, *heads, seen, sinks, *q, *span, sequence, out)?;
                }
                self.buffers.give(*y, out);
                Ok(())
            }
            &Step::Compress { pool, ratio, rows, norm, eps, rotation, start, entries } => {
                let c = Compression { pool, ratio, rows, norm, eps, rotation, start, entries };
                for (span, sequence) in batch.spans.iter().zip(batch.sequences.iter_mut()) {
                    compress(loaded, &c, *span, sequence)?;
                }
                Ok(())
            }
            Step::Select { selection, keys, q, weights, ids } => {
                let per_token = loaded.program.values(*ids);
                let mut chosen = self.buffers.take_ids(*ids, batch.tokens.len() * per_token);
                for (span, sequence) in batch.spans.iter().zip(batch.sequences.iter()) {
                    if !self::whole(selection, *span) {
                        let out = &mut chosen[span.row * per_token..][..span.tokens * per_token];
                        self.select(loaded, selection, cache(sequence, *keys)?, (*q, *weights), *span, out);
                    }
                }
                self.buffers.give_ids(*ids, chosen);
                Ok(())
            }
            _ => Err(wrong_state()),
        }
    }

    #[allow(clippy::too_many_arguments)] // One span of a step with as many fields.
    fn attend(
        &self,
        loaded: &Loaded,
        heads: Heads,
        seen: Seen,
        sinks: Option<&[f32]>,
        q: Columns,
        span: Span,
        sequence: &Lent<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        let chosen = |c: Option<Chosen>| {
            let c = c.filter(|c| !whole(&c.by, span))?;
            let per_token = c.by.per_token();
            let ids = &self.buffers.ids(c.ids)[span.row * per_token..][..span.tokens * per_token];
            Some(kernels::Chosen { ids, per_token })
        };
        let more = match seen.entries {
            None => None,
            Some(e) => {
                let cache = cache(sequence, e.cache)?;
                Some(kernels::More { cache, ratio: e.ratio, chosen: chosen(e.chosen) })
            }
        };
        let keys = kernels::Keys {
            cache: cache(sequence, seen.cache)?,
            window: seen.window,
            chosen: chosen(seen.chosen),
            more,
            sinks,
        };
        let stride = loaded.program.values(q.buffer);
        let q = &self.buffers.f32(q.buffer)[span.row * stride + q.start..];
        attention(loaded.isa, &loaded.pool, heads.query, heads.scale, &keys, span.start, q, stride, out);
        Ok(())
    }

    fn select(
        &self,
        loaded: &Loaded,
        selection: &Selection,
        keys: &KvCache,
        (q, weights): (Columns, Option<Columns>),
        span: Span,
        out: &mut [u32],
    ) {
        let row = |c: Columns| {
            let stride = loaded.program.values(c.buffer);
            (&self.buffers.f32(c.buffer)[span.row * stride + c.start..], stride)
        };
        let entries = (span.start + span.tokens) / selection.ratio;
        let keys = keys.rows_f32(0..entries);
        let (q, stride) = row(q);
        let shape = shapes::selection(selection);
        select(loaded.isa, &loaded.pool, &shape, keys, span.start, q, stride, weights.map(row), out);
    }
}

/// What a query sees.
#[derive(Clone, Copy)]
struct Seen {
    cache: KeptId,
    window: Option<usize>,
    chosen: Option<Chosen>,
    entries: Option<Entries>,
}

/// Whether all tokens of `span` see everything.
fn whole(by: &Selection, span: Span) -> bool {
    span.tokens == 0 || by.whole(span.start + span.tokens - 1)
}

/// Entries of the blocks that `span` completes.
fn compress(loaded: &Loaded, c: &Compression, span: Span, sequence: &mut Lent<'_>) -> Result<()> {
    let blocks = span.start / c.ratio..(span.start + span.tokens) / c.ratio;
    if blocks.is_empty() {
        return Ok(());
    }
    let (isa, pool) = (loaded.isa, &*loaded.pool);
    let overlap = matches!(c.pool, Pool::Softmax { overlap: true, .. });
    let first = blocks.start.saturating_sub(usize::from(overlap)) * c.ratio;
    let positions = first..blocks.end * c.ratio;
    let (_, shape) = cache_mut(sequence, c.entries)?;
    let len = shape.key_len;
    let mut entries = vec![0.0; blocks.len() * len];
    {
        let rows = |id: KeptId, positions: Range<usize>| -> Result<kernels::Span<'_>> {
            let State::Cache(cache, shape) = sequence.state(id)? else { return Err(wrong_state()) };
            let first = positions.start;
            Ok(kernels::Span { values: cache.rows_f32(positions), first, width: shape.key_len })
        };
        let values = rows(c.rows, positions.clone())?;
        match c.pool {
            Pool::Mean => mean_pool(isa, pool, c.ratio, blocks.clone(), values, &mut entries),
            Pool::Softmax { scores, ape, overlap } => {
                let (scores, ape) = (rows(scores, positions)?, &loaded.vectors[ape.0]);
                let pooling = Pooling { ratio: c.ratio, overlap, len };
                softmax_pool(isa, pool, &pooling, blocks.clone(), values, scores, ape, &mut entries);
            }
        }
    }
    let each = Pieces { row: len, start: 0, count: 1, len, stride: len };
    let norm = Some(loaded.vectors[c.norm.0].as_slice());
    rms_norm_pieces(isa, pool, blocks.len(), None, norm, c.eps, &mut entries, each);
    let starts: Vec<u32> = blocks.clone().map(|b| (b * c.ratio) as u32).collect();
    let mut angles = RopeAngles::default();
    loaded.tables[c.rotation].angles(&starts, &mut angles);
    let at = RopeHeads { stride: len, heads: 1, head_stride: len, start: c.start };
    rope(style(loaded.program.rotations[c.rotation].pairs), &angles, false, &mut entries, at);
    let (cache, _) = cache_mut(sequence, c.entries)?;
    cache.write(blocks.start, blocks.len(), &entries, None, len);
    Ok(())
}
