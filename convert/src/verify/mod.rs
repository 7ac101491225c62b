//! `gantry verify`: every byte against its hash, and with `--against` every value against its source.

mod against;
mod compare;
mod damage;
mod payload;
mod report;
mod sections;
#[cfg(test)]
mod tests;

use crate::failure::Refusal;
use crate::progress::Progress;
use crate::{output, parallel};
use clap::Args;
use gantry_formats::container::{Container, ContainerError};
use gantry_formats::exit::Exit;
use report::Report;
use std::path::{Path, PathBuf};

/// Check every byte of a container, and report all damage
///
/// Exit code 0: intact. 4: damaged. 3: not readable, or a card's file is missing.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  gantry verify model.gantry\n  gantry verify model.gantry --quick\n  gantry verify model.gantry --against model.gguf --json"
)]
pub(crate) struct VerifyArgs {
    /// The container, its index file
    file: PathBuf,
    /// Only header, sections and rules; no weights are read
    #[arg(long, conflicts_with = "against")]
    quick: bool,
    /// Also the source: hash its files, and derive every stored value from it again
    #[arg(long, value_name = "SOURCE.gguf")]
    against: Option<PathBuf>,
    /// The importance matrix that the container was made with, where it was
    #[arg(long, value_name = "FILE", requires = "against")]
    imatrix: Option<PathBuf>,
    /// One line per part, `OK NAME`, `FAILED NAME …` or `MISSING NAME …`
    #[arg(long, conflicts_with = "json")]
    check: bool,
    /// One JSON document
    #[arg(long)]
    json: bool,
    /// Threads [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// Runs the command.
pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<()> {
    let threads = args.threads.unwrap_or_else(parallel::default_threads).max(1);
    let depth = if args.quick { Depth::Quick } else { Depth::Full };
    let mut report = examine(&args.file, depth, threads)?;
    if let (Some(source), Some(container)) = (&args.against, &report.container) {
        report.against = Some(against::compare(container, source, args.imatrix.as_deref(), threads)?);
    }
    match (args.json, args.check) {
        (true, _) => output::json("verify", &report.to_json())?,
        (_, true) => output::text(&report.check_lines())?,
        _ => output::text(&report.text())?,
    }
    report.verdict()
}

/// How much is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Header and sections.
    Quick,
    /// Every byte.
    Full,
}

/// Reads a container and gathers all damage.
///
/// # Errors
/// Where it is no container, cannot be read, is of another version, or breaks a rule although its hashes match.
pub(crate) fn examine(path: &Path, depth: Depth, threads: usize) -> anyhow::Result<Report> {
    let mut report = Report::new(path, depth, threads);
    let (container, faults) = match Container::open_tolerant(path) {
        Ok(opened) => opened,
        Err(error @ ContainerError::Integrity { .. }) => {
            report.damage = sections::examine(path, &error)?;
            return Ok(report);
        }
        Err(error) => return Err(error.into()),
    };
    report.card_faults(&container, faults)?;
    if depth == Depth::Full {
        let total = payload::total_bytes(&container);
        let progress = Progress::new("verify", total);
        let marks = payload::scan(&container, threads, &progress)?;
        let holders = damage::holders(&container);
        report.damage.extend(damage::from_marks(&container, marks, &holders));
        report.bytes = total;
        report.seconds = progress.seconds();
    }
    report.container = Some(container);
    Ok(report)
}

/// Refuses a container that is not whole, for a command that is about to trust it.
///
/// # Errors
/// Integrity, naming the first damage and counting the rest.
pub(crate) fn require_intact(path: &Path, threads: usize) -> anyhow::Result<Container> {
    let mut report = examine(path, Depth::Full, threads)?;
    report.verdict().map_err(|e| e.context(format!("{} is not intact", path.display())))?;
    let gone = || Refusal::new(Exit::Integrity, "the container did not open");
    report.container.take().ok_or_else(gone)
}
