//! Prompt and decode speed.

use super::args::{Bench, DeviceName, Measure};
use super::bench_load;
use super::failure::Refusal;
use super::opened;
use super::speed::{Speed, load_json};
use gantry_formats::exit::Exit;
use gantry_runtime::Session;
use gantry_runtime::model::program::Part;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::time::{Duration, Instant};

/// `gantry-run bench FILE`: as llama-bench does, a prompt into an empty cache, and a decode from an empty cache.
pub(crate) fn run(args: &Bench) -> anyhow::Result<Exit> {
    if args.repeat == 0 || (args.prompt, args.tokens) == (0, 0) {
        return Err(Refusal::error(Exit::Usage, "nothing to measure: give -r and one of -p and -n"));
    }
    match (&args.load.device, args.measure) {
        (DeviceName::Cuda(cards), Measure::Load) => return bench_load::run(args, cards),
        (DeviceName::Cpu, Measure::Load) => {
            return Err(Refusal::error(Exit::Usage, "--measure load needs a card: give --device cuda:0"));
        }
        (_, Measure::Text) => {}
    }
    let container = opened::container(&args.model)?;
    let context = args.load.context.unwrap_or(args.prompt.max(args.tokens).max(1));
    let load = super::args::Load { context: Some(context), ..args.load.clone() };
    let model = opened::load(&container, &load)?;
    let mut session = model.session()?;
    // Which tokens does not matter; they need to exist, and to differ, so that a model with experts uses many.
    let token = |i: usize| (i * 7919 % model.vocab()) as u32;
    let prompt: Vec<u32> = (0..args.prompt).map(token).collect();
    // Fills caches and brings the clock up.
    pass(&mut session, &prompt, args.tokens.min(8), token)?;
    let mut passes = Vec::new();
    for _ in 0..args.repeat {
        passes.push(pass(&mut session, &prompt, args.tokens, token)?);
    }
    let speed = median(passes.iter().map(|p| p.0).collect());
    let decode = median(passes.iter().map(|p| p.1).collect());
    let profile = if args.profile { profile(&mut session, &prompt, args.tokens, token)? } else { Vec::new() };
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
            "prompt": speed.json(),
            "decode": decode.json(),
            "profile": profile.iter().map(|(what, parts)| (what.to_string(), parts_json(parts))).collect::<Map<_, _>>(),
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
            [("pp", speed, "prompt, computed in batches"), ("tg", decode, "text, one token after another")];
        for (name, speed, what) in rows.into_iter().filter(|(_, s, _)| s.tokens > 0) {
            writeln!(out, "{name}{:<5} {:>9.2} tok/s  {what}", speed.tokens, speed.per_second())?;
        }
        for (what, parts) in &profile {
            show(&mut out, what, parts)?;
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

/// Time by part.
type Parts = Vec<(Part, Duration)>;

/// One more pass, measured by part: prompt and decode.
fn profile(
    session: &mut Session,
    prompt: &[u32],
    tokens: usize,
    token: impl Fn(usize) -> u32,
) -> anyhow::Result<Vec<(&'static str, Parts)>> {
    let mut profiles = Vec::new();
    session.rewind(0);
    session.measure();
    session.prefill(prompt)?;
    profiles.push(("prompt", session.measured()));
    session.rewind(0);
    session.measure();
    for i in 0..tokens {
        session.decode(token(i))?;
    }
    profiles.push(("decode", session.measured()));
    profiles.retain(|(_, parts)| !parts.is_empty());
    Ok(profiles)
}

fn parts_json(parts: &Parts) -> Value {
    parts
        .iter()
        .map(|(part, time)| (part.name().to_string(), json!(time.as_secs_f64())))
        .collect::<Map<_, _>>()
        .into()
}

fn show(out: &mut impl Write, what: &str, parts: &Parts) -> std::io::Result<()> {
    let all: Duration = parts.iter().map(|(_, time)| *time).sum();
    writeln!(out, "{what} by part, of {:.1} ms", all.as_secs_f64() * 1e3)?;
    for (part, time) in parts {
        let share = 100.0 * time.as_secs_f64() / all.as_secs_f64().max(1e-9);
        writeln!(out, "  {:<20} {:>9.1} ms {share:>6.1} %", part.name(), time.as_secs_f64() * 1e3)?;
    }
    Ok(())
}

fn median(mut speeds: Vec<Speed>) -> Speed {
    speeds.sort_by_key(|s| s.time);
    speeds[speeds.len() / 2]
}
