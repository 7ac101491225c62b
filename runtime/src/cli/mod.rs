//! The command line of `gantry-run`.

/// As the standard one, but where standard error is closed nothing is said, and nothing panics.
macro_rules! eprintln {
    ($($arg:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}\n", format_args!($($arg)*)));
    }};
}

pub(crate) mod args;
mod bench;
mod chat;
pub(crate) mod failure;
mod files;
mod generate;
mod kept;
mod logits;
mod opened;
mod output;
pub(crate) mod parse;
mod perplexity;
mod record;
mod signals;
mod speed;
mod tokenize;
mod turns;
mod waiting;

use args::{Cli, Command};
use clap::CommandFactory;
use gantry_formats::exit::Exit;
use signals::Signals;
use std::io::Write;

/// Version of the schema of every `--json` document.
pub(crate) const SCHEMA: u32 = 1;

/// Does what was asked.
pub(crate) fn run(cli: Cli) -> anyhow::Result<Exit> {
    let signals = Signals::new()?;
    match cli.command {
        None => generate::run(&cli.generate, &signals),
        Some(Command::Chat(args)) => chat::run(&args, &signals),
        Some(Command::Logits(args)) => logits::run(&args),
        Some(Command::Tokenize(args)) => tokenize::run(&args),
        Some(Command::Perplexity(args)) => perplexity::run(&args),
        Some(Command::Bench(args)) => bench::run(&args),
        Some(Command::Devices { json }) => devices(json),
        Some(Command::Completions { shell }) => {
            clap_complete::generate(shell, &mut Cli::command(), "gantry-run", &mut std::io::stdout());
            Ok(Exit::Ok)
        }
    }
}

fn devices(json: bool) -> anyhow::Result<Exit> {
    let device = gantry_runtime::Device::cpu(None)?;
    let free = gantry_runtime::memory::free(None);
    let mut out = std::io::stdout().lock();
    if json {
        let cpu = serde_json::json!({
            "device": "cpu",
            "description": device.describe(),
            "threads": device.threads(),
            "memory_free_bytes": free.bytes,
        });
        writeln!(out, "{}", serde_json::json!({ "schema": SCHEMA, "command": "devices", "devices": [cpu] }))?;
    } else {
        writeln!(out, "{}", device.describe())?;
        writeln!(out, "  {:.1} GiB {}", free.bytes as f64 / f64::from(1 << 30), free.limit)?;
    }
    Ok(Exit::Ok)
}
