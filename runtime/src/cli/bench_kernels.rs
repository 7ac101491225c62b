//! How fast a card's kernels are, each alone, beside what bounds them.

use super::args::Bench;
use super::bench_svg;
use super::failure::Refusal;
use super::files::Files;
use super::opened;
use super::output;
use gantry_formats::exit::Exit;
use gantry_runtime::backend::device::{CardName, KernelBench, KernelCase, KernelOptions};
use serde_json::{Value, json};
use std::io::Write;

/// Replays before those that count, and those that count at least.
const WARM_UP: usize = 20;
const SAMPLES: usize = 30;

/// Most that are asked for.
const MOST: usize = 100_000;

/// `gantry-run bench [FILE] --measure kernels`: those of a model, or of a list of usual shapes.
pub(crate) fn run(args: &Bench, cards: &[CardName]) -> anyhow::Result<Exit> {
    let [card] = cards else {
        return Err(Refusal::error(Exit::Usage, "kernels are measured on one card: give --device cuda:N"));
    };
    let options = KernelOptions {
        warm_up: WARM_UP,
        samples: SAMPLES.max(args.repeat),
        only: args.only.iter().flat_map(|text| text.split_whitespace()).map(String::from).collect(),
        context: args.load.context,
        kv: args.load.options().kv,
    };
    if args.repeat > MOST {
        let what = format!("-r {}: at most {MOST} replays of each kernel are kept", args.repeat);
        return Err(Refusal::error(Exit::Usage, what));
    }
    let container = args.model.as_deref().map(opened::container).transpose()?;
    if let Some(svg) = &args.svg {
        output::check("--svg", svg)?;
        if let Some(container) = &container {
            Files::of(container, []).writes("--svg", Some(svg)).check()?;
        }
    }
    let bench = KernelBench::open(*card)?;
    let roof = bench.roof().rate;
    let mut out = std::io::stdout().lock();
    if !args.json {
        head(&mut out, &bench, &options)?;
    }
    let (mut cases, mut failed): (Vec<KernelCase>, _) = (Vec::new(), None);
    let mut each = |case: KernelCase| {
        if !args.json && failed.is_none() {
            failed = row(&mut out, roof, cases.last(), &case).err();
        }
        cases.push(case);
    };
    match &container {
        Some(container) => bench.model(container, &options, &mut each)?,
        None => bench.built_in(&options, &mut each)?,
    }
    failed.map_or(Ok(()), Err)?;
    if cases.is_empty() {
        let what = format!("nothing is called {:?}; without --only all is measured", options.only.join(" "));
        return Err(Refusal::error(Exit::Usage, what));
    }
    if args.json {
        writeln!(out, "{}", document(&bench, &options, &cases, args.model.as_deref()))?;
    }
    if let Some(path) = &args.svg {
        output::replace(path, bench_svg::plot(&bench, &cases).as_bytes())?;
    }
    Ok(Exit::Ok)
}

/// What bounds the card, and what columns mean.
fn head(out: &mut impl Write, bench: &KernelBench, options: &KernelOptions) -> std::io::Result<()> {
    let (card, roof) = (bench.card(), bench.roof());
    writeln!(out, "{}, {}, {}", card.at, card.name, card.generation)?;
    let (rate, bytes) = (roof.rate / 1e9, roof.bytes as f64 / 1e9);
    writeln!(out, "  {rate:>8.1} GB/s at most, {bytes:.1} GB read with 16-byte loads: the roof")?;
    writeln!(out, "  {:>8.1} GB/s copied from pinned memory of the host", bench.pinned() / 1e9)?;
    match bench.library() {
        Ok(version) => {
            writeln!(out, "  cuBLASLt {version}: int8 to int32, no scales, its fastest way of up to 4")?
        }
        Err(why) => writeln!(out, "  cuBLASLt is not compared with: {why}")?,
    }
    writeln!(out, "{} graph replays after {}; us: median of a launch", options.samples, options.warm_up)?;
    writeln!(out, "GB/s of what must be read (weights, caches, else activations); ~: not cold")?;
    writeln!(
        out,
        "{:>5} {:>6} {:>10} {:>10} {:>8} {:>6} {:>7}  kernel",
        "n", "length", "us", "p90", "GB/s", "roof", "TOP/s"
    )?;
    Ok(())
}

/// A line for a case, after one for its group where that begins.
fn row(
    out: &mut impl Write,
    roof: f64,
    before: Option<&KernelCase>,
    case: &KernelCase,
) -> std::io::Result<()> {
    if before.is_none_or(|b| (&b.what, &b.shape) != (&case.what, &case.shape)) {
        let baseline = if case.baseline { " (to compare)" } else { "" };
        writeln!(out, "{}", short(&format!("{}  {}{baseline}", case.what, case.shape), WIDTH))?;
    }
    let length = case.length.map_or(String::new(), |l| l.to_string());
    write!(out, "{:>5} {length:>6} ", case.tokens)?;
    let (time, rate) = match (&case.time, case.rate()) {
        (Ok(time), Some(rate)) => (time, rate),
        (Err(why), _) => return writeln!(out, "{}", short(why, WIDTH - 13)),
        (Ok(_), None) => return writeln!(out),
    };
    let share = format!("{}{:.3}", if case.cold { "" } else { "~" }, rate / roof);
    let speed = case.speed().map_or(String::new(), |s| format!("{:.1}", s / 1e12));
    write!(out, "{:>10.2} {:>10.2} {:>8.1} {share:>6} {speed:>7}", time.median, time.p90, rate / 1e9)?;
    writeln!(out, "  {}", short(&names(case), WIDTH - 61))
}

/// Columns of a terminal.
const WIDTH: usize = 80;

/// Kernels of a launch without what all their names begin with.
fn names(case: &KernelCase) -> String {
    let mut all: Vec<&str> = case.kernels.iter().map(|k| k.strip_prefix("gantry_").unwrap_or(k)).collect();
    all.dedup();
    all.join(" ")
}

/// The text, cut where it is too long.
fn short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.into(),
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
    }
}

fn document(
    bench: &KernelBench,
    options: &KernelOptions,
    cases: &[KernelCase],
    model: Option<&std::path::Path>,
) -> Value {
    let (card, roof) = (bench.card(), bench.roof());
    let case = |case: &KernelCase| {
        let time = case.time.as_ref().ok();
        json!({
            "what": case.what,
            "shape": case.shape,
            "kernels": case.kernels,
            "tokens": case.tokens,
            "length": case.length,
            "bytes": case.bytes,
            "operations": case.operations,
            "copies": case.copies,
            "cold": case.cold,
            "baseline": case.baseline,
            "microseconds": time.map(|t| t.median),
            "microseconds_p90": time.map(|t| t.p90),
            "bytes_per_second": case.rate(),
            "operations_per_second": case.speed(),
            "roof_share": case.rate().map(|rate| rate / roof.rate),
            "error": case.time.as_ref().err(),
        })
    };
    json!({
        "schema": super::SCHEMA,
        "command": "bench",
        "measured": "kernels",
        "model": model.map(|m| m.display().to_string()),
        "device": card.at.to_string(),
        "description": card.name,
        "generation": card.generation.to_string(),
        "warm_up": options.warm_up,
        "samples": options.samples,
        "roof_bytes_per_second": roof.rate,
        "roof_bytes": roof.bytes,
        "pinned_bytes_per_second": bench.pinned(),
        "cublaslt": bench.library().ok(),
        "cublaslt_error": bench.library().err(),
        "cases": cases.iter().map(case).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use gantry_runtime::backend::device::Timing;

    pub(in crate::cli) fn case(what: &str, tokens: usize, time: Result<Timing, String>) -> KernelCase {
        KernelCase {
            what: what.into(),
            shape: "16384 x 8192".into(),
            kernels: vec!["gantry_experts_group", "gantry_experts_i8_block32", "gantry_experts_i8_block32"],
            tokens,
            length: Some(32_768),
            bytes: 134_217_728,
            operations: 268_435_456 * tokens as u64,
            copies: 8,
            cold: tokens == 1,
            baseline: false,
            time,
        }
    }

    #[test]
    fn lines_fit_80_columns_and_groups_have_one_heading() {
        let time = |median| Ok(Timing { median, p90: median * 1.5 });
        let cases = [
            case("i8.frag.nv_a32:block32", 1, time(40.5)),
            case("i8.frag.nv_a32:block32", 2048, time(123_456.78)),
            case("cuBLASLt int8", 1, Err("cuBLASLt: CUBLAS_STATUS_NOT_SUPPORTED ".repeat(4))),
        ];
        let mut out = Vec::new();
        for (i, case) in cases.iter().enumerate() {
            row(&mut out, 4.68e12, i.checked_sub(1).map(|i| &cases[i]), case).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert_eq!(lines[0], "i8.frag.nv_a32:block32  16384 x 8192");
        let first = "    1  32768      40.50      60.75   3314.0  0.708     6.6  experts_group expe…";
        assert_eq!(lines[1], first);
        assert!(lines[2].contains("~0.000") && lines[4].contains("cuBLASLt: CUBLAS"), "{text}");
    }
}
