//! A session: one sequence of tokens and what the model remembers of it.

use crate::backend::{self, KernelTime, Sequence, Wanted, Workspace};
use crate::model::program::Part;
use crate::sample::{Deciding, Following};
use crate::{Model, Result, RuntimeError};
use gantry_formats::exit::{Exit, ExitCode};
use std::time::Duration;

/// Sessions that [`Together`] takes in one step.
pub const MAX_TOGETHER: usize = 32;

/// Why a saved session is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedFault {
    /// Of another model, or nothing that was saved.
    #[error(
        "it is no session of this container; begin a new one in another file, or give the container that it was saved \
         with"
    )]
    OtherContainer,
    /// Its bytes are not those that were written.
    #[error("the saved session is damaged: {0}; take it from a copy, or remove it and begin anew")]
    Damaged(&'static str),
    /// Its bytes are as they were written, and make no sense.
    #[error("no saved session says this: {0}; remove it and begin anew")]
    Malformed(&'static str),
    /// Of a newer program.
    #[error("it was saved as version {found}, this program reads {known}; use the program that saved it")]
    Version {
        /// What it says.
        found: u32,
        /// What is read.
        known: u32,
    },
    /// Saved with options that keep other things.
    #[error(
        "it does not fit these options: {0}; give those that it was saved with, or begin anew in another file"
    )]
    Options(&'static str),
}

impl ExitCode for SavedFault {
    fn exit(&self) -> Exit {
        match self {
            Self::OtherContainer | Self::Malformed(_) => Exit::Input,
            Self::Damaged(_) => Exit::Integrity,
            Self::Version { .. } => Exit::Incompatible,
            Self::Options(_) => Exit::Usage,
        }
    }
}

/// One sequence on its way through a model.
///
/// Logits have the same bits however the tokens are cut into batches, whatever other sequences are computed with
/// them, and however many threads work on them.
pub struct Session {
    model: Model,
    sequence: Box<dyn Sequence>,
    workspace: Box<dyn Workspace>,
    /// After the last token.
    following: Following,
    /// Whether the block that drafts keeps up.
    drafting: bool,
}

impl Session {
    pub(crate) fn new(model: &Model) -> Result<Self> {
        let sequence = model.executable().sequence(model.settings())?;
        let workspace = model.executable().workspace(model.settings())?;
        Ok(Self {
            model: model.clone(),
            sequence,
            workspace,
            following: Following::default(),
            drafting: false,
        })
    }

    /// Tokens so far.
    pub fn position(&self) -> usize {
        self.sequence.position()
    }

    /// All tokens so far.
    pub fn tokens(&self) -> &[u32] {
        self.sequence.tokens()
    }

    /// Positions that are left.
    pub fn left(&self) -> usize {
        self.model.context() - self.position()
    }

    /// Takes `tokens` in batches and leaves the logits of the last one. No tokens: nothing changes.
    ///
    /// # Errors
    /// [`RuntimeError::ContextFull`] and [`RuntimeError::Token`], both before anything is computed. After any other
    /// error, such as a row of a table that cannot be read from its file, the session is empty.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        self.advance(tokens, Wanted::Last, &mut |_| ())?;
        Ok(&self.following.logits)
    }

    /// Takes `tokens` in batches and leaves what decides which token follows: a device that chooses by itself brings
    /// nothing else, and [`logits`](Self::logits) are empty then. No tokens: nothing changes.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn prefill_deciding(&mut self, tokens: &[u32], deciding: Deciding) -> Result<&Following> {
        let last = tokens.len().saturating_sub(1) / self.model.settings().batch * self.model.settings().batch;
        let (first, last) = tokens.split_at(last);
        self.check(tokens)?;
        self.advance(first, Wanted::None, &mut |_| ())?;
        if !last.is_empty() {
            let drafting = self.drafting;
            let part =
                backend::Part { sequence: &mut *self.sequence, tokens: last, wanted: Wanted::Last, drafting };
            let done = self.workspace.run_deciding(part, deciding, &mut self.following);
            done.inspect_err(|_| self.following.clear())?;
        }
        Ok(&self.following)
    }

    /// What is known of the token that follows the last.
    pub fn following(&self) -> &Following {
        &self.following
    }

    /// Takes one token and gives the logits of what may follow.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn decode(&mut self, token: u32) -> Result<&[f32]> {
        self.prefill(&[token])
    }

    /// Takes `tokens` and gives the logits of every one to `sink`, in order, some rows of
    /// [`Model::vocab`] values at a time.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn prefill_all(&mut self, tokens: &[u32], sink: &mut dyn FnMut(&[f32])) -> Result<()> {
        self.advance(tokens, Wanted::All, sink)
    }

    /// The logits of the last token; empty before there is one, and where a device has
    /// [chosen](Self::prefill_deciding) the best of them.
    pub fn logits(&self) -> &[f32] {
        &self.following.logits
    }

    /// Forgets what came after `position`, so that a sequence that begins the same can go on from there, and gives
    /// the position that it is at then: 0 where the model's state cannot be taken back that far. A position beyond the
    /// end changes nothing. Logits stay those of the last token that was taken.
    pub fn rewind(&mut self, position: usize) -> usize {
        self.sequence.rewind(position)
    }

    /// All that the model keeps of this sequence, for [`restore`](Self::restore).
    ///
    /// # Errors
    /// What the device says.
    pub fn save(&self) -> Result<Vec<u8>> {
        let mut saved = self.model.root().to_vec();
        self.sequence.save(&mut saved)?;
        Ok(saved)
    }

    /// Goes on where a session of the same model with the same options was saved. There are no logits before the
    /// next token. Whether it drafts is its own affair: where the one that was saved did not, first drafts are bad.
    ///
    /// # Errors
    /// [`RuntimeError::Saved`] where it was saved by another model or with other options, or is damaged; nothing
    /// changes then.
    pub fn restore(&mut self, saved: &[u8]) -> Result<()> {
        let rest = saved.strip_prefix(&self.model.root()[..]).ok_or(SavedFault::OtherContainer)?;
        self.sequence.restore(rest)?;
        self.following.clear();
        Ok(())
    }

    /// Measures from now on how long each part of the model takes.
    pub fn measure(&mut self) {
        self.workspace.measure();
    }

    /// What was measured since [`measure`](Self::measure).
    pub fn measured(&self) -> Vec<(Part, Duration)> {
        self.workspace.measured()
    }

    /// Measures from now on how long each kernel takes, where the device shows it; parts are not measured then.
    pub fn measure_kernels(&mut self) {
        self.workspace.measure_kernels();
    }

    /// What was measured since [`measure_kernels`](Self::measure_kernels), the longest first.
    pub fn measured_kernels(&self) -> Vec<KernelTime> {
        self.workspace.measured_kernels()
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Lets the block that drafts take in all tokens from now on.
    pub(crate) fn start_drafting(&mut self) {
        self.drafting = true;
    }

    pub(crate) fn keep_logits(&mut self, logits: &[f32]) {
        self.following.clear();
        self.following.logits.extend_from_slice(logits);
    }

    pub(crate) fn parts(&mut self) -> (&mut dyn Sequence, &mut dyn Workspace) {
        (&mut *self.sequence, &mut *self.workspace)
    }

    /// Refuses tokens that the context has no room for or the vocabulary does not have.
    ///
    /// # Errors
    /// [`RuntimeError::ContextFull`], [`RuntimeError::Token`].
    pub fn check(&self, tokens: &[u32]) -> Result<()> {
        if tokens.len() > self.left() {
            let (used, context) = (self.position(), self.model.context());
            return Err(RuntimeError::ContextFull { used, wanted: tokens.len(), context });
        }
        self.model.check_tokens(tokens)
    }

    fn advance(&mut self, tokens: &[u32], wanted: Wanted, sink: &mut dyn FnMut(&[f32])) -> Result<()> {
        self.check(tokens)?;
        let (vocab, drafting) = (self.model.vocab(), self.drafting);
        let mut rest = tokens;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(self.model.settings().batch));
            let wanted = if wanted == Wanted::Last && !later.is_empty() { Wanted::None } else { wanted };
            let following = &mut self.following;
            let part = backend::Part { sequence: &mut *self.sequence, tokens: now, wanted, drafting };
            self.workspace.run(&mut [part], &mut |_, rows| {
                keep_last(following, rows, vocab);
                sink(rows);
            })?;
            rest = later;
        }
        Ok(())
    }
}

fn keep_last(following: &mut Following, rows: &[f32], vocab: usize) {
    following.clear();
    following.logits.extend_from_slice(&rows[rows.len() - vocab..]);
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("model", &self.model).field("position", &self.position()).finish()
    }
}

/// Several sessions of one model that go on in one step: its weights are read once for all of them.
pub struct Together {
    model: Model,
    workspace: Box<dyn Workspace>,
}

impl Together {
    pub(crate) fn new(model: &Model) -> Result<Self> {
        let workspace = model.executable().workspace(model.settings())?;
        Ok(Self { model: model.clone(), workspace })
    }

    /// Takes each session its tokens, however many, and leaves it the logits of its last one. What a session gets is
    /// bitwise what it gets alone.
    ///
    /// # Errors
    /// As [`Session::prefill`], and [`RuntimeError::Setting`] for more than [`MAX_TOGETHER`] sessions or one of
    /// another model; all before anything is computed.
    pub fn step(&mut self, parts: &mut [(&mut Session, &[u32])]) -> Result<()> {
        if parts.len() > MAX_TOGETHER {
            let found = parts.len();
            return Err(RuntimeError::Setting(format!(
                "{found} sessions in one step, at most {MAX_TOGETHER} go together"
            )));
        }
        for (session, tokens) in parts.iter() {
            if !session.model.is(&self.model) {
                return Err(RuntimeError::Setting("a session of another model in a step".into()));
            }
            session.check(tokens)?;
        }
        let (batch, vocab) = (self.model.settings().batch, self.model.vocab());
        while parts.iter().any(|(_, tokens)| !tokens.is_empty()) {
            let mut room = batch.max(parts.len());
            let mut waiting = parts.iter().filter(|(_, tokens)| !tokens.is_empty()).count();
            let (mut now, mut logits) = (Vec::new(), Vec::new());
            for (session, tokens) in parts.iter_mut().filter(|(_, tokens)| !tokens.is_empty()) {
                // An equal share of what room is left; short ones leave theirs to those that follow.
                let (first, rest) = tokens.split_at(tokens.len().min(room / waiting).min(batch));
                (room, waiting) = (room - first.len(), waiting - 1);
                let wanted = if rest.is_empty() { Wanted::Last } else { Wanted::None };
                *tokens = rest;
                let (sequence, drafting) = (&mut *session.sequence, session.drafting);
                now.push(backend::Part { sequence, tokens: first, wanted, drafting });
                logits.push(&mut session.following);
            }
            self.workspace.run(&mut now, &mut |part, rows| keep_last(logits[part], rows, vocab))?;
        }
        Ok(())
    }
}
