//! Delta nets of sequences that may take tokens back.
//!
//! A delta net's state takes a token in and has no way back. So a run of up to `window` tokens writes its states elsewhere,
//! and leaves with the sequence what the tokens brought; the next run first repeats those that stayed. What comes out has
//! the same bits: tokens go through the same kernel, one after another, from the same state.

use super::batch::Span;
use super::kernels::{Args, groups};
use super::loaded::wrong;
use super::sequence::CardSequence;
use super::steps::{Around, EACH, Runner};
use crate::Result;
use crate::model::program::{DeltaShape, KeyHeads, Pieces, Step};

/// Columns of a state that a group has: `DELTA_COLUMNS` of `kernels/device/delta.c`.
const COLUMNS: usize = 32;

/// Where a sequence has what a run of tokens that may be taken back leaves: first bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undo {
    /// The states after it.
    pub(super) copy: u64,
    /// Queries and keys of its tokens, as `gantry_delta_prepare` gives them.
    pub(super) qk: u64,
    /// Their gates, by the same.
    pub(super) gates: u64,
    /// What it took, for their values.
    pub(super) qkv: u64,
}

impl Undo {
    /// One for `window` tokens, whose parts lie where `place` puts so many bytes.
    pub(super) fn new(shape: DeltaShape, window: usize, mut place: impl FnMut(u64) -> u64) -> Self {
        let DeltaShape { key_heads, value_heads, dim, .. } = shape;
        let floats = |of: &[usize]| of.iter().fold(4, |n, m| u64::saturating_mul(n, *m as u64));
        Self {
            copy: place(floats(&[value_heads, dim, dim])),
            qk: place(floats(&[window, 2 * key_heads, dim])),
            gates: place(floats(&[window, 2, value_heads])),
            qkv: place(floats(&[window, 2 * key_heads + value_heads, dim])),
        }
    }

    /// The same from another first byte on.
    pub(super) fn from(self, first: u64) -> Self {
        let Self { copy, qk, gates, qkv } = self;
        Self { copy: first + copy, qk: first + qk, gates: first + gates, qkv: first + qkv }
    }
}

/// Bytes of the output of `window` tokens of a delta net.
pub(super) fn output_bytes(shape: DeltaShape, window: usize) -> u64 {
    [shape.value_heads, shape.dim].iter().fold(4 * window as u64, |n, m| n.saturating_mul(*m as u64))
}

impl Runner {
    /// A delta net for sequences with a window.
    pub(super) fn delta_undoable(&self, around: &Around<'_, '_>, step: &Step) -> Result<()> {
        let each = around.batch.spans.iter().zip(around.sequences).enumerate();
        each.filter(|(_, (span, _))| span.tokens > 0)
            .try_for_each(|(slot, (span, sequence))| self.delta_of(around, step, (slot, span, sequence)))
    }

    fn delta_of(
        &self,
        around: &Around<'_, '_>,
        step: &Step,
        (slot, span, sequence): (usize, &Span, &CardSequence),
    ) -> Result<()> {
        let Step::DeltaNet { shape, state, decay, dt, qkv, alpha, beta, y } = step else {
            return Err(wrong("program", "another step in place of a delta net".into()));
        };
        let undo =
            sequence.undo(*state).ok_or_else(|| wrong("program", "a state without a window".into()))?;
        let (loaded, batch) = (around.loaded, around.batch);
        let DeltaShape { key_heads, value_heads, dim, keys, eps } = *shape;
        let values = |id| loaded.program.values(id);
        let row = |id| self.buffers.at(id) + (span.row * values(id) * 4) as u64;
        let grouped = usize::from(keys == KeyHeads::Grouped);
        let net = |from: [u64; 3], states: [u64; 2], spans: [u64; 3], y: u64| {
            let [qk, gates, qkv] = from;
            let [before, after] = states;
            let [first, tokens, start] = spans;
            let addresses = [qk, gates, qkv, 0, before, after, first, tokens, start, y];
            let args = Args::at(&addresses).int(&[key_heads, value_heads, dim, grouped]);
            self.launch(loaded, "gantry_delta_net", [groups(dim, COLUMNS), value_heads, 1], &args)
        };
        let slots = batch.undo_spans(slot);
        let (kept, after) =
            (batch.kept(*state) + slot as u64 * 8, batch.kept_after(*state) + slot as u64 * 8);
        // Its output is nobody's: there may be more of these tokens than of those that come.
        let repeated = [slots.first, slots.repeat, slots.repeat_start];
        net([undo.qk, undo.gates, undo.qkv], [kept, kept], repeated, self.partial.address())?;

        let few = span.tokens <= sequence.settings().window;
        let (qk, gates) = match few {
            true => (undo.qk, undo.gates),
            false => {
                let qk = self.partial.address();
                let bytes = span.tokens as u64 * 2 * key_heads as u64 * dim as u64 * 4;
                (qk, qk + bytes.next_multiple_of(256))
            }
        };
        let logits = |p: &Pieces| [values(p.buffer), p.start, p.stride];
        let addresses = [
            row(*qkv),
            row(beta.buffer),
            row(alpha.buffer),
            loaded.vector(Some(*decay)),
            loaded.vector(Some(*dt)),
            qk,
            gates,
        ];
        let args = Args::at(&addresses).long(&logits(beta)).long(&logits(alpha));
        let args = args.int(&[key_heads, value_heads, dim, beta.len, alpha.len]).float(eps);
        self.launch(loaded, "gantry_delta_prepare", [2 * key_heads + 1, span.tokens, 1], &args)?;
        if few {
            let all = span.tokens * values(*qkv);
            let args = Args::at(&[row(*qkv), undo.qkv]).long(&[all, 0, 0, all, 0, 0]).int(&[1, 1, all]);
            self.launch(loaded, "gantry_copy", [groups(all, EACH), 1, 1], &args)?;
        }
        net([qk, gates, row(*qkv)], [kept, after], [slots.first, slots.tokens, slots.start], row(*y))
    }
}
