//! The command line of `gantry-run`.

/// As the standard one, but where standard error is closed nothing is said, and nothing panics.
macro_rules! eprintln {
    ($($arg:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}\n", format_args!($($arg)*)));
    }};
}

pub(crate) mod args;
mod bench;
mod bench_args;
mod bench_kernels;
mod bench_load;
mod bench_svg;
mod chat;
mod device_name;
mod devices;
pub(crate) mod failure;
mod files;
mod generate;
mod kept;
mod logits;
mod opened;
pub(crate) mod output;
pub(crate) mod parse;
mod perplexity;
mod record;

mod selftest;
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
        Some(Command::Logits(args)) => logits::run(&args, &signals),
        Some(Command::Tokenize(args)) => tokenize::run(&args),
        Some(Command::Perplexity(args)) => perplexity::run(&args),
        Some(Command::Bench(args)) => bench::run(&args),
        Some(Command::Devices { json }) => devices::run(json),
        Some(Command::Selftest(args)) => selftest::run(&args, &signals),
        Some(Command::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "gantry-run", &mut script);
            // The generator for bash takes the hyphen of the name for the beginning of a subcommand, here and there.
            let script = String::from_utf8_lossy(&script).replace("gantry__subcmd__run", "gantry__run");
            std::io::stdout().write_all(script.as_bytes())?;
            Ok(Exit::Ok)
        }
    }
}
