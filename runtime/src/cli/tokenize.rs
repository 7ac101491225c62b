//! Shows a text as token ids.

use super::args::Tokenize;
use super::opened::{self, Text};
use gantry_formats::exit::Exit;
use gantry_runtime::text::EncodeOptions;
use serde_json::json;
use std::io::Write;

/// `gantry-run tokenize FILE -p TEXT`.
pub(crate) fn run(args: &Tokenize) -> anyhow::Result<Exit> {
    let container = opened::container(&args.model)?;
    let text = Text::of(&container)?;
    let options = EncodeOptions { add_special: !args.no_special, parse_special: !args.no_parse_special };
    let ids = text.tokenizer.encode(&opened::text_or_stdin(&args.prompt)?, options);
    let mut out = std::io::stdout().lock();
    let piece = |id: u32| String::from_utf8_lossy(text.tokenizer.piece(id, true)).into_owned();
    if args.json {
        let tokens: Vec<_> = ids.iter().map(|&id| json!({ "id": id, "piece": piece(id) })).collect();
        let document = json!({
            "schema": super::SCHEMA, "command": "tokenize", "count": ids.len(), "ids": ids, "tokens": tokens,
        });
        writeln!(out, "{document}")?;
    } else {
        for &id in &ids {
            writeln!(out, "{id:>8}  {:?}", piece(id))?;
        }
    }
    Ok(Exit::Ok)
}
