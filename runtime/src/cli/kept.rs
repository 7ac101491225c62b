//! A session in a file, between runs.

use super::generate::Written;
use super::output;
use anyhow::Context;
use gantry_runtime::Session;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file of a session.
pub(crate) struct Kept(PathBuf);

impl Kept {
    /// `file` for a session; refused before anything is computed where it cannot be written.
    pub(crate) fn new(file: &Path) -> anyhow::Result<Self> {
        output::check("--session", file)?;
        Ok(Self(file.into()))
    }

    /// Brings `session` to where the file left it; one that is not there yet leaves it new.
    pub(crate) fn resume(&self, session: &mut Session) -> anyhow::Result<()> {
        let saved = match std::fs::read(&self.0) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            other => other.with_context(|| format!("cannot read {}", self.0.display()))?,
        };
        session.restore(&saved).with_context(|| format!("{}", self.0.display()))?;
        eprintln!("session: {} tokens from {}", session.position(), self.0.display());
        Ok(())
    }

    /// Leaves `session`, which `written` came of, in the file, which takes its name in the end. Where a signal came before an
    /// answer, a part of the prompt at most was taken: then the file stays as it was, and this is said.
    pub(crate) fn keep(&self, written: &Written, session: &mut Session) -> anyhow::Result<()> {
        if written.unanswered() {
            eprintln!("note: interrupted before an answer; the session was not saved");
            return Ok(());
        }
        written.take_last(session)?;
        output::replace(&self.0, &session.save()?)
    }
}
