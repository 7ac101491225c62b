//! `gantry replan`: a container for another target or other cards, from a container; nothing is requantized, and the
//! result is byte for byte what `convert` gives with these options.

mod carry;
mod matching;
mod write;

use crate::cli::CardArgs;
use crate::failure::Refusal;
use crate::interrupt::Interrupt;
use crate::output;
use crate::pack::output::{Names, Outputs};
use crate::plan::{Change, Plan, json, summary};
use crate::progress::Progress;
use crate::{cli, pack, parallel, units};
use anyhow::{Context, Result};
use clap::Args;
use gantry_formats::container::{self, CardInfo, Container, Manifest, Metadata};
use gantry_formats::exit::Exit;
use gantry_formats::hash;
use gantry_formats::hotness::RoutedModel;
use matching::Origin;
use serde_json::json as value;
use std::path::PathBuf;
use std::time::Instant;

/// Repack a container for another target, or for other cards
///
/// Puts int8 weights into the order that the other target's kernels read, and moves tensors and experts to the cards
/// that they are placed on. Values stay as they are; the result is byte for byte what `convert` would write with these
/// options from the same source. What is not given stays as it is in the container. Any of --cards, --placement, --fill,
/// --hotness, --vram-reserve, --context and --kv places experts anew; the container does not hold the counts, so that
/// without --hotness that is as if all experts were alike.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  gantry replan model.gantry --target cuda:sm_90 -o for-h100.gantry\n  gantry replan for-h100.gantry --target cpu -o here.gantry --json\n  gantry replan moe.gantry --cards 24GiB,16GiB --hotness counts.json -o two.gantry\n  gantry replan two.gantry --placement balanced --hotness counts.json --split-cards -o own.gantry\n  gantry replan own.gantry --cards 1 --split-cards=false -o one.gantry"
)]
pub(crate) struct ReplanArgs {
    /// The container, its index file
    file: PathBuf,
    /// Device family and generation that the result is for, or auto: this machine's [default: the container's]
    #[arg(long)]
    target: Option<String>,
    #[command(flatten)]
    cards: CardArgs,
    /// One file per card, or with =false one for all [default: as it is]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    split_cards: Option<bool>,
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
    let begin = Instant::now();
    let threads = args.threads.unwrap_or_else(parallel::default_threads).max(1);
    if args.target.is_none() && args.split_cards.is_none() && !args.cards.any() {
        let text = "nothing is to be changed: give --target or --split-cards, or what places experts anew: --cards, \
             --placement, --fill, --hotness, --vram-reserve, --context or --kv";
        return Err(Refusal::new(Exit::Usage, text));
    }
    let container = Container::open(&args.file)?;
    let plan = Plan::again(&container, &change(args, &container)?)?;
    let names = Names::new(&args.output, &plan)?;
    names.check(files(&container)?.into_iter(), args.force)?;
    names.check_inputs(&args.cards.hotness().collect::<Vec<_>>())?;
    let headers = container.gguf_headers().iter().map(|h| h.raw().len() as u64 + 64).sum();
    let needed = plan.disk_bytes(headers);
    names.check_space(needed)?;
    if !args.json {
        output::text(&summary(&plan))?;
    }
    let interrupt = Interrupt::listen()?;
    let outputs = Outputs::open(&names, &plan, false)?;
    let result = fill(&container, &plan, &outputs, threads, &interrupt);
    let root = result.inspect_err(|_| outputs.discard())?;
    let bytes: u64 = plan.blobs.iter().map(|b| b.bytes).sum();
    let seconds = begin.elapsed().as_secs_f64();
    if args.json {
        let mut doc = json(&plan, needed, names.free());
        doc["command"] = "replan".into();
        doc["result"] =
            value!({ "output": names.index().display().to_string(), "root": root, "seconds": seconds });
        return Ok(output::text(&format!("{doc:#}\n"))?);
    }
    let from = &container.manifest().target;
    let to = if *from == plan.target { String::new() } else { format!(", from {from} to {}", plan.target) };
    let text = format!(
        "wrote    {}\n         {} of weights{to} in {seconds:.2} s, {}\nblake3   root {root}\n",
        names.index().display(),
        units::bytes(bytes),
        units::rate(bytes, seconds)
    );
    Ok(output::text(&text)?)
}

/// What is to be another than in `container`.
fn change(args: &ReplanArgs, container: &Container) -> Result<Change> {
    let manifest = container.manifest();
    let old = manifest.placement.as_ref();
    let cards = (manifest.cards.len(), old);
    let cards = args.cards.options(cards, || RoutedModel::of_container(container))?;
    let was_measured = old.is_some_and(|old| old.hotness.is_some());
    if args.cards.any() && !args.cards.has_hotness() && was_measured && cards.cards.len() > 1 {
        let text = "warning: the counts that the container was placed by are not in it; without --hotness experts \
                    are placed as if all were alike";
        output::note(format_args!("{text}"));
    }
    Ok(Change {
        target: cli::target(args.target.as_deref().unwrap_or(&manifest.target))?,
        split_cards: args.split_cards.unwrap_or(container.split_cards()),
        cards,
        context: args.cards.context(old),
        keeps_cards: !args.cards.any(),
    })
}

/// The files that a container is made of.
fn files(container: &Container) -> Result<Vec<(&std::fs::File, &str)>> {
    let mut files = vec![(container.index_file().file(), "container")];
    for card in 0..container.header().cards.len() {
        files.push((container.card(card)?.file.file(), "container"));
    }
    Ok(files)
}

/// What is repacked, and with what.
#[derive(Clone, Copy)]
struct Repack<'a> {
    old: &'a Container,
    plan: &'a Plan,
    /// Where each blob of `plan` comes from.
    origins: &'a [Origin],
    outputs: &'a Outputs,
    threads: usize,
    interrupt: &'a Interrupt,
}

impl Repack<'_> {
    /// Ends the work where a signal asks for it.
    fn go_on(&self) -> Result<()> {
        if self.interrupt.is_asked() { Err(self.interrupt.error(INTERRUPTED)) } else { Ok(()) }
    }
}

/// Moves, hashes, and gives the files their names; returns the root hash.
fn fill(
    old: &Container,
    plan: &Plan,
    outputs: &Outputs,
    threads: usize,
    interrupt: &Interrupt,
) -> Result<String> {
    let origins = matching::origins(old, plan)?;
    let bytes = |same: Option<bool>| -> u64 {
        let blobs = plan.blobs.iter().zip(&origins);
        blobs.filter(|(_, o)| same.is_none_or(|same| o.same == same)).map(|(b, _)| b.bytes).sum()
    };
    let work = Repack { old, plan, origins: &origins, outputs, threads, interrupt };
    // Every blob against its own hash, before anything is made of it.
    carry::carry(work, &Progress::new("copy", bytes(None)))?;
    if origins.iter().any(|o| !o.same) {
        write::changed_ones(work, &Progress::new("reorder", bytes(Some(false))))?;
    }
    let table = write::hash(work, &Progress::new("hash", bytes(Some(false))))?;
    // What was verified may have been read a second time.
    old.check_unchanged()?;
    let manifest = manifest(old, plan);
    let metadata = Metadata { shards: old.metadata().shards.clone() };
    let finished = container::finish(&plan.skeleton, &manifest, &metadata, &table)?;
    pack::write(plan, outputs, &finished).context("cannot write the output")?;
    work.go_on()?;
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
        placement: plan.placement.section.clone(),
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
    Refusal::new(Exit::Incompatible, text)
}
