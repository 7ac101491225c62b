//! Prompt and decode speed.

use super::args::{Bench, Measure};
use super::device_name::DeviceName;
use super::failure::Refusal;
use super::opened;
use super::speed::{self, Speed, load_json};
use super::{bench_kernels, bench_load};
use gantry_formats::exit::Exit;
use gantry_runtime::backend::KernelTime;
use gantry_runtime::model::program::Part;
use gantry_runtime::sample::{Deciding, greedy};
use gantry_runtime::speculate::Counts;
use gantry_runtime::{Session, Speculation};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, Instant};

/// `gantry-run bench FILE`: as llama-bench does, a prompt into an empty cache, and a decode from an empty cache.
pub(crate) fn run(args: &Bench) -> anyhow::Result<Exit> {
    if args.repeat == 0 || (args.prompt, args.tokens) == (0, 0) {
        return Err(Refusal::error(Exit::Usage, "nothing to measure: give -r and one of -p and -n"));
    }
    if let Some(option) = args.meaningless() {
        let measure = match args.measure {
            Measure::Text => "text",
            Measure::Load => "load",
            Measure::Kernels => "kernels",
        };
        let what = format!("{option} means nothing for --measure {measure}; leave it out");
        return Err(Refusal::error(Exit::Usage, what));
    }
    match (&args.load.device, args.measure) {
        (DeviceName::Cards(cards), Measure::Load) => return bench_load::run(args, cards),
        (DeviceName::Cpu, Measure::Load) => {
            return Err(Refusal::error(Exit::Usage, "--measure load needs a card: give --device cuda:0"));
        }
        (DeviceName::Cards(cards), Measure::Kernels) => return bench_kernels::run(args, cards),
        (DeviceName::Beside(..), Measure::Load | Measure::Kernels) => {
            return Err(Refusal::error(
                Exit::Usage,
                "that is measured on cards alone; leave cpu out of --device",
            ));
        }
        (DeviceName::Cpu, Measure::Kernels) => {
            return Err(Refusal::error(
                Exit::Usage,
                "--measure kernels needs a card: give --device cuda:0; on the CPU, --profile shows a model's parts",
            ));
        }
        (_, Measure::Text) => {}
    }
    let file = model(args)?;
    let container = opened::container(file)?;
    // Drafts reach beyond the last token.
    let beyond = args.spec.map_or(0, |n| Speculation::window(n.get()));
    let context = args.load.context.unwrap_or(args.prompt.max(args.tokens.saturating_add(beyond)).max(1));
    let load = super::args::Load { context: Some(context), ..args.load.clone() };
    let model = opened::load_with(&container, &load, args.spec, false)?;
    let mut session = model.session()?;
    // Which tokens does not matter; they need to exist, and to differ, so that a model with experts uses many.
    let token = |i: usize| (i * 7919 % model.vocab()) as u32;
    let prompt: Vec<u32> = (0..args.prompt).map(token).collect();
    let text = |tokens| Decode { tokens, spec: args.spec };
    // Fills caches and brings the clock up.
    pass(&mut session, &prompt, text(args.tokens.min(8)), token)?;
    let mut passes = Vec::new();
    for _ in 0..args.repeat {
        passes.push(pass(&mut session, &prompt, text(args.tokens), token)?);
    }
    let prefill = median(passes.iter().map(|p| p.0).collect());
    let decode = median(passes.iter().map(|p| p.1).collect());
    // The same in every pass.
    let drafts = passes.last().and_then(|p| p.2);
    let (profile, kernels) = match args.profile {
        true => profile(&mut session, &prompt, (text(args.tokens), &args.load.device), token)?,
        false => Default::default(),
    };
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
            "prompt": prefill.json(),
            "decode": decode.json(),
            "drafts": drafts.map(speed::drafts_json),
            "profile": profile.iter().map(|(what, parts)| (what.to_string(), parts_json(parts))).collect::<Map<_, _>>(),
            "kernels": kernels.iter().map(|(what, all)| (what.to_string(), kernels_json(all))).collect::<Map<_, _>>(),
        });
        writeln!(out, "{document}")?;
    } else {
        let file = file.display();
        match name {
            Some(name) => writeln!(out, "{} ({file})", name.escape_debug())?,
            None => writeln!(out, "{file}")?,
        }
        writeln!(out, "{}; medians of {}", model.device().describe(), args.repeat)?;
        let how = if args.spec.is_some() { "text, with drafts" } else { "text, one token after another" };
        let rows = [("pp", prefill, "prompt, computed in batches"), ("tg", decode, how)];
        for (name, speed, what) in rows.into_iter().filter(|(_, s, _)| s.tokens > 0) {
            writeln!(out, "{name}{:<5} {:>9.2} tok/s  {what}", speed.tokens, speed.per_second())?;
        }
        if let Some(counts) = drafts {
            writeln!(out, "drafts: {}", speed::drafts(counts))?;
        }
        for (what, parts) in &profile {
            show(&mut out, what, parts)?;
        }
        for (what, kernels) in &kernels {
            show_kernels(&mut out, what, kernels)?;
        }
    }
    drop(session);
    opened::unload(model, args.load.verbose)?;
    Ok(Exit::Ok)
}

/// The container, which only kernels are measured without.
pub(super) fn model(args: &Bench) -> anyhow::Result<&Path> {
    args.model.as_deref().ok_or_else(|| Refusal::error(Exit::Usage, "give the container as FILE"))
}

/// A text to be written.
#[derive(Clone, Copy)]
struct Decode {
    tokens: usize,
    /// Most tokens of a draft.
    spec: Option<NonZeroUsize>,
}

impl Decode {
    /// Takes the tokens, any; with drafts `token(0)` and then those that the model would write, since of any others no
    /// draft is right.
    fn run(self, session: &mut Session, token: impl Fn(usize) -> u32) -> anyhow::Result<Option<Counts>> {
        let Some(most) = self.spec else {
            for i in 0..self.tokens {
                session.prefill_deciding(&[token(i)], Deciding::Highest)?;
            }
            return Ok(None);
        };
        let mut drafts = Speculation::new(session, most.get())?;
        let (mut next, mut taken) = (Some(token(0)), 0);
        while let Some(token) = next.filter(|_| taken < self.tokens) {
            next = drafts.step(session, token, &mut |logits| {
                taken += 1;
                Ok::<_, anyhow::Error>(Some(greedy(logits)?).filter(|_| taken < self.tokens))
            })?;
        }
        Ok(Some(drafts.counts()))
    }
}

fn pass(
    session: &mut Session,
    prompt: &[u32],
    text: Decode,
    token: impl Fn(usize) -> u32,
) -> anyhow::Result<(Speed, Speed, Option<Counts>)> {
    session.rewind(0);
    let start = Instant::now();
    session.prefill(prompt)?;
    let prompt = Speed { tokens: prompt.len(), time: start.elapsed() };
    session.rewind(0);
    let start = Instant::now();
    let drafts = text.run(session, token)?;
    Ok((prompt, Speed { tokens: text.tokens, time: start.elapsed() }, drafts))
}

/// Time by part.
type Parts = Vec<(Part, Duration)>;

/// Times by what took them, of prompt and decode.
type Profile = (Vec<(&'static str, Parts)>, Vec<(&'static str, Vec<KernelTime>)>);

/// One more pass, measured by part, and on cards one that is measured by kernel: prompt and
/// decode.
fn profile(
    session: &mut Session,
    prompt: &[u32],
    (text, device): (Decode, &DeviceName),
    token: impl Fn(usize) -> u32,
) -> anyhow::Result<Profile> {
    let (mut profiles, mut kernels) = (Vec::new(), Vec::new());
    session.rewind(0);
    session.measure();
    session.prefill(prompt)?;
    profiles.push(("prompt", session.measured()));
    session.rewind(0);
    session.measure();
    text.run(session, &token)?;
    profiles.push(("decode", session.measured()));
    profiles.retain(|(_, parts)| !parts.is_empty());
    if *device == DeviceName::Cpu {
        return Ok((profiles, kernels));
    }
    session.rewind(0);
    session.measure_kernels();
    session.prefill(prompt)?;
    kernels.push(("prompt", session.measured_kernels()));
    session.rewind(0);
    session.measure_kernels();
    text.run(session, token)?;
    kernels.push(("decode", session.measured_kernels()));
    kernels.retain(|(_, all)| !all.is_empty());
    Ok((profiles, kernels))
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

fn kernels_json(kernels: &[KernelTime]) -> Value {
    let each =
        |k: &KernelTime| json!({ "kernel": k.kernel, "calls": k.calls, "seconds": k.time.as_secs_f64() });
    kernels.iter().map(each).collect()
}

fn show_kernels(out: &mut impl Write, what: &str, kernels: &[KernelTime]) -> std::io::Result<()> {
    let (looking, kernels): (Vec<&KernelTime>, Vec<&KernelTime>) =
        kernels.iter().partition(|k| k.kernel == KernelTime::LOOKING);
    let each = |k: &KernelTime| k.time.as_secs_f64() * 1e6 / k.calls.max(1) as f64;
    let all: Duration = kernels.iter().map(|k| k.time).sum();
    writeln!(out, "{what} by kernel, of {:.1} ms on the card", all.as_secs_f64() * 1e3)?;
    writeln!(out, "  {:<30} {:>9} {:>11} {:>9}", "", "calls", "ms", "us each")?;
    for k in kernels {
        let share = 100.0 * k.time.as_secs_f64() / all.as_secs_f64().max(1e-9);
        let (name, time) = (k.kernel.strip_prefix("gantry_").unwrap_or(k.kernel), k.time.as_secs_f64() * 1e3);
        writeln!(out, "  {name:<30} {:>9} {time:>11.2} {:>9.2} {share:>6.1} %", k.calls, each(k))?;
    }
    match looking.first() {
        Some(k) => writeln!(out, "  a kernel that does nothing takes {:.2} us in this table", each(k)),
        None => Ok(()),
    }
}

fn median(mut speeds: Vec<Speed>) -> Speed {
    speeds.sort_by_key(|s| s.time);
    speeds[speeds.len() / 2]
}
