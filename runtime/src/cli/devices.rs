//! Which devices there are.

use super::SCHEMA;
use gantry_formats::exit::Exit;
use gantry_formats::message::wrap;
use gantry_runtime::Device;
use gantry_runtime::backend::cuda::{self, CardInfo, CudaError};
use serde_json::{Value, json};
use std::io::Write;

/// `gantry-run devices`.
pub(crate) fn run(as_json: bool) -> anyhow::Result<Exit> {
    let device = Device::cpu(None)?;
    let free = gantry_runtime::memory::free(None);
    // A machine without NVIDIA cards is a usual one; one whose driver does not do has to hear why.
    let (cards, trouble, absent) = match cuda::cards() {
        Ok(cards) if cards.is_empty() => (cards, None, Some("the driver has no cards")),
        Ok(cards) => (cards, None, None),
        Err(CudaError::NoDriver) => (
            Vec::new(),
            None,
            Some("libcuda.so was not found; for NVIDIA cards install a driver for CUDA 13"),
        ),
        Err(error) => (Vec::new(), Some(error.to_string()), None),
    };
    let mut out = std::io::stdout().lock();
    if as_json {
        let cpu = json!({
            "device": "cpu",
            "description": device.describe(),
            "threads": device.threads(),
            "memory_free_bytes": free.bytes,
        });
        let devices: Vec<Value> = std::iter::once(cpu).chain(cards.iter().map(card_json)).collect();
        let document =
            json!({ "schema": SCHEMA, "command": "devices", "devices": devices, "cuda_error": trouble });
        writeln!(out, "{document}")?;
        return Ok(Exit::Ok);
    }
    writeln!(out, "{}", device.describe())?;
    writeln!(out, "  {:.1} GiB {}", gib(free.bytes), free.limit)?;
    writeln!(out, "  takes containers of every target, those for cpu fastest")?;
    for card in &cards {
        let CardInfo { name, generation, processors, memory, driver, .. } = card;
        writeln!(out, "cuda:{}, {name}, sm_{generation}, {processors} multiprocessors", card.card)?;
        let (major, minor) = (driver / 1000, driver % 1000 / 10);
        match cuda::free(card.card) {
            Ok(free) => writeln!(
                out,
                "  {:.1} of {:.1} GiB free, driver for CUDA {major}.{minor}",
                gib(free),
                gib(*memory)
            )?,
            Err(error) => {
                writeln!(out, "  {:.1} GiB, driver for CUDA {major}.{minor}", gib(*memory))?;
                say(&mut out, &format!("cannot be used: {error}"))?;
            }
        }
        match targets(card) {
            none if none.is_empty() => writeln!(out, "  takes no containers")?,
            targets => say(&mut out, &format!("takes containers for {}", targets.join(", ")))?,
        }
    }
    if let Some(trouble) = trouble {
        writeln!(out, "cuda")?;
        say(&mut out, &trouble)?;
    }
    if let Some(absent) = absent {
        writeln!(out, "cuda: {absent}")?;
    }
    Ok(Exit::Ok)
}

/// Writes a sentence, indented, in lines that fit a terminal where its words allow.
fn say(out: &mut impl Write, text: &str) -> std::io::Result<()> {
    writeln!(out, "{}", wrap(&format!("  {text}"), 4))
}

fn card_json(card: &CardInfo) -> Value {
    let free = cuda::free(card.card);
    json!({
        "device": format!("cuda:{}", card.card),
        "description": card.name,
        "generation": format!("sm_{}", card.generation),
        "multiprocessors": card.processors,
        "memory_bytes": card.memory,
        "memory_free_bytes": free.as_ref().ok(),
        "error": free.as_ref().err().map(ToString::to_string),
        "driver": card.driver,
        "targets": targets(card),
    })
}

/// Targets whose containers a card takes.
fn targets(card: &CardInfo) -> Vec<&'static str> {
    let names = gantry_formats::target::TARGETS.iter().map(|t| t.name);
    names.filter(|name| card.takes(name)).collect()
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
