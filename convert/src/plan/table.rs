//! The plan for people: at most 80 columns, no colour.

use super::{Plan, TensorPlan, summary};
use crate::units;
use gantry_formats::container::Part;
use gantry_formats::gguf::display_name;
use gantry_formats::layout::Layout;
use gantry_formats::message::wrap;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Room that the widest column, the role, has at most.
const ROLE: usize = 20;

/// One line of the table: tensors alike.
#[derive(Default)]
struct Row {
    count: u64,
    source: u64,
    bytes: u64,
}

/// `text` cut to `width` characters.
fn cut(text: &str, width: usize) -> String {
    match text.chars().count() > width {
        true => text.chars().take(width - 1).chain(['…']).collect(),
        false => text.to_string(),
    }
}

/// Bytes that a tensor takes in its layout.
fn packed_bytes(t: &TensorPlan) -> u64 {
    let cols = t.dims.first().copied().unwrap_or(1);
    let units = (t.route.blobs.len() as u64).max(1);
    let rows = t.elements.checked_div(cols).unwrap_or(0) / units;
    t.layout.bytes(rows, cols).unwrap_or(0).saturating_mul(units)
}

/// The plan as a table, with what `disk` says of needed and free bytes.
pub(crate) fn table(plan: &Plan, needed: u64, free: Option<u64>) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_table(&mut out, plan, needed, free);
    out
}

fn write_table(out: &mut String, plan: &Plan, needed: u64, free: Option<u64>) -> std::fmt::Result {
    let m = &plan.model;
    let tensors = plan.tensors.len();
    writeln!(out, "model    {}, {} weights in {tensors} tensors", m.architecture, count(m.parameters))?;
    if let Some(name) = &m.name {
        writeln!(out, "name     {}", cut(&display_name(name.as_bytes()), 70))?;
    }
    if !m.complete {
        writeln!(out, "         incomplete, will be marked as not runnable:")?;
        m.incomplete.iter().try_for_each(|r| writeln!(out, "         - {r}"))?;
    }
    let sources: u64 = plan.shards.iter().map(|s| s.bytes).sum();
    let files = if plan.shards.len() == 1 { "file".into() } else { format!("{} files", plan.shards.len()) };
    writeln!(out, "source   {} in {files}", units::bytes(sources))?;
    writeln!(out, "recipe   {} for {}, {} card(s)\n", plan.recipe, plan.target, plan.cards.len())?;
    rows(out, plan)?;
    fusions(out, plan)?;
    fallbacks(out, plan)?;
    for alias in &plan.aliases {
        writeln!(out, "{} is not in the source: an alias of {}", alias.name, alias.of)?;
    }
    writeln!(out)?;
    out.push_str(&summary(plan));
    let free = free.map(|n| format!(", {} free", units::bytes(n))).unwrap_or_default();
    writeln!(out, "disk      {} needed{free}", units::bytes(needed))?;
    plan.notes.iter().try_for_each(|n| writeln!(out, "{}", wrap(&format!("note: {n}"), 6)))
}

fn rows(out: &mut String, plan: &Plan) -> std::fmt::Result {
    let mut order = Vec::new();
    let mut rows: BTreeMap<(&str, &str, String, &str), Row> = BTreeMap::new();
    for t in &plan.tensors {
        let mark = match (t.exact, t.fallback.is_some()) {
            (true, true) => "fallback",
            (true, false) => "exact",
            (false, _) => "rounded",
        };
        let copy = t.with_source.then(|| (Layout::identity(t.ty), "copy", t.bytes));
        for (layout, mark, bytes) in [(t.layout, mark, packed_bytes(t))].into_iter().chain(copy) {
            let key = (t.role.as_str(), t.ty.name(), layout.to_string(), mark);
            if !rows.contains_key(&key) {
                order.push(key.clone());
            }
            let row = rows.entry(key).or_default();
            row.count += 1;
            row.source += t.bytes;
            row.bytes += bytes;
        }
    }
    let width = order.iter().map(|k| k.0.chars().count()).max().unwrap_or(0).clamp(5, ROLE);
    writeln!(out, "{:width$} {:>5} {:8} {:22} {:>10} values", "role", "count", "source", "layout", "bytes")?;
    let mut larger = Vec::new();
    for key in order {
        let row = &rows[&key];
        let (role, ty, layout, mark) = key;
        let (role, bytes) = (cut(role, width), units::bytes(row.bytes));
        writeln!(out, "{role:width$} {:>5} {ty:8} {layout:22} {bytes:>10} {mark}", row.count)?;
        if row.bytes > row.source + row.source / 20 {
            let grown = format!("{} to {}", units::bytes(row.source), units::bytes(row.bytes));
            larger.push(format!("larger: {role} ({ty}) grows from {grown}"));
        }
    }
    let bytes = units::bytes(plan.cards.iter().map(|c| c.weight_bytes).sum());
    writeln!(out, "{:width$} {:>5} {:8} {:22} {bytes:>10}", "total", plan.tensors.len(), "", "")?;
    larger.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    let (count, bytes) = plan
        .tensors
        .iter()
        .filter(|t| t.with_source)
        .fold((0, 0), |(count, bytes), t| (count + 1, bytes + t.bytes));
    if count == 0 {
        return Ok(());
    }
    let (tensors, bytes) = (units::plural(count, "tensor"), units::bytes(bytes));
    writeln!(out, "copies: the source of {tensors} is kept as it is besides, which takes {bytes}")
}

fn fusions(out: &mut String, plan: &Plan) -> std::fmt::Result {
    let mut fused: BTreeMap<(&str, String), u64> = BTreeMap::new();
    for s in plan.stored.iter().filter(|s| s.parts.len() > 1) {
        let parts: Vec<&str> = s.parts.iter().map(|p| part_role(plan, p)).collect();
        *fused.entry((s.role.as_str(), parts.join(" + "))).or_default() += 1;
    }
    fused.iter().try_for_each(|((whole, parts), n)| writeln!(out, "{parts} stored as one {whole}, {n} times"))
}

/// The role of the planned tensor that a part is.
fn part_role<'a>(plan: &'a Plan, part: &Part) -> &'a str {
    let is = |t: &&TensorPlan| (t.source as u32, t.first_row) == (part.source, part.rows[0]);
    // Planned tensors are in order of their sources.
    let from = plan.tensors.partition_point(|t| (t.source as u32) < part.source);
    plan.tensors[from..].iter().find(is).map_or("", |t| &t.role)
}

fn fallbacks(out: &mut String, plan: &Plan) -> std::fmt::Result {
    let mut seen: BTreeMap<(&str, &str), (u64, &str)> = BTreeMap::new();
    for t in &plan.tensors {
        if let Some(reason) = &t.fallback {
            seen.entry((&t.role, reason)).or_insert((0, &t.name)).0 += 1;
        }
    }
    seen.iter().try_for_each(|((role, reason), (n, first))| {
        let which = if *n == 1 { first.to_string() } else { format!("{role} ({n} tensors, first {first})") };
        writeln!(out, "fallback: {which}\n          {reason}")
    })
}

/// A count as people say it: `135M`, `1.7B`.
fn count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..10_000_000 => format!("{:.1}M", n as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0}M", n as f64 / 1e6),
        _ => format!("{:.2}B", n as f64 / 1e9),
    }
}
