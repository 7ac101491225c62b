//! Runs programs on a card.

use super::batch::{Batch, Span};
use super::buffers::Buffers;
use super::driver::{CudaError, DeviceMemory};
use super::kernels::{Args, groups};
use super::loaded::Loaded;
use super::look_back::partial_bytes;
use super::products::list_bytes;
use super::sequence::CudaSequence;
use super::steps::{Around, EACH, Runner};
use crate::backend::{Part, Sequence, Settings, Wanted, Workspace};
use crate::model::program::{self, BufferId, Program, Step};
use crate::{Result, RuntimeError};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Working memory of runs on a card.
pub(super) struct CudaWorkspace {
    loaded: Arc<Loaded>,
    batch: Batch,
    runner: Runner,
    /// Most tokens of a batch.
    most: usize,
    /// Logits on their way.
    logits: Vec<f32>,
    bytes: Vec<u8>,
    profile: Option<BTreeMap<program::Part, Duration>>,
}

/// Bytes of partial results, for the step that needs most.
fn partials(program: &Program, settings: &Settings, tokens: usize) -> u64 {
    let each = program.steps().map(|step| {
        partial_bytes(step, settings, tokens)
            .max(list_bytes(step, &program.buffers, tokens).saturating_add(512))
    });
    each.max().unwrap_or(0)
}

/// Bytes of a session's working memory.
pub(super) fn scratch_bytes(program: &Program, settings: &Settings) -> u64 {
    let tokens = settings.batch;
    super::buffers::bytes(&program.buffers, tokens).saturating_add(partials(program, settings, tokens))
}

impl CudaWorkspace {
    pub(super) fn new(loaded: &Arc<Loaded>, settings: &Settings) -> Result<Self, CudaError> {
        let (context, program) = (&loaded.context, &loaded.program);
        let most = settings.batch;
        let buffers = Buffers::new(context, &program.buffers, most)?;
        let partial = DeviceMemory::new(context, partials(program, settings, most), "partial results")?;
        let batch = Batch::new(loaded)?;
        let loaded = Arc::clone(loaded);
        let (logits, bytes) = Default::default();
        Ok(Self { loaded, batch, runner: Runner { buffers, partial }, most, logits, bytes, profile: None })
    }

    fn walk(&mut self, steps: &[Step], sequences: &[&mut CudaSequence], n: usize) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let around = Around { loaded: &loaded, batch: &self.batch, sequences };
        let mut now: Option<(program::Part, Instant)> = None;
        for step in steps {
            if let (Step::Begin(part), Some(times)) = (step, &mut self.profile) {
                loaded.kernels.stream.synchronize()?;
                let at = Instant::now();
                if let Some((before, since)) = now.replace((*part, at)) {
                    *times.entry(before).or_default() += at - since;
                }
            }
            self.runner.step(&around, step, n)?;
        }
        if let (Some((part, since)), Some(times)) = (now, &mut self.profile) {
            loaded.kernels.stream.synchronize()?;
            *times.entry(part).or_default() += since.elapsed();
        }
        Ok(())
    }

    /// Logits of some rows of the residual.
    fn head(&mut self, rows: std::ops::Range<usize>, sink: &mut dyn FnMut(&[f32])) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let program = &loaded.program;
        let width = program.values(program.residual);
        let at = |buffers: &Buffers, id: BufferId| buffers.at(id);
        for first in rows.clone().step_by(self.most.max(1)) {
            let n = self.most.min(rows.end - first);
            let buffers = &self.runner.buffers;
            let all = n * width;
            let from = at(buffers, program.residual) + (first * width * 4) as u64;
            let args = Args::at(&[from, at(buffers, program.chosen)])
                .long(&[all, 0, 0, all, 0, 0])
                .int(&[1, 1, all]);
            self.runner.launch(&loaded, "gantry_copy", [groups(all, EACH), 1, 1], &args)?;
            self.walk(&program.head, &[], n)?;
            self.bytes.resize(n * program.vocab * 4, 0);
            self.runner.buffers.read(program.logits, 0, &mut self.bytes, &loaded.kernels.stream)?;
            self.logits.clear();
            self.logits.extend(self.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)));
            sink(&self.logits);
        }
        Ok(())
    }

    fn compute(&mut self, parts: &mut [Part<'_>], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
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
        self.batch.set(&loaded, &tokens, spans.clone(), &sequences, &loaded.kernels.stream)?;
        self.walk(&loaded.program.body, &sequences, tokens.len())?;
        for (i, (span, wanted)) in spans.iter().zip(wanted).enumerate() {
            let end = span.row + span.tokens;
            let rows = match wanted {
                Wanted::None => end..end,
                Wanted::Last => end - usize::from(span.tokens > 0)..end,
                Wanted::All => span.row..end,
            };
            self.head(rows, &mut |logits| sink(i, logits))?;
        }
        loaded.kernels.stream.synchronize()?;
        Ok(())
    }
}

fn no_drafts() -> RuntimeError {
    RuntimeError::Incompatible("cuda does not draft tokens; leave --spec out, or give --device cpu".into())
}

/// A sequence of this device.
fn own(sequence: &mut dyn Sequence) -> Result<&mut CudaSequence> {
    let any: &mut dyn Any = sequence;
    any.downcast_mut().ok_or_else(|| RuntimeError::Setting("a sequence of another device".into()))
}

impl Workspace for CudaWorkspace {
    fn run(&mut self, parts: &mut [Part<'_>], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        let result = self.compute(parts, sink);
        if result.is_err() {
            let _ = self.loaded.kernels.stream.synchronize();
            // Some of what a sequence keeps has these tokens, some has not.
            for part in parts {
                part.sequence.rewind(0);
            }
        }
        result
    }

    fn measure(&mut self) {
        self.profile = Some(BTreeMap::new());
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
