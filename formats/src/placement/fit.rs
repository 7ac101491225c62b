//! What goes to which card where cards have budgets: the one place that reckons with them.
//!
//! ```text
//! budget ≥ segment (tensors, banks, copies, each aligned) + states of the card's layers + scratch + reserve
//! ```
//!
//! With whole layers each card has a run of them, the first one what comes before the layers, the last one the head.
//! Else everything but the experts lies on card 0, and the experts where there is room.

use super::runs::best_runs;
use super::{
    CardSpec, Fill, LayerExperts, LayerPlacement, Placement, PlacementError, Request, Strategy, check_cards,
    place_by_budget,
};
use crate::container::{Alignment, Placer};
use crate::size;
use std::collections::BTreeMap;
use std::ops::Range;

/// A tensor that lies on one card, as far as placing it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Its layer, where it belongs to one.
    pub layer: Option<u32>,
    /// Whether it belongs to none and is used after the last one.
    pub head: bool,
    /// Its length.
    pub bytes: u64,
}

impl Resident {
    /// A tensor by its layer and its role: output matrices and norms are used after the layers.
    pub fn new(layer: Option<u32>, role: &str, bytes: u64) -> Self {
        Self { layer, head: layer.is_none() && role.starts_with("output"), bytes }
    }
}

/// What a model asks of some cards.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// Alignments of segments.
    pub alignment: Alignment,
    /// Tensors that are no experts, in the order of a segment.
    pub tensors: &'a [Resident],
    /// Tensors behind the experts.
    pub copies: &'a [Resident],
    /// Experts; their bytes are strides of banks.
    pub experts: &'a [LayerExperts],
    /// Bytes that a sequence keeps, by layer: on the card of the layer's tensors.
    pub states: &'a BTreeMap<u32, u64>,
    /// Bytes of working memory, by card; nothing for cards beyond its end.
    pub scratch: &'a [u64],
    /// Bytes of each budget that stay free.
    pub reserve: u64,
    /// The cards and their budgets.
    pub cards: &'a [CardSpec],
    /// How experts are spread.
    pub strategy: Strategy,
    /// How many of them each card gets, where there is a choice.
    pub fill: Fill,
}

/// What lies on a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Length of its segment.
    pub segment: u64,
    /// Bytes that a sequence keeps there.
    pub states: u64,
    /// Bytes of working memory.
    pub scratch: u64,
    /// Bytes that stay free.
    pub reserve: u64,
}

impl Held {
    /// All of it: what the card's budget must be.
    pub fn total(&self) -> u64 {
        [self.states, self.scratch, self.reserve].into_iter().fold(self.segment, u64::saturating_add)
    }
}

/// What goes to which card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The cards of the experts.
    pub experts: Placement,
    /// By card, what it holds: never more than its budget.
    pub held: Vec<Held>,
    /// Bytes that each card had for experts, where these were spread; else empty.
    pub usable: Vec<Option<u64>>,
    /// The cards of whole layers.
    runs: BTreeMap<u32, usize>,
    /// The card of what is used after the layers.
    head: usize,
}

impl Fit {
    /// The card of a tensor that is no expert: by its layer, or whether it is used after them.
    pub fn home(&self, layer: Option<u32>, head: bool) -> usize {
        match layer {
            Some(layer) => self.runs.get(&layer).copied().unwrap_or(0),
            None if head => self.head,
            None => 0,
        }
    }
}

/// Why nothing can be placed so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// The budgets are too small; [`Demand::enough`] has some that are not.
    Short,
    /// No budget helps.
    Never(PlacementError),
}

impl From<PlacementError> for Misfit {
    fn from(error: PlacementError) -> Self {
        match error {
            PlacementError::Short { .. } => Self::Short,
            other => Self::Never(other),
        }
    }
}

pub(super) fn overflow() -> PlacementError {
    PlacementError::Overflow { what: "bytes of a card".into() }
}

impl Demand<'_> {
    /// Whether whole layers go to cards. On one card it makes no difference.
    pub fn whole_layers(&self) -> bool {
        self.strategy == Strategy::Layers && self.cards.len() > 1
    }

    /// Gives everything a card, no card more than its budget.
    ///
    /// # Errors
    /// Where the budgets are too small, or nothing can be placed so on any.
    pub fn fit(&self) -> Result<Fit, Misfit> {
        check_cards(self.cards.len())?;
        if !self.whole_layers() {
            return self.spread();
        }
        let fit = self.runs()?;
        if self.is_within(&fit.held) { Ok(fit) } else { Err(Misfit::Short) }
    }

    fn is_within(&self, held: &[Held]) -> bool {
        held.iter().zip(self.cards).all(|(held, card)| card.bytes.is_none_or(|budget| held.total() <= budget))
    }

    /// Bytes beside weights and states.
    pub(super) fn aside(&self, card: usize) -> u64 {
        self.scratch.get(card).copied().unwrap_or(0).saturating_add(self.reserve)
    }

    /// What card 0 holds whatever else goes there where experts are spread: where its tensors end, where its banks
    /// would begin, bytes of copies behind either.
    fn dense(&self) -> Option<(u64, u64, u64)> {
        let align = u64::from(self.alignment.tensor);
        let end = |tensors: &[Resident]| {
            tensors.iter().try_fold(0u64, |at, t| size::align_up(at.checked_add(t.bytes)?, align))
        };
        let tensors = end(self.tensors)?;
        Some((tensors, size::align_up(tensors, self.alignment.blob.into())?, end(self.copies)?))
    }

    /// By card, what it holds at least: where whole layers move, no weights and no states.
    pub fn settled(&self) -> Vec<Held> {
        let held = |card: usize| Held {
            scratch: self.scratch.get(card).copied().unwrap_or(0),
            reserve: self.reserve,
            ..Held::default()
        };
        let mut out: Vec<Held> = (0..self.cards.len()).map(held).collect();
        if let Some(first) = out.first_mut().filter(|_| !self.whole_layers()) {
            first.segment = self.dense().map_or(u64::MAX, |(end, _, copies)| end.saturating_add(copies));
            first.states = self.all_states();
        }
        out
    }

    /// Bytes that go where there is room: of experts, or of whole layers with what sequences keep there.
    pub fn movable(&self) -> u64 {
        let experts = self.experts.iter().map(|l| l.bytes.saturating_mul(l.experts.into()));
        let experts = experts.fold(0, u64::saturating_add);
        if !self.whole_layers() {
            return experts;
        }
        let (end, _, copies) = self.dense().unwrap_or((u64::MAX, 0, 0));
        [end, copies, self.all_states()].into_iter().fold(experts, u64::saturating_add)
    }

    fn all_states(&self) -> u64 {
        self.states.values().copied().fold(0, u64::saturating_add)
    }

    /// Everything but experts on card 0, and the experts where there is room.
    fn spread(&self) -> Result<Fit, Misfit> {
        let (usable, enough_without) = self.usable()?;
        let budgets: Vec<Option<u64>> = self.cards.iter().map(|card| card.bytes).collect();
        let request =
            Request { layers: self.experts, usable: &usable, strategy: self.rule(), fill: self.fill };
        let experts = place_by_budget(&request, &budgets)?;
        let fit = self.laid(experts, BTreeMap::new(), usable)?;
        if enough_without && self.is_within(&fit.held) { Ok(fit) } else { Err(Misfit::Short) }
    }

    /// The rule for experts where these are spread: on one card they all are there.
    pub(super) fn rule(&self) -> Strategy {
        if self.cards.len() == 1 { Strategy::Paired } else { self.strategy }
    }

    /// Bytes by card for experts where these are spread, and whether what must lie there besides has room.
    pub(super) fn usable(&self) -> Result<(Vec<Option<u64>>, bool), PlacementError> {
        let (end, banks, copies) = self.dense().ok_or_else(overflow)?;
        let segment = u64::from(self.alignment.segment);
        let states = self.all_states();
        let mut enough = true;
        let usable = self.cards.iter().enumerate().map(|(card, spec)| {
            let budget = spec.bytes?;
            let (kept, end, banks) = match card {
                0 => (states, end.saturating_add(copies), banks.saturating_add(copies)),
                _ => (0, 0, 0),
            };
            let left = budget.checked_sub(kept.saturating_add(self.aside(card)));
            let room = left.unwrap_or(0) / segment * segment;
            enough &= left.is_some() && end <= room;
            Some(room.saturating_sub(banks))
        });
        Ok((usable.collect(), enough))
    }

    /// Budget of `card` that has room for `experts` bytes of experts, where these are spread.
    pub(super) fn budget_for(&self, card: usize, experts: u64) -> u64 {
        let (states, before, after) = match (card, self.dense()) {
            (0, Some((end, banks, copies))) => {
                (self.all_states(), if experts > 0 { banks } else { end }, copies)
            }
            (0, None) => return u64::MAX,
            _ => (0, 0, 0),
        };
        let weights = before.saturating_add(experts).saturating_add(after);
        let segment = size::align_up(weights, self.alignment.segment.into()).unwrap_or(u64::MAX);
        segment.saturating_add(states).saturating_add(self.aside(card))
    }

    /// Runs of whole layers, each card with the states of its own: by bytes, and only where alignment adds more to
    /// those than the budgets have, by aligned ones.
    pub(super) fn runs(&self) -> Result<Fit, PlacementError> {
        let layers = self.layers().ok_or_else(overflow)?;
        let exact = self.alignment;
        let plain = Alignment { segment: 1, blob: 1, tensor: 1 };
        match self.runs_by(&layers, plain) {
            Ok(fit) if self.is_within(&fit.held) => Ok(fit),
            Ok(_) | Err(PlacementError::Short { .. }) => self.runs_by(&layers, exact),
            Err(other) => Err(other),
        }
    }

    fn runs_by(&self, layers: &Layers, alignment: Alignment) -> Result<Fit, PlacementError> {
        let Layers { numbers, before, first, last } = layers;
        let cards = self.cards.len();
        let cost = |card: usize, run: Range<usize>| {
            let mut own = before[run.end].less(before[run.start]);
            let ends = [(card == 0, first), (card + 1 == cards, last)];
            ends.into_iter().filter(|(here, _)| *here).for_each(|(_, end)| own = own.and(*end));
            own.bytes(alignment).unwrap_or(u64::MAX)
        };
        let usable = |(card, spec): (usize, &CardSpec)| Some(spec.bytes?.saturating_sub(self.aside(card)));
        let usable: Vec<Option<u64>> = self.cards.iter().enumerate().map(usable).collect();
        let runs = best_runs(numbers.len(), &usable, &cost)?;
        let runs: BTreeMap<u32, usize> = numbers.iter().copied().zip(runs).collect();
        let whole = |of: &LayerExperts| {
            let mut all = vec![Vec::new(); cards];
            all[runs.get(&of.layer).copied().unwrap_or(0)] = (0..of.experts).collect();
            LayerPlacement { layer: of.layer, cards: all }
        };
        let experts = Placement { layers: self.experts.iter().map(whole).collect() };
        self.laid(experts, runs, Vec::new())
    }

    /// What each layer takes, and what lies before and behind all; `None` past 64 bits.
    fn layers(&self) -> Option<Layers> {
        let align = u64::from(self.alignment.tensor);
        let (mut layers, mut first, mut last) = (BTreeMap::new(), Layer::default(), Layer::default());
        for (tensors, copies) in [(self.tensors, false), (self.copies, true)] {
            for tensor in tensors {
                let own: &mut Layer = match tensor.layer {
                    Some(layer) => layers.entry(layer).or_default(),
                    None if tensor.head => &mut last,
                    None => &mut first,
                };
                let sum = if copies { &mut own.copies } else { &mut own.tensors };
                *sum = sum.checked_add(size::align_up(tensor.bytes, align)?)?;
            }
        }
        for of in self.experts {
            let own = layers.entry(of.layer).or_default();
            own.experts = own.experts.checked_add(of.bytes.checked_mul(of.experts.into())?)?;
        }
        for (layer, bytes) in self.states {
            // What is kept of a layer without tensors lies on card 0.
            let own = layers.get_mut(layer).unwrap_or(&mut first);
            own.states = own.states.checked_add(*bytes)?;
        }
        let mut before = vec![Layer::default()];
        for own in layers.values() {
            before.push(before.last()?.and_checked(own)?);
        }
        // So that no sum of theirs overflows.
        before.last()?.and_checked(&first)?.and_checked(&last)?.bytes(self.alignment)?;
        Some(Layers { numbers: layers.into_keys().collect(), before, first, last })
    }

    /// What each card holds then, to the byte.
    fn laid(
        &self,
        experts: Placement,
        runs: BTreeMap<u32, usize>,
        usable: Vec<Option<u64>>,
    ) -> Result<Fit, PlacementError> {
        let head = if self.whole_layers() { self.cards.len() - 1 } else { 0 };
        let mut fit = Fit { experts, held: self.settled(), usable, runs, head };
        let mut placers = vec![Placer::new(self.alignment); self.cards.len()];
        fit.held.iter_mut().for_each(|held| (held.segment, held.states) = (0, 0));
        for tensor in self.tensors {
            placers[fit.home(tensor.layer, tensor.head)].tensor(tensor.bytes).ok_or_else(overflow)?;
        }
        for (of, own) in self.experts.iter().zip(&fit.experts.layers) {
            for (placer, experts) in placers.iter_mut().zip(&own.cards).filter(|(_, e)| !e.is_empty()) {
                placer.bank(experts.len() as u64, of.bytes).ok_or_else(overflow)?;
            }
        }
        for tensor in self.copies {
            placers[fit.home(tensor.layer, tensor.head)].tensor(tensor.bytes).ok_or_else(overflow)?;
        }
        for (layer, bytes) in self.states {
            let states = &mut fit.held[fit.runs.get(layer).copied().unwrap_or(0)].states;
            *states = states.saturating_add(*bytes);
        }
        for (held, placer) in fit.held.iter_mut().zip(placers) {
            held.segment = placer.segment_bytes().ok_or_else(overflow)?;
        }
        Ok(fit)
    }
}

/// Whole layers in order.
struct Layers {
    /// Which they are.
    numbers: Vec<u32>,
    /// At i: what the first i of them take.
    before: Vec<Layer>,
    /// What is used before them.
    first: Layer,
    /// What is used after them.
    last: Layer,
}

/// What some layers take: bytes of each kind, tensors aligned.
#[derive(Clone, Copy, Debug, Default)]
struct Layer {
    tensors: u64,
    experts: u64,
    copies: u64,
    states: u64,
}

impl Layer {
    fn and_checked(&self, other: &Self) -> Option<Self> {
        Some(Self {
            tensors: self.tensors.checked_add(other.tensors)?,
            experts: self.experts.checked_add(other.experts)?,
            copies: self.copies.checked_add(other.copies)?,
            states: self.states.checked_add(other.states)?,
        })
    }

    /// Both, of layers whose sum is known to fit.
    fn and(self, other: Self) -> Self {
        self.and_checked(&other).unwrap_or(self)
    }

    /// Without the first of them.
    fn less(self, first: Self) -> Self {
        Self {
            tensors: self.tensors - first.tensors,
            experts: self.experts - first.experts,
            copies: self.copies - first.copies,
            states: self.states - first.states,
        }
    }

    /// Their segment and their states.
    fn bytes(&self, align: Alignment) -> Option<u64> {
        let blob = if self.experts > 0 { align.blob } else { align.tensor };
        let banks = size::align_up(self.tensors, blob.into())?.checked_add(self.experts)?;
        let segment = size::align_up(banks.checked_add(self.copies)?, align.segment.into())?;
        segment.checked_add(self.states)
    }
}
