//! Assigns groups to cards: whole layers in runs, or each layer's experts over all cards and the rest on card 0.

use super::Options;
use super::cards::{Shortage, States, mib};
use super::fuse::Group;
use super::place::{Kept, layer};
use crate::failure::Refusal;
use anyhow::Result;
use gantry_formats::container::MAX_CARDS;
use gantry_formats::exit::{Exit, ExitCode};
use gantry_formats::placement::{
    self, CardSpec, LayerExperts, LayerPlacement, Placement, PlacementError, Request, Strategy,
};
use gantry_formats::size;
use std::collections::{BTreeMap, BTreeSet};

/// What was decided.
pub(super) struct Assigned {
    pub(super) strategy: Strategy,
    /// The card of each group that is no bank; of a bank nothing.
    pub(super) cards: Vec<usize>,
    /// Layers with banks, ascending.
    pub(super) experts: Vec<LayerExperts>,
    /// The cards of their experts.
    pub(super) map: Placement,
    /// Bytes that each card had for them, where they were spread.
    pub(super) usable: Vec<Option<u64>>,
}

/// Decides the card of every group and every expert.
///
/// # Errors
/// Where the cards are too many or too small, or the rule does not fit the model.
pub(super) fn assign(
    groups: &[Group],
    options: &Options,
    states: &States,
    kept: Option<Kept<'_>>,
) -> Result<Assigned> {
    let count = options.cards.cards.len();
    if count == 0 || count > MAX_CARDS {
        return Err(Refusal::new(Exit::Usage, format!("--cards {count}: expected 1 to {MAX_CARDS}")));
    }
    let experts = experts(groups, options)?;
    if let Some(kept) = kept {
        let of = |group: &Group| match group {
            Group::Tensor(m) | Group::Copy(m) => kept.tensors.get(&m.name).copied().unwrap_or(0),
            Group::Bank { .. } => 0,
        };
        let (strategy, map) = (kept.strategy, kept.map.clone());
        return Ok(Assigned {
            strategy,
            cards: groups.iter().map(of).collect(),
            experts,
            map,
            usable: Vec::new(),
        });
    }
    let strategy = options.cards.strategy(!experts.is_empty())?;
    if strategy == Strategy::Layers {
        let cards = runs(groups, options, states)?;
        let home = |l: &LayerExperts| {
            let at = groups.iter().position(|g| matches!(g, Group::Bank { layer, .. } if *layer == l.layer));
            let mut all = vec![Vec::new(); count];
            all[at.map_or(0, |at| cards[at])] = (0..l.experts).collect();
            LayerPlacement { layer: l.layer, cards: all }
        };
        let map = Placement { layers: experts.iter().map(home).collect() };
        return Ok(Assigned { strategy, cards, experts, map, usable: Vec::new() });
    }
    let usable = usable(groups, options, states)?;
    let request = Request { layers: &experts, usable: &usable, strategy, fill: options.cards.fill };
    let map = placement::place_by_budget(&request, &options.cards.budgets());
    let map = map.map_err(|e| refusal(&e, "experts", &usable, options))?;
    Ok(Assigned { strategy, cards: vec![0; groups.len()], experts, map, usable })
}

/// The refusal that names the card, how many MiB are short, and budgets that would do.
fn refusal(error: &PlacementError, what: &str, usable: &[Option<u64>], options: &Options) -> anyhow::Error {
    let cards = &options.cards.cards;
    let PlacementError::Short { card, needs, has, short, enough } = error else {
        return Refusal::new(
            error.exit(),
            format!("--cards {}: {what}: {error}", placement::cards_text(cards)),
        );
    };
    let who = card.map_or("all cards together are".to_string(), |card| format!("card {card} is"));
    let would = cards.iter().zip(usable).zip(enough).map(|((spec, usable), enough)| {
        let more = enough.saturating_sub(usable.unwrap_or(*enough));
        // Segments grow by their alignment.
        let more = size::align_up(more, options.alignment.segment.max(1 << 20).into()).unwrap_or(u64::MAX);
        CardSpec { bytes: spec.bytes.map(|b| b.saturating_add(more)), ..*spec }
    });
    let text = format!(
        "--cards {}: {who} {} MiB short: {} MiB of {what}, for which {} MiB are left beside all else; --cards {} would fit",
        placement::cards_text(cards),
        mib(*short),
        mib(*needs),
        mib(*has),
        placement::cards_text(&would.collect::<Vec<_>>())
    );
    Refusal::new(error.exit(), text)
}

/// The layers with banks, ascending, with what each expert takes and how hot it is.
fn experts(groups: &[Group], options: &Options) -> Result<Vec<LayerExperts>> {
    let hotness = options.cards.hotness.as_ref().map(|m| &m.hotness);
    let mut out = Vec::new();
    for group in groups {
        let Group::Bank { layer, experts, bytes, .. } = group else { continue };
        let stride = size::align_up(*bytes, options.alignment.blob.into());
        let bytes = stride.ok_or_else(|| Refusal::new(Exit::Input, format!("layer {layer}: too large")))?;
        let counts = hotness.and_then(|h| h.layer(*layer)).unwrap_or_default().to_vec();
        out.push(LayerExperts { layer: *layer, experts: *experts as u32, bytes, counts });
    }
    out.sort_by_key(|l| l.layer);
    Ok(out)
}

/// Bytes that each card has for experts, where all else lies on card 0.
fn usable(groups: &[Group], options: &Options, states: &States) -> Result<Vec<Option<u64>>> {
    let align = options.alignment;
    let others = groups.iter().filter(|g| !matches!(g, Group::Bank { .. })).filter_map(layer);
    let layers: BTreeSet<u32> = others.collect();
    let kv = states.bytes(layers.iter().copied(), options.cards.kv).unwrap_or(0);
    let (mut tensors, mut copies) = (0u64, 0u64);
    for group in groups {
        let (sum, bytes) = match group {
            Group::Tensor(m) => (&mut tensors, m.bytes),
            // Behind the banks, where the first of them may need to be aligned anew.
            Group::Copy(m) => (&mut copies, m.bytes.saturating_add(align.tensor.into())),
            Group::Bank { .. } => continue,
        };
        *sum = size::align_up(*sum, align.tensor.into()).unwrap_or(u64::MAX).saturating_add(bytes);
    }
    let fixed = size::align_up(tensors, align.blob.into()).unwrap_or(u64::MAX).saturating_add(copies);
    let rooms = options.cards.cards.iter().enumerate().map(|(card, spec)| {
        let kv = if card == 0 { kv } else { 0 };
        let Some(room) = options.cards.room(card, kv, align.segment) else { return Ok(None) };
        if card > 0 {
            return Ok(Some(room));
        }
        room.checked_sub(fixed).map(Some).ok_or_else(|| {
            let (budget, weights, what) = (spec.bytes.unwrap_or(0), fixed, "weights that are no experts");
            let short = Shortage { card, budget, weights, what, kv, layers: &layers };
            short.refusal(&options.cards, states, align.segment)
        })
    });
    rooms.collect()
}

/// Whether a tensor outside the layers is used after them.
fn is_head(group: &Group) -> bool {
    matches!(group, Group::Tensor(m) | Group::Copy(m) if m.layer.is_none() && m.role.starts_with("output"))
}

/// The card of each group: layers in runs, what comes before them on the first card, the head on the last.
fn runs(groups: &[Group], options: &Options, states: &States) -> Result<Vec<usize>> {
    let count = options.cards.cards.len();
    let limited = options.cards.limited();
    let mut layers: BTreeMap<u32, u64> = BTreeMap::new();
    let (mut first, mut last) = (0u64, 0u64);
    for group in groups {
        let sum = match layer(group) {
            Some(layer) => layers.entry(layer).or_default(),
            None if is_head(group) => &mut last,
            None => &mut first,
        };
        *sum = sum.saturating_add(bytes(group, options, limited));
    }
    if limited {
        for (layer, sum) in &mut layers {
            let kv = states.bytes(std::iter::once(*layer), options.cards.kv).unwrap_or(0);
            *sum = sum.saturating_add(kv);
        }
    }
    let weights: Vec<u64> = layers.values().copied().collect();
    // Segments end on their alignment; what is lost by that is known only when the runs are.
    let lost = u64::from(options.alignment.segment) - 1;
    let left = |budget: u64| budget.saturating_sub(options.cards.reserve).saturating_sub(lost);
    // Of one card there is nothing to choose; where it is too small, that is said of its segment, which is exact.
    let usable = options.cards.cards.iter().map(|card| card.bytes.filter(|_| count > 1).map(left));
    let usable: Vec<Option<u64>> = usable.collect();
    let map = placement::layer_runs(&weights, first, last, &usable).map_err(|error| match error {
        PlacementError::FewLayers { .. } => {
            let layers = weights.len();
            let text =
                format!("--cards {count}: the model has {layers} layers, and each card takes whole layers");
            Refusal::new(Exit::Usage, text)
        }
        error => refusal(&error, "whole layers with their KV cache", &usable, options),
    })?;
    let of: BTreeMap<u32, usize> = layers.keys().copied().zip(map).collect();
    let card = |group: &Group| match layer(group) {
        Some(layer) => of.get(&layer).copied().unwrap_or(0),
        None if is_head(group) => count - 1,
        None => 0,
    };
    Ok(groups.iter().map(card).collect())
}

/// Bytes of a group; with `padded` at most what it takes in a segment.
fn bytes(group: &Group, options: &Options, padded: bool) -> u64 {
    let align = options.alignment;
    match group {
        Group::Tensor(m) | Group::Copy(m) if padded => m.bytes.saturating_add(align.tensor.into()),
        Group::Tensor(m) | Group::Copy(m) => m.bytes,
        Group::Bank { experts, bytes, .. } if padded => {
            let stride = size::align_up(*bytes, align.blob.into()).unwrap_or(u64::MAX);
            experts.saturating_mul(stride).saturating_add(align.blob.into())
        }
        Group::Bank { experts, bytes, .. } => experts.saturating_mul(*bytes),
    }
}
