//! Perplexity as llama-perplexity measures it.

use super::args::Perplexity;
use super::failure::Refusal;
use super::files::Files;
use super::opened::{self, Text};
use super::record::Record;
use anyhow::Context;
use gantry_formats::exit::Exit;
use gantry_runtime::text::EncodeOptions;
use serde_json::json;
use std::io::{Read, Write};
use std::path::Path;

/// Sums of −ln p over scored tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Score {
    count: usize,
    nll: f64,
    squares: f64,
}

impl Score {
    fn add(&mut self, logits: &[f32], token: u32) {
        let max = logits.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
        let sum: f64 = logits.iter().map(|&x| f64::from((x - max).exp())).sum();
        let nll = f64::from(max) + sum.ln() - f64::from(logits[token as usize]);
        self.count += 1;
        self.nll += nll;
        self.squares += nll * nll;
    }

    /// e to the mean, and its standard error.
    fn estimate(&self) -> (f64, f64) {
        let n = self.count as f64;
        let mean = self.nll / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        let ppl = mean.exp();
        (ppl, (variance / (n - 1.0).max(1.0)).sqrt() * ppl)
    }
}

/// `gantry-run perplexity FILE --text T`.
///
/// The text is cut into chunks of the context length (default 512); each is run from an empty cache, its first
/// token replaced by BOS where the model adds one; the tokens of its second half are scored.
pub(crate) fn run(args: &Perplexity) -> anyhow::Result<Exit> {
    let container = opened::container(&args.model)?;
    let hotness = args.record_hotness.as_deref();
    let input = Some(args.text.as_path()).filter(|input| *input != Path::new("-"));
    Files::of(&container, args.load.inputs().chain(input)).writes("--record-hotness", hotness).check()?;
    let text = Text::of(&container)?;
    let document = read(args)?;
    let options = EncodeOptions { add_special: true, parse_special: false };
    let tokens = text.tokenizer.encode(&document, options);
    let context = args.load.context.unwrap_or(512);
    if context < 4 || tokens.len() < 2 * context {
        return Err(Refusal::error(
            Exit::Usage,
            format!(
                "{} tokens with a context of {context}: at least 4 and two whole contexts are needed; give a \
                 longer text or a smaller --context",
                tokens.len()
            ),
        ));
    }
    let bos = text.tokenizer.bos().filter(|_| text.tokenizer.adds_bos());
    let load = super::args::Load { context: Some(context), ..args.load.clone() };
    let record = Record::of(&container, hotness)?;
    let model = opened::load_with(&container, &load, None, record.is_some())?;
    // Scored tokens index logits, and the last of a chunk never goes through the session.
    model.check_tokens(&tokens)?;
    let mut session = model.session()?;
    let first = context / 2;
    let mut score = Score::default();
    let chunks = args.chunks.map_or(usize::MAX, std::num::NonZeroUsize::get).min(tokens.len() / context);
    let mut out = std::io::stdout().lock();
    for (number, chunk) in tokens.chunks_exact(context).take(chunks).enumerate() {
        let mut run = chunk.to_vec();
        if let Some(bos) = bos {
            run[0] = bos;
        }
        session.rewind(0);
        session.prefill(&run[..first])?;
        // The logits of position i say how likely token i + 1 was; the last position has nothing to say.
        let mut next = first + 1;
        session.prefill_all(&run[first..context - 1], &mut |rows| {
            for row in rows.chunks_exact(model.vocab()) {
                score.add(row, chunk[next]);
                next += 1;
            }
        })?;
        if !args.json {
            write!(out, "[{}]{:.4},", number + 1, score.estimate().0)?;
            out.flush()?;
        }
    }
    if let Some(record) = record {
        record.write(&model)?;
    }
    let (ppl, error) = score.estimate();
    if args.json {
        let document = json!({
            "schema": super::SCHEMA, "command": "perplexity", "perplexity": ppl, "error": error, "chunks": chunks, "context": context, "scored": score.count,
        });
        writeln!(out, "{document}")?;
    } else {
        writeln!(out, "\nFinal estimate: PPL = {ppl:.4} +/- {error:.5}")?;
    }
    Ok(Exit::Ok)
}

fn read(args: &Perplexity) -> anyhow::Result<String> {
    let name = format!("{}", args.text.display());
    let mut bytes = Vec::new();
    if name == "-" {
        std::io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
    } else {
        bytes = std::fs::read(&args.text).with_context(|| name.clone())?;
    }
    opened::utf8(bytes, &name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uniform_guess_has_the_perplexity_of_its_choices() {
        let mut score = Score::default();
        for token in 0..5 {
            score.add(&[1.5; 8], token);
        }
        let (ppl, error) = score.estimate();
        assert!((ppl - 8.0).abs() < 1e-6 && error < 1e-3, "{ppl} {error}");
    }
}
