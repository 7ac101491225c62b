//! `gantry export`: back to GGUF, the very file where the container kept every value, else the same model with the
//! types that it has now.

mod files;
mod header;
#[cfg(test)]
mod tests;
mod write;

use crate::failure::Refusal;
use crate::filehash::hash_file;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::unpack::Unpacker;
use crate::verify::require_intact;
use crate::weights::file_name;
use crate::{output, parallel, units};
use clap::Args;
use files::{Partials, Targets};
use gantry_formats::exit::Exit;
use gantry_formats::hash;
use gantry_formats::source::FileSource;
use header::ShardPlan;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Write a container back as GGUF
///
/// Where the container keeps every value, the result is the source file again, and its BLAKE3 is compared with the
/// recorded one. A model that came from a split set becomes the same set.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  gantry export model.gantry -o back.gguf\n  gantry export model.gantry -o folder/ --force"
)]
pub(crate) struct ExportArgs {
    /// The container, its index file
    file: PathBuf,
    /// The GGUF; for a set, a folder, or a name that `-00001-of-00003.gguf` is put to
    #[arg(short, long, value_name = "OUT.gguf")]
    output: PathBuf,
    /// Replace files that exist
    #[arg(long)]
    force: bool,
    /// Do not check the container's bytes first
    #[arg(long)]
    no_verify: bool,
    /// One JSON document
    #[arg(long)]
    json: bool,
    /// Threads [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

const INTERRUPTED: &str = "interrupted; nothing was written under the final name";

/// One file that was written.
struct Written {
    path: PathBuf,
    bytes: u64,
    blake3: String,
    /// Whether it had to be, and is, the source file.
    is_source: bool,
    changed: u64,
}

/// Runs the command.
pub(crate) fn run(args: &ExportArgs) -> anyhow::Result<()> {
    let written = export(args)?;
    if args.json {
        let of = |w: &Written| {
            json!({
                "file": file_name(&w.path), "bytes": w.bytes, "blake3": w.blake3, "is_source": w.is_source,
                "retyped_tensors": w.changed,
            })
        };
        let files: Vec<Value> = written.iter().map(of).collect();
        return output::json("export", &json!({ "files": files }));
    }
    let mut text = String::new();
    for w in &written {
        let what = match (w.is_source, w.changed) {
            (true, _) => "BLAKE3 equals the source file's".to_string(),
            (false, 0) => "types as in the source, values as they were rounded".to_string(),
            (false, n) => format!("{} of another type than in the source", units::plural(n, "tensor")),
        };
        text += &format!("{}\n  {}, {what}\n", w.path.display(), units::bytes(w.bytes));
        text += &format!("  {}\n", w.blake3);
    }
    Ok(output::text(&text)?)
}

fn export(args: &ExportArgs) -> anyhow::Result<Vec<Written>> {
    let threads = args.threads.unwrap_or_else(parallel::default_threads).max(1);
    let container = gantry_formats::container::Container::open(&args.file)?;
    let targets = Targets::new(&args.output, &container.manifest().sources)?;
    targets.check(&container, args.force)?;
    let unpacker = Unpacker::new(&container);
    let plans = header::plan(&unpacker)?;
    targets.check_space(plans.iter().map(|p| p.file_bytes).fold(0, u64::saturating_add))?;
    if !args.no_verify {
        require_intact(&args.file, threads)?;
    }
    // From here on there is something to clean up; until now a signal may end the program at once.
    let interrupt = Interrupt::listen()?;
    let opened = targets.create()?;
    let result = fill(&unpacker, &plans, (&targets, &opened), threads, &interrupt);
    // The weights were verified before they were read a second time for this.
    let result = result.and_then(|written| container.check_unchanged().map(|()| written).map_err(Into::into));
    match result.and_then(|written| opened.publish().map(|()| written)) {
        Ok(written) => Ok(written),
        Err(error) => {
            opened.discard();
            Err(error)
        }
    }
}

/// Writes all partial files, then reads them back and hashes them.
fn fill(
    unpacker: &Unpacker<'_>,
    plans: &[ShardPlan<'_>],
    (targets, opened): (&Targets, &Partials),
    threads: usize,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Written>> {
    let files = opened.files();
    write::all(unpacker, plans, files, threads, interrupt)?;
    let mut written = Vec::new();
    let progress = Progress::new("hash", plans.iter().map(|p| p.file_bytes).fold(0, u64::saturating_add));
    let sources = &unpacker.container().manifest().sources;
    for (((plan, file), path), source) in plans.iter().zip(files).zip(targets.paths()).zip(sources) {
        let bytes = FileSource::new(file.try_clone()?)?;
        let blake3 = hash::hex(&hash_file(&bytes, threads, &progress)?);
        if interrupt.is_asked() {
            return Err(interrupt.error(INTERRUPTED));
        }
        let is_source = plan.is_source();
        if is_source && blake3 != source.blake3 {
            let text = format!(
                "{}: BLAKE3 is {blake3}, the source {} had {}; nothing was kept",
                file_name(path),
                source.file,
                source.blake3
            );
            return Err(Refusal::new(Exit::Integrity, text));
        }
        let changed = plan.changed;
        written.push(Written { path: path.clone(), bytes: plan.file_bytes, blake3, is_source, changed });
    }
    Ok(written)
}

/// The command without its output.
#[cfg(test)]
pub(crate) fn quietly(file: &std::path::Path, output: &std::path::Path) -> anyhow::Result<()> {
    let (file, output) = (file.into(), output.into());
    let args = ExportArgs { file, output, force: true, no_verify: true, json: false, threads: Some(1) };
    export(&args).map(|_| ())
}
