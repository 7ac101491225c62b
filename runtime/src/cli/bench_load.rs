//! How fast a container comes onto a card, beside what bounds it.

use super::args::Bench;
use super::failure::Refusal;
use super::opened;
use super::speed::report_json;
use gantry_formats::exit::Exit;
use gantry_runtime::Verify;
use gantry_runtime::backend::device::{self, CardName};
use gantry_runtime::load::{LoadOptions, LoadReport};
use serde_json::json;
use std::io::Write;
use std::time::Duration;

/// `gantry-run bench FILE --measure load`: loads it again and again, each time beside a loop that only reads and copies.
pub(crate) fn run(args: &Bench, cards: &[CardName]) -> anyhow::Result<Exit> {
    if args.repeat == 0 {
        return Err(Refusal::error(Exit::Usage, "nothing to measure: give -r"));
    }
    let container = opened::container(super::bench::model(args)?)?;
    let device = gantry_runtime::Device::cpu(args.load.threads)?;
    let options = LoadOptions {
        mode: args.load.options().load,
        verify: args.load.verify().unwrap_or(Verify::Device),
        threads: device.threads(),
        progress: None,
        left: Vec::new(),
    };
    let mut hashing = 0.0;
    // Once more than is counted: the first finds neither pages in the cache nor the card awake.
    let mut rounds: Vec<(LoadReport, Duration)> = Vec::new();
    for _ in 0..=args.repeat {
        let (arenas, report) = device::lift(&container, cards, &options)?;
        let bare = device::read_and_copy(&container, &arenas[0], options.threads)?;
        hashing = device::hash_rate(&container, &arenas[0])?;
        rounds.push((report, bare));
    }
    let first = rounds.remove(0);
    let segment = container.header().cards[0].bytes;
    // Last, so that what cannot be loaded is refused before anything is measured.
    let limit = device::pinned_copy(cards[0], segment)?;
    let rate = |bytes: u64, time: Duration| bytes as f64 / 1e9 / time.as_secs_f64().max(1e-9);
    let lifted = median(rounds.iter().map(|(report, _)| report.gb_per_s()).collect());
    let bare = median(rounds.iter().map(|(_, time)| rate(segment, *time)).collect());
    let ratio = median(rounds.iter().map(|(r, t)| r.gb_per_s() / rate(segment, *t)).collect());
    let mut out = std::io::stdout().lock();
    if args.json {
        let document = json!({
            "schema": super::SCHEMA,
            "command": "bench",
            "measured": "load",
            "bytes": first.0.bytes,
            "load": report_json(&rounds[0].0),
            "threads": options.threads,
            "first_gb_per_second": first.0.gb_per_s(),
            "gb_per_second": lifted,
            "read_and_copy_gb_per_second": bare,
            "ratio": ratio,
            "pinned_copy_gb_per_second": limit / 1e9,
            "hash_gb_per_second": hashing / 1e9,
        });
        writeln!(out, "{document}")?;
    } else {
        writeln!(out, "{}", rounds[0].0)?;
        writeln!(out, "medians of {}, {} threads, GB/s", args.repeat, options.threads)?;
        writeln!(out, "  {:<34}{lifted:>8.2}", "loaded, as above")?;
        writeln!(out, "  {:<34}{bare:>8.2}", "only read and copied, card 0")?;
        writeln!(out, "  {:<34}{ratio:>8.3}", "ratio")?;
        writeln!(out, "  {:<34}{:>8.2}", "copies from pinned memory", limit / 1e9)?;
        writeln!(out, "  {:<34}{:>8.2}", "hashing in its memory, card 0", hashing / 1e9)?;
        writeln!(out, "  {:<34}{:>8.2}", "the first time", first.0.gb_per_s())?;
    }
    Ok(Exit::Ok)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
