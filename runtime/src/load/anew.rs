//! Places on other cards than a container was packed for.

use super::choose::Beside;
use super::{BankPlace, CardPlace, Places, Slot, TensorPlace};
use crate::Container;
use gantry_formats::container::{Alignment, Bank, Placer, StoredTensor};
use gantry_formats::hotness::Hotness;
use gantry_formats::placement::{
    CardSpec, Demand, Fill, Fit, LayerExperts, Misfit, PlacementError, Resident, Strategy,
};
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
    /// The tensors that are loaded.
    resident: Vec<Resident>,
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

impl<'a> Anew<'a> {
    /// `container` on cards of `specs`, by this rule, with counts that are its model's.
    pub(super) fn new(
        container: &'a Container,
        specs: &'a [CardSpec],
        ((strategy, fill), hotness): ((Strategy, Fill), Option<&Hotness>),
        beside: &'a Beside,
    ) -> Self {
        let manifest = container.manifest();
        let routed = routed(&manifest.banks);
        let align = container.header().alignment.blob;
        let layer = |r: &Routed| {
            let counts = hotness.and_then(|h| h.layer(r.layer)).unwrap_or_default().to_vec();
            let bytes = size::align_up(r.bytes, align.into()).unwrap_or(u64::MAX);
            LayerExperts { layer: r.layer, experts: r.blobs.len() as u32, bytes, counts }
        };
        let experts = routed.iter().map(layer).collect();
        let resident = resident(container, beside).map(|(_, tensor)| as_resident(tensor)).collect();
        Self { container, specs, strategy, fill, beside, routed, experts, resident }
    }

    /// What is asked of the cards for sequences of `context` positions.
    pub(super) fn ask<T>(&self, context: usize, ask: impl FnOnce(Demand<'_>) -> T) -> T {
        let states = self.beside.states(context);
        let scratch: Vec<u64> = (0..self.specs.len()).map(|card| self.beside.scratch(card)).collect();
        ask(Demand {
            alignment: self.alignment(),
            tensors: &self.resident,
            copies: &[],
            experts: &self.experts,
            states: &states,
            scratch: &scratch,
            reserve: 0,
            cards: self.specs,
            strategy: self.strategy,
            fill: self.fill,
        })
    }

    /// The places for sequences of `context` positions.
    pub(super) fn places(&self, context: usize) -> Result<Places, Misfit> {
        let fit = self.ask(context, |demand| demand.fit())?;
        self.lay(&fit)
            .ok_or_else(|| Misfit::Never(PlacementError::Overflow { what: "the bytes of a card".into() }))
    }

    fn alignment(&self) -> Alignment {
        self.container.header().alignment
    }

    /// Offsets for an assignment: in each arena tensors, then banks, then what stays in its file. `None` where a sum
    /// passes 64 bits, or the assignment names an expert that there is not.
    fn lay(&self, fit: &Fit) -> Option<Places> {
        let manifest = self.container.manifest();
        let home = |tensor: &StoredTensor| {
            let Resident { layer, head, .. } = as_resident(tensor);
            fit.home(layer, head)
        };
        let mut tensors = vec![TensorPlace { card: 0, offset: 0 }; manifest.tensors.len()];
        let mut cards = Vec::with_capacity(self.specs.len());
        let mut banks = Vec::new();
        for (card, &spec) in self.specs.iter().enumerate() {
            let mut placer = Placer::new(self.alignment());
            for (i, tensor) in resident(self.container, self.beside).filter(|(_, t)| home(t) == card) {
                tensors[i] = TensorPlace { card, offset: placer.tensor(tensor.bytes)? };
            }
            for (of, own) in self.routed.iter().zip(&fit.experts.layers) {
                let here = own.cards.get(card).filter(|here| !here.is_empty());
                let Some(here) = here else { continue };
                let slot = |&expert: &u32| Some(Slot { expert, blob: *of.blobs.get(expert as usize)? });
                let slots = here.iter().map(slot).collect::<Option<Vec<_>>>()?;
                let (offset, stride) = placer.bank(slots.len() as u64, of.bytes)?;
                banks.push(BankPlace { layer: of.layer, card, offset, stride, like: of.like, slots });
            }
            let mut bytes = placer.segment_bytes()?;
            let align = self.alignment().tensor.into();
            for &i in &self.beside.left {
                let tensor = manifest.tensors.get(i).filter(|tensor| home(tensor) == card);
                let Some(tensor) = tensor else { continue };
                tensors[i] = TensorPlace { card, offset: bytes };
                bytes = bytes.checked_add(size::align_up(tensor.bytes, align)?)?;
            }
            cards.push(CardPlace { bytes, spec });
        }
        Some(Places { cards, tensors, banks })
    }
}

/// Tensors that are loaded, with their index in the manifest.
fn resident<'a>(
    container: &'a Container,
    beside: &'a Beside,
) -> impl Iterator<Item = (usize, &'a StoredTensor)> {
    let tensors = container.manifest().tensors.iter().enumerate();
    tensors.filter(|(i, _)| !beside.left.contains(i))
}

fn as_resident(tensor: &StoredTensor) -> Resident {
    Resident::new(tensor.layer, &tensor.role, tensor.bytes)
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
