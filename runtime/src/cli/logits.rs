//! Writes logits for other programs to compare.

use super::args::Logits;
use super::failure::Refusal;
use super::files::Files;
use super::opened::{self, Text};
use super::output;
use super::signals::Signals;
use anyhow::Context;
use gantry_formats::exit::Exit;
use gantry_runtime::text::EncodeOptions;
use std::io::{BufWriter, Write};
use std::path::Path;

/// `gantry-run logits FILE`.
pub(crate) fn run(args: &Logits, signals: &Signals) -> anyhow::Result<Exit> {
    let container = opened::container(&args.model)?;
    let tokens = match &args.prompt {
        Some(prompt) => {
            let options = EncodeOptions { add_special: true, parse_special: true };
            Text::of(&container)?.tokenizer.encode(&opened::text_or_stdin(prompt)?, options)
        }
        None => args.tokens.clone(),
    };
    let name = || format!("cannot write {}", args.out.display());
    Files::of(&container, args.load.inputs()).writes("--out", Some(&args.out)).check()?;
    check(&args.out, args.force)?;
    let model = opened::load(&container, &args.load)?;
    model.check_tokens(&tokens)?;
    let mut session = model.session()?;
    // From here on a signal must not leave the file behind that has no name yet.
    signals.set_busy(true);
    let mut out = BufWriter::new(output::beside(&args.out)?);
    // As a whole, before its first batch.
    session.check(&tokens)?;
    let stopped = || {
        signals.stopped().inspect(|_| eprintln!("interrupted: nothing was written to {}", args.out.display()))
    };
    for batch in tokens.chunks(args.load.batch().max(1)) {
        if let Some(exit) = stopped() {
            return Ok(exit);
        }
        let mut result = Ok(());
        session.prefill_all(batch, &mut |rows| {
            for value in rows {
                if result.is_ok() {
                    result = out.write_all(&value.to_le_bytes());
                }
            }
        })?;
        result.with_context(name)?;
    }
    if let Some(exit) = stopped() {
        return Ok(exit);
    }
    out.flush().with_context(name)?;
    let file = out.into_inner().map_err(|e| e.into_error()).with_context(name)?;
    let kept = if args.force { file.persist(&args.out) } else { file.persist_noclobber(&args.out) };
    kept.map_err(|e| e.error).with_context(name)?;
    signals.set_busy(false);
    let (n, vocab) = (tokens.len(), model.vocab());
    let positions = if n == 1 { "position" } else { "positions" };
    eprintln!("wrote {n} {positions} of {vocab} logits to {}", args.out.display());
    Ok(Exit::Ok)
}

/// Refuses, before anything is computed, what cannot be written; `out` is there only where `force` says so.
fn check(out: &Path, force: bool) -> anyhow::Result<()> {
    if let Ok(there) = out.metadata()
        && (!force || !there.is_file())
    {
        let text = format!("{} exists already; --force replaces a regular file", out.display());
        return Err(Refusal::error(Exit::Usage, text));
    }
    output::check("--out", out)
}
