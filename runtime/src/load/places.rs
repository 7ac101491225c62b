//! Where everything lies in this run: as it was packed, or on other cards.

use crate::{Container, Result, RuntimeError};
use gantry_formats::container::Bank;
use gantry_formats::placement::CardSpec;
use gantry_formats::size;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The place of every tensor and every expert of a container, by card of this run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The cards.
    pub cards: Vec<CardPlace>,
    /// Where each of the manifest's `tensors` lies, in their order.
    pub tensors: Vec<TensorPlace>,
    /// Experts by layer and card.
    pub banks: Vec<BankPlace>,
}

/// A card of this run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardPlace {
    /// Length of its arena in bytes.
    pub bytes: u64,
    /// What was asked for.
    pub spec: CardSpec,
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorPlace {
    /// Card.
    pub card: usize,
    /// First byte in the card's arena.
    pub offset: u64,
}

/// Experts of one layer on one card: slot `s` lies at `offset + s · stride`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BankPlace {
    /// Layer: N of `blk.N`.
    pub layer: u32,
    /// Card.
    pub card: usize,
    /// First byte in the card's arena.
    pub offset: u64,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// Index of a bank in the manifest whose `matrices` say what each blob holds.
    pub like: usize,
    /// What each slot holds.
    pub slots: Vec<Slot>,
}

/// An expert in a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Which.
    pub expert: u32,
    /// Its blob in the container's hash table.
    pub blob: usize,
}

impl Places {
    /// The places that `container` was packed with: each arena is a card's segment.
    pub fn as_packed(container: &Container) -> Self {
        let manifest = container.manifest();
        let card = |bytes: u64| CardPlace { bytes, spec: CardSpec { host: false, bytes: None } };
        let slots = |bank: &Bank| {
            let blobs = bank.experts.iter().zip(bank.first_blob..);
            blobs.map(|(&expert, blob)| Slot { expert, blob: blob as usize }).collect()
        };
        let bank = |(like, bank): (usize, &Bank)| BankPlace {
            layer: bank.layer,
            card: bank.card as usize,
            offset: bank.offset,
            stride: bank.stride,
            like,
            slots: slots(bank),
        };
        let tensors = manifest.tensors.iter();
        Self {
            cards: container.header().cards.iter().map(|c| card(c.bytes)).collect(),
            tensors: tensors.map(|t| TensorPlace { card: t.card as usize, offset: t.offset }).collect(),
            banks: manifest.banks.iter().enumerate().map(bank).collect(),
        }
    }

    /// Whether each arena is a segment of `container` as it is.
    pub fn are_as_packed(&self, container: &Container) -> bool {
        let packed = Self::as_packed(container);
        let bytes = |places: &Self| places.cards.iter().map(|c| c.bytes).collect::<Vec<_>>();
        bytes(self) == bytes(&packed) && self.tensors == packed.tensors && self.banks == packed.banks
    }

    /// The card of each expert's copies, ascending, by layer and expert: what an assignment says.
    pub(super) fn holders(&self) -> BTreeMap<(u32, u32), Vec<usize>> {
        let mut holders: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for bank in &self.banks {
            for slot in &bank.slots {
                holders.entry((bank.layer, slot.expert)).or_default().push(bank.card);
            }
        }
        holders.values_mut().for_each(|cards| cards.sort_unstable());
        holders
    }

    /// Whether the experts of a layer lie on several cards.
    pub(crate) fn share_experts(&self) -> bool {
        let mut cards = BTreeMap::new();
        self.banks.iter().any(|bank| *cards.entry(bank.layer).or_insert(bank.card) != bank.card)
    }

    /// Blobs with their first bytes in the arena of `card`, ascending.
    pub(super) fn on_card(&self, container: &Container, card: usize) -> Vec<(u64, usize)> {
        let tensors = self.tensors.iter().zip(&container.manifest().tensors);
        let tensors = tensors.filter(|(place, _)| place.card == card);
        let mut blobs: Vec<_> = tensors.map(|(place, t)| (place.offset, t.blob as usize)).collect();
        for bank in self.banks.iter().filter(|b| b.card == card) {
            let slots = (0..).map(|s| bank.offset + s * bank.stride).zip(&bank.slots);
            blobs.extend(slots.map(|(at, slot)| (at, slot.blob)));
        }
        // One of no bytes lies where the next one begins.
        blobs.retain(|(_, blob)| container.table().blobs()[*blob].bytes > 0);
        blobs.sort_unstable();
        blobs
    }

    /// Refuses places that are not a total map of `container`: every tensor and every expert in a place of its own,
    /// inside its arena, aligned, with the bytes that the hash table says.
    ///
    /// # Errors
    /// [`RuntimeError::Placement`] with the first rule that is broken.
    pub fn check(&self, container: &Container) -> Result<()> {
        let manifest = container.manifest();
        let align = container.header().alignment;
        let mut taken = Taken { cards: &self.cards, ranges: Vec::new() };
        if self.tensors.len() != manifest.tensors.len() {
            return Err(bad(format!(
                "{} tensors have a place, the container has {}; it is of another model",
                self.tensors.len(),
                manifest.tensors.len()
            )));
        }
        for (place, t) in self.tensors.iter().zip(&manifest.tensors) {
            aligned(place.offset, align.tensor, || t.name.clone())?;
            taken.take(place.card, place.offset, t.bytes, || t.name.clone())?;
        }
        let experts = experts(&manifest.banks);
        let mut seen = HashSet::new();
        let mut banks = HashSet::new();
        for bank in &self.banks {
            let name = || format!("layer {} on card {}", bank.layer, bank.card);
            let like = manifest.banks.get(bank.like).filter(|b| b.layer == bank.layer);
            let like = like.ok_or_else(|| bad(format!("{}: it has no such experts", name())))?;
            if !banks.insert((bank.layer, bank.card)) {
                return Err(bad(format!("{}: two banks", name())));
            }
            if bank.slots.is_empty() {
                return Err(bad(format!("{}: a bank without experts", name())));
            }
            aligned(bank.offset, align.blob, name)?;
            aligned(bank.stride, align.blob, || format!("{}: the stride", name()))?;
            if bank.stride < like.bytes {
                let what = format!("slots of {} bytes for experts of {}", bank.stride, like.bytes);
                return Err(bad(format!("{}: {what}", name())));
            }
            let mut here = HashSet::new();
            for (s, slot) in bank.slots.iter().enumerate() {
                let name = || format!("layer {} expert {}", bank.layer, slot.expert);
                let blobs = experts.get(&(bank.layer, slot.expert));
                let blobs = blobs.ok_or_else(|| bad(format!("{}: the model has no such expert", name())))?;
                if !blobs.contains(&slot.blob) {
                    return Err(bad(format!("{}: blob {} is another's", name(), slot.blob)));
                }
                if !here.insert(slot.expert) {
                    return Err(bad(format!("{}: it lies twice on card {}", name(), bank.card)));
                }
                let bytes = container.table().blobs()[slot.blob].bytes;
                if bytes != like.bytes {
                    let what = format!("its blob has {bytes} bytes, its bank's have {}", like.bytes);
                    return Err(bad(format!("{}: {what}", name())));
                }
                let at = size::mul(s as u64, bank.stride).and_then(|at| at.checked_add(bank.offset));
                taken.take(bank.card, at.unwrap_or(u64::MAX), bytes, name)?;
                seen.insert((bank.layer, slot.expert));
            }
        }
        if let Some((layer, expert)) = experts.keys().filter(|e| !seen.contains(e)).min() {
            return Err(bad(format!("layer {layer} expert {expert} lies on no card")));
        }
        taken.apart()
    }
}

/// The blobs of each expert, of which there are several where it was packed for several cards.
fn experts(banks: &[Bank]) -> HashMap<(u32, u32), Vec<usize>> {
    let mut experts: HashMap<_, Vec<usize>> = HashMap::new();
    for bank in banks {
        for (&expert, blob) in bank.experts.iter().zip(bank.first_blob..) {
            experts.entry((bank.layer, expert)).or_default().push(blob as usize);
        }
    }
    experts
}

fn bad(what: String) -> RuntimeError {
    RuntimeError::Placement(what)
}

fn aligned(n: u64, align: u32, name: impl Fn() -> String) -> Result<()> {
    if n.is_multiple_of(align.into()) {
        return Ok(());
    }
    Err(bad(format!("{}: {n} is no multiple of {align}", name())))
}

/// Ranges of arenas that are in use.
struct Taken<'a> {
    cards: &'a [CardPlace],
    /// Card, first byte, end, and whose it is.
    ranges: Vec<(usize, u64, u64, String)>,
}

impl Taken<'_> {
    fn take(&mut self, card: usize, at: u64, bytes: u64, name: impl Fn() -> String) -> Result<()> {
        let Some(arena) = self.cards.get(card) else {
            return Err(bad(format!("{}: there is no card {card} of {}", name(), self.cards.len())));
        };
        let end = at.checked_add(bytes).filter(|&end| end <= arena.bytes);
        let end = end.ok_or_else(|| {
            let what = format!("{bytes} bytes at {at} lie outside the {} of card {card}", arena.bytes);
            bad(format!("{}: {what}", name()))
        })?;
        self.ranges.push((card, at, end, name()));
        Ok(())
    }

    /// Refuses what lies where something else does.
    fn apart(mut self) -> Result<()> {
        self.ranges.retain(|(_, at, end, _)| at < end);
        self.ranges.sort_unstable();
        let overlap = self.ranges.windows(2).find(|w| w[0].0 == w[1].0 && w[0].2 > w[1].1);
        overlap.map_or(Ok(()), |w| {
            Err(bad(format!("{} and {} overlap on card {} at {}", w[0].3, w[1].3, w[0].0, w[1].1)))
        })
    }
}
