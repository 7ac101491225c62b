//! The default view: what this is, and where its bytes go.

use super::items::Item;
use super::memory::Memory;
use crate::plan::CHOSEN;
use crate::table::{Align, Table};
use crate::units;
use crate::weights::{Opened, file_name};
use gantry_formats::arch;
use gantry_formats::container::Container;
use gantry_formats::gguf::{Gguf, Header, display_name};
use gantry_formats::hash;
use gantry_formats::message::wrap;
use gantry_formats::role::Role;
use gantry_formats::target;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Everything the summary says.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    file: String,
    format: String,
    bytes: u64,
    files: u64,
    name: Option<String>,
    architecture: String,
    parameters: u64,
    tensors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<ContainerFacts>,
    sources: Vec<SourceFacts>,
    tokenizer: Option<Tokenizer>,
    runnable: bool,
    not_runnable_because: Vec<String>,
    by_layout: Vec<Total>,
    by_role: Vec<Total>,
    by_layers: Vec<Total>,
    by_card: Vec<Total>,
    memory: Memory,
    notes: Vec<String>,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ContainerFacts {
    root: String,
    container_id: String,
    target: String,
    recipe: String,
    split_cards: bool,
    tool: String,
    options: BTreeMap<String, String>,
    aliases: Vec<String>,
    missing_cards: Vec<usize>,
    requantized_tensors: u64,
    worst_error: Option<f32>,
}

#[derive(Debug, Serialize)]
struct SourceFacts {
    file: String,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    blake3: Option<String>,
}

#[derive(Debug, Serialize)]
struct Tokenizer {
    model: String,
    pre: Option<String>,
    tokens: u64,
    chat_template: bool,
}

/// One line of a table of totals.
#[derive(Debug, Serialize)]
struct Total {
    name: String,
    tensors: u64,
    bytes: u64,
    /// Layouts of these, where the line is about something else.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    layouts: Vec<String>,
}

/// Gathers the summary.
pub(super) fn of(
    opened: &Opened,
    headers: &[&Header],
    items: &[Item<'_>],
    memory: Memory,
    path: &Path,
) -> Summary {
    let mut summary = Summary {
        file: file_name(path),
        format: String::new(),
        bytes: 0,
        files: 1,
        name: None,
        architecture: String::new(),
        parameters: 0,
        tensors: items.len() as u64,
        container: None,
        sources: Vec::new(),
        tokenizer: headers.first().and_then(|h| tokenizer(h)),
        runnable: true,
        not_runnable_because: Vec::new(),
        by_layout: totals(items, |i| &i.layout, false),
        by_role: totals(items, |i| &i.role, true),
        by_layers: layers(items),
        by_card: cards(items),
        memory,
        notes: Vec::new(),
        warnings: Vec::new(),
    };
    match opened {
        Opened::Container(container) => summary.container(container),
        Opened::Gguf(gguf) => summary.gguf(gguf),
    }
    summary
}

impl Summary {
    fn container(&mut self, container: &Container) {
        let (header, manifest) = (container.header(), container.manifest());
        let cards = 0..header.cards.len();
        let missing: Vec<usize> = cards.clone().filter(|c| container.card(*c).is_err()).collect();
        self.format = format!("Gantry container {}.{}", header.version.0, header.version.1);
        self.bytes = header.file_bytes;
        if container.split_cards() {
            self.files += header.cards.len() as u64;
            let own = header.cards.iter().map(|c| c.offset.saturating_add(c.bytes));
            self.bytes = own.fold(self.bytes, u64::saturating_add);
        }
        self.name = manifest.model.name.clone();
        self.architecture = manifest.model.architecture.clone();
        self.parameters = manifest.model.parameters;
        self.not_runnable_because = manifest.model.incomplete.clone();
        let hparams = container.gguf_headers().first().map(|h| arch::Hparams::read(h)).unwrap_or_default();
        let table = arch::find(&self.architecture);
        let version = arch::supported(&self.architecture, manifest.model.arch_version);
        if let Err(error @ arch::ArchError::Newer { .. }) = version {
            self.not_runnable_because.push(error.to_string());
        }
        let layouts = container.layouts().iter();
        self.not_runnable_because.extend(target::obstacles(table, &hparams, layouts));
        self.runnable = manifest.model.complete && self.not_runnable_because.is_empty();
        let alias = |a: &gantry_formats::container::Alias| format!("{} = {}", a.name, a.of);
        // A tensor whose source is kept besides is exact and has an error.
        let changed = manifest.source_tensors.iter().filter(|t| !t.exact || t.max_error.is_some());
        self.container = Some(ContainerFacts {
            root: hash::hex(&header.root),
            container_id: hash::hex(&header.container_id),
            target: manifest.target.clone(),
            recipe: manifest.recipe.clone(),
            split_cards: container.split_cards(),
            tool: format!("{} {}", manifest.tool.name, manifest.tool.version),
            options: manifest.options.clone(),
            aliases: manifest.aliases.iter().map(alias).collect(),
            missing_cards: missing,
            requantized_tensors: changed.clone().count() as u64,
            worst_error: changed.filter_map(|t| t.max_error).max_by(f32::total_cmp),
        });
        let source = |s: &gantry_formats::container::Source| SourceFacts {
            file: s.file.clone(),
            bytes: s.bytes,
            blake3: Some(s.blake3.clone()),
        };
        self.sources = manifest.sources.iter().map(source).collect();
        self.notes = container.notes().to_vec();
        self.warnings = manifest.warnings.clone();
    }

    fn gguf(&mut self, gguf: &Gguf) {
        let header = gguf.header();
        let shards = gguf.shards();
        self.format = format!("GGUF version {}", header.version());
        self.bytes = shards.iter().map(|s| s.len()).sum();
        self.files = shards.len() as u64;
        self.name = header.get("general.name").and_then(|v| v.as_bytes()).map(display_name);
        self.architecture = header.architecture().map(display_name).unwrap_or_default();
        self.parameters = gguf.tensors().fold(0, |n, t| n.saturating_add(t.elements));
        let named = |s: &gantry_formats::gguf::Shard| SourceFacts {
            file: s.file_name().to_string(),
            bytes: s.len(),
            blake3: None,
        };
        self.sources = shards.iter().filter(|_| shards.len() > 1).map(named).collect();
        let hparams = arch::Hparams::read(header);
        match arch::find(&self.architecture) {
            None => self.not_runnable_because.push("the architecture has no table in this program".into()),
            Some(table) => {
                let names: Vec<String> = gguf.tensors().map(|t| t.display_name()).collect();
                let tensors = names.iter().zip(gguf.tensors()).map(|(n, t)| (n.as_str(), t.info.dims()));
                let findings = arch::check(table, &hparams, header, tensors);
                self.not_runnable_because.extend(findings.iter().map(ToString::to_string));
                let forms = target::obstacles(Some(table), &hparams, std::iter::empty());
                self.not_runnable_because.extend(forms);
            }
        }
        self.runnable = self.not_runnable_because.is_empty();
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut out = format!("{}: {}\n", self.file, self.format);
        let mut line = |label: &str, text: String| {
            out += &wrap(&format!("  {label:<10}{text}"), 12);
            out.push('\n');
        };
        let name = self.name.as_deref().unwrap_or("(no name)");
        let parameters = units::count(self.parameters);
        line("model", format!("{name}, {}, {parameters} parameters", self.architecture));
        let files = units::plural(self.files, "file");
        line("size", format!("{} ({} bytes) in {files}", units::bytes(self.bytes), self.bytes));
        if let Some(c) = &self.container {
            line("root", format!("{}…   id {}…", &c.root[..16], &c.container_id[..16]));
            line("packed", format!("for {}, recipe {}, by {}", c.target, c.recipe, c.tool));
            let changed = match (c.requantized_tensors, c.worst_error) {
                (0, _) => "every value is kept bit for bit".into(),
                (n, None) => format!("{} requantized", units::plural(n, "tensor")),
                (n, Some(e)) => format!("{} requantized, worst error {e:.3e}", units::plural(n, "tensor")),
            };
            line("values", changed);
            for option in option_lines(&c.options) {
                line("option", option);
            }
            for alias in &c.aliases {
                line("alias", alias.clone());
            }
            for card in &c.missing_cards {
                line("missing", format!("the file of card {card}"));
            }
        }
        for source in &self.sources {
            let hash = source
                .blake3
                .as_ref()
                .map_or(String::new(), |h| format!(", BLAKE3 {}…", &h[..h.len().min(16)]));
            line("source", format!("{}, {}{hash}", source.file, units::bytes(source.bytes)));
        }
        line("tokenizer", self.tokenizer.as_ref().map_or("none".into(), Tokenizer::text));
        if !self.runnable {
            for why in self.not_runnable_because.iter().take(3) {
                line("not run", why.clone());
            }
            if let Some(more) = self.not_runnable_because.len().checked_sub(3).filter(|n| *n > 0) {
                line("not run", format!("and {} more", units::count(more as u64)));
            }
        }
        self.notes.iter().for_each(|note| line("note", note.clone()));
        self.warnings.iter().for_each(|warning| line("warning", warning.clone()));
        let kind = if self.container.is_some() { "layout" } else { "type" };
        let place = if self.container.is_some() { "card" } else { "file" };
        let tables = [
            (kind, &self.by_layout),
            ("role", &self.by_role),
            ("layers", &self.by_layers),
            (place, &self.by_card),
        ];
        // One card says nothing that the others do not.
        for (title, totals) in tables.into_iter().filter(|(title, t)| *title != place || t.len() > 1) {
            out.push('\n');
            out += &totals_text(title, totals);
        }
        out.push('\n');
        out + &self.memory_text()
    }

    fn memory_text(&self) -> String {
        let m = &self.memory;
        let columns = [
            ("card", Align::Left),
            ("weights", Align::Right),
            ("KV cache", Align::Right),
            ("together", Align::Right),
        ];
        let mut table = Table::new(&columns);
        for (n, card) in m.cards.iter().enumerate() {
            let name = match &card.target {
                Some(target) => format!("{n} ({target})"),
                None => "all on one".into(),
            };
            let kv = if m.kv_known { units::bytes(card.kv_bytes) } else { "unknown".into() };
            table.row([name, units::bytes(card.weight_bytes), kv, units::bytes(card.total_bytes)]);
        }
        let context = units::count(m.context);
        format!(
            "memory for a context of {context}, {} KV cache, without scratch\n{}",
            m.kv_type,
            table.render()
        )
    }
}

impl Tokenizer {
    fn text(&self) -> String {
        let pre = self.pre.as_ref().map_or(String::new(), |p| format!(" ({p})"));
        let template = if self.chat_template { "chat template" } else { "no chat template" };
        format!("{}{pre}, {} tokens, {template}", self.model, units::count(self.tokens))
    }
}

fn tokenizer(header: &Header) -> Option<Tokenizer> {
    let text = |key: &str| header.get(key).and_then(|v| v.as_bytes()).map(display_name);
    Some(Tokenizer {
        model: text("tokenizer.ggml.model")?,
        pre: text("tokenizer.ggml.pre"),
        tokens: header.get("tokenizer.ggml.tokens").and_then(|v| v.as_array()).map_or(0, |a| a.len() as u64),
        chat_template: header.get("tokenizer.chat_template").is_some(),
    })
}

/// The options, those of single tensors by role: an override of a role would fill a line for each layer.
fn option_lines(options: &BTreeMap<String, String>) -> Vec<String> {
    let mut roles: BTreeMap<(String, &str), u64> = BTreeMap::new();
    let mut out = Vec::new();
    for (key, value) in options {
        match key.strip_prefix(CHOSEN) {
            Some(name) => *roles.entry((Role::of(name, 2).base.into(), value)).or_default() += 1,
            None => out.push(format!("{key} = {value}")),
        }
    }
    let lines = roles
        .iter()
        .map(|((role, value), n)| format!("{CHOSEN}{role} = {value} ({})", units::plural(*n, "tensor")));
    out.extend(lines);
    out
}

fn totals_text(title: &'static str, totals: &[Total]) -> String {
    let all = totals.iter().map(|t| t.bytes).fold(0, u64::saturating_add);
    let with_layouts = totals.iter().any(|t| !t.layouts.is_empty());
    let mut columns =
        vec![(title, Align::Left), ("tensors", Align::Right), ("size", Align::Right), ("%", Align::Right)];
    if with_layouts {
        columns.push(("stored as", Align::Left));
    }
    let mut table = Table::new(&columns);
    for t in totals {
        let cells =
            [t.name.clone(), units::count(t.tensors), units::bytes(t.bytes), units::percent(t.bytes, all)];
        let [a, b, c, d] = cells;
        if with_layouts {
            table.row([a, b, c, d, t.layouts.join(", ")]);
        } else {
            table.row([a, b, c, d]);
        }
    }
    table.render()
}

/// Totals by a key, largest first.
fn totals<'i>(
    items: &'i [Item<'_>],
    key: impl Fn(&'i Item<'_>) -> &'i str,
    with_layouts: bool,
) -> Vec<Total> {
    let mut groups: BTreeMap<&str, (u64, u64, BTreeSet<&str>)> = BTreeMap::new();
    for item in items {
        let group = groups.entry(key(item)).or_default();
        group.0 += 1;
        group.1 = group.1.saturating_add(item.bytes);
        if with_layouts {
            group.2.insert(&item.layout);
        }
    }
    let total = |(name, (tensors, bytes, layouts)): (&str, (u64, u64, BTreeSet<&str>))| Total {
        name: name.into(),
        tensors,
        bytes,
        layouts: layouts.into_iter().map(Into::into).collect(),
    };
    let mut out: Vec<Total> = groups.into_iter().map(total).collect();
    out.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    out
}

/// Totals by card, or in a GGUF by file, in order.
fn cards(items: &[Item<'_>]) -> Vec<Total> {
    let mut by_card: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for item in items {
        let entry = by_card.entry(item.card).or_default();
        *entry = (entry.0 + 1, entry.1.saturating_add(item.bytes));
    }
    let total = |(card, (tensors, bytes)): (u32, (u64, u64))| Total {
        name: card.to_string(),
        tensors,
        bytes,
        layouts: Vec::new(),
    };
    by_card.into_iter().map(total).collect()
}

/// Totals by layer; neighbours of the same size share a line.
fn layers(items: &[Item<'_>]) -> Vec<Total> {
    let mut by_layer: BTreeMap<Option<u32>, (u64, u64)> = BTreeMap::new();
    for item in items {
        let entry = by_layer.entry(item.layer).or_default();
        *entry = (entry.0 + 1, entry.1.saturating_add(item.bytes));
    }
    let mut out: Vec<Total> = Vec::new();
    // (first layer, last layer, tensors and bytes of each) of the line being gathered.
    let mut run: Option<(u32, u32, (u64, u64))> = None;
    let mut flush = |run: Option<(u32, u32, (u64, u64))>| {
        let Some((first, last, (tensors, bytes))) = run else { return };
        let count = u64::from(last - first) + 1;
        let name = match count {
            1 => first.to_string(),
            n => format!("{first}-{last} ({n} of {})", units::bytes(bytes)),
        };
        let bytes = bytes.saturating_mul(count);
        out.push(Total { name, tensors: tensors * count, bytes, layouts: Vec::new() });
    };
    for (layer, each) in by_layer.iter().filter_map(|(layer, each)| Some(((*layer)?, *each))) {
        match &mut run {
            Some((_, last, before)) if *last + 1 == layer && *before == each => *last = layer,
            _ => flush(run.replace((layer, layer, each))),
        }
    }
    flush(run);
    if let Some((tensors, bytes)) = by_layer.get(&None) {
        out.push(Total { name: "outside".into(), tensors: *tensors, bytes: *bytes, layouts: Vec::new() });
    }
    out
}
