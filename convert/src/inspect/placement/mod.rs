//! `--placement`: which card holds which expert, what each card has to compute, and with counts how it turned out.

mod html;
#[cfg(test)]
mod tests;
mod text;

use crate::kv::KvType;
use crate::plan::report_json;
use crate::weights::file_name;
use anyhow::Context;
use gantry_formats::container::{Container, PlacementSection};
use gantry_formats::hotness::{self, Hotness, RoutedModel};
use gantry_formats::placement::{self, LayerExperts, Placement, Report};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Hottest experts that are listed.
const HOTTEST: usize = 10;

/// Everything the view says.
#[derive(Debug, Serialize)]
pub(super) struct View {
    file: String,
    model: String,
    target: String,
    /// As the manifest has it.
    recorded: Option<PlacementSection>,
    cards: Vec<Card>,
    /// Layers with banks.
    layers: Vec<Layer>,
    /// Files of counts that it is measured by.
    counts: Vec<String>,
    tokens: Option<u64>,
    hottest: Vec<Hot>,
    #[serde(skip)]
    map: Placement,
    #[serde(skip)]
    measured: Option<Report>,
    warnings: Vec<String>,
}

/// A card.
#[derive(Debug, Serialize)]
struct Card {
    host: bool,
    budget: Option<u64>,
    /// Bytes of its segment.
    segment_bytes: u64,
    /// Of these, experts in banks.
    expert_bytes: u64,
    /// Of these, other weights.
    other_bytes: u64,
    kv_bytes: u64,
    /// Slots in its banks.
    experts: u64,
    /// Expected part of the routed tokens.
    predicted_ppm: u32,
    /// The same by the counts that were given.
    measured_ppm: Option<u32>,
}

/// A layer.
#[derive(Debug, Serialize)]
struct Layer {
    layer: u32,
    experts: u32,
    cards: Vec<Cell>,
    /// Mean over largest predicted share.
    predicted_balance_ppm: u64,
    measured_balance_ppm: Option<u64>,
}

/// A layer on a card.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cell {
    experts: u32,
    predicted_ppm: u32,
    measured_ppm: Option<u32>,
}

impl Cell {
    /// What is known best.
    fn ppm(&self) -> u32 {
        self.measured_ppm.unwrap_or(self.predicted_ppm)
    }
}

impl Layer {
    fn balance_ppm(&self) -> u64 {
        self.measured_balance_ppm.unwrap_or(self.predicted_balance_ppm)
    }
}

/// A hot expert.
#[derive(Debug, Serialize)]
struct Hot {
    layer: u32,
    expert: u32,
    tokens: u64,
    /// Part of its layer's tokens.
    share_ppm: u32,
    cards: Vec<usize>,
}

/// Looks at `container` with `kv_bytes` of KV cache by card; `counts` are files of counts to measure it by.
///
/// # Errors
/// Where it has no experts, or counts are refused or of another model.
pub(super) fn of(container: &Container, kv_bytes: &[u64], counts: &[PathBuf]) -> anyhow::Result<View> {
    let manifest = container.manifest();
    let n = container.header().cards.len();
    let map = manifest.expert_map(n);
    let (hotness, files, warnings) = match counts {
        [] => (None, Vec::new(), Vec::new()),
        paths => {
            let reading = hotness::read(paths)?;
            let files = reading.file_names();
            let (hotness, warnings) = reading.fit(&RoutedModel::of_container(container)?)?;
            (Some(hotness), files, warnings)
        }
    };
    let predicted = predicted(container, &map);
    let measured = hotness.as_ref().map(|h| placement::report(&map, &layers(container, &map, Some(h))));
    let section = manifest.placement.clone();
    let totals = totals(&predicted, section.as_ref(), n);
    let cards = container.header().cards.iter().enumerate().map(|(card, entry)| {
        let here = manifest.banks.iter().filter(|b| b.card as usize == card);
        let slots = here.clone().map(|b| b.experts.len() as u64).sum();
        let placed = section.as_ref().and_then(|s| s.cards.get(card));
        let expert_bytes = here.map(|b| b.experts.len() as u64 * b.bytes).sum();
        let weights = manifest.cards.get(card).map_or(0, |c| c.weight_bytes);
        Card {
            host: placed.is_some_and(|c| c.host),
            budget: placed.and_then(|c| c.bytes),
            segment_bytes: entry.bytes,
            expert_bytes,
            other_bytes: weights.saturating_sub(expert_bytes),
            kv_bytes: kv_bytes.get(card).copied().unwrap_or(0),
            experts: slots,
            predicted_ppm: totals[card],
            measured_ppm: measured.as_ref().and_then(|r| r.share_ppm.get(card).copied()),
        }
    });
    Ok(View {
        file: file_name(container.path()),
        model: manifest.model.name.clone().unwrap_or_else(|| manifest.model.architecture.clone()),
        target: manifest.target.clone(),
        cards: cards.collect(),
        layers: rows(&map, &predicted, measured.as_ref()),
        counts: files,
        tokens: hotness.as_ref().map(|h| h.tokens).filter(|n| *n > 0),
        hottest: hotness.as_ref().map(|h| hottest(h, &map)).unwrap_or_default(),
        recorded: section,
        map,
        measured,
        warnings,
    })
}

/// The experts of the layers of `map`.
fn layers(container: &Container, map: &Placement, hotness: Option<&Hotness>) -> Vec<LayerExperts> {
    let line = |l: &placement::LayerPlacement| {
        let bank = container.manifest().banks.iter().find(|b| b.layer == l.layer);
        let experts = l.cards.iter().flatten().max().map_or(0, |last| last + 1);
        let counts = hotness.and_then(|h| h.layer(l.layer)).unwrap_or_default().to_vec();
        LayerExperts { layer: l.layer, experts, bytes: bank.map_or(0, |b| b.stride), counts }
    };
    map.layers.iter().map(line).collect()
}

/// By layer and card, what was expected: as recorded, else as if all experts were alike.
fn predicted(container: &Container, map: &Placement) -> BTreeMap<u32, Vec<u32>> {
    if let Some(section) = &container.manifest().placement {
        return section.layers.iter().map(|l| (l.layer, l.shares_ppm.clone())).collect();
    }
    let report = placement::report(map, &layers(container, map, None));
    report.layers.into_iter().map(|l| (l.layer, l.share_ppm)).collect()
}

fn totals(predicted: &BTreeMap<u32, Vec<u32>>, section: Option<&PlacementSection>, cards: usize) -> Vec<u32> {
    if let Some(section) = section {
        return section.shares_ppm.clone();
    }
    let sum = |card: usize| predicted.values().map(|l| u64::from(l[card])).sum::<u64>();
    let mean = |sum: u64| (sum / (predicted.len() as u64).max(1)) as u32;
    (0..cards).map(|card| mean(sum(card))).collect()
}

fn rows(map: &Placement, predicted: &BTreeMap<u32, Vec<u32>>, measured: Option<&Report>) -> Vec<Layer> {
    let line = |(at, l): (usize, &placement::LayerPlacement)| {
        let own = measured.and_then(|r| r.layers.get(at));
        let expected = predicted.get(&l.layer);
        let cell = |(card, experts): (usize, &Vec<u32>)| Cell {
            experts: experts.len() as u32,
            predicted_ppm: expected.and_then(|e| e.get(card).copied()).unwrap_or(0),
            measured_ppm: own.and_then(|o| o.share_ppm.get(card).copied()),
        };
        let cards: Vec<Cell> = l.cards.iter().enumerate().map(cell).collect();
        Layer {
            layer: l.layer,
            experts: l.cards.iter().flatten().max().map_or(0, |last| last + 1),
            predicted_balance_ppm: balance(cards.iter().map(|c| c.predicted_ppm)),
            measured_balance_ppm: own.map(|o| o.balance_ppm.into()),
            cards,
        }
    };
    map.layers.iter().enumerate().map(line).collect()
}

/// Mean over largest, in millionths.
fn balance(shares: impl ExactSizeIterator<Item = u32> + Clone) -> u64 {
    let (n, sum) = (shares.len() as u64, shares.clone().map(u64::from).sum::<u64>());
    let largest = u64::from(shares.max().unwrap_or(0));
    (sum * 1_000_000).checked_div(largest * n).unwrap_or(1_000_000).min(1_000_000)
}

/// The experts with the largest part of their layer's tokens.
fn hottest(hotness: &Hotness, map: &Placement) -> Vec<Hot> {
    let mut out = Vec::new();
    for line in &map.layers {
        let counts = hotness.layer(line.layer).unwrap_or_default();
        let sum: u64 = counts.iter().sum();
        for (expert, &tokens) in (0u32..).zip(counts).filter(|(_, n)| **n > 0) {
            let share_ppm = (u128::from(tokens) * 1_000_000 / u128::from(sum.max(1))) as u32;
            let cards = line.holders(expert).collect();
            out.push(Hot { layer: line.layer, expert, tokens, share_ppm, cards });
        }
    }
    out.sort_by(|a, b| b.share_ppm.cmp(&a.share_ppm).then((a.layer, a.expert).cmp(&(b.layer, b.expert))));
    out.truncate(HOTTEST);
    out
}

impl View {
    /// For programs.
    pub(super) fn to_json(&self) -> Value {
        let mut document = json!(self);
        document["measured"] = json!(self.measured.as_ref().map(report_json));
        document
    }

    /// For people.
    pub(super) fn text(&self, full: bool) -> String {
        text::text(self, full)
    }

    /// Bytes that a card's memory must have: its segment, its KV cache and what is to stay free.
    fn total(&self, card: &Card) -> u64 {
        let reserve = self.recorded.as_ref().map_or(0, |s| s.reserve);
        card.segment_bytes.saturating_add(card.kv_bytes).saturating_add(reserve)
    }

    /// Whether counts were given.
    fn is_measured(&self) -> bool {
        self.cards.iter().any(|c| c.measured_ppm.is_some())
    }

    /// Layers by balancedness, the worst first.
    fn worst_first(&self) -> Vec<&Layer> {
        let mut out: Vec<&Layer> = self.layers.iter().collect();
        out.sort_by_key(|l| (l.balance_ppm(), l.layer));
        out
    }

    /// How it was placed, in a sentence.
    fn rule(&self) -> String {
        let Some(section) = &self.recorded else { return "the container does not say by which rule".into() };
        let counts = match &section.hotness {
            None => "without counts of tokens".into(),
            Some(h) if h.tokens == 0 => "by counts of tokens".into(),
            Some(h) => format!("by the counts of {} tokens", crate::units::count(h.tokens)),
        };
        format!("{}, fill {}, {counts}", section.strategy, section.fill)
    }
}

/// Writes the report as one HTML file.
///
/// # Errors
/// Where the file exists and `force` is not set, or cannot be written.
pub(super) fn write_html(view: &View, path: &Path, force: bool) -> anyhow::Result<()> {
    crate::partial::check_target(path, force)?;
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let file = crate::partial::open(&partial)?;
    let written = file
        .set_len(0)
        .and_then(|()| (&file).write_all(html::page(view).as_bytes()))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&partial, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// KV cache by card, estimated.
pub(super) fn kv_by_card(
    opened: &crate::weights::Opened,
    context: Option<u64>,
    kv: Option<KvType>,
) -> Vec<u64> {
    let headers = opened.headers();
    let Some(header) = headers.first() else { return Vec::new() };
    let memory = super::memory::estimate(opened, header, context, kv);
    memory.cards.iter().map(|c| c.kv_bytes).collect()
}
