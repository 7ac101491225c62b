//! `gantry convert`: plans, packs, publishes.

use super::{ShapeArgs, header_bytes};
use crate::failure::Refusal;
use crate::interrupt::Interrupt;
use crate::output;
use crate::pack::journal::{Fingerprint, Journal};
use crate::pack::output::{Names, Outputs, Stamp};
use crate::pack::progress::Progress;
use crate::pack::{self, Failure, Job, Summary, Worst};
use crate::plan::{Plan, json, table};
use crate::{parallel, units};
use anyhow::{Error, Result};
use clap::Args;
use gantry_formats::exit::Exit;
use gantry_formats::gguf::Gguf;
use serde_json::json as value;
use std::path::PathBuf;
use std::time::Instant;

/// Packs a GGUF into a container.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  gantry convert model.gguf -o model.gantry\n  gantry convert model-00001-of-00003.gguf -o model.gantry --recipe lossless\n  gantry convert model.gguf -o model.gantry --set 'ffn_down=keep' --force"
)]
pub(crate) struct ConvertArgs {
    #[command(flatten)]
    shape: ShapeArgs,

    /// The container to write.
    #[arg(short, long, value_name = "MODEL.gantry")]
    output: PathBuf,

    /// Worker threads; the result is the same for any number. Default: one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,

    /// Replace an existing output.
    #[arg(long)]
    force: bool,

    /// Throw away what an interrupted conversion left, and start over.
    #[arg(long)]
    no_resume: bool,

    /// Bytes of finished blobs after which they are synced and recorded for resuming. Small enough that little is
    /// lost to a kill and that the last sync is short, large enough that syncing costs nothing.
    // Writing back early and often overlaps the disk with the packing: 1.1 GB took 0.70 s with 64 MiB, 1.1 s with 256.
    #[arg(long, hide = true, default_value_t = 64 << 20)]
    sync_bytes: u64,

    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs `gantry convert`.
pub(crate) fn convert(args: &ConvertArgs) -> Result<()> {
    let begin = Instant::now();
    // Before any tensor: it is no tensor's fault.
    gantry_packer::simd::level().map_err(|e| Refusal::new(Exit::Incompatible, e.to_string()))?;
    let source = Gguf::open(args.shape.input()?)?;
    let plan = Plan::make(&source, &args.shape.options(&source)?)?;
    let names = Names::new(&args.output, &plan)?;
    names.check(source.shards().iter().map(|s| (s.source().file(), s.file_name())), args.force)?;
    names.check_inputs(&args.shape.read_beside())?;
    let needed = plan.disk_bytes(header_bytes(&source));
    let free = names.free();
    if !args.json {
        say(&table(&plan, needed, free))?;
    }
    names.check_space(needed)?;
    let (summary, resumed) = run(args, &source, &plan, &names)?;
    for warning in &summary.warnings {
        output::note(format_args!("warning: {warning}"));
    }
    let seconds = begin.elapsed().as_secs_f64();
    let read: u64 = plan.shards.iter().map(|s| s.bytes).sum();
    if args.json {
        let mut doc = json(&plan, needed, free);
        doc["command"] = "convert".into();
        doc["result"] = value!({
            "output": names.index().display().to_string(),
            "root": summary.root,
            "container_id": summary.container_id,
            "bytes_read": read,
            "bytes_written": summary.bytes,
            "seconds": seconds,
            "resumed_blobs": resumed,
            "peak_memory_bytes": peak_memory(),
            "warnings": summary.warnings,
            "worst": summary.worst.as_ref().map(|w| value!({
                "max_relative_error": w.relative.0, "relative_in": w.relative.1,
                "max_absolute_error": w.absolute.0, "absolute_in": w.absolute.1,
            })),
        });
        return Ok(output::text(&format!("{doc:#}\n"))?);
    }
    say(&report(&summary, &names, read, seconds, resumed))
}

fn run(args: &ConvertArgs, source: &Gguf, plan: &Plan, names: &Names) -> Result<(Summary, usize)> {
    let interrupt = Interrupt::listen()?;
    let stamp = Stamp::of(source)?;
    let fingerprint = Fingerprint::new(plan, source, &stamp)?;
    let metadata = pack::metadata(source)?;
    let partial_is_there = names.partials_exist();
    let earlier = match args.no_resume || !partial_is_there {
        true => None,
        false => Journal::resume(&names.journal(), &fingerprint)?,
    };
    let outputs = Outputs::open(names, plan, earlier.is_some())?;
    let threads = args.threads.map_or_else(parallel::default_threads, usize::from);
    let job =
        Job { plan, source, outputs: &outputs, interrupt: &interrupt, threads, sync_bytes: args.sync_bytes };
    let (mut journal, known) = match earlier {
        None => (Journal::create(&names.journal(), &fingerprint)?, Vec::new()),
        Some((journal, entries)) => {
            let bytes = entries.iter().filter_map(|e| plan.blobs.get(e.blob as usize)).map(|b| b.bytes).sum();
            (journal, pack::resume(job, &entries, &mut Progress::new("checking", bytes))?)
        }
    };
    let resumed = known.iter().flatten().count();
    if resumed > 0 {
        output::note(format_args!("resuming: {resumed} of {} blobs are packed already", plan.blobs.len()));
    }
    let total = plan.tensors.iter().map(|t| t.bytes).sum();
    let packed = pack::pack(job, known, &mut journal, &mut Progress::new("packing", total));
    let done = packed.and_then(|packed| pack::finish(job, &packed, &metadata, &stamp));
    done.map(|summary| (summary, resumed)).map_err(|failure| give_up(failure, &outputs))
}

/// Cleans up after a failure, or says how to go on.
fn give_up(failure: Failure, outputs: &Outputs) -> Error {
    if failure.keep {
        output::note(format_args!("what was packed so far is kept; the same command goes on from there"));
    } else {
        outputs.discard();
    }
    failure.error
}

fn report(summary: &Summary, names: &Names, read: u64, seconds: f64, resumed: usize) -> String {
    let mut out = format!("\nwrote    {}\n", names.index().display());
    let rate = read as f64 / 1e9 / seconds.max(1e-9);
    out.push_str(&format!(
        "         {} read, {} written in {seconds:.2} s, {rate:.2} GB/s of source\n",
        units::bytes(read),
        units::bytes(summary.bytes)
    ));
    if resumed > 0 {
        out.push_str(&format!("         {resumed} blobs kept from an interrupted run\n"));
    }
    out.push_str(&format!("blake3   root {}\n", summary.root));
    match &summary.worst {
        Some(Worst { relative: (relative, r), absolute: (absolute, a) }) => out.push_str(&format!(
            "errors   at most {relative:.5} of a block's largest value, in {r}\n         \
             at most {absolute:.3e} absolute, in {a}\n"
        )),
        None => out.push_str("errors   none: every value is kept bit for bit\n"),
    }
    if let Some(peak) = peak_memory() {
        out.push_str(&format!("memory   {} at the peak\n", units::bytes(peak)));
    }
    out
}

/// Text for people beside the real work: that nobody reads it must not stop a conversion.
fn say(text: &str) -> Result<()> {
    match output::text(text) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Peak resident memory of this process, mapped pages included.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
