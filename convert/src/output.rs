//! What goes to stdout: text or one JSON document.

use gantry_formats::gguf::display_name;
use gantry_formats::message::wrapped;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal, Write};

/// Version of the JSON documents that commands print.
pub(crate) const JSON_SCHEMA: u32 = 1;

/// Writes text.
///
/// # Errors
/// Where stdout fails; a closed pipe among that, which `main` takes for a quiet end.
pub(crate) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(harmless(text).as_bytes())?;
    out.flush()
}

/// `text` with control characters other than line ends as `\xNN`: names and other strings of a file must not steer
/// the terminal. The programs themselves print none.
fn harmless(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| c.is_control() && c != '\n';
    if !text.contains(harmful) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match harmful(c) {
            true => out.push_str(&display_name(c.encode_utf8(&mut [0; 4]).as_bytes())),
            false => out.push(c),
        }
    }
    out.into()
}

/// Writes a line to stderr; on a terminal in lines that fit it. That nobody reads it stops nothing.
pub(crate) fn note(line: fmt::Arguments<'_>) {
    let mut stderr = io::stderr().lock();
    let line = line.to_string();
    let line = harmless(&line);
    let line = if stderr.is_terminal() { wrapped(&line).into() } else { line };
    let _ = writeln!(stderr, "{line}");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_a_file_do_not_steer_the_terminal() {
        assert_eq!(harmless("blk.0.attn_q\nüber"), "blk.0.attn_q\nüber");
        assert_eq!(harmless("a\x1b[2Jb\r\n"), "a\\x1b[2Jb\\x0d\n");
    }
}
