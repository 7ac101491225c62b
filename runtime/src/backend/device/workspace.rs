//! Runs programs on a card.

use super::attend::splits;
use super::batch::{Batch, Span};
use super::buffers::Buffers;
use super::choose::{self, Choice};
use super::driver::{CardError, DeviceMemory, Family, Graph, Pinned, Stream};
use super::gather::{self, Gathered};
use super::loaded::Loaded;
use super::look_back::partial_bytes;
use super::parts::{List, Planned, Recorded, Shape};
use super::plan::{FEW, Op, plan};
use super::products::list_bytes;
use super::sequence::{self, CardSequence};
use super::steps::{Around, Runner};
use super::watch::Watch;
use crate::backend::{KernelTime, Part, Sequence, Settings, Wanted, Workspace};
use crate::model::program::{self, Program, Step};
use crate::sample::{Deciding, Following};
use crate::session::MAX_TOGETHER;
use crate::{Result, RuntimeError};
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Rows that the head computes at once: enough that its weights are not read for each anew, few enough that logits stay
/// small.
pub(super) const HEAD_ROWS: usize = 16;

/// Most recorded runs that are kept.
pub(super) const GRAPHS: usize = 64;

/// Working memory of runs on a card.
pub(super) struct CardWorkspace {
    /// First to go: its stream is waited for then.
    pub(super) runner: Runner,
    /// Runs as they were recorded.
    graphs: BTreeMap<Shape, Recorded>,
    /// How lists of steps go, few tokens or many, by where the list is.
    plans: BTreeMap<(bool, usize, usize), Arc<Planned>>,
    pub(super) batch: Batch,
    /// Tokens that there is room for.
    pub(super) most: usize,
    /// Logits on their way.
    pinned: Pinned,
    pub(super) logits: Vec<f32>,
    pub(super) choice: Choice,
    pub(super) profile: Option<BTreeMap<program::Part, Duration>>,
    pub(super) loaded: Arc<Loaded>,
}

/// Most tokens of a run: a batch, or one of each of as many sequences as go together.
pub(super) fn most_tokens(settings: &Settings) -> usize {
    settings.batch.max(MAX_TOGETHER)
}

/// Bytes of partial results, for the step that needs most.
pub(super) fn partials(program: &Program, settings: &Settings, tokens: usize, family: Family) -> u64 {
    let each = program.steps().map(|step| {
        let lists = list_bytes(step, &program.buffers, tokens).saturating_add(512);
        let rows = match step {
            Step::Ngram { y, .. } => gather::bytes(program.values(*y), tokens),
            _ => 0,
        };
        partial_bytes(step, program, settings, (tokens, family)).max(lists).max(rows)
    });
    each.max().unwrap_or(0)
}

/// Bytes of a session's working memory.
pub(super) fn scratch_bytes(program: &Program, settings: &Settings, family: Family) -> u64 {
    let tokens = most_tokens(settings);
    let partials = partials(program, settings, tokens, family);
    let work = super::buffers::bytes(&program.buffers, tokens).saturating_add(partials);
    let carried = sequence::carry_bytes(program, settings);
    work.saturating_add(choose::bytes(program.vocab)).saturating_add(carried)
}

impl CardWorkspace {
    pub(super) fn new(loaded: &Arc<Loaded>, settings: &Settings) -> Result<Self, CardError> {
        let (context, program) = (&loaded.context, &loaded.program);
        let tokens = most_tokens(settings);
        let stream = Arc::new(Stream::new(context)?);
        let buffers = Buffers::new(context, &program.buffers, tokens)?;
        let partials = partials(program, settings, tokens, context.info().at.family);
        let partial = DeviceMemory::new(context, partials, "partial results")?;
        let rows = HEAD_ROWS.min(tokens);
        let pinned = Pinned::new(context, rows * program.vocab * 4, "logits on their way")?;
        Ok(Self {
            loaded: Arc::clone(loaded),
            graphs: BTreeMap::new(),
            plans: BTreeMap::new(),
            batch: Batch::new(loaded)?,
            most: tokens,
            runner: Runner {
                stream,
                buffers,
                partial,
                gathered: Gathered::new(loaded, tokens)?,
                exchange: None,
                watch: Watch::default(),
            },
            pinned,
            logits: Vec::new(),
            choice: Choice::new(context, program.vocab)?,
            profile: None,
        })
    }

    /// How steps go to the card: as planned where tokens are few. Lists are the program's own, which stay where they are.
    fn planned(&mut self, steps: &[Step], n: usize) -> Arc<Planned> {
        let key = (n <= FEW, steps.as_ptr() as usize, steps.len());
        let new = || {
            let each = || (0..steps.len()).map(Op::Step).collect();
            let ops = if n <= FEW { plan(&self.loaded.program, steps) } else { each() };
            Arc::new(Planned::new(ops, steps))
        };
        Arc::clone(self.plans.entry(key).or_insert_with(new))
    }

    /// Gives steps to the card, and gathers rows of n-gram tables while it does those before the step that takes them.
    pub(super) fn walk(&mut self, steps: &[Step], sequences: &[&mut CardSequence], n: usize) -> Result<()> {
        let planned = self.planned(steps, n);
        let mut now = None;
        for (before, ops) in planned.parts() {
            self.gather(before.map(|i| &steps[i]), sequences)?;
            self.give(steps, ops, (sequences, n), &mut now)?;
        }
        if self.runner.watch.is_on() {
            self.runner.stream.synchronize()?;
            self.runner.watch.collect()?;
        }
        if let (Some((part, since)), Some(times)) = (now, &mut self.profile) {
            self.runner.stream.synchronize()?;
            *times.entry(part).or_default() += since.elapsed();
        }
        Ok(())
    }

    /// Gives some operations over `steps` to the card; `now` is the part of the model that is measured.
    fn give(
        &mut self,
        steps: &[Step],
        ops: &[Op],
        (sequences, n): (&[&mut CardSequence], usize),
        now: &mut Option<(program::Part, Instant)>,
    ) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let around = Around { loaded: &loaded, batch: &self.batch, sequences };
        for op in ops {
            if let Op::Step(i) = op
                && let Step::Begin(part) = &steps[*i]
            {
                if self.runner.watch.is_on() {
                    self.runner.stream.synchronize()?;
                    self.runner.watch.collect()?;
                }
                if let Some(times) = &mut self.profile {
                    self.runner.stream.synchronize()?;
                    let at = Instant::now();
                    if let Some((before, since)) = now.replace((*part, at)) {
                        *times.entry(before).or_default() += at - since;
                    }
                }
            }
            self.runner.op(&around, steps, op, n)?;
        }
        Ok(())
    }

    /// The rows of a table that `step` takes, where it takes some.
    fn gather(&mut self, step: Option<&Step>, sequences: &[&mut CardSequence]) -> Result<()> {
        let Some(Step::Ngram { hash, .. }) = step else { return Ok(()) };
        let loaded = Arc::clone(&self.loaded);
        self.runner.gather(&Around { loaded: &loaded, batch: &self.batch, sequences }, *hash)
    }

    /// Records what `steps` give to the card for `n` rows of tokens, and what `rest` gives it then.
    pub(super) fn record(
        &mut self,
        steps: &[Step],
        sequences: &[&mut CardSequence],
        n: usize,
        rest: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Recorded> {
        let planned = self.planned(steps, n);
        let stream = Arc::clone(&self.runner.stream);
        let parts: Vec<_> = planned.parts().collect();
        let mut recorded = Vec::with_capacity(parts.len());
        if let Some(((before, last), first)) = parts.split_last() {
            for (before, ops) in first {
                let give = || self.give(steps, ops, (sequences, n), &mut None);
                recorded.push((*before, Graph::record(&stream, give)?));
            }
            let all = || {
                self.give(steps, last, (sequences, n), &mut None)?;
                rest(self)
            };
            recorded.push((*before, Graph::record(&stream, all)?));
        }
        Ok(Recorded(recorded))
    }

    /// Gives the card part `part` of what was recorded of `steps`, where there are as many.
    #[allow(unsafe_code, reason = "a launch")]
    pub(super) fn launch(
        &mut self,
        recorded: &mut Recorded,
        part: usize,
        steps: &[Step],
        sequences: &[&mut CardSequence],
    ) -> Result<()> {
        let Some((before, graph)) = recorded.0.get_mut(part) else { return Ok(()) };
        self.gather(before.map(|i| &steps[i]), sequences)?;
        // SAFETY: as for each of the launches: addresses of tables are part of the shape that it was recorded for, all else
        // stays where it is as long as this workspace.
        unsafe { graph.launch(&self.runner.stream) }?;
        Ok(())
    }

    /// Logits of some rows of the residual, on the card.
    fn head(&mut self, rows: Range<usize>) -> Result<()> {
        self.choose(rows.clone())?;
        let loaded = Arc::clone(&self.loaded);
        self.walk(&loaded.program.head, &[], rows.len())
    }

    /// Copies rows of the residual to where the head finds them.
    pub(super) fn choose(&self, rows: Range<usize>) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let program = &loaded.program;
        let width = program.values(program.residual);
        let from = self.runner.buffers.at(program.residual) + (rows.start * width * 4) as u64;
        self.copy(from, self.runner.buffers.at(program.chosen), rows.len() * width)
    }

    /// Brings the logits of `rows` rows here.
    pub(super) fn bring(&mut self, rows: usize) -> Result<()> {
        let program = &self.loaded.program;
        let bytes = &mut self.pinned[..rows * program.vocab * 4];
        self.runner.buffers.read(program.logits, 0, bytes, &self.runner.stream)?;
        self.logits.clear();
        self.logits.extend(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)));
        Ok(())
    }

    /// What a run may be recorded as: one of one token of each sequence, or of a window that is verified; `None` where
    /// launches depend on more.
    pub(super) fn shape(
        &self,
        list: List,
        (spans, wanted): (&[Span], &[Wanted]),
        sequences: &[&mut CardSequence],
        deciding: Deciding,
    ) -> Option<Shape> {
        let program = &self.loaded.program;
        // As many blocks as are complete, as many entries as there are.
        let lists = match (list, &program.draft) {
            (List::Draft | List::KeepUp, Some(draft)) => [&draft.body, &draft.head],
            _ => [&program.body, &program.head],
        };
        let mut steps = lists.into_iter().flatten();
        let fixed = !steps.any(|step| matches!(step, Step::Compress { .. } | Step::Select { .. }));
        let watched = self.profile.is_some() || self.runner.watch.is_on() || self.loaded.routed.is_some();
        let longest = spans.iter().map(|s| s.start + s.tokens).max().unwrap_or(0);
        let tokens = spans.iter().map(|s| s.tokens).sum();
        let window = sequences.iter().map(|s| s.settings().window).max().unwrap_or(0);
        let memory = match sequences {
            [one] if window > 0 => one.memory().address(),
            _ => 0,
        };
        let rows = match list {
            List::Trunk if window == 0 || spans.len() > 1 => {
                window == 0
                    && spans.iter().all(|s| s.tokens == 1)
                    && wanted.iter().all(|w| *w == Wanted::Last)
            }
            // A window, or a token by itself: every row has its logits.
            List::Trunk => {
                (1..=window).contains(&tokens) && wanted.iter().all(|w| w.rows(0, tokens).len() == tokens)
            }
            List::Draft | List::KeepUp => (1..=window).contains(&tokens),
        };
        let tables = self.batch.address();
        let splits = splits(longest);
        let shape = Shape { list, sequences: spans.len(), tokens, memory, splits, tables, deciding };
        (rows && fixed && !watched && tokens <= HEAD_ROWS).then_some(shape)
    }

    /// A run as it was recorded, which is done the first time.
    pub(super) fn replay(&mut self, shape: Shape, sequences: &[&mut CardSequence]) -> Result<()> {
        let n = shape.tokens;
        let loaded = Arc::clone(&self.loaded);
        let program = &loaded.program;
        let body = match (shape.list, &program.draft) {
            (List::Draft | List::KeepUp, Some(draft)) => &draft.body,
            _ => &program.body,
        };
        let mut recorded = match self.graphs.remove(&shape) {
            Some(recorded) => recorded,
            None => {
                if self.graphs.len() >= GRAPHS {
                    self.graphs.clear();
                }
                self.record(body, sequences, n, |this| match (shape.list, &program.draft) {
                    (List::Draft, Some(draft)) => this.draft_head(draft),
                    (List::KeepUp, _) => Ok(()),
                    _ => {
                        this.head(0..n)?;
                        this.choice.give(&this.runner, &loaded, shape.deciding)
                    }
                })?
            }
        };
        let mut parts = 0..recorded.parts();
        let launched = parts.try_for_each(|part| self.launch(&mut recorded, part, body, sequences));
        // Whatever came of the others, the card may be at the first.
        self.graphs.insert(shape, recorded);
        launched
    }

    /// Brings what was chosen; all logits where there was nothing to choose, so that the host says why.
    fn chosen(&mut self, deciding: Deciding, following: &mut Following) -> Result<()> {
        match self.choice.take(&self.runner, self.loaded.program.vocab, deciding)? {
            Some(best) => following.best = best,
            None => {
                self.bring(1)?;
                following.logits.extend_from_slice(&self.logits);
            }
        }
        Ok(())
    }

    /// Forgets sequences of which something kept has the tokens of a run, and something has not.
    fn give_up(&self, parts: &mut [Part<'_>]) {
        let _ = self.runner.stream.synchronize();
        for part in parts {
            part.sequence.rewind(0);
        }
    }

    /// Where not all logits are wanted, the parts are one, and what was chosen waits on the card.
    fn compute(
        &mut self,
        parts: &mut [Part<'_>],
        deciding: Deciding,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let vocab = loaded.program.vocab;
        let (mut spans, mut tokens, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        let mut drafting = Vec::with_capacity(parts.len());
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
        if tokens.len() > self.most {
            let what = format!("{} tokens in a run that has room for {}", tokens.len(), self.most);
            return Err(RuntimeError::Setting(what));
        }
        self.batch.set(&loaded, &tokens, spans.clone(), &sequences, &self.runner.stream)?;
        let shape = self.shape(List::Trunk, (&spans, &wanted), &sequences, deciding);
        match shape {
            Some(shape) => self.replay(shape, &sequences)?,
            None => self.walk(&loaded.program.body, &sequences, tokens.len())?,
        }
        for (i, (span, wanted)) in spans.iter().zip(wanted).enumerate() {
            let rows = wanted.rows(span.row, span.tokens);
            // What was recorded has the logits of all rows.
            if shape.is_some() {
                continue;
            }
            for first in rows.clone().step_by(HEAD_ROWS) {
                let some = first..rows.end.min(first + HEAD_ROWS);
                self.head(some.clone())?;
                if deciding != Deciding::All {
                    self.choice.give(&self.runner, &loaded, deciding)?;
                    continue;
                }
                self.bring(some.len())?;
                sink(i, &self.logits);
            }
        }
        if shape.is_some() && deciding == Deciding::All {
            self.bring(tokens.len())?;
            let rows = |span: &Span| span.row * vocab..(span.row + span.tokens) * vocab;
            spans.iter().enumerate().for_each(|(i, span)| sink(i, &self.logits[rows(span)]));
        }
        let drafts = drafting.contains(&true);
        for ((span, sequence), drafting) in spans.iter().zip(sequences).zip(drafting) {
            sequence.ran(span.start);
            if drafting {
                self.keep_up(sequence, *span, &tokens[span.row..][..span.tokens])?;
            }
        }
        // Logits were waited for, and what is chosen is where it is taken.
        if shape.is_none() || drafts {
            self.runner.stream.synchronize()?;
        }
        Ok(())
    }
}

/// A sequence of this device.
fn own(sequence: &mut dyn Sequence) -> Result<&mut CardSequence> {
    let any: &mut dyn Any = sequence;
    any.downcast_mut().ok_or_else(|| RuntimeError::Setting("a sequence of another device".into()))
}

impl Workspace for CardWorkspace {
    fn run(&mut self, parts: &mut [Part<'_>], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let _used = loaded.used.read().unwrap_or_else(PoisonError::into_inner);
        let result = self.compute(parts, Deciding::All, sink);
        if result.is_err() {
            self.give_up(parts);
        }
        result
    }

    fn run_deciding(&mut self, part: Part<'_>, deciding: Deciding, following: &mut Following) -> Result<()> {
        let deciding = choose::on_card(deciding);
        let mut parts = [part];
        following.clear();
        if deciding == Deciding::All || parts[0].wanted != Wanted::Last || parts[0].tokens.is_empty() {
            return self.run(&mut parts, &mut |_, rows| following.logits.extend_from_slice(rows));
        }
        let loaded = Arc::clone(&self.loaded);
        let _used = loaded.used.read().unwrap_or_else(PoisonError::into_inner);
        let done = self
            .compute(&mut parts, deciding, &mut |_, _| ())
            .and_then(|()| self.chosen(deciding, following));
        if done.is_err() {
            self.give_up(&mut parts);
        }
        done
    }

    fn measure(&mut self) {
        self.profile = Some(BTreeMap::new());
        self.runner.watch = Watch::default();
    }

    fn measure_kernels(&mut self) {
        self.profile = None;
        self.runner.watch.times();
    }

    fn measured_kernels(&self) -> Vec<KernelTime> {
        self.runner.watch.seen()
    }

    fn measured(&self) -> Vec<(program::Part, Duration)> {
        self.profile.iter().flatten().map(|(part, time)| (*part, *time)).collect()
    }

    fn draft(&mut self, sequence: &mut dyn Sequence, token: u32, step: usize) -> Result<u32> {
        let loaded = Arc::clone(&self.loaded);
        let _used = loaded.used.read().unwrap_or_else(PoisonError::into_inner);
        self.propose(own(sequence)?, token, step)
    }

    fn accept(&mut self, sequence: &mut dyn Sequence, tokens: &[u32], kept: usize) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let _used = loaded.used.read().unwrap_or_else(PoisonError::into_inner);
        self.take_back(own(sequence)?, tokens, kept)
    }
}
