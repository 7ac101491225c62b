//! `gantry replan`: a container for another target, from a container; nothing is requantized, and the result is byte
//! for byte what `convert` gives for that target.

mod write;

use crate::failure::Refusal;
use crate::interrupt::Interrupt;
use crate::output;
use crate::pack::output::{Names, Outputs};
use crate::plan::{Plan, json};
use crate::progress::Progress;
use crate::verify::require_intact;
use crate::{cli, pack, parallel, units};
use anyhow::{Context, Result};
use clap::Args;
use gantry_formats::container::{self, CardInfo, Container, Manifest, Metadata};
use gantry_formats::hash;
use serde_json::json as value;
use std::path::PathBuf;

/// Repack a container for another target
///
/// Puts int8 weights into the order that the other target's kernels read. Values stay as they are; the result is
/// byte for byte what `convert` would write for that target from the same source.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  gantry replan model.gantry --target cuda:sm_90 -o for-h100.gantry\n  gantry replan for-h100.gantry --target cpu -o here.gantry --json"
)]
pub(crate) struct ReplanArgs {
    /// The container, its index file
    file: PathBuf,
    /// Device family and generation that the result is for
    #[arg(long)]
    target: String,
    /// The container to write
    #[arg(short, long, value_name = "OUT.gantry")]
    output: PathBuf,
    /// Replace files that exist
    #[arg(long)]
    force: bool,
    /// One JSON document
    #[arg(long)]
    json: bool,
    /// Threads; the result is the same for any number [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// Runs the command.
pub(crate) fn run(args: &ReplanArgs) -> Result<()> {
    let threads = args.threads.unwrap_or_else(parallel::default_threads).max(1);
    let target = cli::target(&args.target)?;
    let plan = Plan::again(&Container::open(&args.file)?, target)?;
    let names = Names::new(&args.output, &plan)?;
    // Every blob against its own hash, before a byte of it is moved.
    let container = require_intact(&args.file, threads)?;
    names.check(files(&container)?.into_iter(), args.force)?;
    let headers = container.gguf_headers().iter().map(|h| h.raw().len() as u64 + 64).sum();
    let needed = plan.disk_bytes(headers);
    names.check_space(needed)?;
    let interrupt = Interrupt::listen()?;
    let outputs = Outputs::open(&names, &plan, false)?;
    let result = fill(&container, &plan, &outputs, threads, &interrupt);
    let root = result.inspect_err(|_| outputs.discard())?;
    let bytes: u64 = plan.blobs.iter().map(|b| b.bytes).sum();
    if args.json {
        let mut doc = json(&plan, needed, names.free());
        doc["command"] = "replan".into();
        doc["result"] = value!({ "output": names.index().display().to_string(), "root": root });
        return Ok(output::text(&format!("{doc:#}\n"))?);
    }
    let from = &container.manifest().target;
    let text = format!(
        "wrote    {}\n         {} of weights, from {from} to {}\nblake3   root {root}\n",
        names.index().display(),
        units::bytes(bytes),
        plan.target
    );
    Ok(output::text(&text)?)
}

/// The files that a container is made of.
fn files(container: &Container) -> Result<Vec<(&std::fs::File, &str)>> {
    let mut files = vec![(container.index_file().file(), "container")];
    for card in 0..container.header().cards.len() {
        files.push((container.card(card)?.file.file(), "container"));
    }
    Ok(files)
}

/// Packs, hashes, and gives the files their names; returns the root hash.
fn fill(
    old: &Container,
    plan: &Plan,
    outputs: &Outputs,
    threads: usize,
    interrupt: &Interrupt,
) -> Result<String> {
    let total = plan.blobs.iter().map(|b| b.bytes).sum();
    write::all(old, plan, outputs, threads, interrupt, &Progress::new("repack", total))?;
    let table = write::hash(plan, outputs, threads, interrupt, &Progress::new("hash", total))?;
    // The weights were verified before they were read a second time for this.
    old.check_unchanged()?;
    let manifest = manifest(old, plan);
    let metadata = Metadata { shards: old.metadata().shards.clone() };
    let finished = container::finish(&plan.skeleton, &manifest, &metadata, &table)?;
    pack::write(plan, outputs, &finished).context("cannot write the output")?;
    if interrupt.is_asked() {
        return Err(interrupt.error(INTERRUPTED));
    }
    outputs.publish()?;
    Ok(hash::hex(&finished.header.root))
}

const INTERRUPTED: &str = "interrupted; nothing was written under the final name";

/// The old manifest with the new target, layouts and places.
fn manifest(old: &Container, plan: &Plan) -> Manifest {
    let cards = plan.cards.iter();
    Manifest {
        target: plan.target.clone(),
        layouts: plan.layouts.iter().map(|l| l.tag()).collect(),
        cards: cards
            .map(|c| CardInfo { target: plan.target.clone(), weight_bytes: c.weight_bytes })
            .collect(),
        tensors: plan.stored.clone(),
        banks: plan.banks.clone(),
        options: plan.options.clone(),
        tool: gantry_formats::container::Tool {
            name: "gantry".into(),
            version: env!("CARGO_PKG_VERSION").into(),
        },
        ..old.manifest().clone()
    }
}

/// A refusal for what cannot be moved.
fn refuse(text: String) -> anyhow::Error {
    Refusal::new(gantry_formats::exit::Exit::Incompatible, text)
}
