//! The cards of this machine: runs the lists of a program on all of them at once.
//!
//! The first card that has something to do works on the thread that asks, every other on a thread of its own for the
//! time of a run, each with its own pool, buffers and share of what sequences keep. They exchange rows through
//! [`Links`] only.

use super::links::Links;
use super::sequence::CpuSequence;
use super::workspace::{Batch, Span, Walker};
use super::{HEAD_ROWS, Loaded};
use crate::backend::{self, RunOptions, Sequence, Workspace};
use crate::exchange::{ExchangeError, State};
use crate::model::program::{BufferId, Draft, Part, Split};
use crate::sample::greedy;
use crate::{Result, RuntimeError};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Working memory of runs on this device: that of each card.
pub(super) struct Cards {
    loaded: Arc<Loaded>,
    walkers: Vec<Walker>,
    run: RunOptions,
}

impl Cards {
    pub(super) fn new(cards: &[Arc<Loaded>], run: RunOptions) -> Self {
        let walkers = cards.iter().map(|card| Walker::new(Arc::clone(card))).collect();
        Self { loaded: Arc::clone(&cards[0]), walkers, run }
    }

    /// Runs all lists of `split`.
    fn walk(
        &mut self,
        split: &Split,
        tokens: &[u32],
        spans: &[Span],
        sequences: &mut [&mut CpuSequence],
    ) -> Result<()> {
        let busy = |lists: &[Vec<_>]| lists.iter().filter(|list| !list.is_empty()).count();
        let several = busy(&split.lists) > 1;
        if several {
            self.link(tokens.len())?;
        }
        let count = self.walkers.len();
        let mut lent: Vec<Vec<_>> = (0..count).map(|_| Vec::with_capacity(sequences.len())).collect();
        for sequence in sequences {
            let each = sequence.lend(&self.loaded.cards.kept, count);
            lent.iter_mut().zip(each).for_each(|(all, one)| all.push(one));
        }
        let jobs = self.walkers.iter_mut().zip(&split.lists).zip(lent);
        let mut jobs = jobs.filter(|((_, list), _)| !list.is_empty());
        let run = |((walker, list), mut sequences): ((&mut Walker, &Vec<_>), Vec<_>)| {
            let card = walker.loaded.card;
            // Where this card fails, those that wait for it must not.
            let links = walker.links.clone().filter(|_| several);
            let mut alarm = Alarm { links, card };
            walker.walk(list, &mut Batch { tokens, spans, sequences: &mut sequences })?;
            alarm.links = None;
            Ok(())
        };
        let Some(first) = jobs.next() else { return Ok(()) };
        let results: Vec<Result<()>> = std::thread::scope(|scope| {
            let others: Vec<_> = jobs.map(|job| scope.spawn(|| run(job))).collect();
            let own = run(first);
            let joined = others.into_iter().map(|other| match other.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            std::iter::once(own).chain(joined).collect()
        });
        let failed: Vec<RuntimeError> = results.into_iter().filter_map(Result::err).collect();
        if failed.is_empty() {
            return Ok(());
        }
        // What was on its way is lost with the run.
        self.walkers.iter_mut().for_each(|w| w.links = None);
        // One that only heard that another card failed has the least to say, then one that waited in vain.
        let rank = |e: &RuntimeError| match e {
            RuntimeError::Exchange(ExchangeError::Late(late)) if late.found == State::Failed => 2,
            RuntimeError::Exchange(_) => 1,
            _ => 0,
        };
        failed.into_iter().min_by_key(rank).map_or(Ok(()), Err)
    }

    /// Makes links for runs of `tokens` tokens, where those that there are do not suffice.
    fn link(&mut self, tokens: usize) -> Result<()> {
        if self.walkers[0].links.as_ref().is_some_and(|links| links.tokens() >= tokens) {
            return Ok(());
        }
        let links = Links::new(&self.loaded.program, &self.loaded.cards, tokens, &self.run)?;
        let links = Arc::new(links);
        for walker in &mut self.walkers {
            walker.links = Some(Arc::clone(&links));
            walker.turns = Default::default();
        }
        Ok(())
    }

    /// Positions of what comes, on every card.
    fn turn(&mut self, spans: &[Span]) {
        self.walkers.iter_mut().for_each(|walker| walker.turn(spans));
    }

    fn values(&self, id: BufferId) -> usize {
        self.loaded.program.values(id)
    }

    /// The card where the body leaves its result.
    fn home(&mut self) -> &mut Walker {
        let home = self.loaded.cards.body.end;
        &mut self.walkers[home]
    }

    /// Logits of some `rows` of `residual`, a few at a time.
    fn head(
        &mut self,
        split: &Split,
        residual: BufferId,
        rows: std::ops::Range<usize>,
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let program = &loaded.program;
        let width = self.values(residual);
        for first in rows.clone().step_by(HEAD_ROWS) {
            let n = HEAD_ROWS.min(rows.end - first);
            let buffers = &mut self.walkers[split.start].buffers;
            let mut chosen = buffers.take(program.chosen, n * width);
            chosen[..n * width].copy_from_slice(&buffers.f32(residual)[first * width..][..n * width]);
            buffers.give(program.chosen, chosen);
            self.walk(split, &vec![0; n], &[], &mut [])?;
            sink(&self.walkers[split.end].buffers.f32(program.logits)[..n * program.vocab]);
        }
        Ok(())
    }

    /// Lets the block that drafts take in `tokens` that follow the sequence's carried streams and the first rows of
    /// the trunk's, from row `row` on; the last of those rows is carried then.
    fn keep_up(
        &mut self,
        draft: &Draft,
        sequence: &mut CpuSequence,
        span: Span,
        tokens: &[u32],
    ) -> Result<()> {
        let residual = self.loaded.program.residual;
        let width = self.values(residual);
        let n = tokens.len();
        if n == 0 {
            return Ok(());
        }
        // The token at `start` follows what is carried; the first of a sequence follows nothing.
        let skipped = usize::from(span.start == 0);
        if n > skipped {
            let buffers = &mut self.home().buffers;
            let trunk = buffers.f32(residual)[span.row * width..][..(n - 1) * width].to_vec();
            let mut hidden = buffers.take(draft.hidden, n * width);
            let mut to = 0;
            if skipped == 0 {
                sequence.carry.resize(width, 0.0);
                hidden[..width].copy_from_slice(&sequence.carry);
                to = width;
            }
            hidden[to..to + trunk.len()].copy_from_slice(&trunk);
            buffers.give(draft.hidden, hidden);
            let tokens = &tokens[skipped..];
            let start = (span.start + skipped) - 1;
            self.run_draft(sequence, tokens, start)?;
        }
        let last = span.row + n - 1;
        sequence.carry.clear();
        sequence.carry.extend_from_slice(&self.home().buffers.f32(residual)[last * width..][..width]);
        Ok(())
    }

    fn run_draft(&mut self, sequence: &mut CpuSequence, tokens: &[u32], start: usize) -> Result<()> {
        let spans = [Span { row: 0, tokens: tokens.len(), start }];
        self.turn(&spans);
        let loaded = Arc::clone(&self.loaded);
        let (body, _) = Self::drafts(&loaded)?;
        self.walk(body, tokens, &spans, &mut [sequence])
    }

    /// [`Workspace::run`], which leaves sequences half done where it fails.
    fn compute(
        &mut self,
        parts: &mut [backend::Part<'_>],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let program = &loaded.program;
        let (mut spans, mut tokens) = (Vec::new(), Vec::new());
        let (mut wanted, mut drafting) = (Vec::new(), Vec::new());
        let mut sequences = Vec::with_capacity(parts.len());
        for part in parts {
            let sequence = own(part.sequence)?;
            spans.push(Span { row: tokens.len(), tokens: part.tokens.len(), start: sequence.tokens.len() });
            tokens.extend_from_slice(part.tokens);
            sequence.tokens.extend_from_slice(part.tokens);
            wanted.push(part.wanted);
            drafting.push(part.drafting);
            sequences.push(sequence);
        }
        self.turn(&spans);
        self.walk(&loaded.cards.body, &tokens, &spans, &mut sequences)?;
        for (i, (span, wanted)) in spans.iter().zip(wanted).enumerate() {
            let rows = wanted.rows(span.row, span.tokens);
            self.head(&loaded.cards.head, program.residual, rows, &mut |logits| sink(i, logits))?;
        }
        for ((span, sequence), _) in spans.iter().zip(sequences).zip(drafting).filter(|(_, drafts)| *drafts) {
            let own = &tokens[span.row..span.row + span.tokens];
            self.keep_up(Self::drafter(&loaded)?, sequence, *span, own)?;
        }
        Ok(())
    }

    fn drafter(loaded: &Loaded) -> Result<&Draft> {
        loaded.program.draft.as_ref().ok_or_else(no_draft)
    }

    /// Its body and head, cut for the cards.
    fn drafts(loaded: &Loaded) -> Result<(&Split, &Split)> {
        loaded.cards.draft.as_ref().map(|(body, head)| (body, head)).ok_or_else(no_draft)
    }
}

/// Tells the other cards that one has failed, by an error or a panic, unless its links were taken away.
struct Alarm {
    links: Option<Arc<Links>>,
    card: usize,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.links.iter().for_each(|links| links.fail(self.card));
    }
}

fn no_draft() -> RuntimeError {
    RuntimeError::Setting("this model has no block that drafts tokens".into())
}

/// A sequence of this device.
fn own(sequence: &mut dyn Sequence) -> Result<&mut CpuSequence> {
    let any: &mut dyn Any = sequence;
    any.downcast_mut().ok_or_else(|| RuntimeError::Setting("a sequence of another device".into()))
}

impl Workspace for Cards {
    fn run(&mut self, parts: &mut [backend::Part<'_>], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        let result = self.compute(parts, sink);
        if result.is_err() {
            // Some of what a sequence keeps has these tokens, some has not.
            for part in parts {
                part.sequence.rewind(0);
            }
        }
        result
    }

    fn measure(&mut self) {
        self.walkers.iter_mut().for_each(Walker::measure);
    }

    fn measured(&self) -> Vec<(Part, Duration)> {
        let mut sums: BTreeMap<Part, Duration> = BTreeMap::new();
        for (part, time) in self.walkers.iter().flat_map(Walker::measured) {
            *sums.entry(part).or_default() += time;
        }
        sums.into_iter().collect()
    }

    fn draft(&mut self, sequence: &mut dyn Sequence, token: u32, step: usize) -> Result<u32> {
        let loaded = Arc::clone(&self.loaded);
        let draft = Self::drafter(&loaded)?;
        let sequence = own(sequence)?;
        let width = self.values(draft.hidden);
        let (body, head) = Self::drafts(&loaded)?;
        // Its own streams lie where its body left them, which expects the trunk's elsewhere.
        let own = match step {
            0 => Vec::new(),
            _ => self.walkers[body.end].buffers.f32(draft.residual)[..width].to_vec(),
        };
        let buffers = &mut self.walkers[body.start].buffers;
        let mut hidden = buffers.take(draft.hidden, width);
        if step == 0 {
            sequence.carry.resize(width, 0.0);
            hidden[..width].copy_from_slice(&sequence.carry);
        } else {
            hidden[..width].copy_from_slice(&own);
        }
        buffers.give(draft.hidden, hidden);
        let start = (sequence.tokens.len() + step).saturating_sub(1);
        self.run_draft(sequence, &[token], start)?;
        let mut best = 0;
        self.head(head, draft.residual, 0..1, &mut |row| best = greedy(row).unwrap_or(0))?;
        Ok(best)
    }

    fn accept(&mut self, sequence: &mut dyn Sequence, tokens: &[u32], kept: usize) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let draft = Self::drafter(&loaded)?;
        let sequence = own(sequence)?;
        let start = sequence.tokens.len() - tokens.len();
        let carry = std::mem::take(&mut sequence.carry);
        if sequence.rewind(start + kept) != start + kept {
            return Err(RuntimeError::Setting("a draft longer than what a sequence can take back".into()));
        }
        sequence.carry = carry;
        self.keep_up(draft, sequence, Span { row: 0, tokens: kept, start }, &tokens[..kept])
    }
}

#[cfg(test)]
mod tests {
    use super::super::Shared;
    use super::*;
    use crate::backend::KvType;
    use crate::load::Weights;
    use crate::model::program::{Format, Matrix, Program, Step};
    use gantry_formats::block::GgmlType;
    use gantry_formats::layout::Layout;
    use gantry_kernels::cpu as kernels;

    /// A table on card 0 and a square matrix on card 1.
    fn program() -> Program {
        let matrix = |card| {
            let layout = Layout::Raw(GgmlType::F32);
            Matrix { name: "m".into(), card, offset: 0, stored_rows: 4, rows: 0..4, cols: 4, layout }
        };
        let buffer = |name| crate::model::program::Buffer { name, rows: 1, width: 4, format: Format::F32 };
        let whole = |id| crate::model::program::Columns { buffer: BufferId(id), start: 0, len: 4 };
        let gemm =
            |x, y| Step::Gemm { weight: matrix(1), scale: None, bias: None, x: BufferId(x), y: whole(y) };
        let buffers = ["tokens", "residual", "chosen", "logits"].map(buffer).to_vec();
        let body = vec![Step::Embed { table: matrix(0), y: BufferId(0) }, gemm(0, 1)];
        Program::bare(buffers, [body, vec![gemm(2, 3)]], [1, 2, 3].map(BufferId))
    }

    #[test]
    fn links_go_with_the_workspace_and_with_longer_runs() {
        let bytes: Vec<u8> = (0..16).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let weights = Weights::of(&[bytes.clone(), bytes]).unwrap();
        let shared = Arc::new(
            Shared::new(kernels::isa().unwrap(), program(), weights, &RunOptions::default()).unwrap(),
        );
        let pool = || Arc::new(gantry_kernels::cpu::Pool::new(1));
        let loaded = [0, 1].map(|card| Arc::new(Loaded { card, pool: pool(), shared: Arc::clone(&shared) }));
        let settings = backend::Settings { context: 8, batch: 8, kv: KvType::F32, window: 0 };
        let mut sequence = CpuSequence::new(&shared.program, &settings).unwrap();
        let mut cards = Cards::new(&loaded, RunOptions::default());
        let mut run = |cards: &mut Cards, tokens: &[u32]| {
            let part = backend::Part {
                sequence: &mut sequence,
                tokens,
                wanted: backend::Wanted::Last,
                drafting: false,
            };
            let mut logits = Vec::new();
            cards.run(&mut [part], &mut |_, rows| logits.extend_from_slice(rows)).unwrap();
            assert_eq!(logits.len(), 4);
            cards.walkers[0].links.as_ref().map(Arc::downgrade).unwrap()
        };
        let short = run(&mut cards, &[1]);
        assert!(short.ptr_eq(&run(&mut cards, &[2])), "links serve runs that are no longer");
        let long = run(&mut cards, &[1, 2, 3]);
        assert!(short.upgrade().is_none() && long.upgrade().is_some());
        drop(cards);
        assert!(long.upgrade().is_none(), "links outlive the workspace");
    }
}
