//! `gantry synth`: models of random weights, of any architecture and size, as GGUF.
//!
//! Names and shapes come from the architecture tables, so that a model that is made here passes the check that
//! `convert` makes. Every value is a function of the seed, the tensor's name and the value's place: the same command
//! gives the same bytes with any number of threads.

mod derive;
mod fill;
mod header;
mod presets;
mod random;
mod spec;
#[cfg(test)]
mod tests;
mod tokenizer;
mod write;

use crate::failure::Refusal;
use crate::{output, parallel, partial, units};
use anyhow::Context;
use clap::Args;
use gantry_formats::block::GgmlType;
use gantry_formats::exit::Exit;
use gantry_formats::{container, hotness};
use serde::Serialize;
use spec::{Setting, Spec};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Make a model of random weights
///
/// For tests and benchmarks: it loads and runs, and writes nonsense. Norms are near 1 and matrices scaled so that
/// values keep their size from layer to layer.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  gantry synth --list\n  gantry synth qwen4exp-tiny -o tiny.gguf\n  gantry synth qwen4exp-1gb -o bench.gguf --type Q8_0 --seed 7\n  gantry synth qwen3moe-tiny -o wide.gguf --set embedding_length=512 --set expert_count=64\n  gantry synth qwen4exp-tiny -o plain.gguf --set ple.layers=\n  gantry synth deepseek4-tiny --print > mine.toml; gantry synth mine.toml -o mine.gguf"
)]
pub(crate) struct SynthArgs {
    /// A preset, or a file like those that --print shows
    #[arg(value_name = "PRESET|SPEC.toml", required_unless_present = "list")]
    spec: Option<String>,
    /// The GGUF to write
    #[arg(short, long, value_name = "FILE.gguf", required_unless_present_any = ["list", "print"])]
    output: Option<PathBuf>,
    /// Where the random values start
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Type of the matrices: F32, F16, BF16 or Q8_0 [default: the preset's]
    #[arg(long = "type", value_name = "TYPE", value_parser = weight_type)]
    ty: Option<GgmlType>,
    /// A metadata key without the architecture's prefix, and its value as TOML writes it; no value takes it out
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    /// Replace a GGUF that exists
    #[arg(long)]
    force: bool,
    /// Threads; the result is the same for any number [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// One JSON document
    #[arg(long)]
    json: bool,
    /// List the presets
    #[arg(long, conflicts_with_all = ["spec", "output", "print"])]
    list: bool,
    /// Show the preset's text, to start a file of your own from
    #[arg(long, conflicts_with = "output")]
    print: bool,
}

fn weight_type(name: &str) -> Result<GgmlType, String> {
    let ty = GgmlType::from_name(name).filter(|ty| fill::TYPES.contains(ty));
    ty.ok_or_else(|| format!("expected {}", fill::TYPES.map(GgmlType::name).join(", ")))
}

/// What was written.
#[derive(Debug, Serialize)]
struct Written {
    file: String,
    architecture: &'static str,
    r#type: &'static str,
    seed: u64,
    tensors: u64,
    parameters: u64,
    bytes: u64,
    blake3: String,
    seconds: f64,
}

/// Runs the command.
pub(crate) fn run(args: &SynthArgs) -> anyhow::Result<()> {
    if args.list {
        return Ok(output::text(&presets::list())?);
    }
    let name = args.spec.as_deref().unwrap_or_default();
    if args.print {
        return Ok(output::text(presets::text(name).ok_or_else(|| presets::unknown(name))?)?);
    }
    let path = args.output.as_deref().unwrap_or(Path::new(""));
    let written = synthesize(args, name, path)?;
    if args.json {
        return output::json("synth", &written);
    }
    let Written { architecture, tensors, parameters, bytes, blake3, seconds, .. } = &written;
    let what = format!(
        "{architecture}, {}, {} parameters, seed {}",
        units::plural(*tensors, "tensor"),
        units::count(*parameters),
        written.seed
    );
    let rate = units::rate(*bytes, *seconds);
    let size = units::bytes(*bytes);
    let text = format!("{}\n  {what}\n  {size}, {rate}\n  {blake3}\n", path.display());
    Ok(output::text(&text)?)
}

/// Refuses to replace what this command does not write: anything but a GGUF, or a file without a byte.
fn check_replaced(path: &Path) -> anyhow::Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(16).read_to_end(&mut head));
    read.with_context(|| path.display().to_string())?;
    if head.is_empty() || head.starts_with(b"GGUF") {
        return Ok(());
    }
    let found = match head.starts_with(&container::MAGIC[..3]) {
        true => "a Gantry container, or a card's file of one".to_string(),
        false if hotness::is_text(&head) => "text, such as token counts".to_string(),
        false => format!("a file that starts with {}", bytes(&head)),
    };
    let text = format!(
        "{} is {found}, no GGUF, which is all that --force replaces; name another output, or remove it",
        path.display()
    );
    Err(Refusal::new(Exit::Usage, text))
}

fn bytes(head: &[u8]) -> String {
    head.iter().take(8).map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}

fn synthesize(args: &SynthArgs, name: &str, path: &Path) -> anyhow::Result<Written> {
    let usage = |text: String| Refusal::new(Exit::Usage, text);
    let mut spec = Spec::named(name)?;
    for setting in &args.settings {
        spec.set(setting).map_err(|e| usage(format!("--set {setting}: {e}")))?;
    }
    let ty = args.ty.unwrap_or(spec.ty);
    let model = header::model(&spec, ty, args.seed).map_err(|e| usage(format!("{name}: {e}")))?;
    partial::check_target(path, args.force)?;
    check_replaced(path)?;
    let threads = args.threads.unwrap_or_else(parallel::default_threads).max(1);
    let (blake3, seconds) = write::write(&model, path, threads)?;
    Ok(Written {
        file: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        architecture: spec.arch.name,
        r#type: ty.name(),
        seed: args.seed,
        tensors: model.header.tensors().len() as u64,
        parameters: model.header.tensors().iter().map(|t| t.elements).sum(),
        bytes: model.header.file_len(),
        blake3,
        seconds,
    })
}
