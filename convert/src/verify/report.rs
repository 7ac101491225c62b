//! What verification found, for people, scripts and programs.

use super::Depth;
use super::against::Against;
use super::damage::{self, Damage, Holder, Region};
use crate::failure::Refusal;
use crate::units;
use crate::weights::file_name;
use gantry_formats::container::{Container, ContainerError, card_file_name};
use gantry_formats::exit::Exit;
use gantry_formats::hash;
use gantry_formats::message::wrap;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// What was checked and what was found.
pub(crate) struct Report {
    path: PathBuf,
    depth: Depth,
    threads: usize,
    /// The container, where it opened.
    pub(crate) container: Option<Container>,
    /// All damage, in order of place.
    pub(crate) damage: Vec<Damage>,
    /// Cards whose own file is not there.
    pub(crate) missing: Vec<usize>,
    /// Bytes that were read.
    pub(crate) bytes: u64,
    /// Seconds that took.
    pub(crate) seconds: f64,
    /// The comparison with the source.
    pub(crate) against: Option<Against>,
}

impl Report {
    pub(super) fn new(path: &Path, depth: Depth, threads: usize) -> Self {
        Self {
            path: path.into(),
            depth,
            threads,
            container: None,
            damage: Vec::new(),
            missing: Vec::new(),
            bytes: 0,
            seconds: 0.0,
            against: None,
        }
    }

    /// Takes what opening said about cards' own files: damaged ones are damage, absent ones are missing, anything
    /// else ends it.
    pub(super) fn card_faults(
        &mut self,
        container: &Container,
        faults: Vec<(usize, ContainerError)>,
    ) -> anyhow::Result<()> {
        let index = file_name(&self.path);
        let mut bad = HashSet::new();
        for (card, fault) in faults {
            let what = match fault {
                ContainerError::Integrity { what, .. } => what,
                other @ (ContainerError::NotAContainer { .. } | ContainerError::OtherContainer { .. }) => {
                    other.to_string()
                }
                other => return Err(other.into()),
            };
            bad.insert(card);
            let entry = container.header().cards[card];
            self.damage.push(Damage {
                region: Region::Card,
                file: card_file_name(&index, card),
                card: Some(card),
                name: None,
                matrices: Vec::new(),
                blocks: None,
                bytes: [0, entry.offset + entry.bytes],
                all_zero: false,
                what: format!("{what}; the rest of this file was not checked"),
            });
        }
        let cards = 0..container.header().cards.len();
        self.missing = cards.filter(|c| container.card(*c).is_err() && !bad.contains(c)).collect();
        Ok(())
    }

    /// An error where something is damaged, missing or not what the source gives.
    ///
    /// # Errors
    /// Integrity for damage, input for a missing card.
    pub(crate) fn verdict(&self) -> anyhow::Result<()> {
        if let Some(first) = self.damage.first() {
            let more = match self.damage.len() - 1 {
                0 => String::new(),
                n => format!(" (and {} more)", units::plural(n as u64, "place")),
            };
            return Err(Refusal::new(Exit::Integrity, format!("damaged: {}{more}", first.line())));
        }
        if let Some(against) = self.against.as_ref().filter(|a| !a.is_exact()) {
            return Err(Refusal::new(Exit::Integrity, against.summary()));
        }
        if let Some(card) = self.missing.first() {
            let name = card_file_name(&file_name(&self.path), *card);
            let text = format!("card {card}: its file {name} is missing; put it beside the index file");
            return Err(Refusal::new(Exit::Input, text));
        }
        Ok(())
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        let name = file_name(&self.path);
        for damage in &self.damage {
            out += &wrap(&format!("FAILED {}", damage.line()), 7);
            out.push('\n');
        }
        for card in &self.missing {
            out += &format!("MISSING card {card}: {}\n", card_file_name(&name, *card));
        }
        if let Some(container) = &self.container {
            out += &self.cards(container);
            for note in container.notes() {
                out += &wrap(&format!("note: {note}"), 6);
                out.push('\n');
            }
        } else {
            out += "the index is damaged: weights were not checked\n";
        }
        out += &match self.depth {
            Depth::Quick => "quick: header, sections and rules; no weights were read\n".to_string(),
            Depth::Full if self.container.is_some() => format!(
                "{} in {:.2} s, {}, {}\n",
                units::bytes(self.bytes),
                self.seconds,
                units::rate(self.bytes, self.seconds),
                units::plural(self.threads as u64, "thread")
            ),
            Depth::Full => String::new(),
        };
        if let Some(against) = &self.against {
            out += &against.text();
        }
        let whole = self.damage.is_empty() && self.missing.is_empty();
        out += &match (whole, self.depth) {
            (true, Depth::Full) => format!("{name}: intact\n"),
            (true, Depth::Quick) => format!("{name}: index intact\n"),
            _ => format!("{name}: NOT intact\n"),
        };
        out
    }

    fn cards(&self, container: &Container) -> String {
        let header = container.header();
        let mut out = format!("root {}\n", hash::hex(&header.root));
        for (card, entry) in header.cards.iter().enumerate() {
            let bad = self.damage.iter().filter(|d| d.card == Some(card)).count() as u64;
            let state = match (bad, self.depth) {
                _ if self.missing.contains(&card) => "missing".to_string(),
                (0, Depth::Quick) => "not read".to_string(),
                (0, Depth::Full) => "ok".to_string(),
                (n, _) => format!("DAMAGED in {}", units::plural(n, "place")),
            };
            let blobs = units::plural(entry.blobs, "blob");
            out += &format!("card {card}: {blobs}, {}: {state}\n", units::bytes(entry.bytes));
        }
        out
    }

    /// A line per part, for scripts.
    pub(super) fn check_lines(&self) -> String {
        let mut out = String::new();
        for damage in &self.damage {
            out += &format!("FAILED {}\n", damage.line());
        }
        for card in &self.missing {
            let name = card_file_name(&file_name(&self.path), *card);
            out += &format!("MISSING card {card}: {name}\n");
        }
        let Some(container) = &self.container else { return out };
        for part in ["header", "metadata section", "hash table", "manifest"] {
            out += &format!("OK {part}\n");
        }
        if self.depth == Depth::Full {
            let failed: HashSet<(Option<usize>, Option<&str>)> =
                self.damage.iter().map(|d| (d.card, d.name.as_deref())).collect();
            let holders: Vec<Holder> = damage::holders(container);
            for (blob, holder) in container.table().blobs().iter().zip(holders) {
                let card = blob.card as usize;
                let name = damage::holder_name(container, holder);
                if container.card(card).is_ok() && !failed.contains(&(Some(card), Some(&name))) {
                    out += &format!("OK card {card} {name}\n");
                }
            }
            if !self.damage.iter().any(|d| d.region == Region::Padding) {
                out += "OK padding\n";
            }
        }
        if let Some(against) = &self.against {
            out += &against.check_lines();
        }
        out
    }

    /// For programs.
    pub(super) fn to_json(&self) -> Value {
        let exact = self.against.as_ref().is_none_or(Against::is_exact);
        let intact = self.damage.is_empty() && self.missing.is_empty();
        json!({
            "file": file_name(&self.path),
            "depth": match self.depth { Depth::Quick => "quick", Depth::Full => "full" },
            "ok": intact && exact,
            "intact": intact,
            "root": self.container.as_ref().map(|c| hash::hex(&c.header().root)),
            "container_id": self.container.as_ref().map(|c| hash::hex(&c.header().container_id)),
            "damage": self.damage,
            "missing_cards": self.missing,
            "notes": self.container.as_ref().map(|c| c.notes()),
            "bytes": self.bytes,
            "seconds": self.seconds,
            "threads": self.threads,
            "against": self.against.as_ref().map(Against::to_json),
        })
    }
}
