//! `gantry`: turns GGUF models into device-ready containers, and looks after them.
#![forbid(unsafe_code)]

mod failure;

use clap::{Parser, Subcommand};
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
enum Command {}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result: anyhow::Result<()> = match cli.command {};
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if failure::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(failure::exit_of(&error) as u8)
        }
    }
}

const _: Exit = Exit::Ok;
