//! `gantry`: turns GGUF models into device-ready containers, and looks after them.
#![forbid(unsafe_code)]

mod cli;
mod failure;
mod glob;
mod interrupt;
mod pack;
mod plan;
mod recipe;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Packs GGUF models into device-ready, verified containers.
#[derive(Parser)]
#[command(name = "gantry", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Plan(cli::PlanArgs),
    Convert(cli::ConvertArgs),
    /// Prints a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result: anyhow::Result<()> = match &cli.command {
        Command::Plan(args) => cli::plan(args),
        Command::Convert(args) => cli::convert(args),
        Command::Completions { shell } => completions(*shell),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if failure::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(failure::exit_of(&error) as u8)
        }
    }
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gantry", &mut script);
    Ok(cli::print(&String::from_utf8_lossy(&script))?)
}
