//! `gantry-run`: loads a verified container and runs it.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    let result = cli::run(cli::parse::parse());
    match result {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(error) if cli::failure::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            cli::output::error(&format!("error: {error:#}"));
            ExitCode::from(cli::failure::exit_of(&error) as u8)
        }
    }
}
