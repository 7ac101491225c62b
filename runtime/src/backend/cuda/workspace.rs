//! Runs programs on a card.

use super::attend::splits;
use super::batch::{Batch, Span};
use super::buffers::Buffers;
use super::choose::{self, Choice};
use super::driver::{CudaError, DeviceMemory, Graph, Pinned, Staged, Stream};
use super::kernels::{Args, groups};
use super::limits::no_drafts;
use super::loaded::Loaded;
use super::look_back::partial_bytes;
use super::plan::{FEW, Op, plan};
use super::products::list_bytes;
use super::sequence::CudaSequence;
use super::steps::{Around, EACH, Runner};
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
pub(super) struct CudaWorkspace {
    /// First to go: its stream is waited for then.
    pub(super) runner: Runner,
    /// Runs of one token of each sequence, as they were recorded.
    graphs: BTreeMap<Shape, Graph>,
    /// How lists of steps go, few tokens or many, by where the list is.
    plans: BTreeMap<(bool, usize, usize), Arc<Vec<Op>>>,
    pub(super) batch: Batch,
    /// Tokens that there is room for.
    pub(super) most: usize,
    /// Logits on their way.
    pinned: Pinned,
    pub(super) logits: Vec<f32>,
    choice: Choice,
    pub(super) profile: Option<BTreeMap<program::Part, Duration>>,
    pub(super) loaded: Arc<Loaded>,
}

/// What launches of a run of one token of each sequence depend on, beside what lies in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    pub(super) sequences: usize,
    /// Parts that attention is cut into.
    splits: usize,
    /// Where the tables are.
    tables: u64,
    /// What is done with the logits.
    deciding: Deciding,
}

/// Most tokens of a run: a batch, or one of each of as many sequences as go together.
pub(super) fn most_tokens(settings: &Settings) -> usize {
    settings.batch.max(MAX_TOGETHER)
}

/// Bytes of partial results, for the step that needs most.
pub(super) fn partials(program: &Program, settings: &Settings, tokens: usize) -> u64 {
    let each = program.steps().map(|step| {
        let lists = list_bytes(step, &program.buffers, tokens).saturating_add(512);
        partial_bytes(step, program, settings, tokens).max(lists)
    });
    each.max().unwrap_or(0)
}

/// Bytes of a session's working memory.
pub(super) fn scratch_bytes(program: &Program, settings: &Settings) -> u64 {
    let tokens = most_tokens(settings);
    let work =
        super::buffers::bytes(&program.buffers, tokens).saturating_add(partials(program, settings, tokens));
    work.saturating_add(choose::bytes(program.vocab))
}

impl CudaWorkspace {
    pub(super) fn new(loaded: &Arc<Loaded>, settings: &Settings) -> Result<Self, CudaError> {
        let (context, program) = (&loaded.context, &loaded.program);
        let tokens = most_tokens(settings);
        let stream = Arc::new(Stream::new(context)?);
        let buffers = Buffers::new(context, &program.buffers, tokens)?;
        let partial = DeviceMemory::new(context, partials(program, settings, tokens), "partial results")?;
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
                staged: Staged::new(context, "rows of a table")?,
                exchange: None,
                watch: Watch::default(),
            },
            pinned,
            logits: Vec::new(),
            choice: Choice::new(context, program.vocab)?,
            profile: None,
        })
    }

    /// Gives steps to the card, but for those that the host has done: as planned where tokens are few. Lists are the
    /// program's own, which stay where they are.
    pub(super) fn walk(&mut self, steps: &[Step], sequences: &[&mut CudaSequence], n: usize) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let key = (n <= FEW, steps.as_ptr() as usize, steps.len());
        let ops = match self.plans.get(&key) {
            Some(ops) => Arc::clone(ops),
            None => {
                let each = || (0..steps.len()).map(Op::Step).collect();
                let ops = Arc::new(if n <= FEW { plan(&loaded.program, steps) } else { each() });
                self.plans.insert(key, Arc::clone(&ops));
                ops
            }
        };
        let around = Around { loaded: &loaded, batch: &self.batch, sequences };
        let mut now: Option<(program::Part, Instant)> = None;
        for op in &*ops {
            match op {
                Op::Step(i) if matches!(steps[*i], Step::Ngram { .. }) => continue,
                Op::Step(i) => {
                    if matches!(steps[*i], Step::Begin(_)) && self.runner.watch.is_on() {
                        self.runner.stream.synchronize()?;
                        self.runner.watch.collect()?;
                    }
                    if let (Step::Begin(part), Some(times)) = (&steps[*i], &mut self.profile) {
                        self.runner.stream.synchronize()?;
                        let at = Instant::now();
                        if let Some((before, since)) = now.replace((*part, at)) {
                            *times.entry(before).or_default() += at - since;
                        }
                    }
                }
                _ => {}
            }
            self.runner.op(&around, steps, op, n)?;
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

    /// Rows of n-gram tables, which the host gathers before anything else.
    pub(super) fn gather(&mut self, steps: &[Step], sequences: &[&mut CudaSequence]) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let around = Around { loaded: &loaded, batch: &self.batch, sequences };
        let start = Instant::now();
        let mut steps = steps.iter().filter(|step| matches!(step, Step::Ngram { .. }));
        steps.try_for_each(|step| self.runner.step(&around, step, self.batch.n))?;
        if let Some(times) = &mut self.profile {
            *times.entry(program::Part::Ngram).or_default() += start.elapsed();
        }
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
        let all = rows.len() * width;
        let from = self.runner.buffers.at(program.residual) + (rows.start * width * 4) as u64;
        let args = Args::at(&[from, self.runner.buffers.at(program.chosen)]);
        let args = args.long(&[all, 0, 0, all, 0, 0]).int(&[1, 1, all]);
        self.runner.launch(&loaded, "gantry_copy", [groups(all, EACH), 1, 1], &args)
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

    /// What a run of one token of each sequence may be recorded as; `None` where launches depend on more.
    pub(super) fn shape(&self, spans: &[Span], wanted: &[Wanted], deciding: Deciding) -> Option<Shape> {
        let one = spans.iter().all(|s| s.tokens == 1) && wanted.iter().all(|w| *w == Wanted::Last);
        let program = &self.loaded.program;
        let fixed = !program.body.iter().chain(&program.head).any(|step| {
            // As many blocks as are complete, as many entries as there are.
            matches!(step, Step::Compress { .. } | Step::Select { .. })
        });
        let watched = self.profile.is_some() || self.runner.watch.is_on() || self.loaded.routed.is_some();
        let longest = spans.iter().map(|s| s.start + s.tokens).max().unwrap_or(0);
        let tables = self.batch.address();
        let shape = Shape { sequences: spans.len(), splits: splits(longest), tables, deciding };
        (one && fixed && !watched && spans.len() <= HEAD_ROWS).then_some(shape)
    }

    /// A run of one token of each sequence, recorded the first time.
    #[allow(unsafe_code, reason = "a launch")]
    fn replay(&mut self, shape: Shape, sequences: &[&mut CudaSequence]) -> Result<()> {
        let n = shape.sequences;
        let mut graph = match self.graphs.remove(&shape) {
            Some(graph) => graph,
            None => {
                if self.graphs.len() >= GRAPHS {
                    self.graphs.clear();
                }
                let loaded = Arc::clone(&self.loaded);
                let (stream, this) = (Arc::clone(&self.runner.stream), &mut *self);
                Graph::record(&stream, || {
                    this.walk(&loaded.program.body, sequences, n)?;
                    this.head(0..n)?;
                    this.choice.give(&this.runner, &loaded, shape.deciding)
                })?
            }
        };
        // SAFETY: as for each of the launches: addresses of tables are part of the shape, all else stays where it is as
        // long as this workspace.
        unsafe { graph.launch(&self.runner.stream) }?;
        self.graphs.insert(shape, graph);
        Ok(())
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
        let mut sequences = Vec::with_capacity(parts.len());
        for part in parts {
            let sequence = own(part.sequence)?;
            if part.drafting {
                return Err(no_drafts());
            }
            spans.push(Span { row: tokens.len(), tokens: part.tokens.len(), start: sequence.tokens.len() });
            tokens.extend_from_slice(part.tokens);
            sequence.tokens.extend_from_slice(part.tokens);
            wanted.push(part.wanted);
            sequences.push(sequence);
        }
        if tokens.len() > self.most {
            let what = format!("{} tokens in a run that has room for {}", tokens.len(), self.most);
            return Err(RuntimeError::Setting(what));
        }
        self.batch.set(&loaded, &tokens, spans.clone(), &sequences, &self.runner.stream)?;
        self.gather(&loaded.program.body, &sequences)?;
        if let Some(shape) = self.shape(&spans, &wanted, deciding) {
            self.replay(shape, &sequences)?;
            if deciding != Deciding::All {
                return Ok(());
            }
            self.bring(spans.len())?;
            self.logits.chunks_exact(vocab).enumerate().for_each(|(i, row)| sink(i, row));
            return Ok(());
        }
        self.walk(&loaded.program.body, &sequences, tokens.len())?;
        for (i, (span, wanted)) in spans.iter().zip(wanted).enumerate() {
            let rows = wanted.rows(span.row, span.tokens);
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
        self.runner.stream.synchronize()?;
        Ok(())
    }
}

/// A sequence of this device.
fn own(sequence: &mut dyn Sequence) -> Result<&mut CudaSequence> {
    let any: &mut dyn Any = sequence;
    any.downcast_mut().ok_or_else(|| RuntimeError::Setting("a sequence of another device".into()))
}

impl Workspace for CudaWorkspace {
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

    fn draft(&mut self, _: &mut dyn Sequence, _: u32, _: usize, _: &mut [f32]) -> Result<()> {
        Err(no_drafts())
    }

    fn accept(&mut self, _: &mut dyn Sequence, _: &[u32], _: usize) -> Result<()> {
        Err(no_drafts())
    }
}
