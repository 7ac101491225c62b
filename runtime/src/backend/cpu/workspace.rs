//! Walks a program's steps.

use super::buffers::Buffers;
use super::experts::Experts;
use super::sequence::CpuSequence;
use super::{HEAD_ROWS, Loaded};
use crate::backend::{self, Sequence, Wanted, Workspace};
use crate::model::program::{BufferId, Draft, Part, Step};
use crate::{Result, RuntimeError};
use gantry_kernels::cpu::RopeAngles;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// What a run works on: rows of tokens, some of each sequence.
pub(super) struct Batch<'a, 's> {
    pub(super) tokens: &'a [u32],
    pub(super) spans: &'a [Span],
    pub(super) sequences: &'a mut [&'s mut CpuSequence],
}

/// Working memory of runs on this device.
pub(super) struct Walker {
    pub(super) loaded: Arc<Loaded>,
    pub(super) buffers: Buffers,
    /// By rotation, for the current positions.
    pub(super) angles: Vec<RopeAngles>,
    /// A product on its way to some columns of a wider buffer.
    pub(super) aside: Vec<f32>,
    pub(super) experts: Experts,
    /// Bytes of rows of a table that stays in its file.
    pub(super) bytes: Vec<u8>,
    positions: Vec<u32>,
    profile: Option<Profile>,
}

/// Time by part.
#[derive(Default)]
struct Profile {
    times: BTreeMap<Part, Duration>,
    now: Option<(Part, Instant)>,
}

impl Profile {
    /// Ends the part that runs, if one does, and begins another.
    fn turn(&mut self, next: Option<Part>) {
        let at = Instant::now();
        if let Some((part, since)) = self.now {
            *self.times.entry(part).or_default() += at - since;
        }
        self.now = next.map(|part| (part, at));
    }
}

impl Walker {
    pub(super) fn new(loaded: Arc<Loaded>) -> Self {
        let buffers = Buffers::new(&loaded.program.buffers);
        let angles = loaded.program.rotations.iter().map(|_| RopeAngles::default()).collect();
        let (aside, bytes, positions) = Default::default();
        let experts = Experts::default();
        Self { loaded, buffers, angles, aside, experts, bytes, positions, profile: None }
    }

    fn walk(&mut self, steps: &[Step], batch: &mut Batch<'_, '_>) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        for step in steps {
            match (step, &mut self.profile) {
                (Step::Begin(part), Some(profile)) => profile.turn(Some(*part)),
                (Step::Begin(_), None) => {}
                (step, _) => self.step(&loaded, step, batch)?,
            }
        }
        if let Some(profile) = &mut self.profile {
            profile.turn(None);
        }
        Ok(())
    }

    /// Angles for the positions of `spans`.
    fn turn(&mut self, spans: &[Span]) {
        self.positions.clear();
        for span in spans {
            self.positions.extend((span.start..span.start + span.tokens).map(|p| p as u32));
        }
        for (table, angles) in self.loaded.tables.iter().zip(&mut self.angles) {
            table.angles(&self.positions, angles);
        }
    }

    fn values(&self, id: BufferId) -> usize {
        self.loaded.program.values(id)
    }

    /// Logits of some `rows` of `residual`, a few at a time.
    fn head(
        &mut self,
        steps: &[Step],
        residual: BufferId,
        rows: std::ops::Range<usize>,
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let program = &loaded.program;
        let width = self.values(residual);
        for first in rows.clone().step_by(HEAD_ROWS) {
            let n = HEAD_ROWS.min(rows.end - first);
            let mut chosen = self.buffers.take(program.chosen, n * width);
            chosen[..n * width].copy_from_slice(&self.buffers.f32(residual)[first * width..][..n * width]);
            self.buffers.give(program.chosen, chosen);
            let tokens = vec![0; n];
            self.walk(steps, &mut Batch { tokens: &tokens, spans: &[], sequences: &mut [] })?;
            sink(&self.buffers.f32(program.logits)[..n * program.vocab]);
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
            let trunk = self.buffers.f32(residual)[span.row * width..][..(n - 1) * width].to_vec();
            let mut hidden = self.buffers.take(draft.hidden, n * width);
            let mut to = 0;
            if skipped == 0 {
                sequence.carry.resize(width, 0.0);
                hidden[..width].copy_from_slice(&sequence.carry);
                to = width;
            }
            hidden[to..to + trunk.len()].copy_from_slice(&trunk);
            self.buffers.give(draft.hidden, hidden);
            let tokens = &tokens[skipped..];
            let start = (span.start + skipped) - 1;
            self.run_draft(draft, sequence, tokens, start)?;
        }
        let last = span.row + n - 1;
        sequence.carry.clear();
        sequence.carry.extend_from_slice(&self.buffers.f32(residual)[last * width..][..width]);
        Ok(())
    }

    fn run_draft(
        &mut self,
        draft: &Draft,
        sequence: &mut CpuSequence,
        tokens: &[u32],
        start: usize,
    ) -> Result<()> {
        let spans = [Span { row: 0, tokens: tokens.len(), start }];
        self.turn(&spans);
        let mut sequences = [sequence];
        self.walk(&draft.body, &mut Batch { tokens, spans: &spans, sequences: &mut sequences })
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
        self.walk(&program.body, &mut Batch { tokens: &tokens, spans: &spans, sequences: &mut sequences })?;
        for (i, (span, wanted)) in spans.iter().zip(wanted).enumerate() {
            let end = span.row + span.tokens;
            let rows = match wanted {
                Wanted::None => end..end,
                Wanted::Last => end - usize::from(span.tokens > 0)..end,
                Wanted::All => span.row..end,
            };
            self.head(&program.head, program.residual, rows, &mut |logits| sink(i, logits))?;
        }
        for ((span, sequence), _) in spans.iter().zip(sequences).zip(drafting).filter(|(_, drafts)| *drafts) {
            let own = &tokens[span.row..span.row + span.tokens];
            self.keep_up(Self::drafter(&loaded)?, sequence, *span, own)?;
        }
        Ok(())
    }

    fn drafter(loaded: &Loaded) -> Result<&Draft> {
        let none = || RuntimeError::Setting("this model has no block that drafts tokens".into());
        loaded.program.draft.as_ref().ok_or_else(none)
    }
}

/// A sequence of this device.
fn own(sequence: &mut dyn Sequence) -> Result<&mut CpuSequence> {
    let any: &mut dyn Any = sequence;
    any.downcast_mut().ok_or_else(|| RuntimeError::Setting("a sequence of another device".into()))
}

impl Workspace for Walker {
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
        self.profile = Some(Profile::default());
    }

    fn measured(&self) -> Vec<(Part, Duration)> {
        self.profile.iter().flat_map(|p| p.times.iter().map(|(part, time)| (*part, *time))).collect()
    }

    fn draft(
        &mut self,
        sequence: &mut dyn Sequence,
        token: u32,
        step: usize,
        logits: &mut [f32],
    ) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        let draft = Self::drafter(&loaded)?;
        let sequence = own(sequence)?;
        let width = self.values(draft.hidden);
        let mut hidden = self.buffers.take(draft.hidden, width);
        if step == 0 {
            sequence.carry.resize(width, 0.0);
            hidden[..width].copy_from_slice(&sequence.carry);
        } else {
            hidden[..width].copy_from_slice(&self.buffers.f32(draft.residual)[..width]);
        }
        self.buffers.give(draft.hidden, hidden);
        let start = (sequence.tokens.len() + step).saturating_sub(1);
        self.run_draft(draft, sequence, &[token], start)?;
        self.head(&draft.head, draft.residual, 0..1, &mut |row| logits.copy_from_slice(row))
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
