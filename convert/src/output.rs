//! What goes to stdout: text or one JSON document.

use serde::Serialize;
use std::fmt;
use std::io::{self, Write};

/// Version of the JSON documents that commands print.
pub(crate) const JSON_SCHEMA: u32 = 1;

/// Writes text.
///
/// # Errors
/// Where stdout fails; a closed pipe among that, which `main` takes for a quiet end.
pub(crate) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a line to stderr. That nobody reads it stops nothing.
pub(crate) fn note(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Writes one JSON document: `schema` and `command` first, then the fields of `content`.
///
/// # Errors
/// As [`text`].
pub(crate) fn json<T: Serialize>(command: &str, content: &T) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Document<'a, T> {
        schema: u32,
        command: &'a str,
        #[serde(flatten)]
        content: &'a T,
    }
    let document = Document { schema: JSON_SCHEMA, command, content };
    let mut line = serde_json::to_string_pretty(&document)?;
    line.push('\n');
    Ok(text(&line)?)
}

/// A float as JSON has it: what is not finite becomes a string.
pub(crate) fn json_float(x: f64) -> serde_json::Value {
    serde_json::Number::from_f64(x).map_or_else(|| x.to_string().into(), Into::into)
}
