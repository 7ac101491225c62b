//! Attention: which kernels take it, and how it is cut into pieces.

use super::driver::Family;
use super::kernels::Args;
use super::look_back::{cache_of, unsupported};
use super::plan::FEW;
use super::registry::{self, Attend};
use super::sequence::kept_type;
use super::steps::{Around, Runner};
use crate::Result;
use crate::backend::{KvType, Settings};
use crate::model::program::{CacheShape, Chosen, Columns, Heads, Kept, Program, Step};
use std::ops::Range;

/// Positions that a group of the portable kernel takes; a token's bits depend on it.
const CHUNK: usize = 256;

/// Longest context: attention is cut into at most 1024 parts.
pub(super) const CONTEXT: usize = 1024 * CHUNK;

/// Query heads of a group of the portable kernel.
const HEADS: usize = 4;

/// Groups that a token's attention is cut into at most where matrix instructions compute it: as many as there are
/// multiprocessors, about. A token's bits depend on it, so it is the same for every card.
const GROUPS: usize = 128;

/// Tokens of one sequence from which on they are computed in tiles, where a batch has more than [`FEW`].
const TILED: usize = 16;
/// Tokens of a tile.
const TILE: usize = 64;

/// Parts that attention to so many positions is cut into: a power of two, so that few lengths differ in it. A part without
/// positions adds nothing.
pub(super) fn splits(seen: usize) -> usize {
    seen.div_ceil(CHUNK).max(1).next_power_of_two()
}

/// Pieces that a token's attention is cut into at most by matrix instructions.
fn pieces(kv_heads: usize) -> usize {
    (GROUPS / kv_heads.max(1)).max(1)
}

/// Matrix instructions for a step. What sees lists of positions or entries has none, even while these leave nothing out: a
/// token must not get other bits because of its company.
fn attend(step: &Step, program: &Program, settings: &Settings, family: Family) -> Option<Attend> {
    let Step::Attention { heads, cache, chosen, entries, q, .. } = step else { return None };
    let Some(Kept::Cache(shape)) = program.kept.get(cache.0) else { return None };
    let plain = chosen.is_none() && entries.is_none() && !shape.shared && heads.key_len == heads.value_len;
    // Queries are read 16 bytes at a time.
    let aligned = program.values(q.buffer).is_multiple_of(4) && q.start.is_multiple_of(4);
    let kind = kept_type(*shape, settings);
    let grouped = heads.query / heads.kv.max(1);
    (plain && aligned).then(|| registry::attend(family, kind, heads.key_len, grouped))?
}

/// Bytes of partial results of a step for batches of `tokens`.
pub(super) fn partial_bytes(
    step: &Step,
    program: &Program,
    settings: &Settings,
    (tokens, family): (usize, Family),
) -> u64 {
    let Step::Attention { heads, window, entries, .. } = step else { return 0 };
    let seen = window.map_or(settings.context, |w| w.min(settings.context));
    let splits = splits(seen + entries.map_or(0, |e| settings.context / e.ratio));
    let (splits, tokens) = match attend(step, program, settings, family) {
        Some(_) => (splits.min(pieces(heads.kv)), tokens.min(FEW)),
        None => (splits, tokens),
    };
    let floats = (heads.query * splits * (2 + heads.value_len)) as u64;
    floats.saturating_mul(tokens as u64).saturating_mul(4).saturating_add(512)
}

/// What the launches of a step have in common.
struct Attention<'a> {
    heads: Heads,
    shape: CacheShape,
    q: Columns,
    /// Values of a row of queries.
    q_row: usize,
    q_at: u64,
    y_at: u64,
    kept: u64,
    sinks: u64,
    capacity: usize,
    window: usize,
    around: &'a Around<'a, 'a>,
}

impl Runner {
    pub(super) fn attend(&self, around: &Around<'_, '_>, step: &Step, n: usize) -> Result<()> {
        let Step::Attention { heads, cache, window, sinks, q, y, .. } = step else {
            return Err(unsupported(step));
        };
        let (loaded, batch) = (around.loaded, around.batch);
        let program = &loaded.program;
        let Some(sequence) = around.sequences.first() else { return Ok(()) };
        let all = Attention {
            heads: *heads,
            shape: cache_of(program, *cache)?,
            q: *q,
            q_row: program.values(q.buffer),
            q_at: self.buffers.at(q.buffer),
            y_at: self.buffers.at(*y),
            kept: batch.kept(*cache),
            sinks: loaded.vector(*sinks),
            capacity: sequence.place(*cache).capacity,
            window: window.unwrap_or(0),
            around,
        };
        let Some(by) = attend(step, program, sequence.settings(), loaded.context.info().at.family) else {
            return self.attend_portably(&all, step, sequence.settings(), n);
        };
        if n <= FEW {
            return self.attend_few(&all, &by, 0..n);
        }
        let mut few = 0..0;
        for (slot, span) in batch.spans.iter().enumerate() {
            let rows = span.row..span.row + span.tokens;
            if span.tokens >= TILED {
                self.attend_tiles(&all, &by, slot)?;
                continue;
            }
            if few.end != rows.start || rows.end - few.start > FEW {
                self.attend_few(&all, &by, few)?;
                few = rows.start..rows.start;
            }
            few.end = rows.end;
        }
        self.attend_few(&all, &by, few)
    }

    /// Some rows, each by itself.
    fn attend_few(&self, all: &Attention<'_>, by: &Attend, rows: Range<usize>) -> Result<()> {
        let (loaded, batch, heads) = (all.around.loaded, all.around.batch, all.heads);
        let n = rows.len();
        // Of all spans, so that few lengths differ in it.
        let longest = batch.spans.iter().map(|s| s.start + s.tokens).max().unwrap_or(0);
        let seen = if all.window > 0 { longest.min(all.window) } else { longest };
        let pieces = pieces(heads.kv);
        let splits = splits(seen).min(pieces);
        let partial = if splits > 1 { self.partial.address() } else { 0 };
        let row = |values: usize| (rows.start * values * 4) as u64;
        let y = all.y_at + row(heads.query * heads.value_len);
        let addresses = [
            all.q_at + row(all.q_row),
            0,
            all.kept,
            batch.positions() + row(1),
            batch.slots() + row(1),
            all.sinks,
            y,
            partial,
        ];
        let args = Args::at(&addresses).long(&[all.q_row, all.q.start, all.capacity]);
        let args = args.int(&[heads.query, heads.kv, all.window, pieces, splits]).float(heads.scale);
        let blocks = heads.kv * (heads.query / heads.kv).div_ceil(by.heads);
        self.launch(loaded, by.few, [n, blocks, splits], &args)?;
        if splits == 1 {
            return Ok(());
        }
        let args = Args::at(&[partial, all.sinks, y]).int(&[heads.query, heads.value_len, splits]);
        self.launch(loaded, "gantry_attend_join", [n, heads.query, heads.value_len / 64], &args)
    }

    /// The tokens of one sequence.
    fn attend_tiles(&self, all: &Attention<'_>, by: &Attend, slot: usize) -> Result<()> {
        let (batch, heads) = (all.around.batch, all.heads);
        let span = batch.spans[slot];
        let args = Args::at(&[all.q_at, 0, all.kept, all.sinks, all.y_at]);
        let args = args.long(&[all.q_row, all.q.start, all.capacity]);
        let int = [span.row, span.tokens, span.start, slot, heads.query, heads.kv, all.window];
        let grid = [span.tokens.div_ceil(TILE), heads.query * by.parts, 1];
        self.launch(all.around.loaded, by.tiles, grid, &args.int(&int).float(heads.scale))
    }

    /// By kernels that take everything.
    fn attend_portably(&self, all: &Attention<'_>, step: &Step, settings: &Settings, n: usize) -> Result<()> {
        let Step::Attention { chosen, entries, .. } = step else { return Err(unsupported(step)) };
        let (loaded, batch, heads) = (all.around.loaded, all.around.batch, all.heads);
        let whole =
            |c: &Chosen| batch.spans.iter().all(|s| s.tokens == 0 || c.by.whole(s.start + s.tokens - 1));
        let ids = |c: &Option<Chosen>| match c.as_ref().filter(|c| !whole(c)) {
            Some(c) => (self.buffers.at(c.ids), c.by.per_token()),
            None => (0, 0),
        };
        let Some(sequence) = all.around.sequences.first() else { return Ok(()) };
        let (own, per_token) = ids(chosen);
        let (more, entry_per_token) = entries.map_or((0, 0), |e| ids(&e.chosen));
        let entry_kept = entries.map_or(0, |e| batch.kept(e.cache));
        let entry_capacity = entries.map_or(1, |e| sequence.place(e.cache).capacity);
        let ratio = entries.map_or(1, |e| e.ratio);
        let longest = batch.spans.iter().map(|s| s.start + s.tokens).max().unwrap_or(0);
        let positions = match (own, all.window) {
            (0, 0) => longest,
            (0, w) => longest.min(w),
            _ => per_token.min(longest),
        };
        let splits = splits(positions + if entries.is_some() { longest / ratio } else { 0 });
        let partial = if splits > 1 { self.partial.address() } else { 0 };
        let addresses = [
            all.q_at,
            0,
            all.kept,
            entry_kept,
            batch.positions(),
            batch.slots(),
            own,
            more,
            all.sinks,
            all.y_at,
            partial,
        ];
        let int = [
            heads.query,
            heads.kv,
            heads.key_len,
            heads.value_len,
            all.shape.shared.into(),
            all.window,
            per_token,
            entry_per_token,
            ratio,
            CHUNK,
            splits,
        ];
        let args = Args::at(&addresses).long(&[all.q_row, all.q.start, all.capacity, entry_capacity]);
        let args = args.int(&int).float(heads.scale);
        let name = match kept_type(all.shape, settings) {
            KvType::F32 => "gantry_attention_f32",
            KvType::F16 => "gantry_attention_f16",
            KvType::Int8 => "gantry_attention_i8",
        };
        let blocks = heads.kv * (heads.query / heads.kv).div_ceil(HEADS);
        self.launch(loaded, name, [n, blocks, splits], &args)?;
        if splits == 1 {
            return Ok(());
        }
        let addresses = [partial, all.sinks, all.y_at];
        let args = Args::at(&addresses).int(&[heads.query, heads.value_len, splits]);
        self.launch(loaded, "gantry_attention_combine", [n, heads.query, 1], &args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// As `piece_of` in the kernels cuts what a token sees.
    fn piece_of(seen: usize, pieces: usize) -> usize {
        seen.div_ceil(pieces).next_multiple_of(CHUNK)
    }

    #[test]
    fn pieces_cover_what_tokens_see() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/cuda/attention.cuh");
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.contains(&format!("constexpr uint LEAST = {CHUNK};")));
        assert!(text.contains("return (each + LEAST - 1) / LEAST * LEAST;"));
        for kv_heads in [1, 2, 3, 4, 8, 40, 128, 200] {
            let pieces = pieces(kv_heads);
            // As many as join has room for.
            assert!((1..=256).contains(&pieces));
            for seen in (1..70_000).step_by(97).chain([256, 257, 512, 513, 32_768, CONTEXT]) {
                let splits = splits(seen).min(pieces);
                assert!(splits * piece_of(seen, pieces) >= seen, "{seen} over {kv_heads} heads in {splits}");
            }
        }
    }

    #[test]
    fn a_window_has_as_many_parts_for_all_lengths_that_are_recorded_as_one() {
        for window in [1, 100, 256, 300, 700, 5000] {
            let mut known = std::collections::BTreeMap::new();
            for longest in 1..10_000 {
                let own = splits(window.min(longest));
                assert_eq!(*known.entry(splits(longest)).or_insert(own), own, "{longest}, window {window}");
            }
        }
    }
}
