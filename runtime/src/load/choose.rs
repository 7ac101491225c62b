//! Whether a container stays as it was packed or goes to other cards, and whether these have room for it.

use super::Places;
use super::anew::Anew;
use crate::backend::KeptBytes;
use crate::memory::{CardShortage, Need};
use crate::{Container, Result, RuntimeError};
use gantry_formats::container::{HotnessSummary, PlacementSection};
use gantry_formats::hotness::{Hotness, Reading, RoutedModel};
use gantry_formats::placement::{CardSpec, Fill, Misfit, Strategy, longest_context};
use gantry_formats::size;
use std::collections::{BTreeMap, BTreeSet};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wish<'a> {
    pub(crate) cards: Option<&'a [CardSpec]>,
    pub(crate) strategy: Option<Strategy>,
    pub(crate) fill: Option<Fill>,
    pub(crate) hotness: Option<&'a Reading>,
}

/// What lies on cards beside what is loaded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beside {
    /// Positions of a sequence.
    pub(crate) context: usize,
    /// What a sequence keeps, by layer.
    pub(crate) kept: BTreeMap<u32, KeptBytes>,
    /// Bytes of working memory on the first card.
    pub(crate) scratch: u64,
    /// Bytes on each card for its steps and for what cards give each other; empty for one card.
    pub(crate) exchange: Vec<u64>,
    /// Tensors of the manifest that stay in their file.
    pub(crate) left: BTreeSet<usize>,
}

impl Beside {
    /// Bytes that a sequence of `context` positions keeps, by layer.
    pub(super) fn states(&self, context: usize) -> BTreeMap<u32, u64> {
        let bytes = |kept: &KeptBytes| match context == self.context {
            true => kept.whole,
            false => kept.position.saturating_mul(context as u64).saturating_add(kept.fixed),
        };
        self.kept.iter().map(|(layer, kept)| (*layer, bytes(kept))).collect()
    }

    /// Bytes that each position takes in all layers.
    pub(crate) fn position(&self) -> u64 {
        self.kept.values().map(|kept| kept.position).fold(0, u64::saturating_add)
    }

    /// Bytes of working memory on `card`.
    pub(super) fn scratch(&self, card: usize) -> u64 {
        let own = self.exchange.get(card).copied().unwrap_or(0);
        if card == 0 { own.saturating_add(self.scratch) } else { own }
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
    // Without a limit the first card would be filled with all experts.
    let how = (how(container, wish, cards)?.0, Fill::Share);
    let anew = Anew::new(container, &specs, (how, None), beside);
    anew.places(0).map(Some).map_err(|misfit| explain(&anew, misfit, beside, "card "))
}

/// The places that `wish` leads to, on cards that `names` has names for.
///
/// # Errors
/// [`RuntimeError::Cards`] where the cards have too little room; [`RuntimeError::Placing`] and
/// [`RuntimeError::Hotness`] for what cannot be.
pub(crate) fn choose(
    container: &Container,
    wish: Wish<'_>,
    beside: &Beside,
    names: &dyn Fn(usize) -> Vec<String>,
) -> Result<Chosen> {
    let mut packed = Places::as_packed(container);
    let as_packed = |places, notes| Ok(Chosen { places, notes });
    if wish.cards.is_none() && wish.strategy.is_none() && wish.fill.is_none() && wish.hotness.is_none() {
        return as_packed(packed, Vec::new());
    }
    let any = || vec![CardSpec { host: false, bytes: None }; packed.cards.len()];
    let specs = wish.cards.map_or_else(any, <[CardSpec]>::to_vec);
    let (hotness, odd) = match wish.hotness {
        Some(reading) => {
            let (hotness, odd) = reading.clone().fit(&RoutedModel::of_container(container)?)?;
            (Some(hotness), odd)
        }
        None => (None, Vec::new()),
    };
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
        return as_packed(packed, odd);
    }
    let anew = Anew::new(container, &specs, (how, hotness.as_ref()), beside);
    let names = names(specs.len());
    // A table counts its cards.
    let first = names.first().map_or("", String::as_str);
    let counted =
        |(i, name): (usize, &String)| first.strip_suffix('0').is_some_and(|f| *name == format!("{f}{i}"));
    let in_order = names.iter().enumerate().all(counted);
    let called = first.strip_suffix('0').filter(|_| in_order).unwrap_or("card ").to_string();
    let places = anew.places(beside.context).map_err(|misfit| explain(&anew, misfit, beside, &called))?;
    let cards = |places: &Places| places.tensors.iter().map(|t| t.card).collect::<Vec<_>>();
    if stays && cards(&places) == cards(&packed) && places.holders() == packed.holders() {
        return as_packed(packed, odd);
    }
    if !fits(container, &places, beside) {
        let what = format!("placed as {}, the cards hold more than was reckoned with", how.0);
        return Err(RuntimeError::Placement(what));
    }
    let from = match packed.cards.len() {
        1 => "1 card".into(),
        n => format!("{n} cards"),
    };
    let to = match &names[..] {
        [first, .., last] if in_order && names.len() > 2 => format!("{first} to {last}"),
        [most @ .., last] if !most.is_empty() => format!("{} and {last}", most.join(", ")),
        all => all.concat(),
    };
    let by = match how {
        _ if one => String::new(),
        (strategy, Fill::First) if strategy != Strategy::Layers => format!(" ({strategy}, fill first)"),
        (strategy, _) => format!(" ({strategy})"),
    };
    let mut notes = odd;
    notes.push(format!("packed for {from}; placed on {to} while loading{by}"));
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
        let fitted = |hotness: &Hotness| -> Result<Hotness> {
            Ok(Reading::from(hotness.clone()).fit(&RoutedModel::of_container(container)?)?.0)
        };
        let hotness = hotness.map(fitted).transpose()?;
        let beside = Beside::default();
        let anew = Anew::new(container, cards, ((strategy, Fill::Share), hotness.as_ref()), &beside);
        anew.places(0).map_err(|misfit| explain(&anew, misfit, &beside, "card "))
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
    for (layer, bytes) in beside.states(beside.context) {
        // What is kept of a layer without tensors lies on the first card.
        if let Some(need) = needs.get_mut(layers.get(&layer).copied().unwrap_or(0)) {
            need.cache = need.cache.saturating_add(bytes);
        }
    }
    needs.iter_mut().enumerate().for_each(|(card, need)| need.scratch = beside.scratch(card));
    needs
}

fn fits(container: &Container, places: &Places, beside: &Beside) -> bool {
    let needs = needs(container, places, beside);
    needs.iter().zip(&places.cards).all(|(need, card)| card.spec.bytes.is_none_or(|b| need.total() <= b))
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
        Some(other) if other != Strategy::Layers && !has_experts => {
            Err(RuntimeError::Setting(format!("placement {other}: this model has no experts; give layers")))
        }
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

/// Why it does not fit, and what would, on cards whose number follows `called`.
fn explain(anew: &Anew<'_>, misfit: Misfit, beside: &Beside, called: &str) -> RuntimeError {
    if let Misfit::Never(error) = misfit {
        return error.into();
    }
    let context = beside.context as u64;
    let fits = |context: u64| anew.ask(context as usize, |demand| demand.fit().is_ok());
    let shorter = Some(context).filter(|_| beside.position() > 0);
    let fitting = shorter.and_then(|context| longest_context(1, context, fits));
    let shortage =
        anew.ask(beside.context, |demand| CardShortage::of(&demand, called, Some(context), fitting));
    match shortage {
        Ok(shortage) => RuntimeError::Cards(Box::new(shortage)),
        Err(error) => error.into(),
    }
}
