//! The report as one HTML file: drawings inline, nothing fetched, light or dark as the reader has it.

use super::{Layer, View};
use crate::plan::{balance, share};
use crate::units;
use std::fmt::Write;

/// Most experts of all layers that are drawn one by one.
const DRAWN: usize = 40_000;
/// Most cells of layers and cards that are drawn: of more, the worst layers.
const CELLS: usize = 12_000;
/// Layers in the list of the worst.
const WORST: usize = 8;
/// Width of all drawings.
const WIDTH: f64 = 960.0;

const STYLE: &str = "
:root { color-scheme: light dark; --bg: #fbfbfa; --panel: #ffffff; --fg: #1d2126; --dim: #68707c; --line: #e1e4e8;
  --track: #eceef1; --even: #eef0f3; --cool: #3b7dd8; --hot: #d1495b; --dense: #8a94a3; --kv: #c2a33c; }
@media (prefers-color-scheme: dark) { :root { --bg: #14171b; --panel: #1b1f25; --fg: #e4e7eb; --dim: #8d96a3;
  --line: #2c323a; --track: #272c34; --even: #2a3038; --cool: #4c86d6; --hot: #e0677a; --dense: #707a89; --kv: #b5963a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--fg); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 24px; margin: 0 0 2px; } h2 { font-size: 16px; margin: 0 0 4px; }
p { margin: 0 0 12px; color: var(--dim); } .chips { display: flex; flex-wrap: wrap; gap: 8px; margin: 14px 0 22px; }
.chip { border: 1px solid var(--line); background: var(--panel); border-radius: 999px; padding: 2px 12px; }
.chip b { font-weight: 600; } section { background: var(--panel); border: 1px solid var(--line); border-radius: 10px;
  padding: 18px 20px; margin: 0 0 18px; overflow-x: auto; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--fg); font: 12px system-ui, sans-serif; }
svg .dim { fill: var(--dim); } svg .line { stroke: var(--line); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 500; } th:first-child, td:first-child { text-align: left; padding-left: 0; }
.bar { display: inline-block; height: 8px; border-radius: 4px; background: var(--hot); vertical-align: middle; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
.key { display: flex; flex-wrap: wrap; gap: 4px 16px; color: var(--dim); font-size: 13px; margin-top: 10px; }
.warn { color: var(--hot); }
";

/// The page.
pub(super) fn page(view: &View) -> String {
    let mut out = String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
    // Writing to a string cannot fail.
    let _ = body(&mut out, view);
    out
}

fn body(out: &mut String, view: &View) -> std::fmt::Result {
    writeln!(out, "<title>Placement of {}</title>\n<style>{STYLE}</style>", escape(&view.file))?;
    writeln!(out, "</head>\n<body>\n<main>\n<h1>{}</h1>", escape(&view.model))?;
    writeln!(out, "<p>{}, placed {}</p>\n<div class=\"chips\">", escape(&view.file), escape(&view.rule()))?;
    let experts: u64 = view.layers.iter().map(|l| u64::from(l.experts)).sum();
    chip(out, "cards", &view.cards.len().to_string())?;
    chip(out, "layers with experts", &view.layers.len().to_string())?;
    chip(out, "experts", &units::count(experts))?;
    if let Some(worst) = view.worst_first().first() {
        chip(
            out,
            "worst balancedness",
            &format!("{} in layer {}", balance(worst.balance_ppm()), worst.layer),
        )?;
    }
    if let Some(tokens) = view.tokens {
        chip(out, "measured by", &format!("{} tokens", units::count(tokens)))?;
    }
    writeln!(out, "</div>")?;
    for warning in &view.warnings {
        writeln!(out, "<p class=\"warn\">{}</p>", escape(warning))?;
    }
    section(out, "Memory", "What each card holds, against its budget where it has one.", |out| {
        cards(out, view)
    })?;
    if !view.layers.is_empty() {
        let kind = if view.is_measured() { "Measured" } else { "Expected" };
        let colours = "Grey: as much as the others; red: more; blue: less.";
        let what = format!("{kind} part of each layer's tokens that a card computes. {colours}");
        section(out, "Load by layer and card", &what, |out| grid(out, view))?;
        let what =
            "Mean over largest load of a card: 1 is even; the slowest card decides how long a layer takes.";
        section(out, "Balancedness by layer", what, |out| balances(out, view))?;
        if experts as usize <= DRAWN {
            let what =
                "One cell for each expert, coloured by its card; a dot marks one that several cards hold.";
            section(out, "Experts", what, |out| experts_drawn(out, view))?;
        }
        section(out, "Worst layers", "Layers whose fullest card is furthest above the mean.", |out| {
            worst(out, view)
        })?;
    }
    if !view.hottest.is_empty() {
        section(out, "Hottest experts", "By their part of their layer's tokens.", |out| hottest(out, view))?;
    }
    writeln!(out, "</main>\n</body>\n</html>")
}

fn section(
    out: &mut String,
    title: &str,
    what: &str,
    fill: impl FnOnce(&mut String) -> std::fmt::Result,
) -> std::fmt::Result {
    writeln!(out, "<section>\n<h2>{title}</h2>\n<p>{what}</p>")?;
    fill(out)?;
    writeln!(out, "</section>")
}

fn chip(out: &mut String, what: &str, value: &str) -> std::fmt::Result {
    writeln!(out, "<span class=\"chip\">{what} <b>{}</b></span>", escape(value))
}

/// Text that means itself in HTML.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// The colour of a card: hues that stay apart for any number of them.
fn colour(card: usize) -> String {
    const FIRST: [&str; 6] = ["#3b7dd8", "#e08a3c", "#3fa37c", "#a365c9", "#cf5470", "#5aa9b8"];
    match FIRST.get(card) {
        Some(colour) => (*colour).into(),
        None => format!("hsl({} 45% {}%)", card * 137 % 360, 48 + card % 3 * 8),
    }
}

fn open_svg(out: &mut String, width: f64, height: f64, label: &str) -> std::fmt::Result {
    writeln!(
        out,
        "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">",
        escape(label)
    )
}

fn card_name(view: &View, card: usize) -> String {
    let host = view.cards.get(card).is_some_and(|c| c.host);
    format!("card {card}{}", if host { " (host)" } else { "" })
}

/// A stacked bar for each card.
fn cards(out: &mut String, view: &View) -> std::fmt::Result {
    const ROW: f64 = 44.0;
    const LEFT: f64 = 110.0;
    let used = |c: &super::Card| view.total(c);
    let reserve = view.recorded.as_ref().map_or(0, |s| s.reserve);
    let reserve = if reserve > 0 { format!(", {} reserve", units::bytes(reserve)) } else { String::new() };
    let longest = view.cards.iter().map(|c| used(c).max(c.budget.unwrap_or(0))).max().unwrap_or(0).max(1);
    let scale = (WIDTH - LEFT - 10.0) / longest as f64;
    open_svg(out, WIDTH, ROW * view.cards.len() as f64, "Memory by card")?;
    for (i, card) in view.cards.iter().enumerate() {
        let y = ROW * i as f64;
        writeln!(out, "<text x=\"0\" y=\"{:.0}\">{}</text>", y + 16.0, escape(&card_name(view, i)))?;
        let track = card.budget.unwrap_or(used(card)) as f64 * scale;
        writeln!(
            out,
            "<rect x=\"{LEFT}\" y=\"{:.0}\" width=\"{track:.1}\" height=\"20\" rx=\"4\" fill=\"var(--track)\"/>",
            y + 2.0
        )?;
        let mut x = LEFT;
        let dense = card.other_bytes;
        let parts = [
            ("weights", dense, "var(--dense)".to_string()),
            ("experts", card.expert_bytes, colour(i)),
            ("KV cache", card.kv_bytes, "var(--kv)".to_string()),
        ];
        for (what, bytes, fill) in parts.iter().filter(|p| p.1 > 0) {
            let width = *bytes as f64 * scale;
            writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{:.0}\" width=\"{width:.1}\" height=\"20\" fill=\"{fill}\"><title>{what}: {}</title></rect>",
                y + 2.0,
                units::bytes(*bytes)
            )?;
            x += width;
        }
        let budget = card.budget.map_or_else(|| "no limit".into(), units::bytes);
        writeln!(
            out,
            "<text class=\"dim\" x=\"{LEFT}\" y=\"{:.0}\">{} of {budget}: {} weights, {} in {} experts, {} KV cache{reserve}; {} of tokens</text>",
            y + 36.0,
            units::bytes(used(card)),
            units::bytes(dense),
            units::bytes(card.expert_bytes),
            units::count(card.experts),
            units::bytes(card.kv_bytes),
            share(card.measured_ppm.unwrap_or(card.predicted_ppm))
        )?;
    }
    writeln!(out, "</svg>")
}

/// The heat map of layers and cards.
fn grid(out: &mut String, view: &View) -> std::fmt::Result {
    const LEFT: f64 = 60.0;
    const HEAD: f64 = 22.0;
    let columns = view.cards.len().max(1);
    let mut layers = view.worst_first();
    layers.truncate(CELLS / columns);
    layers.sort_by_key(|l| l.layer);
    let rows = layers.len();
    let row: f64 = if rows > 40 { 14.0 } else { 22.0 };
    let width = (WIDTH - LEFT) / columns as f64;
    let labelled = width >= 44.0 && row >= 14.0;
    open_svg(out, WIDTH, HEAD + row * rows as f64, "Load by layer and card")?;
    for card in 0..view.cards.len() {
        let x = LEFT + width * (card as f64 + 0.5);
        let name = if width >= 70.0 { card_name(view, card) } else { card.to_string() };
        writeln!(out, "<text x=\"{x:.1}\" y=\"14\" text-anchor=\"middle\">{}</text>", escape(&name))?;
    }
    for (at, layer) in layers.into_iter().enumerate() {
        let y = HEAD + row * at as f64;
        let base = y + row / 2.0 + 4.0;
        writeln!(out, "<text class=\"dim\" x=\"0\" y=\"{base:.1}\">{}</text>", layer.layer)?;
        for (card, cell) in layer.cards.iter().enumerate() {
            let x = LEFT + width * card as f64;
            let (side, heat) = tint(cell.ppm(), columns);
            writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\" fill=\"color-mix(in oklab, var({side}) {heat:.0}%, var(--even))\"><title>layer {}, {}: {} of its tokens, {} experts{}</title></rect>",
                x + 1.0,
                y + 1.0,
                width - 2.0,
                row - 2.0,
                layer.layer,
                escape(&card_name(view, card)),
                share(cell.ppm()),
                cell.experts,
                cell.measured_ppm
                    .map_or(String::new(), |_| format!(", expected {}", share(cell.predicted_ppm)))
            )?;
            if labelled && cell.experts > 0 {
                writeln!(
                    out,
                    "<text x=\"{:.1}\" y=\"{base:.1}\" text-anchor=\"middle\" pointer-events=\"none\">{}</text>",
                    x + width / 2.0,
                    share(cell.ppm())
                )?;
            }
        }
    }
    writeln!(out, "</svg>")
}

/// The colour of a share beside an even one, and how much of it in per cent: red up to twice as much, blue down to none.
fn tint(ppm: u32, cards: usize) -> (&'static str, f64) {
    let times = f64::from(ppm) * cards as f64 / 1e6;
    if times >= 1.0 { ("--hot", ((times - 1.0) * 85.0).min(85.0)) } else { ("--cool", (1.0 - times) * 60.0) }
}

/// A column for each layer's balancedness.
fn balances(out: &mut String, view: &View) -> std::fmt::Result {
    const HEIGHT: f64 = 120.0;
    const LEFT: f64 = 36.0;
    let width = ((WIDTH - LEFT) / view.layers.len().max(1) as f64).min(48.0);
    let worst = view.worst_first().first().map(|l| l.layer);
    open_svg(out, WIDTH, HEIGHT + 24.0, "Balancedness by layer")?;
    for (mark, y) in [("1", 10.0), ("0.5", 10.0 + (HEIGHT - 10.0) / 2.0), ("0", HEIGHT)] {
        writeln!(out, "<text class=\"dim\" x=\"0\" y=\"{:.1}\">{mark}</text>", y + 4.0)?;
        writeln!(out, "<line class=\"line\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>")?;
    }
    let every = (28.0 / width).ceil().max(1.0) as usize;
    for (at, layer) in view.layers.iter().enumerate() {
        let height = layer.balance_ppm() as f64 / 1e6 * (HEIGHT - 10.0);
        let x = LEFT + width * at as f64;
        let fill = if Some(layer.layer) == worst { "var(--hot)" } else { "var(--dense)" };
        writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\" rx=\"2\" fill=\"{fill}\"><title>layer {}: {}</title></rect>",
            x + width * 0.1,
            HEIGHT - height,
            width * 0.8,
            layer.layer,
            balance(layer.balance_ppm())
        )?;
        if at.is_multiple_of(every) {
            let (x, y) = (x + width / 2.0, HEIGHT + 16.0);
            writeln!(
                out,
                "<text class=\"dim\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
                layer.layer
            )?;
        }
    }
    writeln!(out, "</svg>")
}

/// Every expert in the colour of its card: one path for each card, so that large models stay small files.
fn experts_drawn(out: &mut String, view: &View) -> std::fmt::Result {
    const LEFT: f64 = 60.0;
    let most = view.layers.iter().map(|l| l.experts).max().unwrap_or(1).max(1);
    let cell = ((WIDTH - LEFT) / f64::from(most)).min(20.0);
    let row = cell.clamp(6.0, 20.0);
    open_svg(out, WIDTH, row * view.layers.len() as f64 + 2.0, "Experts by layer and card")?;
    let mut copies = String::new();
    let mut paths = vec![String::new(); view.cards.len()];
    for (at, line) in view.map.layers.iter().enumerate() {
        let y = row * at as f64;
        if row >= 12.0 || at.is_multiple_of(2) {
            writeln!(
                out,
                "<text class=\"dim\" x=\"0\" y=\"{:.1}\">{}</text>",
                y + row / 2.0 + 4.0,
                line.layer
            )?;
        }
        let experts = view.layers.get(at).map_or(0, |l| l.experts);
        for expert in 0..experts {
            let x = LEFT + cell * f64::from(expert);
            let mut holders = line.holders(expert);
            if let Some(path) = holders.next().and_then(|card| paths.get_mut(card)) {
                let (w, h) = (cell - cell.min(8.0) / 8.0, row - 1.0);
                write!(path, "M{x:.1} {y:.1}h{w:.1}v{h:.1}h-{w:.1}z")?;
            }
            if holders.next().is_some() {
                let (x, y, r) = (x + cell * 0.4, y + row / 2.0, cell.min(row) / 5.0);
                write!(copies, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r:.1}\" fill=\"var(--panel)\"/>")?;
            }
        }
    }
    for (card, path) in paths.iter().enumerate() {
        let name = escape(&card_name(view, card));
        writeln!(out, "<path d=\"{path}\" fill=\"{}\"><title>{name}</title></path>", colour(card))?;
    }
    writeln!(out, "{copies}</svg>\n<div class=\"key\">")?;
    for card in 0..view.cards.len() {
        let (fill, name) = (colour(card), escape(&card_name(view, card)));
        writeln!(out, "<span><i class=\"dot\" style=\"background:{fill}\"></i>{name}</span>")?;
    }
    writeln!(out, "</div>")
}

fn worst(out: &mut String, view: &View) -> std::fmt::Result {
    writeln!(
        out,
        "<table><tr><th>layer</th><th>balancedness</th><th>fullest card</th><th>its part</th><th>expected</th><th>its experts</th></tr>"
    )?;
    for layer in view.worst_first().into_iter().take(WORST) {
        let (card, cell) = fullest(layer);
        writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{card}</td><td>{}</td><td>{}</td><td>{} of {}</td></tr>",
            layer.layer,
            balance(layer.balance_ppm()),
            share(cell.map_or(0, |c| c.ppm())),
            share(cell.map_or(0, |c| c.predicted_ppm)),
            cell.map_or(0, |c| c.experts),
            layer.experts
        )?;
    }
    writeln!(out, "</table>")
}

fn fullest(layer: &Layer) -> (usize, Option<super::Cell>) {
    let card = (0..layer.cards.len()).rev().max_by_key(|c| layer.cards[*c].ppm()).unwrap_or(0);
    (card, layer.cards.get(card).copied())
}

fn hottest(out: &mut String, view: &View) -> std::fmt::Result {
    writeln!(
        out,
        "<table><tr><th>expert</th><th>tokens</th><th>of its layer</th><th></th><th>cards</th></tr>"
    )?;
    let most = view.hottest.iter().map(|h| h.share_ppm).max().unwrap_or(1).max(1);
    for hot in &view.hottest {
        let cards: Vec<String> = hot.cards.iter().map(usize::to_string).collect();
        writeln!(
            out,
            "<tr><td>layer {} expert {}</td><td>{}</td><td>{}</td><td style=\"text-align:left;width:40%\"><span class=\"bar\" style=\"width:{:.1}%\"></span></td><td>{}</td></tr>",
            hot.layer,
            hot.expert,
            units::count(hot.tokens),
            share(hot.share_ppm),
            f64::from(hot.share_ppm) / f64::from(most) * 100.0,
            cards.join(", ")
        )?;
    }
    writeln!(out, "</table>")
}
