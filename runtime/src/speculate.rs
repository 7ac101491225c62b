//! Drafting: a small block proposes tokens, the model verifies several at once.
//!
//! A step of a large model reads all its weights, for one token or for a few. So the block that drafts (MTP) proposes
//! what may follow, and one step computes what the model itself says after each of them. As long as that is what was
//! proposed, a step gave several tokens; the first that differs is the model's own, and what was computed after it is
//! taken back. The text is bitwise the one without drafts, for a draw of tokens too: each is drawn from the same
//! logits by the same draw.

use crate::backend::{Part, Wanted};
use crate::{Result, RuntimeError, Session};

/// Says which token follows these logits; `None`: the text ends.
pub type Choose<'a, E> = dyn FnMut(&[f32]) -> Result<Option<u32>, E> + 'a;

/// Drafts for one session.
#[derive(Debug)]
pub struct Speculation {
    most: usize,
    /// Logits of a window, by token.
    rows: Vec<f32>,
    counts: Counts,
}

/// What came of drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Windows that the model verified.
    pub steps: u64,
    /// Tokens that were proposed.
    pub drafted: u64,
    /// Those that the model would have given as well.
    pub accepted: u64,
}

impl Speculation {
    /// Drafts of up to `most` tokens for `session`, from the tokens on that it takes now. Its model must be loaded
    /// with a [window](crate::ModelOptions::window) of [`window`](Self::window) tokens.
    ///
    /// # Errors
    /// [`RuntimeError::Setting`] where the model has no block that drafts, the session has begun already, or the
    /// window is too short.
    pub fn new(session: &mut Session, most: usize) -> Result<Self> {
        let refuse = |why: String| Err(RuntimeError::Setting(why));
        let model = session.model();
        Self::check(most, model.drafts())?;
        // No window is longer than the context.
        if model.settings().window < Self::window(most).min(model.context()) {
            let found = model.settings().window;
            return refuse(format!(
                "drafts of {most} tokens take a window of {}, not {found}",
                Self::window(most)
            ));
        }
        if session.position() > 0 {
            return refuse("a session that has begun without drafts cannot go on with them".into());
        }
        session.start_drafting();
        Ok(Self { most, rows: Vec::new(), counts: Counts::default() })
    }

    /// Refuses drafts of `most` tokens for a model that has a block which drafts, or `drafts` not: what can be known before
    /// it is loaded.
    ///
    /// # Errors
    /// [`RuntimeError::Setting`].
    pub fn check(most: usize, drafts: bool) -> Result<()> {
        if most == 0 || most > MAX_DRAFT {
            let what = format!("drafts of {most} tokens: give 1 to {MAX_DRAFT}");
            return Err(RuntimeError::Setting(what));
        }
        if !drafts {
            return Err(RuntimeError::Setting(
                "this model has no block that drafts tokens, or none that runs here (qwen4exp's and deepseek4's do); run it \
                 without --spec"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Tokens that a session must be able to take back for drafts of `most`.
    pub fn window(most: usize) -> usize {
        most.saturating_add(1)
    }

    /// Takes `token`, which follows the session, and what can be drafted after it. `choose` gets the logits of what
    /// follows, token after token, and says which does; `None` ends it, and so does one that was not drafted, which
    /// is given back: it follows the session then.
    ///
    /// # Errors
    /// As [`Session::prefill`], and those of `choose`, which ends it too.
    pub fn step<E: From<RuntimeError>>(
        &mut self,
        session: &mut Session,
        token: u32,
        choose: &mut Choose<'_, E>,
    ) -> Result<Option<u32>, E> {
        session.check(&[token])?;
        let vocab = session.model().vocab();
        let mut tokens = vec![token];
        let most = self.most.min(session.left() - 1);
        let (sequence, workspace) = session.parts();
        for step in 0..most {
            let next = workspace.draft(sequence, tokens[step], step)?;
            tokens.push(next);
        }
        self.rows.clear();
        let rows = &mut self.rows;
        let part = Part { sequence: &mut *sequence, tokens: &tokens, wanted: Wanted::All, drafting: false };
        workspace.run(&mut [part], &mut |_, logits| rows.extend_from_slice(logits))?;
        // Whatever `choose` says, what it did not see is taken back.
        let (mut kept, mut next) = (1, Ok(None));
        for (i, row) in self.rows.chunks_exact(vocab).enumerate() {
            kept = i + 1;
            next = choose(row);
            match &next {
                Ok(Some(next)) if tokens.get(i + 1) == Some(next) => {}
                _ => break,
            }
        }
        self.counts.steps += 1;
        self.counts.drafted += most as u64;
        self.counts.accepted += kept as u64 - 1;
        workspace.accept(sequence, &tokens, kept)?;
        session.keep_logits(&self.rows[(kept - 1) * vocab..kept * vocab]);
        next
    }

    /// What came of it so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// More is never worth it: a window is verified as a batch.
const MAX_DRAFT: usize = 64;
