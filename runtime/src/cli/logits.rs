//! Writes logits for other programs to compare.

use super::args::Logits;
use super::opened::{self, Text};
use anyhow::Context;
use gantry_formats::exit::Exit;
use gantry_runtime::text::EncodeOptions;
use std::fs::File;
use std::io::{BufWriter, Write};

/// `gantry-run logits FILE`.
pub(crate) fn run(args: &Logits) -> anyhow::Result<Exit> {
    let container = opened::container(&args.model)?;
    let tokens = match &args.prompt {
        Some(prompt) => {
            let options = EncodeOptions { add_special: true, parse_special: true };
            Text::of(&container)?.tokenizer.encode(&opened::text_or_stdin(prompt)?, options)
        }
        None => args.tokens.clone(),
    };
    let model = opened::load(&container, &args.load)?;
    let mut session = model.session()?;
    let name = || format!("{}", args.out.display());
    let mut out = BufWriter::new(File::create(&args.out).with_context(name)?);
    let mut result = Ok(());
    session.prefill_all(&tokens, &mut |rows| {
        for value in rows {
            if result.is_ok() {
                result = out.write_all(&value.to_le_bytes());
            }
        }
    })?;
    result.and_then(|()| out.flush()).with_context(name)?;
    let (n, vocab) = (tokens.len(), model.vocab());
    let positions = if n == 1 { "position" } else { "positions" };
    eprintln!("wrote {n} {positions} of {vocab} logits to {}", args.out.display());
    Ok(Exit::Ok)
}
