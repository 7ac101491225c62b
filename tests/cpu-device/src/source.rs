//! Device sources as one text each.

use std::collections::BTreeSet;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};

/// A source with its own headers in the place of the lines that ask for them, each once: the same text wherever it lies, which
/// is what compilers keep their results by.
///
/// # Errors
/// Files that cannot be read.
pub fn flat(path: &Path) -> Result<String> {
    let mut text = String::new();
    put(path, &mut BTreeSet::new(), &mut text)?;
    Ok(text)
}

fn put(path: &Path, seen: &mut BTreeSet<PathBuf>, text: &mut String) -> Result<()> {
    let told = |e: Error| Error::new(e.kind(), format!("{}: {e}", path.display()));
    if !seen.insert(path.canonicalize().map_err(told)?) {
        return Ok(());
    }
    for line in std::fs::read_to_string(path).map_err(told)?.lines() {
        let asked = line.strip_prefix("#include \"").and_then(|rest| rest.split_once('"'));
        match asked {
            Some((name, _)) => put(&path.with_file_name(name), seen, text)?,
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    Ok(())
}
