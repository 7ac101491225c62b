//! From the command line to what was asked, with a word for a command that is misspelt.

use super::args::Cli;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use gantry_formats::exit::Exit;
use std::ffi::OsStr;
use std::path::Path;

/// Parses the command line; ends the program where it asks for help or for what does not exist.
pub(crate) fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| {
        // A first word that is no command is taken for FILE, and clap then complains about what follows it.
        let guess = matches!(
            error.kind(),
            ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict
        );
        if let Some(what) = std::env::args_os().nth(1).filter(|_| guess).and_then(|first| missing(&first)) {
            eprintln!("error: {what}");
            std::process::exit(Exit::Usage as i32);
        }
        error.exit()
    })
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

/// How many letters must be added, taken away or replaced to make `b` of `a` (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_edits() {
        assert_eq!(distance("chat", "chat"), 0);
        assert_eq!(distance("chat", "chatt"), 1);
        assert_eq!(distance("bench", "bnech"), 2);
        assert_eq!(distance("chat", ""), 4);
    }

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
