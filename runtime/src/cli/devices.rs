//! Which devices there are.

use super::SCHEMA;
use gantry_formats::exit::Exit;
use gantry_formats::message::wrap;
use gantry_runtime::Device;
use gantry_runtime::backend::device::{self, CardError, CardInfo, Family};
use serde_json::{Value, json};
use std::io::Write;

/// `gantry-run devices`.
pub(crate) fn run(as_json: bool) -> anyhow::Result<Exit> {
    let device = Device::cpu(None)?;
    let free = gantry_runtime::memory::free(None);
    let families: Vec<Found> = Family::ALL.into_iter().map(Found::look).collect();
    let cards = || families.iter().flat_map(|found| &found.cards);
    let mut out = std::io::stdout().lock();
    if as_json {
        let cpu = json!({
            "device": "cpu",
            "description": device.describe(),
            "threads": device.threads(),
            "memory_free_bytes": free.bytes,
        });
        let devices: Vec<Value> = std::iter::once(cpu).chain(cards().map(card_json)).collect();
        let mut document = json!({ "schema": SCHEMA, "command": "devices", "devices": devices });
        for found in &families {
            let key = format!("{}_error", found.family.name().replace('-', "_"));
            document[key] = json!(found.trouble);
        }
        writeln!(out, "{document}")?;
        return Ok(Exit::Ok);
    }
    writeln!(out, "{}", device.describe())?;
    writeln!(out, "  {:.1} GiB {}", gib(free.bytes), free.limit)?;
    writeln!(out, "  takes containers of every target, those for cpu fastest")?;
    for card in cards() {
        let CardInfo { at, name, generation, processors, memory, driver, .. } = card;
        writeln!(out, "{at}, {name}, {generation}, {processors} multiprocessors")?;
        match device::free(*at) {
            Ok(free) => {
                writeln!(out, "  {:.1} of {:.1} GiB free, driver for {driver}", gib(free), gib(*memory))?;
            }
            Err(error) => {
                writeln!(out, "  {:.1} GiB, driver for {driver}", gib(*memory))?;
                say(&mut out, &format!("cannot be used: {error}"))?;
            }
        }
        match targets(card) {
            none if none.is_empty() => writeln!(out, "  takes no containers")?,
            targets => say(&mut out, &format!("takes containers for {}", targets.join(", ")))?,
        }
    }
    for Found { family, trouble, absent, .. } in &families {
        if let Some(trouble) = trouble {
            writeln!(out, "{family}")?;
            say(&mut out, trouble)?;
        }
        if let Some(absent) = absent {
            writeln!(out, "{}", wrap(&format!("{family}: {absent}"), 2))?;
        }
    }
    Ok(Exit::Ok)
}

/// What was found of a family.
struct Found {
    family: Family,
    cards: Vec<CardInfo>,
    /// A driver that does not do.
    trouble: Option<String>,
    /// Why there is no card, where nothing is wrong: a machine without cards of a family is a usual one.
    absent: Option<String>,
}

impl Found {
    fn look(family: Family) -> Self {
        let none = Self { family, cards: Vec::new(), trouble: None, absent: None };
        match device::cards(family) {
            Ok(cards) if cards.is_empty() => Self { absent: Some("the driver has no cards".into()), ..none },
            Ok(cards) => Self { cards, ..none },
            Err(CardError::NoDriver(_)) => {
                let [library, brings] = family.library();
                let absent = format!("{library} was not found; for such cards install {brings}");
                Self { absent: Some(absent), ..none }
            }
            Err(error) => Self { trouble: Some(error.to_string()), ..none },
        }
    }
}

/// Writes a sentence, indented, in lines that fit a terminal where its words allow.
fn say(out: &mut impl Write, text: &str) -> std::io::Result<()> {
    writeln!(out, "{}", wrap(&format!("  {text}"), 4))
}

fn card_json(card: &CardInfo) -> Value {
    let free = device::free(card.at);
    json!({
        "device": card.at.to_string(),
        "description": card.name,
        "generation": card.generation.to_string(),
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
