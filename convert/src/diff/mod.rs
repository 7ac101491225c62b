//! `gantry diff A B`: what differs between two models, containers and GGUFs in any mix.

mod metadata;
mod report;
mod tensors;
#[cfg(test)]
mod tests;

use crate::weights::{Opened, Weights};
use crate::{output, parallel};
use clap::Args;
use gantry_formats::exit::Exit;
use report::Report;
use std::path::{Path, PathBuf};

/// Compare two models: metadata, tensors and values
///
/// Either may be a container or a GGUF (any shard of a set). Exit code 0: the same model. 1: they differ in
/// metadata, in the set of tensors, or in a shape, type or value. A layout that keeps type and values
/// (Q8_0 as q8_0.split) is the same; so are the keys of split sets.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  gantry diff model.gguf model.gantry\n  gantry diff old.gantry new.gantry --no-values --json"
)]
pub(crate) struct DiffArgs {
    /// The first model
    a: PathBuf,
    /// The second model
    b: PathBuf,
    /// Compare metadata, shapes and types only; no weights are read
    #[arg(long)]
    no_values: bool,
    /// List every tensor that differs, not only those that differ most
    #[arg(long)]
    full: bool,
    /// One JSON document
    #[arg(long)]
    json: bool,
    /// Threads [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// Runs the command.
pub(crate) fn run(args: &DiffArgs) -> anyhow::Result<Exit> {
    let threads = args.threads.unwrap_or_else(parallel::default_threads).max(1);
    let report = compare(&args.a, &args.b, !args.no_values, threads)?;
    if args.json {
        output::json("diff", &report.to_json())?;
    } else {
        output::text(&report.text(args.full))?;
    }
    Ok(if report.is_same() { Exit::Ok } else { Exit::Other })
}

/// Compares two models.
///
/// # Errors
/// Where one of them cannot be read.
fn compare(a: &Path, b: &Path, values: bool, threads: usize) -> anyhow::Result<Report> {
    let (opened_a, opened_b) = (Opened::open(a)?, Opened::open(b)?);
    let (headers_a, headers_b) = (opened_a.headers(), opened_b.headers());
    let metadata = metadata::compare(&headers_a, &headers_b);
    let packing = metadata::packing(&opened_a, &opened_b);
    let (weights_a, weights_b) = (Weights::new(&opened_a), Weights::new(&opened_b));
    let tensors = tensors::compare(&weights_a, &weights_b, values, threads)?;
    Ok(Report::new([a, b].map(crate::weights::file_name), metadata, packing, tensors, values))
}

/// The command without its output.
#[cfg(test)]
pub(crate) fn quietly(a: &Path, b: &Path) -> anyhow::Result<String> {
    Ok(compare(a, b, true, 1)?.text(true))
}
