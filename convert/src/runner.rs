//! `gantry run …`: hands over to `gantry-run`, which lies beside this program.

use crate::failure::Refusal;
use anyhow::Context;
use gantry_formats::exit::Exit;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Path of `gantry-run` beside this program.
pub(crate) fn gantry_run() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("where is this program?")?;
    Ok(own.with_file_name("gantry-run"))
}

/// Replaces this process by `gantry-run` with `args`.
pub(crate) fn run(args: &[OsString]) -> anyhow::Result<()> {
    let path = gantry_run()?;
    if !path.exists() {
        let message =
            format!("{} is missing; build it with `cargo build --release --bin gantry-run`", path.display());
        return Err(Refusal::new(Exit::Other, message));
    }
    let error = Command::new(&path).args(args).exec();
    Err(error).with_context(|| format!("cannot start {}", path.display()))
}
