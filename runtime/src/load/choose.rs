//! Whether a container stays as it was packed or goes to other cards, and whether these have room for it.

use super::Places;
use super::anew::{Anew, Refused};
use crate::memory::{CardNeed, CardShortage, Need};
use crate::{Container, Result, RuntimeError};
use gantry_formats::container::{HotnessSummary, PlacementSection};
use gantry_formats::hotness::{Format, Hotness, Reading, RoutedModel};
use gantry_formats::placement::{CardSpec, Fill, Strategy};
use gantry_formats::size;
use std::collections::{BTreeMap, BTreeSet};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wish<'a> {
    pub(crate) cards: Option<&'a [CardSpec]>,
    pub(crate) strategy: Option<Strategy>,
    pub(crate) fill: Option<Fill>,
    pub(crate) hotness: Option<&'a Hotness>,
}

/// What lies on cards beside what is loaded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beside {
    /// Positions of a sequence.
    pub(crate) context: usize,
    /// Bytes of keys and values for each.
    pub(crate) position: u64,
    /// Bytes of working memory and of states that do not grow, on the first card.
    pub(crate) scratch: u64,
    /// Bytes on each card for its steps and for what cards give each other; empty for one card.
    pub(crate) exchange: Vec<u64>,
    /// By layer, its weight in the cache.
    pub(crate) by_layer: Vec<u64>,
    /// Tensors of the manifest that stay in their file.
    pub(crate) left: BTreeSet<usize>,
}

impl Beside {
    /// Bytes of keys and values.
    pub(super) fn cache(&self, context: usize) -> u64 {
        self.position.saturating_mul(context as u64)
    }

    /// What `card` takes for what cards give each other.
    pub(super) fn exchange(&self, card: usize) -> u64 {
        self.exchange.get(card).copied().unwrap_or(0)
    }

    /// The part of each of `layers` in the cache: together all of it.
    pub(super) fn cache_by_layer(&self, context: usize, layers: impl Iterator<Item = u32>) -> Vec<u64> {
        let weights = layers.map(|l| self.by_layer.get(l as usize).copied().unwrap_or(0));
        let mut weights: Vec<u128> = weights.map(u128::from).collect();
        if weights.iter().all(|w| *w == 0) {
            weights.fill(1);
        }
        let cache = u128::from(self.cache(context));
        let all = weights.iter().sum::<u128>().max(1);
        let mut before = 0u128;
        let share = |weight: u128| {
            let [from, to] = [before, before + weight].map(|n| cache.saturating_mul(n) / all);
            before += weight;
            (to - from) as u64
        };
        weights.into_iter().map(share).collect()
    }
}

/// What was chosen.
pub(crate) struct Chosen {
    pub(crate) places: Places,
    /// Where the container goes to other cards: that it does, and what is odd about it.
    pub(crate) notes: Vec<String>,
}

/// Places on as many cards as `wish` leads to, whatever room they have: what cards give each other hardly depends on
/// where the experts lie. `None` for one card.
///
/// # Errors
/// As [`choose`], but for room.
pub(crate) fn trial(container: &Container, wish: Wish<'_>, beside: &Beside) -> Result<Option<Places>> {
    let packed = Places::as_packed(container);
    let cards = wish.cards.map_or(packed.cards.len(), <[CardSpec]>::len);
    if cards < 2 || wish.cards.is_none() && wish.strategy.is_none() {
        return Ok(Some(packed).filter(|_| cards > 1));
    }
    let specs = vec![CardSpec { host: false, bytes: None }; cards];
    let anew = Anew::new(container, &specs, (how(container, wish, cards)?, None), beside);
    anew.places(0).map(Some).map_err(|refused| explain(&anew, refused, beside, "card"))
}

/// The places that `wish` leads to, on cards called `family:N`.
///
/// # Errors
/// [`RuntimeError::Cards`] where the cards have too little room; [`RuntimeError::Placing`] and
/// [`RuntimeError::Hotness`] for what cannot be.
pub(crate) fn choose(container: &Container, wish: Wish<'_>, beside: &Beside, family: &str) -> Result<Chosen> {
    let mut packed = Places::as_packed(container);
    let as_packed = |places| Ok(Chosen { places, notes: Vec::new() });
    if wish.cards.is_none() && wish.strategy.is_none() && wish.fill.is_none() && wish.hotness.is_none() {
        return as_packed(packed);
    }
    let any = || vec![CardSpec { host: false, bytes: None }; packed.cards.len()];
    let specs = wish.cards.map_or_else(any, <[CardSpec]>::to_vec);
    let hotness = wish.hotness.map(|hotness| fitted(container, hotness)).transpose()?;
    let how = how(container, wish, specs.len())?;
    let same_cards = specs.len() == packed.cards.len();
    if same_cards {
        packed.cards.iter_mut().zip(&specs).for_each(|(card, spec)| card.spec = *spec);
    }
    let stays = same_cards && fits(container, &packed, beside);
    let other_rule = wish.strategy.is_some_and(|s| Some(s) != packed_by(container));
    // Whole layers are not shared by a fill.
    let other_fill = how.0 != Strategy::Layers && wish.fill.is_some_and(|f| Some(f) != filled_by(container));
    let asked = other_rule || other_fill || hotness.as_ref().is_some_and(|h| !is_packed_by(container, h));
    let one = specs.len() == 1;
    if stays && (one || !asked) {
        return as_packed(packed);
    }
    let anew = Anew::new(container, &specs, (how, hotness.as_ref()), beside);
    let places = anew.places(beside.context).map_err(|refused| explain(&anew, refused, beside, family))?;
    let cards = |places: &Places| places.tensors.iter().map(|t| t.card).collect::<Vec<_>>();
    if stays && cards(&places) == cards(&packed) && places.holders() == packed.holders() {
        return as_packed(packed);
    }
    if !fits(container, &places, beside) {
        let what = format!("placed as {}, the cards hold more than was reckoned with", how.0);
        return Err(RuntimeError::Placement(what));
    }
    let from = match packed.cards.len() {
        1 => "1 card".into(),
        n => format!("{n} cards"),
    };
    let to = match specs.len() {
        1 => format!("{family}:0"),
        2 => format!("{family}:0 and {family}:1"),
        n => format!("{family}:0 to {family}:{}", n - 1),
    };
    let by = match how {
        _ if one => String::new(),
        (strategy, Fill::First) if strategy != Strategy::Layers => format!(" ({strategy}, fill first)"),
        (strategy, _) => format!(" ({strategy})"),
    };
    let mut notes = vec![format!("packed for {from}; placed on {to} while loading{by}")];
    let measured = section(container).is_some_and(|s| s.hotness.is_some());
    if measured && hotness.is_none() && !one && how.0 != Strategy::Layers {
        notes.push("packed by token counts, which a container does not hold; give --hotness".into());
    }
    Ok(Chosen { places, notes })
}

impl Places {
    /// The places of `container` on `cards` by `strategy`, with nothing else on them. `hotness` is that of the model.
    ///
    /// # Errors
    /// [`RuntimeError::Cards`] where the cards have too little room; [`RuntimeError::Placing`] and
    /// [`RuntimeError::Hotness`] for what cannot be.
    pub fn anew(
        container: &Container,
        cards: &[CardSpec],
        strategy: Strategy,
        hotness: Option<&Hotness>,
    ) -> Result<Self> {
        let hotness = hotness.map(|hotness| fitted(container, hotness)).transpose()?;
        let beside = Beside::default();
        let anew = Anew::new(container, cards, ((strategy, Fill::Share), hotness.as_ref()), &beside);
        anew.places(0).map_err(|refused| explain(&anew, refused, &beside, "card"))
    }
}

/// Bytes that each card takes.
pub(crate) fn needs(container: &Container, places: &Places, beside: &Beside) -> Vec<Need> {
    let manifest = container.manifest();
    let align = container.header().alignment.tensor.into();
    let mut needs: Vec<Need> =
        places.cards.iter().map(|card| Need { weights: card.bytes, ..Need::default() }).collect();
    for &i in &beside.left {
        let card = places.tensors.get(i).and_then(|t| needs.get_mut(t.card));
        if let Some(need) = card {
            let bytes = size::align_up(manifest.tensors[i].bytes, align).unwrap_or(u64::MAX);
            need.weights = need.weights.saturating_sub(bytes);
        }
    }
    let mut layers = BTreeMap::new();
    for (place, tensor) in places.tensors.iter().zip(&manifest.tensors) {
        if let Some(layer) = tensor.layer {
            layers.entry(layer).or_insert(place.card);
        }
    }
    let parts = beside.cache_by_layer(beside.context, layers.keys().copied());
    for (card, part) in layers.values().zip(parts) {
        if let Some(need) = needs.get_mut(*card) {
            need.cache = need.cache.saturating_add(part);
        }
    }
    needs.iter_mut().enumerate().for_each(|(card, need)| need.scratch = beside.exchange(card));
    if let Some(first) = needs.first_mut() {
        first.scratch = first.scratch.saturating_add(beside.scratch);
        if layers.is_empty() {
            first.cache = beside.cache(beside.context);
        }
    }
    needs
}

fn fits(container: &Container, places: &Places, beside: &Beside) -> bool {
    let needs = needs(container, places, beside);
    needs.iter().zip(&places.cards).all(|(need, card)| card.spec.bytes.is_none_or(|b| need.total() <= b))
}

/// The counts of this container's model.
fn fitted(container: &Container, hotness: &Hotness) -> Result<Hotness> {
    let model = RoutedModel::of_container(container)?;
    let reading = Reading {
        hotness: hotness.clone(),
        format: Format::Json,
        files: vec!["token counts".into()],
        notes: Vec::new(),
    };
    Ok(reading.fit(&model)?.0)
}

/// What a container says of its placement; one on a single card says nothing of how others would share.
fn section(container: &Container) -> Option<&PlacementSection> {
    container.manifest().placement.as_ref().filter(|s| s.cards.len() > 1)
}

/// What was asked for, or as it was packed, or what suits the model.
fn how(container: &Container, wish: Wish<'_>, cards: usize) -> Result<(Strategy, Fill)> {
    let section = section(container);
    let has_experts = !container.manifest().banks.is_empty();
    let fill = wish.fill.or(filled_by(container)).unwrap_or_default();
    match wish.strategy.or(section.and_then(|s| s.strategy.parse().ok())) {
        None if has_experts && cards > 1 => Ok((Strategy::Paired, fill)),
        None => Ok((Strategy::Layers, fill)),
        Some(other) if other != Strategy::Layers && !has_experts => Err(RuntimeError::Setting(format!(
            "placement {other}: this model has no experts, so that its cards take whole layers; give layers"
        ))),
        Some(strategy) => Ok((strategy, fill)),
    }
}

/// How a container was placed, as far as it says or shows.
fn packed_by(container: &Container) -> Option<Strategy> {
    if let Some(section) = section(container) {
        return section.strategy.parse().ok();
    }
    let banks = &container.manifest().banks;
    let split = banks.iter().any(|a| banks.iter().any(|b| a.layer == b.layer && a.card != b.card));
    (!split).then_some(Strategy::Layers)
}

/// How its cards were filled, where it says.
fn filled_by(container: &Container) -> Option<Fill> {
    section(container)?.fill.parse().ok()
}

/// Whether these are the counts that a container was placed by.
fn is_packed_by(container: &Container, hotness: &Hotness) -> bool {
    let packed = section(container).and_then(|s| s.hotness.as_ref());
    packed.is_some_and(|packed| packed.blake3 == HotnessSummary::of(hotness).blake3)
}

/// Why it does not fit, and what would.
fn explain(anew: &Anew<'_>, refused: Refused, beside: &Beside, family: &str) -> RuntimeError {
    let specs = anew.specs();
    let enough = match refused {
        Refused::Never(error) => return error.into(),
        Refused::Short(enough) => enough,
    };
    let whole_layers = anew.whole_layers();
    let need = |(card, (spec, weights)): (usize, (&CardSpec, u64))| {
        let first = card == 0;
        let cache = if first && !whole_layers { beside.cache(beside.context) } else { 0 };
        let scratch = beside.exchange(card).saturating_add(if first { beside.scratch } else { 0 });
        CardNeed { budget: spec.bytes, need: Need { weights, cache, scratch } }
    };
    let cards = specs.iter().zip(anew.settled()).enumerate().map(need).collect();
    let movable = anew.movable().saturating_add(if whole_layers { beside.cache(beside.context) } else { 0 });
    let limited = |(spec, enough): (&CardSpec, u64)| CardSpec { bytes: spec.bytes.map(|_| enough), ..*spec };
    RuntimeError::Cards(Box::new(CardShortage {
        family: family.into(),
        cards,
        whole_layers,
        movable,
        context: beside.context,
        fitting_context: fitting_context(anew, beside),
        fitting_cards: specs.iter().zip(enough).map(limited).collect(),
    }))
}

/// The longest context that fits; 0 where none does.
fn fitting_context(anew: &Anew<'_>, beside: &Beside) -> usize {
    let (mut fits, mut not) = (0, beside.context);
    if beside.position == 0 {
        return 0;
    }
    while not - fits > 1 {
        let middle = fits + (not - fits) / 2;
        if anew.places(middle).is_ok() { fits = middle } else { not = middle }
    }
    fits
}
