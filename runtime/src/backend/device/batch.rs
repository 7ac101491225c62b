//! What a run works on, as kernels see it: tables of tokens, positions and sequences.

use super::driver::{CardError, Stream};
use super::loaded::Loaded;
use super::sequence::CardSequence;
use super::tables::{Placed, TableId, Tables};
use crate::model::program::{KeptId, Step};
use gantry_kernels::cpu::RopeAngles;
use std::collections::BTreeMap;

/// The tokens of one sequence in a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Their first row.
    pub(super) row: usize,
    /// How many.
    pub(super) tokens: usize,
    /// Position of the first.
    pub(super) start: usize,
}

/// Where a sequence's numbers are: its first row, tokens that are repeated and the position of the first of them, tokens of the
/// run and the position of the first of those.
pub(super) struct UndoSpans {
    pub(super) first: u64,
    pub(super) repeat: u64,
    pub(super) repeat_start: u64,
    pub(super) tokens: u64,
    pub(super) start: u64,
}

/// The tables of a run.
pub(super) struct Batch {
    tables: Tables,
    placed: Placed,
    /// Tokens of the run.
    pub(super) n: usize,
    pub(super) spans: Vec<Span>,
    tokens: TableId,
    positions: TableId,
    slots: TableId,
    span_row: TableId,
    span_tokens: TableId,
    span_start: TableId,
    rows: TableId,
    /// By [`KeptId`]: of each sequence.
    kept: Vec<TableId>,
    /// The same after the run, where tokens of sequences may be taken back.
    kept_after: Vec<TableId>,
    /// Of each sequence then: 0, how many tokens states repeat first, and the position of the first of them.
    repeats: [TableId; 3],
    /// By rotation.
    angles: Vec<TableId>,
    /// Of blocks of positions that become entries, by rotation and positions of a block: cosines and sines of where they
    /// start, of as many for each sequence as any completes.
    blocks: BTreeMap<(usize, usize), (TableId, usize)>,
}

impl Batch {
    pub(super) fn new(loaded: &Loaded) -> Result<Self, CardError> {
        let tables = Tables::default();
        let placed = Placed::new(&tables, &loaded.context, &loaded.aside)?;
        let none = TableId::default();
        Ok(Self {
            tables,
            placed,
            n: 0,
            spans: Vec::new(),
            tokens: none,
            positions: none,
            slots: none,
            span_row: none,
            span_tokens: none,
            span_start: none,
            rows: none,
            kept: Vec::new(),
            kept_after: Vec::new(),
            repeats: [none; 3],
            angles: Vec::new(),
            blocks: BTreeMap::new(),
        })
    }

    /// Brings the tables of a run to the card.
    pub(super) fn set(
        &mut self,
        loaded: &Loaded,
        tokens: &[u32],
        spans: Vec<Span>,
        sequences: &[&mut CardSequence],
        stream: &Stream,
    ) -> Result<(), CardError> {
        let tables = &mut self.tables;
        tables.clear();
        let positions: Vec<u32> =
            spans.iter().flat_map(|s| (s.start..s.start + s.tokens).map(|p| p as u32)).collect();
        let slots = spans.iter().enumerate().flat_map(|(slot, s)| std::iter::repeat_n(slot as u32, s.tokens));
        self.n = tokens.len();
        self.tokens = tables.ints(tokens.iter().copied());
        self.positions = tables.ints(positions.iter().copied());
        self.slots = tables.ints(slots);
        self.span_row = tables.ints(spans.iter().map(|s| s.row as u32));
        self.span_tokens = tables.ints(spans.iter().map(|s| s.tokens as u32));
        self.span_start = tables.ints(spans.iter().map(|s| s.start as u32));
        // Rows that were gathered lie in the order of the tokens.
        let gathered = if loaded.ngrams.is_empty() { 0 } else { self.n as u32 };
        self.rows = tables.ints(0..gathered);
        let kept = (0..loaded.program.kept.len()).map(KeptId);
        self.kept = kept.map(|id| tables.longs(sequences.iter().map(|s| s.at(id)))).collect();
        self.kept_after.clear();
        if sequences.iter().any(|s| s.settings().window > 0) {
            let both = || sequences.iter().zip(&spans);
            let kept = (0..loaded.program.kept.len()).map(KeptId);
            self.kept_after
                .extend(kept.map(|id| tables.longs(both().map(|(s, span)| s.after(id, span.tokens)))));
            let repeat = |s: &CardSequence, span: &Span| span.start.saturating_sub(s.states_at()) as u32;
            self.repeats = [
                tables.ints(both().map(|_| 0)),
                tables.ints(both().map(|(s, span)| repeat(s, span))),
                tables.ints(both().map(|(s, _)| s.states_at() as u32)),
            ];
        }
        let mut angles = RopeAngles::default();
        self.angles = Vec::with_capacity(loaded.angles.len());
        for table in &loaded.angles {
            table.angles(&positions, &mut angles);
            self.angles.push(self.tables.floats(angles.turns().flat_map(|(cos, sin)| [cos, sin])));
        }
        self.blocks.clear();
        for step in &loaded.program.body {
            let Step::Compress { rotation, ratio, .. } = step else { continue };
            if self.blocks.contains_key(&(*rotation, *ratio)) {
                continue;
            }
            let blocks_of = |s: &Span| s.start / ratio..(s.start + s.tokens) / ratio;
            let most = spans.iter().map(|s| blocks_of(s).len()).max().unwrap_or(0);
            let starts =
                spans.iter().flat_map(|s| (s.start / ratio..).take(most).map(|b| (b * ratio) as u32));
            loaded.angles[*rotation].angles(&starts.collect::<Vec<_>>(), &mut angles);
            let table = self.tables.floats(angles.turns().flat_map(|(cos, sin)| [cos, sin]));
            self.blocks.insert((*rotation, *ratio), (table, most));
        }
        self.spans = spans;
        self.placed.replace(&self.tables, stream)
    }

    /// Where the tables are.
    pub(super) fn address(&self) -> u64 {
        self.placed.at(TableId::default())
    }

    pub(super) fn tokens(&self) -> u64 {
        self.placed.at(self.tokens)
    }

    pub(super) fn positions(&self) -> u64 {
        self.placed.at(self.positions)
    }

    /// Of each token, its sequence.
    pub(super) fn slots(&self) -> u64 {
        self.placed.at(self.slots)
    }

    /// By sequence: first row, tokens, position of the first.
    pub(super) fn spans(&self) -> [u64; 3] {
        [self.span_row, self.span_tokens, self.span_start].map(|id| self.placed.at(id))
    }

    /// The number of each token's row, where rows of n-gram tables are gathered.
    pub(super) fn rows(&self) -> u64 {
        self.placed.at(self.rows)
    }

    /// Of each sequence, where something is kept.
    pub(super) fn kept(&self, id: KeptId) -> u64 {
        self.placed.at(self.kept[id.0])
    }

    /// The same, where a run leaves it; for sequences with a window.
    pub(super) fn kept_after(&self, id: KeptId) -> u64 {
        self.kept_after.get(id.0).map_or(0, |table| self.placed.at(*table))
    }

    /// What a delta net is told of the sequence `slot`, which has a window, where its tokens are counted from its own first.
    pub(super) fn undo_spans(&self, slot: usize) -> UndoSpans {
        let at = |table: TableId| self.placed.at(table) + slot as u64 * 4;
        let [first, repeat, repeat_start] = self.repeats.map(at);
        UndoSpans { first, repeat, repeat_start, tokens: at(self.span_tokens), start: at(self.span_start) }
    }

    /// Cosines and sines of where blocks of positions start, and how many there are for each sequence.
    pub(super) fn blocks(&self, rotation: usize, ratio: usize) -> (u64, usize) {
        let found = self.blocks.get(&(rotation, ratio));
        found.map_or((0, 0), |(table, count)| (self.placed.at(*table), *count))
    }

    /// Cosines and sines of the tokens' positions.
    pub(super) fn angles(&self, rotation: usize) -> u64 {
        self.placed.at(self.angles[rotation])
    }
}
