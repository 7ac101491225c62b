//! Prompt and decode speed.

use super::args::Bench;
use super::failure::Refusal;
use super::opened;
use super::speed::{Speed, load_json};
use gantry_formats::exit::Exit;
use gantry_runtime::Session;
use serde_json::json;
use std::io::Write;
use std::time::Instant;

/// `gantry-run bench FILE`: as llama-bench does, a prompt into an empty cache, and a decode from an empty cache.
pub(crate) fn run(args: &Bench) -> anyhow::Result<Exit> {
    if args.repeat == 0 || args.prompt + args.tokens == 0 {
        return Err(Refusal::error(Exit::Usage, "nothing to measure: give -r and one of -p and -n"));
    }
    let container = opened::container(&args.model)?;
    let context = args.load.context.unwrap_or(args.prompt.max(args.tokens).max(1));
    let load = super::args::Load { context: Some(context), ..args.load };
    let model = opened::load(&container, &load)?;
    let mut session = model.session()?;
    // Which tokens does not matter; they need to exist, and to differ, so that a model with experts uses many.
    let token = |i: usize| (i * 7919 % model.vocab()) as u32;
    let prompt: Vec<u32> = (0..args.prompt).map(token).collect();
    // Fills caches and brings the clock up.
    pass(&mut session, &prompt, args.tokens.min(8), token)?;
    let mut passes = Vec::with_capacity(args.repeat);
    for _ in 0..args.repeat {
        passes.push(pass(&mut session, &prompt, args.tokens, token)?);
    }
    let prompt = median(passes.iter().map(|p| p.0).collect());
    let decode = median(passes.iter().map(|p| p.1).collect());
    let name = container.manifest().model.name.as_deref();
    let mut out = std::io::stdout().lock();
    if args.json {
        let document = json!({
            "schema": super::SCHEMA,
            "command": "bench",
            "model": name,
            "device": model.device().describe(),
            "threads": model.device().threads(),
            "repeat": args.repeat,
            "load": load_json(&model),
            "prompt": prompt.json(),
            "decode": decode.json(),
        });
        writeln!(out, "{document}")?;
    } else {
        let file = args.model.display();
        match name {
            Some(name) => writeln!(out, "{} ({file})", name.escape_debug())?,
            None => writeln!(out, "{file}")?,
        }
        writeln!(out, "{}; medians of {}", model.device().describe(), args.repeat)?;
        let rows =
            [("pp", prompt, "prompt, computed in batches"), ("tg", decode, "text, one token after another")];
        for (name, speed, what) in rows.into_iter().filter(|(_, s, _)| s.tokens > 0) {
            writeln!(out, "{name}{:<5} {:>9.2} tok/s  {what}", speed.tokens, speed.per_second())?;
        }
    }
    Ok(Exit::Ok)
}

fn pass(
    session: &mut Session,
    prompt: &[u32],
    tokens: usize,
    token: impl Fn(usize) -> u32,
) -> anyhow::Result<(Speed, Speed)> {
    session.rewind(0);
    let start = Instant::now();
    session.prefill(prompt)?;
    let prompt = Speed { tokens: prompt.len(), time: start.elapsed() };
    session.rewind(0);
    let start = Instant::now();
    for i in 0..tokens {
        session.decode(token(i))?;
    }
    Ok((prompt, Speed { tokens, time: start.elapsed() }))
}

fn median(mut speeds: Vec<Speed>) -> Speed {
    speeds.sort_by_key(|s| s.time);
    speeds[speeds.len() / 2]
}
