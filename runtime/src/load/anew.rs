//! Places on other cards than a container was packed for.

use super::choose::Beside;
use super::{BankPlace, CardPlace, Places, Slot, TensorPlace};
use crate::Container;
use gantry_formats::container::{Alignment, Bank, Placer, StoredTensor};
use gantry_formats::hotness::Hotness;
use gantry_formats::placement::{self, CardSpec, Fill, LayerExperts, PlacementError, Request, Strategy};
use gantry_formats::size;
use std::collections::BTreeMap;

/// A container, and the cards that it is to lie on.
pub(super) struct Anew<'a> {
    container: &'a Container,
    specs: &'a [CardSpec],
    strategy: Strategy,
    fill: Fill,
    beside: &'a Beside,
    routed: Vec<Routed>,
    /// As the strategies ask for them.
    experts: Vec<LayerExperts>,
}

/// The experts of a layer, wherever they were packed.
struct Routed {
    layer: u32,
    /// The first of its banks in the manifest.
    like: usize,
    /// Length of each blob.
    bytes: u64,
    /// By expert, its blob; of several copies the first card's.
    blobs: Vec<usize>,
}

/// Why a container does not lie on cards so.
#[derive(Debug)]
pub(super) enum Refused {
    /// Too little room; with these budgets, none less than its card's own, it would fit.
    Short(Vec<u64>),
    /// No budget helps.
    Never(PlacementError),
}

impl<'a> Anew<'a> {
    /// `container` on cards of `specs`, by this rule, with counts that are its model's.
    pub(super) fn new(
        container: &'a Container,
        specs: &'a [CardSpec],
        ((strategy, fill), hotness): ((Strategy, Fill), Option<&Hotness>),
        beside: &'a Beside,
    ) -> Self {
        let routed = routed(&container.manifest().banks);
        let align = container.header().alignment.blob;
        let layer = |r: &Routed| {
            let counts = hotness.and_then(|h| h.layer(r.layer)).unwrap_or_default().to_vec();
            let bytes = size::align_up(r.bytes, align.into()).unwrap_or(u64::MAX);
            LayerExperts { layer: r.layer, experts: r.blobs.len() as u32, bytes, counts }
        };
        let experts = routed.iter().map(layer).collect();
        Self { container, specs, strategy, fill, beside, routed, experts }
    }

    /// The cards.
    pub(super) fn specs(&self) -> &'a [CardSpec] {
        self.specs
    }

    /// The places for sequences of `context` positions.
    pub(super) fn places(&self, context: usize) -> Result<Places, Refused> {
        let (dense, experts) =
            if self.whole_layers() { self.layers(context)? } else { self.spread(context)? };
        self.lay(&dense, &experts).ok_or_else(overflow)
    }

    /// Whether whole layers go to cards, not experts; on one card it is the same.
    pub(super) fn whole_layers(&self) -> bool {
        self.strategy == Strategy::Layers && self.specs.len() > 1
    }

    /// Bytes that each card holds whatever else goes there, without an expert: all tensors on the first where whole
    /// layers do not move, else none.
    pub(super) fn settled(&self) -> Vec<u64> {
        let mut settled = vec![0; self.specs.len()];
        if !self.whole_layers() {
            settled[0] = self.dense_end().unwrap_or(u64::MAX);
        }
        settled
    }

    /// Bytes that go where there is room.
    pub(super) fn movable(&self) -> u64 {
        let experts = self.experts.iter().map(|l| l.bytes.saturating_mul(l.experts.into()));
        let experts = experts.fold(0, u64::saturating_add);
        match self.whole_layers() {
            true => experts.saturating_add(self.dense_end().unwrap_or(u64::MAX)),
            false => experts,
        }
    }

    fn alignment(&self) -> Alignment {
        self.container.header().alignment
    }

    /// Tensors that are loaded, with their index in the manifest.
    fn resident(&self) -> impl Iterator<Item = (usize, &StoredTensor)> {
        let tensors = self.container.manifest().tensors.iter().enumerate();
        tensors.filter(|(i, _)| !self.beside.left.contains(i))
    }

    /// Where all tensors end that are loaded, as far as a bank may begin.
    fn dense_end(&self) -> Option<u64> {
        let mut placer = Placer::new(self.alignment());
        for (_, tensor) in self.resident() {
            placer.tensor(tensor.bytes)?;
        }
        Some(placer.bank(0, 0)?.0)
    }

    /// All tensors on the first card, and experts on any.
    fn spread(&self, context: usize) -> Result<Assignment, Refused> {
        let segment = u64::from(self.alignment().segment);
        let taken = self.dense_end().ok_or_else(overflow)?;
        let aside = self.beside.cache(context).saturating_add(self.beside.scratch);
        // What a card holds beside weights, and what it holds of weights before the first expert.
        let first = |card: usize| {
            let (aside, taken) = if card == 0 { (aside, taken) } else { (0, 0) };
            (aside.saturating_add(self.beside.exchange(card)), taken)
        };
        let mut too_small = false;
        let usable = self.specs.iter().enumerate().map(|(card, spec)| {
            let (aside, taken) = first(card);
            let budget = spec.bytes?;
            let room = budget.saturating_sub(aside) / segment * segment;
            too_small |= aside > budget || taken > room;
            Some(room.saturating_sub(taken))
        });
        let usable: Vec<Option<u64>> = usable.collect();
        let enough = |experts: &[u64]| {
            let budget = |(card, experts): (usize, &u64)| {
                let (aside, taken) = first(card);
                let weights = size::align_up(taken.saturating_add(*experts), segment).unwrap_or(u64::MAX);
                weights.saturating_add(aside).max(self.specs[card].bytes.unwrap_or(0))
            };
            experts.iter().enumerate().map(budget).collect::<Vec<_>>()
        };
        let request =
            Request { layers: &self.experts, usable: &usable, strategy: self.strategy, fill: self.fill };
        let budgets: Vec<Option<u64>> = self.specs.iter().map(|spec| spec.bytes).collect();
        match (placement::place_by_budget(&request, &budgets), too_small) {
            (Ok(placed), false) => {
                let cards = placed.layers.into_iter().map(|l| l.cards).collect();
                Ok((vec![0; self.container.manifest().tensors.len()], cards))
            }
            (Ok(_), true) => Err(Refused::Short(enough(&vec![0; self.specs.len()]))),
            (Err(PlacementError::Short { enough: usable, .. }), _) => Err(Refused::Short(enough(&usable))),
            (Err(other), _) => Err(Refused::Never(other)),
        }
    }

    /// Runs of whole layers, each with its experts and its part of the cache.
    fn layers(&self, context: usize) -> Result<Assignment, Refused> {
        let align = self.alignment();
        // What rounding up to whole segments may add.
        let slack = u64::from(align.segment - 1);
        let mut layers: BTreeMap<u32, u64> = BTreeMap::new();
        let (mut first, mut last) = (self.beside.scratch, 0u64);
        for (_, tensor) in self.resident() {
            let sum = match tensor.layer {
                Some(layer) => layers.entry(layer).or_default(),
                None if is_head(tensor) => &mut last,
                None => &mut first,
            };
            let bytes = size::align_up(tensor.bytes, align.tensor.into()).unwrap_or(u64::MAX);
            *sum = sum.saturating_add(bytes);
        }
        for of in &self.experts {
            let bytes = of.bytes.saturating_mul(of.experts.into()).saturating_add(align.blob.into());
            let sum = layers.entry(of.layer).or_default();
            *sum = sum.saturating_add(bytes);
        }
        let cache = self.beside.cache_by_layer(context, layers.keys().copied());
        let bytes: Vec<u64> = layers.values().zip(&cache).map(|(a, b)| a.saturating_add(*b)).collect();
        let slack = |card: usize| slack.saturating_add(self.beside.exchange(card));
        let usable = |(card, spec): (usize, &CardSpec)| Some(spec.bytes?.saturating_sub(slack(card)));
        let usable: Vec<Option<u64>> = self.specs.iter().enumerate().map(usable).collect();
        let runs = placement::layer_runs(&bytes, first, last, &usable).map_err(|error| match error {
            PlacementError::Short { enough, .. } => {
                let budget = |(card, (n, spec)): (usize, (&u64, &CardSpec))| {
                    n.saturating_add(slack(card)).max(spec.bytes.unwrap_or(0))
                };
                Refused::Short(enough.iter().zip(self.specs).enumerate().map(budget).collect())
            }
            other => Refused::Never(other),
        })?;
        let of: BTreeMap<u32, usize> = layers.keys().copied().zip(runs).collect();
        let cards = self.specs.len();
        let card_of = |tensor: &StoredTensor| match tensor.layer {
            Some(layer) => of.get(&layer).copied().unwrap_or(0),
            None if is_head(tensor) => cards - 1,
            None => 0,
        };
        let dense = self.container.manifest().tensors.iter().map(card_of).collect();
        let whole = |r: &Routed| {
            let mut here = vec![Vec::new(); cards];
            here[of.get(&r.layer).copied().unwrap_or(0)] = (0..r.blobs.len() as u32).collect();
            here
        };
        Ok((dense, self.routed.iter().map(whole).collect()))
    }

    /// Offsets for an assignment: in each arena tensors, then banks, then what stays in its file. `None` where a sum
    /// passes 64 bits, or the assignment names an expert that there is not.
    fn lay(&self, dense: &[usize], experts: &[Vec<Vec<u32>>]) -> Option<Places> {
        let manifest = self.container.manifest();
        let mut tensors = vec![TensorPlace { card: 0, offset: 0 }; manifest.tensors.len()];
        let mut cards = Vec::with_capacity(self.specs.len());
        let mut banks = Vec::new();
        for (card, &spec) in self.specs.iter().enumerate() {
            let mut placer = Placer::new(self.alignment());
            for (i, tensor) in self.resident().filter(|(i, _)| dense[*i] == card) {
                tensors[i] = TensorPlace { card, offset: placer.tensor(tensor.bytes)? };
            }
            for (of, cards) in self.routed.iter().zip(experts) {
                let here = cards.get(card).filter(|here| !here.is_empty());
                let Some(here) = here else { continue };
                let slot = |&expert: &u32| Some(Slot { expert, blob: *of.blobs.get(expert as usize)? });
                let slots = here.iter().map(slot).collect::<Option<Vec<_>>>()?;
                let (offset, stride) = placer.bank(slots.len() as u64, of.bytes)?;
                banks.push(BankPlace { layer: of.layer, card, offset, stride, like: of.like, slots });
            }
            let mut bytes = placer.segment_bytes()?;
            let align = self.alignment().tensor.into();
            for &i in self.beside.left.iter().filter(|i| dense[**i] == card) {
                tensors[i] = TensorPlace { card, offset: bytes };
                bytes = bytes.checked_add(size::align_up(manifest.tensors[i].bytes, align)?)?;
            }
            cards.push(CardPlace { bytes, spec });
        }
        Some(Places { cards, tensors, banks })
    }
}

/// The card of each tensor; of each layer with experts, those of each card.
type Assignment = (Vec<usize>, Vec<Vec<Vec<u32>>>);

fn overflow() -> Refused {
    Refused::Never(PlacementError::Overflow { what: "the bytes of a card".into() })
}

/// Whether a tensor outside the layers is used after them.
fn is_head(tensor: &StoredTensor) -> bool {
    tensor.layer.is_none() && tensor.role.starts_with("output")
}

/// The experts by layer, from wherever they were packed. Opening a container makes sure that all banks of a layer are
/// alike and that every expert has a blob.
fn routed(banks: &[Bank]) -> Vec<Routed> {
    let mut layers: BTreeMap<u32, (usize, BTreeMap<u32, usize>)> = BTreeMap::new();
    for (i, bank) in banks.iter().enumerate() {
        let (_, blobs) = layers.entry(bank.layer).or_insert_with(|| (i, BTreeMap::new()));
        for (&expert, blob) in bank.experts.iter().zip(bank.first_blob..) {
            blobs.entry(expert).or_insert(blob as usize);
        }
    }
    let routed = |(layer, (like, blobs)): (u32, (usize, BTreeMap<u32, usize>))| Routed {
        layer,
        like,
        bytes: banks[like].bytes,
        blobs: blobs.into_values().collect(),
    };
    layers.into_iter().map(routed).collect()
}
