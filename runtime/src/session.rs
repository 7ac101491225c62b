//! A session: one sequence of tokens and what the model remembers of it.

use crate::backend::{State, Wanted};
use crate::{Model, Result, RuntimeError};

/// One sequence on its way through a model.
///
/// Logits have the same bits however the tokens are cut into batches and however many threads work on them.
pub struct Session {
    model: Model,
    state: Box<dyn State>,
    position: usize,
}

impl Session {
    pub(crate) fn new(model: &Model) -> Result<Self> {
        let state = model.executable().start(model.settings())?;
        Ok(Self { model: model.clone(), state, position: 0 })
    }

    /// Tokens so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Positions that are left.
    pub fn left(&self) -> usize {
        self.model.context() - self.position
    }

    /// Takes `tokens` in batches and leaves the logits of the last one. No tokens: nothing changes.
    ///
    /// # Errors
    /// [`RuntimeError::ContextFull`] and [`RuntimeError::Token`], both before anything is computed.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        self.advance(tokens, Wanted::Last, &mut |_| ())?;
        Ok(self.state.logits())
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

    /// The logits of the last token; empty before there is one.
    pub fn logits(&self) -> &[f32] {
        self.state.logits()
    }

    /// Forgets everything from `position` on, so that a sequence that begins the same can go on from there.
    /// A position beyond the end changes nothing. Logits stay those of the last token that was taken.
    pub fn rewind(&mut self, position: usize) {
        self.position = self.position.min(position);
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    fn advance(&mut self, tokens: &[u32], wanted: Wanted, sink: &mut dyn FnMut(&[f32])) -> Result<()> {
        if tokens.len() > self.left() {
            let (used, context) = (self.position, self.model.context());
            return Err(RuntimeError::ContextFull { used, wanted: tokens.len(), context });
        }
        self.model.check_tokens(tokens)?;
        let mut rest = tokens;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(self.model.settings().batch));
            let wanted = if wanted == Wanted::Last && !later.is_empty() { Wanted::None } else { wanted };
            self.state.run(now, self.position, wanted, sink)?;
            self.position += now.len();
            rest = later;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("model", &self.model).field("position", &self.position).finish()
    }
}
