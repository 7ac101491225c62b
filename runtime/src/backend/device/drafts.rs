//! The block that drafts tokens (see [`speculate`](crate::speculate)), on one card.
//!
//! It goes on from the trunk's streams of the token before, which the sequence carries. A window is verified as a batch of
//! up to [`FEW`](super::plan::FEW) tokens, which have the bits that they have alone.

use super::batch::Span;
use super::kernels::{Args, groups};
use super::parts::List;
use super::sequence::CardSequence;
use super::steps::EACH;
use super::workspace::CardWorkspace;
use crate::backend::Wanted;
use crate::model::program::Draft;
use crate::sample::Deciding;
use crate::{Result, RuntimeError};
use std::sync::Arc;

fn no_draft() -> RuntimeError {
    RuntimeError::Setting("this model has no block that drafts tokens, or was loaded without a window".into())
}

impl CardWorkspace {
    /// Copies `values` floats on the card.
    pub(super) fn copy(&self, from: u64, to: u64, values: usize) -> Result<()> {
        let args = Args::at(&[from, to]).long(&[values, 0, 0, values, 0, 0]).int(&[1, 1, values]);
        self.runner.launch(&self.loaded, "gantry_copy", [groups(values, EACH), 1, 1], &args)
    }

    /// Lets the block that drafts take in `tokens`, which follow what the sequence carries and the trunk's streams in the
    /// residual from row `span.row` on; the last of those is carried then.
    pub(super) fn keep_up(&mut self, sequence: &mut CardSequence, span: Span, tokens: &[u32]) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let program = &loaded.program;
        let draft = program.draft.as_ref().ok_or_else(no_draft)?;
        let (width, n) = (program.values(program.residual), tokens.len());
        if n == 0 {
            return Ok(());
        }
        let bytes = |rows: usize| (rows * width * 4) as u64;
        let trunk = self.runner.buffers.at(program.residual) + bytes(span.row);
        // The token at `start` follows what is carried; the first of a sequence follows nothing.
        let skipped = usize::from(span.start == 0);
        if n > skipped {
            let hidden = self.runner.buffers.at(draft.hidden);
            let carried = 1 - skipped;
            if carried == 1 {
                self.copy(sequence.carried(&self.runner.stream)?.ok_or_else(no_draft)?, hidden, width)?;
            }
            if n > 1 {
                self.copy(trunk, hidden + bytes(carried), (n - 1) * width)?;
            }
            self.run_draft(draft, sequence, &tokens[skipped..], span.start + skipped - 1, List::KeepUp)?;
        }
        let carry = sequence.carry().ok_or_else(no_draft)?;
        self.copy(trunk + bytes(n - 1), carry, width)
    }

    /// The body of the block for `tokens` from position `start` on, whose streams wait; with its head where `list` says so.
    fn run_draft(
        &mut self,
        draft: &Draft,
        sequence: &mut CardSequence,
        tokens: &[u32],
        start: usize,
        list: List,
    ) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let spans = vec![Span { row: 0, tokens: tokens.len(), start }];
        let sequences = [sequence];
        self.batch.set(&loaded, tokens, spans.clone(), &sequences, &self.runner.stream)?;
        let wanted = if list == List::Draft { Wanted::Last } else { Wanted::None };
        if let Some(shape) = self.shape(list, (&spans, &[wanted]), &sequences, Deciding::All) {
            return self.replay(shape, &sequences);
        }
        self.walk(&draft.body, &sequences, tokens.len())?;
        if list == List::Draft { self.draft_head(draft) } else { Ok(()) }
    }

    /// The token that the block's first row proposes, on the card.
    pub(super) fn draft_head(&mut self, draft: &Draft) -> Result<()> {
        let program = &self.loaded.program;
        let to = self.runner.buffers.at(program.chosen);
        self.copy(self.runner.buffers.at(draft.residual), to, program.values(program.residual))?;
        self.walk(&draft.head, &[], 1)?;
        let loaded = Arc::clone(&self.loaded);
        self.choice.give(&self.runner, &loaded, Deciding::Highest)
    }

    /// [`Workspace::draft`](crate::backend::Workspace::draft).
    pub(super) fn propose(&mut self, sequence: &mut CardSequence, token: u32, step: usize) -> Result<u32> {
        let loaded = Arc::clone(&self.loaded);
        let program = &loaded.program;
        let draft = program.draft.as_ref().ok_or_else(no_draft)?;
        // Its own streams lie where its body left them, which expects the trunk's elsewhere.
        let from = match step {
            0 => sequence.carried(&self.runner.stream)?.ok_or_else(no_draft)?,
            _ => self.runner.buffers.at(draft.residual),
        };
        self.copy(from, self.runner.buffers.at(draft.hidden), program.values(draft.hidden))?;
        let start = (sequence.tokens.len() + step).saturating_sub(1);
        self.run_draft(draft, sequence, &[token], start, List::Draft)?;
        let best = self.choice.take(&self.runner, program.vocab, Deciding::Highest)?;
        // A draft is only a proposal, whatever its logits are.
        Ok(best.and_then(|best| best.first().map(|(token, _)| *token)).unwrap_or(0))
    }

    /// [`Workspace::accept`](crate::backend::Workspace::accept).
    pub(super) fn take_back(
        &mut self,
        sequence: &mut CardSequence,
        tokens: &[u32],
        kept: usize,
    ) -> Result<()> {
        let long = || RuntimeError::Setting("a draft longer than what a sequence can take back".into());
        let start = sequence.tokens.len().checked_sub(tokens.len()).ok_or_else(long)?;
        if kept > tokens.len() || !sequence.take_back(start + kept) {
            return Err(long());
        }
        self.keep_up(sequence, Span { row: 0, tokens: kept, start }, &tokens[..kept])?;
        Ok(self.runner.stream.synchronize()?)
    }
}
