//! The view for people: a grid of layers and cards in 80 columns.

use super::{Card, Cell, View};
use crate::plan::{balance, numbers, share};
use crate::table::{Align, Table};
use crate::units;
use gantry_formats::message::wrap;
use std::ops::Range;

/// Layers that are shown without `--full`.
const ROWS: usize = 24;
/// Of these, those at either end; the rest are the worst.
const ENDS: usize = 6;
/// Cards that a line of the grid has room for; `--full` shows all of them, so many at a time.
const CARDS: usize = 6;

/// Whether there is room for the number of experts in a cell too.
fn is_wide(view: &View) -> bool {
    view.cards.len() <= if view.is_measured() { 3 } else { 4 }
}

pub(super) fn text(view: &View, full: bool) -> String {
    let mut out = wrap(&format!("{}: {}, for {}", view.file, view.model, view.target), 2) + "\n";
    let mut line = |label: &str, text: String| {
        out += &wrap(&format!("{label:<10}{text}"), 10);
        out.push('\n');
    };
    line("placement", view.rule());
    if !view.counts.is_empty() {
        let tokens = view.tokens.map_or(String::new(), |n| format!(", {} tokens", units::count(n)));
        line("measured", format!("by {}{tokens}", view.counts.join(" + ")));
    }
    if let Some(report) = &view.measured {
        numbers(report, None, &mut line);
    }
    view.warnings.iter().for_each(|warning| line("warning", warning.clone()));
    out.push('\n');
    out += &cards(view);
    if view.layers.is_empty() {
        return out + "\nno layer has experts in banks\n";
    }
    out.push('\n');
    out += &wrap(grid_title(view), 0);
    out.push('\n');
    out += &grid(view, full);
    if !view.hottest.is_empty() {
        out.push('\n');
        out += &hottest(view);
    }
    out
}

fn cards(view: &View) -> String {
    let right = Align::Right;
    let mut columns = vec![("card", Align::Left), ("weights", right), ("experts", right), ("slots", right)];
    columns.extend([("KV cache", right), ("total", right), ("budget", right), ("share", right)]);
    // Two shares take the room.
    columns.retain(|(title, _)| *title != "slots" || !view.is_measured());
    let mut table = Table::new(&columns);
    for (i, card) in view.cards.iter().enumerate() {
        let name = format!("{i}{}", if card.host { " (host)" } else { "" });
        let [weights, experts] = [card.other_bytes, card.expert_bytes].map(units::bytes);
        let [kv, total] = [card.kv_bytes, view.total(card)].map(units::bytes);
        let budget = card.budget.map_or_else(|| "no limit".into(), units::bytes);
        if view.is_measured() {
            table.row([name, weights, experts, kv, total, budget, shares(card)]);
        } else {
            let slots = units::count(card.experts);
            table.row([name, weights, experts, slots, kv, total, budget, shares(card)]);
        }
    }
    table.render()
}

/// `55.3 %`, or expected and measured: `55→57 %`.
fn shares(card: &Card) -> String {
    match card.measured_ppm {
        None => share(card.predicted_ppm),
        Some(measured) => format!("{}→{} %", tenths(card.predicted_ppm), tenths(measured)),
    }
}

fn tenths(ppm: u32) -> String {
    let tenths = (u64::from(ppm) + 500) / 1000;
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn grid_title(view: &View) -> &'static str {
    match (view.is_measured(), is_wide(view)) {
        (true, true) => "% of a layer's tokens, expected→measured, and experts, by card",
        (true, false) => "% of a layer's tokens by card, measured",
        (false, true) => "% of a layer's tokens that a card is expected to compute, and its experts",
        (false, false) => "% of a layer's tokens that a card is expected to compute",
    }
}

fn cell(cell: &Cell, wide: bool) -> String {
    match (cell.experts, cell.measured_ppm, wide) {
        (0, ..) => "-".into(),
        (n, None, true) => format!("{} {n:>4}", tenths(cell.predicted_ppm)),
        (n, Some(m), true) => format!("{}→{} {n:>4}", tenths(cell.predicted_ppm), tenths(m)),
        (_, _, false) => tenths(cell.ppm()),
    }
}

fn grid(view: &View, full: bool) -> String {
    let (chosen, all) = (rows(view, full), view.cards.len());
    let mut out = match full {
        true => {
            let groups = (0..all).step_by(CARDS).map(|first| first..all.min(first + CARDS));
            groups.map(|cards| part(view, &chosen, cards, false)).collect::<Vec<_>>().join("\n")
        }
        false => part(view, &chosen, 0..all.min(CARDS), all > CARDS),
    };
    let layers = view.layers.len() - chosen.len();
    let cards = if full { 0 } else { all.saturating_sub(CARDS) };
    let named = [(layers, "layer"), (cards, "card")].into_iter().filter(|(n, _)| *n > 0);
    let left: Vec<String> = named.map(|(n, what)| units::plural(n as u64, what)).collect();
    if !left.is_empty() {
        let worst = if layers > 0 { ", the worst layers are shown" } else { "" };
        out += &wrap(&format!("{} left out{worst}; --full shows all", left.join(" and ")), 0);
        out.push('\n');
    }
    out
}

/// The grid of some `cards`; `more` says that there are others.
fn part(view: &View, chosen: &[usize], cards: Range<usize>, more: bool) -> String {
    let wide = is_wide(view);
    let mut titles: Vec<String> = vec!["layer".into()];
    titles.extend(cards.clone().map(|card| format!("card {card}")));
    if more {
        titles.push("…".into());
    }
    titles.extend(["balance".into(), "most on".into()]);
    let mut lines = vec![titles];
    let mut before = None;
    for &at in chosen {
        if before.is_some_and(|b| b + 1 != at) {
            lines.push(vec!["…".into()]);
        }
        before = Some(at);
        let layer = &view.layers[at];
        let mut line = vec![layer.layer.to_string()];
        line.extend(layer.cards[cards.clone()].iter().map(|c| cell(c, wide)));
        if more {
            line.push("…".into());
        }
        let most = (0..layer.cards.len()).rev().max_by_key(|c| layer.cards[*c].ppm()).unwrap_or(0);
        line.extend([balance(layer.balance_ppm()), most.to_string()]);
        lines.push(line);
    }
    columns(&lines)
}

/// Right-aligned columns.
fn columns(lines: &[Vec<String>]) -> String {
    let count = lines.first().map_or(0, Vec::len);
    let width =
        |i: usize| lines.iter().filter_map(|l| l.get(i)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut out = String::new();
    for line in lines {
        for (i, text) in line.iter().enumerate() {
            let fill = widths[i] - text.chars().count();
            out.extend(std::iter::repeat_n(' ', if i == 0 { fill } else { fill + 2 }));
            out += text;
        }
        out.push('\n');
    }
    out
}

/// The layers that are shown: all, or the first, the last, and the worst.
fn rows(view: &View, full: bool) -> Vec<usize> {
    let n = view.layers.len();
    if full || n <= ROWS {
        return (0..n).collect();
    }
    let mut worst: Vec<usize> = (0..n).collect();
    worst.sort_by_key(|at| (view.layers[*at].balance_ppm(), *at));
    let mut out: std::collections::BTreeSet<usize> = worst.iter().copied().take(ROWS - 2 * ENDS).collect();
    out.extend((0..ENDS).chain(n - ENDS..n));
    out.into_iter().collect()
}

fn hottest(view: &View) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("hottest experts", Align::Left),
        ("tokens", right),
        ("of its layer", right),
        ("cards", Align::Left),
    ]);
    for hot in &view.hottest {
        let cards: Vec<String> = hot.cards.iter().map(usize::to_string).collect();
        table.row([
            format!("layer {} expert {}", hot.layer, hot.expert),
            units::count(hot.tokens),
            share(hot.share_ppm),
            cards.join(", "),
        ]);
    }
    table.render()
}
