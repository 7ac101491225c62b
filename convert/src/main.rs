//! `gantry`: turns GGUF models into device-ready containers, and looks after them.
#![forbid(unsafe_code)]

mod buffer;
mod cli;
mod demo;
mod diff;
mod encoding;
mod export;
mod failure;
mod filehash;
mod glob;
#[cfg(test)]
mod hostile;
mod imatrix;
mod inspect;
mod interrupt;
mod kv;
mod output;
mod pack;
mod parallel;
mod partial;
mod plan;
mod progress;
mod recipe;
mod replan;
mod rows;
mod runner;
#[cfg(test)]
#[path = "../../formats/tests/sample/mod.rs"]
mod sample;
mod synth;
mod table;
mod units;
mod unpack;
mod values;
mod verify;
mod weights;

use clap::{CommandFactory, Parser, Subcommand};
use gantry_formats::exit::Exit;
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
    Demo(demo::DemoArgs),
    /// Runs a container: hands over to `gantry-run` beside this program.
    #[command(disable_help_flag = true)]
    Run {
        /// Arguments of `gantry-run`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
    Inspect(inspect::InspectArgs),
    Verify(verify::VerifyArgs),
    Diff(diff::DiffArgs),
    Replan(replan::ReplanArgs),
    Export(export::ExportArgs),
    Synth(synth::SynthArgs),
    /// Prints a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result: anyhow::Result<Exit> = match &cli.command {
        Command::Plan(args) => cli::plan(args).map(|()| Exit::Ok),
        Command::Convert(args) => cli::convert(args).map(|()| Exit::Ok),
        Command::Inspect(args) => inspect::run(args).map(|()| Exit::Ok),
        Command::Verify(args) => verify::run(args).map(|()| Exit::Ok),
        Command::Diff(args) => diff::run(args),
        Command::Replan(args) => replan::run(args).map(|()| Exit::Ok),
        Command::Export(args) => export::run(args).map(|()| Exit::Ok),
        Command::Synth(args) => synth::run(args).map(|()| Exit::Ok),
        Command::Demo(args) => demo::run(args).map(|()| Exit::Ok),
        Command::Run { args } => runner::run(args).map(|()| Exit::Ok),
        Command::Completions { shell } => completions(*shell).map(|()| Exit::Ok),
    };
    match result {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(error) if failure::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format_args!("error: {error:#}"));
            ExitCode::from(failure::exit_of(&error) as u8)
        }
    }
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gantry", &mut script);
    Ok(output::text(&String::from_utf8_lossy(&script))?)
}
