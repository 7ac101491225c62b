//! From the command line to what was asked, with a word for a command that is misspelt.

use super::args::{Cli, Command};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use gantry_formats::exit::Exit;
use gantry_formats::message::distance;
use std::ffi::OsStr;
use std::path::Path;

/// Parses the command line; ends the program where it asks for help or for what does not exist.
pub(crate) fn parse() -> Cli {
    let parsed = Cli::command().try_get_matches().and_then(|matches| {
        let mut cli = Cli::from_arg_matches(&matches)?;
        if let (Some(Command::Bench(bench)), Some((_, matches))) = (&mut cli.command, matches.subcommand()) {
            bench.given = given(matches);
        }
        Ok(cli)
    });
    parsed.unwrap_or_else(|error| {
        // A first word that is no command is taken for FILE, and clap then complains about what follows it.
        let guess = matches!(
            error.kind(),
            ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict
        );
        if let Some(what) = std::env::args_os().nth(1).filter(|_| guess).and_then(|first| missing(&first)) {
            super::output::error(&format!("error: {what}"));
            std::process::exit(Exit::Usage as i32);
        }
        error.exit()
    })
}

/// What was typed of a command's options and arguments, by clap's names.
fn given(matches: &ArgMatches) -> Vec<String> {
    let typed = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    matches.ids().map(clap::Id::as_str).filter(typed).map(str::to_owned).collect()
}

/// What to say of a first word that is neither an option nor a command nor a file.
fn missing(first: &OsStr) -> Option<String> {
    let word = first.to_string_lossy();
    let cli = Cli::command();
    let names: Vec<&str> = cli.get_subcommands().map(clap::Command::get_name).collect();
    if word.is_empty() || word.starts_with('-') || names.contains(&&*word) || Path::new(first).exists() {
        return None;
    }
    let hint = match names.iter().find(|name| distance(name, &word) <= 2) {
        Some(name) => format!("did you mean the command `{name}`?"),
        None => "`gantry-run --help` lists the commands".to_owned(),
    };
    Some(format!("there is no file {word}, and no command of that name; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_command_is_guessed() {
        assert!(missing("chatt".as_ref()).unwrap().contains("no file chatt"));
        assert!(missing("chatt".as_ref()).unwrap().contains("`chat`"));
        assert!(missing("no-such.gantry".as_ref()).unwrap().contains("--help"));
        assert_eq!(missing("chat".as_ref()), None);
        assert_eq!(missing("--tmp".as_ref()), None);
        assert_eq!(missing(".".as_ref()), None);
    }
}
