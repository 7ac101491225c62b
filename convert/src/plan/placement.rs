//! What a placement is expected to do: for the manifest, for people and for programs.

use super::place::Places;
use super::{CardPlan, Options, Plan};
use crate::table::{Align, Table};
use crate::units;
use anyhow::Result;
use gantry_formats::container::{HotnessSummary, LayerShares, PlacedCard, PlacementSection};
use gantry_formats::message::wrap;
use gantry_formats::placement::{self, CopyLimit, ExtraCopies, LayerExperts, Report, Request, Strategy};
use serde_json::{Value, json};

/// Copies that people are shown one by one.
const COPIES: usize = 6;

/// What was decided on experts, and what is expected of it.
#[derive(Clone, Debug)]
pub(crate) struct PlacementPlan {
    pub(crate) strategy: Strategy,
    /// As the manifest records it; `None` with one card without a budget or counts.
    pub(crate) section: Option<PlacementSection>,
    /// `None` in a model without banks.
    pub(crate) report: Option<Report>,
    /// What `paired` without counts would do with the same tokens.
    pub(crate) before: Option<Report>,
    /// By layer, how many of the copies that were asked for there are.
    pub(crate) extra: Vec<ExtraCopies>,
    /// What is odd about the counts.
    pub(crate) warnings: Vec<String>,
}

impl PlacementPlan {
    /// Of a placement that was decided now.
    pub(super) fn new(places: &Places, options: &Options, context: Option<u64>) -> Result<Self> {
        let cards = options.cards.cards.len();
        let report = report_of(places);
        let hotness = options.cards.hotness.as_ref();
        let before =
            hotness.filter(|_| places.strategy != Strategy::Layers).and_then(|_| blindly(places, options));
        let mut shares_ppm = report.as_ref().map(|r| r.share_ppm.clone()).unwrap_or_default();
        shares_ppm.resize(cards, 0);
        let lines = report.iter().flat_map(|r| &r.layers);
        let lines = lines.map(|l| LayerShares { layer: l.layer, shares_ppm: l.share_ppm.clone() });
        let placed =
            |c: &CardPlan| PlacedCard { host: c.host, bytes: c.budget, kv_bytes: c.kv_bytes.unwrap_or(0) };
        let section = PlacementSection {
            strategy: places.strategy.to_string(),
            fill: options.cards.fill.to_string(),
            cards: places.cards.iter().map(placed).collect(),
            reserve: options.cards.reserve,
            context,
            kv: options.cards.kv.name().into(),
            hotness: hotness.map(|m| HotnessSummary::of(&m.hotness)),
            shares_ppm,
            layers: lines.collect(),
            worst_layer: report.as_ref().and_then(|r| Some(r.layers.get(r.worst?)?.layer)),
            blake3: String::new(),
        };
        let warnings = hotness.map(|m| m.warnings.clone()).unwrap_or_default();
        let section = options.cards.worth_recording().then(|| section.sealed(&places.banks));
        let request = Request {
            layers: &places.experts,
            usable: &places.usable,
            strategy: places.strategy,
            fill: options.cards.fill,
        };
        let extra = placement::extra_copies(&places.map, &request, &options.cards.budgets())?;
        Ok(Self { strategy: places.strategy, section, report, before, extra, warnings })
    }

    /// Of a placement that stays as it was.
    pub(super) fn kept(places: &Places, section: Option<PlacementSection>) -> Self {
        let report = report_of(places);
        let (before, extra, warnings) = (None, Vec::new(), Vec::new());
        Self { strategy: places.strategy, section, report, before, extra, warnings }
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let reports = [&self.report, &self.before].map(|r| r.as_ref().map(report_json));
        let [report, before] = reports;
        json!({
            "strategy": self.strategy.to_string(), "recorded": self.section, "report": report, "before": before,
            "extra_copies": self.extra.iter().map(extra_json).collect::<Vec<_>>(), "warnings": self.warnings,
        })
    }
}

fn extra_json(of: &ExtraCopies) -> Value {
    let why = of.why.map(|why| why.to_string());
    json!({ "layer": of.layer, "wanted": of.wanted, "made": of.made, "why": why })
}

/// How many of the copies that were asked for there are, and why there are no more: a text for the layers of which
/// the same is to be said.
fn extra_texts(extra: &[ExtraCopies]) -> Vec<String> {
    type Kind = (u32, Option<CopyLimit>);
    let mut kinds: Vec<(Kind, Vec<&ExtraCopies>)> = Vec::new();
    for of in extra {
        let kind = (of.made, of.why);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, layers)) => layers.push(of),
            None => kinds.push((kind, vec![of])),
        }
    }
    let text = |((made, why), layers): &(Kind, Vec<&ExtraCopies>)| {
        let wanted = layers.first().map_or(0, |of| of.wanted);
        let place = match layers.len() == extra.len() {
            true => "each layer".to_string(),
            false => format!("layer {}", runs(layers)),
        };
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        format!("{made} of {wanted} copies in {place}{why}")
    };
    kinds.iter().map(text).collect()
}

/// `0-3, 5`.
fn runs(layers: &[&ExtraCopies]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for layer in layers.iter().map(|of| of.layer) {
        match runs.last_mut().filter(|(_, last)| last.checked_add(1) == Some(layer)) {
            Some((_, last)) => *last = layer,
            None => runs.push((layer, layer)),
        }
    }
    let text = |&(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn report_of(places: &Places) -> Option<Report> {
    (!places.experts.is_empty()).then(|| placement::report(&places.map, &places.experts))
}

/// The same experts dealt as if all were alike, with the load that the counts give.
fn blindly(places: &Places, options: &Options) -> Option<Report> {
    let alike = |l: &LayerExperts| LayerExperts { counts: Vec::new(), ..l.clone() };
    let layers: Vec<LayerExperts> = places.experts.iter().map(alike).collect();
    let fill = options.cards.fill;
    let request = Request { layers: &layers, usable: &places.usable, strategy: Strategy::Paired, fill };
    let map = placement::place_by_budget(&request, &options.cards.budgets()).ok()?;
    Some(placement::report(&map, &places.experts))
}

/// The mean balancedness of all layers, in millionths.
pub(crate) fn mean_balance(report: &Report) -> u64 {
    let sum: u64 = report.layers.iter().map(|l| u64::from(l.balance_ppm)).sum();
    sum.checked_div(report.layers.len() as u64).unwrap_or(0)
}

/// A report for programs.
pub(crate) fn report_json(report: &Report) -> Value {
    let layers = report.layers.iter().map(|l| {
        json!({ "layer": l.layer, "load": l.load, "share_ppm": l.share_ppm, "balance_ppm": l.balance_ppm })
    });
    let copies =
        report.copies.iter().map(|c| json!({ "layer": c.layer, "expert": c.expert, "cards": c.cards }));
    let worst = report.worst.and_then(|at| report.layers.get(at));
    json!({
        "share_ppm": report.share_ppm,
        "expert_bytes": report.bytes,
        "worst_layer": worst.map(|l| l.layer),
        "worst_balance_ppm": worst.map(|l| l.balance_ppm),
        "mean_balance_ppm": mean_balance(report),
        "layers": layers.collect::<Vec<_>>(),
        "copies": copies.collect::<Vec<_>>(),
    })
}

/// `0.931`.
pub(crate) fn balance(ppm: u64) -> String {
    format!("{}.{:03}", ppm / 1_000_000, ppm % 1_000_000 / 1000)
}

/// `44.7 %`.
pub(crate) fn share(ppm: u32) -> String {
    let tenths = (u64::from(ppm) + 500) / 1000;
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// Cards and placement for people: at most 80 columns.
pub(crate) fn summary(plan: &Plan) -> String {
    let mut out = cards(plan);
    let mut line = |label: &str, text: String| {
        out += &wrap(&format!("{label:<10}{text}"), 10);
        out.push('\n');
    };
    if let Some(n) = plan.context.filter(|_| plan.cards.iter().any(|c| c.kv_bytes.is_some())) {
        line("context", format!("{n}, the KV cache in {}", plan.kv.name()));
    }
    let Some(section) = &plan.placement.section else { return out };
    if section.reserve > 0 {
        line("reserve", format!("{} on each card, in total", units::bytes(section.reserve)));
    }
    let by = match &section.hotness {
        None => "without counts".to_string(),
        Some(h) if h.tokens == 0 => "by counts of tokens".into(),
        Some(h) => format!("by the counts of {} tokens", units::count(h.tokens)),
    };
    match (&plan.placement.report, plan.placement.strategy) {
        (Some(report), strategy) if strategy != Strategy::Layers => {
            line("placement", format!("{strategy}, fill {}, {by}", section.fill));
            numbers(report, plan.placement.before.as_ref(), &mut line);
            extra_texts(&plan.placement.extra).into_iter().for_each(|text| line("extra", text));
        }
        (_, strategy) => {
            let idle = if section.hotness.is_some() {
                "; counts of tokens do not change where they lie"
            } else {
                ""
            };
            line("placement", format!("{strategy}: whole layers on each card{idle}"));
            let each = plan.cards.iter().enumerate().map(|(card, c)| format!("{card}: {}", c.layers));
            line("layers", format!("card {}", each.collect::<Vec<_>>().join(", ")));
        }
    }
    plan.placement.warnings.iter().for_each(|warning| line("warning", warning.clone()));
    out
}

/// The lines of a report.
pub(crate) fn numbers(report: &Report, before: Option<&Report>, line: &mut impl FnMut(&str, String)) {
    let shares = report.share_ppm.iter().enumerate().map(|(card, ppm)| format!("{card}: {}", share(*ppm)));
    line("shares", format!("of routed tokens, card {}", shares.collect::<Vec<_>>().join(", ")));
    let worst = |r: &Report| r.worst.and_then(|at| r.layers.get(at)).map_or(0, |l| u64::from(l.balance_ppm));
    if let Some(l) = report.worst.and_then(|at| report.layers.get(at)) {
        let card = (0..l.share_ppm.len()).rev().max_by_key(|c| l.share_ppm[*c]).unwrap_or(0);
        let part = share(l.share_ppm.get(card).copied().unwrap_or(0));
        let own = balance(l.balance_ppm.into());
        line("worst", format!("layer {}: balancedness {own}, card {card} has {part} of it", l.layer));
    }
    let mean = balance(mean_balance(report));
    line("mean", format!("balancedness {mean} (mean over largest load of a card, 1 at best)"));
    if let Some(before) = before {
        let (worst, mean) = (balance(worst(before)), balance(mean_balance(before)));
        line("before", format!("worst {worst}, mean {mean}, where paired deals without counts"));
    }
    if !report.copies.is_empty() {
        let shown = report.copies.iter().take(COPIES).map(|c| {
            let cards: Vec<String> = c.cards.iter().map(usize::to_string).collect();
            format!("layer {} expert {} on {}", c.layer, c.expert, cards.join("+"))
        });
        let more = if report.copies.len() > COPIES { ", …" } else { "" };
        let (n, shown) = (report.copies.len() as u64, shown.collect::<Vec<_>>().join(", "));
        line("copies", format!("{} on several cards: {shown}{more}", units::plural(n, "expert")));
    }
}

/// Memory by card.
fn cards(plan: &Plan) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("card", Align::Left),
        ("weights", right),
        ("experts", right),
        ("KV cache", right),
        ("scratch", right),
        ("total", right),
        ("budget", right),
    ]);
    let reserve = plan.placement.section.as_ref().map_or(0, |s| s.reserve);
    for (i, card) in plan.cards.iter().enumerate() {
        table.row([
            format!("{i}{}", if card.host { " (host)" } else { "" }),
            units::bytes(card.weight_bytes - card.expert_bytes),
            units::bytes(card.expert_bytes),
            card.kv_bytes.map_or_else(|| "-".into(), units::bytes),
            card.scratch_bytes.map_or_else(|| "-".into(), units::bytes),
            units::bytes(card.total(reserve)),
            card.budget.map_or_else(|| "no limit".into(), units::bytes),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_are_missing_are_told_of_with_their_reason() {
        let of = |layer, made, why| ExtraCopies { layer, wanted: 4, made, why };
        let all: Vec<_> = (0..3).map(|layer| of(layer, 4, None)).collect();
        assert_eq!(extra_texts(&all), ["4 of 4 copies in each layer"]);
        let (room, load) = (Some(CopyLimit::Room), Some(CopyLimit::Load));
        let some = [of(0, 4, None), of(1, 1, room), of(2, 1, room), of(3, 0, load), of(5, 1, room)];
        let said = [
            "4 of 4 copies in layer 0",
            "1 of 4 copies in layer 1-2, 5: the cards have no room for more",
            "0 of 4 copies in layer 3: copies would make the largest load of a card larger",
        ];
        assert_eq!(extra_texts(&some), said);
        assert_eq!(extra_texts(&[]), [""; 0]);
        let json = extra_json(&some[1]);
        let why = "the cards have no room for more";
        assert_eq!(json, json!({ "layer": 1, "wanted": 4, "made": 1, "why": why }));
    }
}
