//! `--tensor NAME`: what one tensor's values look like, and where they lie.

use crate::failure::Refusal;
use crate::plan::MAX_EXPERTS;
use crate::table::{Align, Table};
use crate::units;
use crate::unpack::{CHUNK, Owner, Scratch};
use crate::values::{Histogram, Scales, Stats};
use crate::weights::{Opened, Weights};
use gantry_formats::container::{Container, Part};
use gantry_formats::exit::Exit;
use gantry_formats::hash;
use gantry_formats::message::{did_you_mean, wrap};
use serde_json::{Value, json};
use std::ops::Range;

/// Steps of the histogram.
const STEPS: usize = 16;
/// Experts that are listed without `--full`.
const EXPERTS: usize = 8;

/// Everything about one tensor.
pub(super) struct View {
    name: String,
    alias: Option<String>,
    stored: String,
    dims: Vec<u64>,
    stats: Stats,
    histogram: Option<Histogram>,
    scales: Vec<(String, Scales)>,
    experts: Vec<Stats>,
    places: Vec<Place>,
    sources: Vec<Value>,
    full: bool,
}

/// Where a piece of it lies.
struct Place {
    what: String,
    rows: Range<u64>,
    card: u32,
    offset: u64,
    bytes: u64,
    blob: Option<String>,
}

/// Ranges of source tensors, in order.
type Selection = Vec<(usize, Range<u64>)>;

/// Reads the tensor called `name`: a source tensor, a stored (fused) one, or an alias.
///
/// # Errors
/// Where there is none, or it cannot be read.
pub(super) fn view(opened: &Opened, name: &str, full: bool) -> anyhow::Result<View> {
    let weights = Weights::new(opened);
    let (alias, name) = resolve_alias(opened, name);
    let groups = select(opened, &weights, &name)?;
    let mut stats = Stats::default();
    let mut experts = Vec::new();
    let mut scales: Vec<(String, Scales)> = Vec::new();
    let mut buffers = Buffers::default();
    for group in &groups {
        let mut own = Stats::default();
        each(&weights, group, &mut buffers, &mut |values, blocks| {
            own.add(values);
            if let Some((ty, bytes)) = blocks {
                let key = ty.to_string();
                if !scales.iter().any(|(name, _)| *name == key) {
                    scales.extend(Scales::of(ty).into_iter().map(|s| (key.clone(), s)));
                }
                scales.iter_mut().filter(|(name, _)| *name == key).for_each(|(_, s)| s.add(ty, bytes));
            }
        })?;
        stats.merge(&own);
        experts.push(own);
    }
    let mut histogram = stats.range().map(|range| Histogram::new(range, STEPS));
    if let Some(histogram) = &mut histogram {
        for group in &groups {
            each(&weights, group, &mut buffers, &mut |values, _| histogram.add(values))?;
        }
    }
    if groups.len() < 2 {
        experts.clear();
    }
    let mut indices: Vec<usize> = groups.iter().flatten().map(|(i, _)| *i).collect();
    indices.sort_unstable();
    indices.dedup();
    let stored: Vec<String> = indices.iter().map(|&i| weights.stored_as(i)).collect();
    let mut kinds = stored;
    kinds.dedup();
    Ok(View {
        alias,
        stored: kinds.join("+"),
        dims: if let [i] = indices[..] { weights.dims(i) } else { Vec::new() },
        stats,
        histogram,
        scales,
        experts,
        places: places(opened, &weights, &name, &indices)?,
        sources: indices.iter().map(|&i| source(opened, &weights, i)).collect(),
        name,
        full,
    })
}

#[derive(Default)]
struct Buffers {
    scratch: Scratch,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

type Sink<'s> = dyn FnMut(&[f32], Option<(gantry_formats::block::GgmlType, &[u8])>) + 's;

/// Hands out the values of a selection, chunk by chunk, with their blocks where they are in one type.
fn each(
    weights: &Weights<'_>,
    group: &Selection,
    b: &mut Buffers,
    sink: &mut Sink<'_>,
) -> anyhow::Result<()> {
    for (i, range) in group {
        let ty = weights.ty(*i)?;
        for start in range.clone().step_by(CHUNK as usize) {
            let chunk = start..range.end.min(start + CHUNK);
            match ty {
                Some(ty) => {
                    weights.read(*i, chunk.clone(), &mut b.scratch, &mut b.bytes)?;
                    b.values.resize((chunk.end - chunk.start) as usize, 0.0);
                    gantry_formats::block::dequantize(ty, &b.bytes, &mut b.values)?;
                    sink(&b.values, Some((ty, &b.bytes)));
                }
                None => {
                    weights.values(*i, chunk, &mut b.scratch, &mut b.values)?;
                    sink(&b.values, None);
                }
            }
        }
    }
    Ok(())
}

fn resolve_alias(opened: &Opened, name: &str) -> (Option<String>, String) {
    if let Opened::Container(container) = opened
        && let Some(alias) = container.manifest().aliases.iter().find(|a| a.name == name)
    {
        return (Some(name.to_string()), alias.of.clone());
    }
    (None, name.to_string())
}

/// What `name` stands for: one selection, or one per expert.
fn select(opened: &Opened, weights: &Weights<'_>, name: &str) -> anyhow::Result<Vec<Selection>> {
    if let Some(i) = (0..weights.len()).find(|&i| weights.name(i) == name) {
        let dims = weights.dims(i);
        let per_expert = dims.first().copied().unwrap_or(1).saturating_mul(dims.get(1).copied().unwrap_or(1));
        let experts = dims.get(2).copied().unwrap_or(1);
        // A tensor without values may claim any number of experts.
        let few = weights.elements(i) > 0 && (1..=MAX_EXPERTS).contains(&experts);
        if name.contains("_exps") && dims.len() == 3 && few {
            let range = |e: u64| vec![(i, e * per_expert..(e + 1) * per_expert)];
            return Ok((0..experts).map(range).collect());
        }
        return Ok(vec![vec![(i, 0..weights.elements(i))]]);
    }
    if let Opened::Container(container) = opened {
        let manifest = container.manifest();
        if let Some(t) = manifest.tensors.iter().find(|t| t.name == name) {
            return Ok(vec![parts(weights, &t.parts, None)]);
        }
        for bank in &manifest.banks {
            if let Some(m) = bank.matrices.iter().find(|m| m.name == name) {
                let dims = m.parts.first().map(|p| weights.dims(p.source as usize)).unwrap_or_default();
                let experts = dims.get(2).copied().unwrap_or(0);
                return Ok((0..experts).map(|e| parts(weights, &m.parts, Some(e))).collect());
            }
        }
    }
    let names: Vec<String> = (0..weights.len()).map(|i| weights.name(i)).collect();
    let hint = did_you_mean(name, names.iter().map(String::as_str));
    let text = format!("there is no tensor {name}; `gantry inspect FILE --tensors` lists them{hint}");
    Err(Refusal::new(Exit::Usage, text))
}

/// The rows that parts take, whole rows even where a part takes some columns.
fn parts(weights: &Weights<'_>, parts: &[Part], expert: Option<u64>) -> Selection {
    let range = |p: &Part| {
        let dims = weights.dims(p.source as usize);
        let cols = dims.first().copied().unwrap_or(1);
        let base = expert.map_or(0, |e| e.saturating_mul(dims.get(1).copied().unwrap_or(1)));
        let at = |row: u64| base.saturating_add(row).saturating_mul(cols);
        (p.source as usize, at(p.rows[0])..at(p.rows[1]))
    };
    parts.iter().map(range).collect()
}

fn places(
    opened: &Opened,
    weights: &Weights<'_>,
    name: &str,
    sources: &[usize],
) -> anyhow::Result<Vec<Place>> {
    let mut out = Vec::new();
    for &i in sources {
        match (opened, weights) {
            (Opened::Gguf(gguf), _) => out.extend(gguf.tensor(i).map(|t| Place {
                what: gguf.shards()[t.shard].file_name().to_string(),
                rows: 0..t.rows(),
                card: t.shard as u32,
                offset: t.start,
                bytes: t.bytes,
                blob: None,
            })),
            (Opened::Container(container), Weights::Container(unpacker)) => {
                let own = |o: Owner| stored_name(container, o) == name;
                let fused = unpacker.pieces(i).iter().any(|p| own(p.owner));
                let pieces =
                    unpacker.pieces(i).iter().filter(|p| !fused || own(p.owner) || sources.len() == 1);
                out.extend(pieces.map(|p| place(container, p.owner, p.rows.clone())));
            }
            _ => {}
        }
    }
    Ok(out)
}

fn stored_name(container: &Container, owner: Owner) -> &str {
    let manifest = container.manifest();
    match owner {
        Owner::Tensor(t) => &manifest.tensors[t].name,
        Owner::Expert(b, m, _) => &manifest.banks[b].matrices[m].name,
    }
}

fn place(container: &Container, owner: Owner, rows: Range<u64>) -> Place {
    let manifest = container.manifest();
    let (what, card, offset, bytes, blob) = match owner {
        Owner::Tensor(i) => {
            let t = &manifest.tensors[i];
            (t.name.clone(), t.card, t.offset, t.bytes, t.blob)
        }
        Owner::Expert(b, m, slot) => {
            let bank = &manifest.banks[b];
            let m = &bank.matrices[m];
            let what = format!("{} expert {}", m.name, bank.experts[slot]);
            let at = bank.offset + slot as u64 * bank.stride + m.offset;
            (what, bank.card, at, m.bytes, bank.first_blob + slot as u64)
        }
    };
    let offset = container.header().cards[card as usize].offset + offset;
    let blob = Some(hash::hex(&container.table().blobs()[blob as usize].hash));
    Place { what, rows, card, offset, bytes, blob }
}

fn source(opened: &Opened, weights: &Weights<'_>, i: usize) -> Value {
    match opened {
        Opened::Gguf(_) => {
            json!({ "name": weights.name(i), "type": weights.stored_as(i), "dims": weights.dims(i) })
        }
        Opened::Container(container) => {
            let t = &container.manifest().source_tensors[i];
            let layouts: Vec<String> = match weights {
                Weights::Container(u) => u.pieces(i).iter().map(|p| p.ty().to_string()).collect(),
                Weights::Gguf(_) => Vec::new(),
            };
            json!({
                "name": t.name, "type": t.ty, "dims": t.dims, "exact": t.exact, "max_error": t.max_error,
                "lost_blocks": t.lost_blocks, "subnormal_blocks": t.subnormal_blocks, "blake3": t.blake3,
                "unpacks_to": layouts.first(),
            })
        }
    }
}

impl View {
    /// For programs.
    pub(super) fn to_json(&self) -> Value {
        let place = |p: &Place| {
            json!({
                "stored": p.what, "rows": [p.rows.start, p.rows.end], "card": p.card, "offset": p.offset,
                "bytes": p.bytes, "blob_blake3": p.blob,
            })
        };
        let scale = |(ty, s): &(String, Scales)| {
            let mut value = s.to_json();
            value["type"] = ty.as_str().into();
            value
        };
        json!({
            "name": self.name, "alias": self.alias, "stored_as": self.stored, "dims": self.dims,
            "values": self.stats.to_json(), "histogram": self.histogram,
            "scales": self.scales.iter().map(scale).collect::<Vec<_>>(),
            "experts": self.experts.iter().map(Stats::to_json).collect::<Vec<_>>(),
            "places": self.places.iter().map(place).collect::<Vec<_>>(),
            "sources": self.sources,
        })
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        if let Some(alias) = &self.alias {
            out += &format!("{alias} is an alias\n");
        }
        let dims: Vec<String> = self.dims.iter().rev().map(u64::to_string).collect();
        let shape = if dims.is_empty() { "several source tensors".into() } else { dims.join("×") };
        out += &format!("{}: {} {shape}\n", self.name, self.stored);
        for s in &self.sources {
            out += &source_line(s);
        }
        let s = &self.stats;
        let (min, max) = s
            .range()
            .map_or(("-".into(), "-".into()), |(a, b)| (units::float(a.into()), units::float(b.into())));
        out += &format!("\n  values {}   zeros {}", units::count(s.count), units::count(s.zeros));
        out += &format!(
            " ({} %)   not finite {}\n",
            units::percent(s.zeros, s.count),
            units::count(s.non_finite)
        );
        out += &format!("  min {min}   max {max}");
        out += &format!("   mean {}   rms {}\n", units::float(s.mean()), units::float(s.rms()));
        for (ty, s) in &self.scales {
            let min = if s.min.is_finite() { units::float(s.min.into()) } else { "-".into() };
            let line = format!(
                "  {ty} {}: |{min}| to |{}| in {} blocks, {} zero, {} subnormal, {} negative, {} not finite",
                s.name(),
                units::float(s.max.into()),
                units::count(s.blocks),
                units::count(s.zeros),
                units::count(s.subnormal),
                units::count(s.negative),
                units::count(s.non_finite)
            );
            out += &wrap(&line, 4);
            out.push('\n');
        }
        if let Some(histogram) = &self.histogram {
            out += &format!("\n{}", histogram.render(40));
        }
        out += &self.experts_text();
        out + &self.places_text()
    }

    fn experts_text(&self) -> String {
        if self.experts.is_empty() {
            return String::new();
        }
        let columns = [
            ("expert", Align::Left),
            ("min", Align::Right),
            ("max", Align::Right),
            ("rms", Align::Right),
            ("zeros", Align::Right),
            ("not finite", Align::Right),
        ];
        let mut table = Table::new(&columns);
        for i in shown(self.experts.len(), EXPERTS, self.full) {
            let Some(i) = i else {
                table.gap();
                continue;
            };
            let s = &self.experts[i];
            let (min, max) = s.range().unwrap_or((0.0, 0.0));
            let float = |x: f32| units::float(x.into());
            let (zeros, non_finite) = (units::count(s.zeros), units::count(s.non_finite));
            table.row([i.to_string(), float(min), float(max), units::float(s.rms()), zeros, non_finite]);
        }
        format!("\n{}", table.render())
    }

    fn places_text(&self) -> String {
        let columns = [
            ("lies in", Align::Left),
            ("rows", Align::Left),
            ("card", Align::Right),
            ("offset", Align::Right),
            ("bytes", Align::Right),
            ("blob", Align::Left),
        ];
        let mut table = Table::new(&columns);
        for i in shown(self.places.len(), EXPERTS, self.full) {
            let Some(i) = i else {
                table.gap();
                continue;
            };
            let p = &self.places[i];
            let rows = format!("{}..{}", p.rows.start, p.rows.end);
            let blob = p.blob.as_ref().map_or("-".into(), |h| h[..8].to_string());
            let (offset, bytes) = (p.offset.to_string(), p.bytes.to_string());
            table.row([p.what.clone(), rows, p.card.to_string(), offset, bytes, blob]);
        }
        format!("\n{}", table.render())
    }
}

fn source_line(s: &Value) -> String {
    let text = |key: &str| s[key].as_str().unwrap_or_default().to_string();
    let mut line = format!("  source {} {} {}", text("name"), text("type"), s["dims"]);
    match s["exact"].as_bool() {
        Some(true) if !s["max_error"].is_null() => {
            line += &format!(", requantized, worst error {}, and kept exactly", s["max_error"]);
        }
        Some(true) => line += ", kept exactly",
        Some(false) => line += &format!(", requantized, worst error {}", s["max_error"]),
        None => {}
    }
    for (key, what) in [("lost_blocks", "blocks lost"), ("subnormal_blocks", "blocks with a subnormal scale")]
    {
        if let Some(n) = s[key].as_u64().filter(|n| *n > 0) {
            line += &format!(", {} {what}", units::count(n));
        }
    }
    wrap(&line, 4) + "\n"
}

/// Indices to list out of `len`: all, or the first and the last ones with `None` for what is left out.
fn shown(len: usize, most: usize, full: bool) -> Vec<Option<usize>> {
    if full || len <= most {
        return (0..len).map(Some).collect();
    }
    let head = (0..most - 2).map(Some);
    head.chain([None]).chain((len - 2..len).map(Some)).collect()
}
