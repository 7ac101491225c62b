//! The rules of experts over cards: a total map, alike on every card, within what each card has.

use super::{Rules, bad, unique};
use crate::container::{Bank, ContainerError, Part, PlacementSection};
use crate::hash;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// What the banks of one layer have shown so far.
struct Layer<'a> {
    /// The first of its banks.
    first: &'a Bank,
    /// Experts that the layer has in the source.
    experts: u64,
    seen: BTreeSet<u32>,
}

impl<'a> Rules<'a> {
    /// Placement is a total map: every expert of every layer with a bank lies on some card, none twice on one, and all
    /// banks of a layer hold the same matrices in the same places.
    pub(super) fn placement(&self, names: &mut HashSet<&'a str>) -> Result<(), ContainerError> {
        let mut layers: BTreeMap<u32, Layer<'a>> = BTreeMap::new();
        let mut cards = HashSet::new();
        for b in &self.manifest.banks {
            let (layer, card) = (b.layer, b.card);
            if !cards.insert((layer, card)) {
                return Err(bad(format!("layer {layer} has two banks on card {card}")));
            }
            let mut counts = b.matrices.iter().flat_map(|m| &m.parts).map(|p| self.experts_of(p));
            let experts = counts.next().unwrap_or(0);
            let line =
                layers.entry(layer).or_insert_with(|| Layer { first: b, experts, seen: BTreeSet::new() });
            if line.experts != experts || counts.any(|n| n != experts) {
                return Err(bad(format!("layer {layer}: its matrices differ in their number of experts")));
            }
            alike(line.first, b)?;
            slots(b, experts)?;
            line.seen.extend(&b.experts);
        }
        for (layer, Layer { first, experts, seen }) in &layers {
            if let Some(e) = (0..*experts).find(|&e| !u32::try_from(e).is_ok_and(|e| seen.contains(&e))) {
                return Err(bad(format!("layer {layer}: expert {e} lies on no card")));
            }
            for m in &first.matrices {
                unique(names, &m.name)?;
            }
        }
        match &self.manifest.placement {
            Some(section) => self.section(section, &layers.keys().copied().collect::<Vec<_>>()),
            None => Ok(()),
        }
    }

    /// Number of experts in a part's source, which [`matrix`](Self::matrix) has seen to be a stack of them.
    fn experts_of(&self, part: &Part) -> u64 {
        let source = self.manifest.source_tensors.get(part.source as usize);
        source.and_then(|s| s.dims.get(2).copied()).unwrap_or(0)
    }

    /// The section belongs to these banks and these cards, and every card has room for what it holds. `layers` are
    /// those with banks.
    fn section(&self, section: &PlacementSection, layers: &[u32]) -> Result<(), ContainerError> {
        let bad = |what: String| ContainerError::malformed("placement", what);
        let cards = self.header.cards.len();
        for (what, found) in [("cards", section.cards.len()), ("shares", section.shares_ppm.len())] {
            if found != cards {
                return Err(bad(format!(
                    "{found} {what}, the container has {cards} cards: it was placed for another number of cards"
                )));
            }
        }
        if !section.layers.iter().map(|l| &l.layer).eq(layers) {
            return Err(bad("its layers are not those that have banks".into()));
        }
        if let Some(line) = section.layers.iter().find(|l| l.shares_ppm.len() != cards) {
            let found = line.shares_ppm.len();
            return Err(bad(format!("layer {}: {found} shares for {cards} cards", line.layer)));
        }
        if let Some(layer) = section.worst_layer.filter(|l| layers.binary_search(l).is_err()) {
            return Err(bad(format!("worst layer {layer} has no bank")));
        }
        let hashes = section.hotness.iter().flat_map(|h| [Some(&h.blake3), h.fingerprint.as_ref()]).flatten();
        if let Some(text) = hashes.chain([&section.blake3]).find(|text| hash::from_hex(text).is_none()) {
            return Err(bad(format!("{text:?} is no BLAKE3 in hex")));
        }
        let own = hash::hex(&section.compute_hash(&self.manifest.banks));
        if !own.eq_ignore_ascii_case(&section.blake3) {
            let what = format!(
                "its BLAKE3 is {}…, the map of experts and its fields give {}…",
                section.blake3.get(..16).unwrap_or_default(),
                &own[..16]
            );
            return Err(ContainerError::integrity("placement", what));
        }
        for (card, (entry, place)) in self.header.cards.iter().zip(&section.cards).enumerate() {
            let Some(budget) = place.bytes else { continue };
            let need = entry.bytes.saturating_add(place.kv_bytes).saturating_add(section.reserve);
            if need > budget {
                return Err(bad(format!(
                    "card {card}: {} bytes of weights, {} of KV cache and {} of reserve are over its budget of {budget}",
                    entry.bytes, place.kv_bytes, section.reserve
                )));
            }
        }
        Ok(())
    }
}

/// Slots hold experts of the model, each once, ascending.
fn slots(b: &Bank, experts: u64) -> Result<(), ContainerError> {
    let place = format!("layer {} card {}", b.layer, b.card);
    for (slot, &e) in b.experts.iter().enumerate() {
        if u64::from(e) >= experts {
            return Err(bad(format!("{place}: slot {slot} has expert {e}, the layer has {experts}")));
        }
    }
    match b.experts.windows(2).find(|w| w[0] >= w[1]) {
        Some([a, b]) if a == b => Err(bad(format!("{place}: expert {a} has two slots"))),
        Some(pair) => {
            Err(bad(format!("{place}: slots are not ascending, expert {} before {}", pair[0], pair[1])))
        }
        None => Ok(()),
    }
}

/// An expert's blob is the same on whatever card it lies, so that it moves as it is.
fn alike(first: &Bank, b: &Bank) -> Result<(), ContainerError> {
    let place = format!("layer {}", b.layer);
    if first.bytes != b.bytes {
        return Err(bad(format!(
            "{place}: blobs of {} bytes on card {}, of {} on card {}",
            first.bytes, first.card, b.bytes, b.card
        )));
    }
    let other = first.matrices.iter().zip(&b.matrices).find(|(x, y)| x != y);
    if let Some((x, _)) = other {
        return Err(bad(format!("{place}: {} differs between cards {} and {}", x.name, first.card, b.card)));
    }
    if first.matrices.len() != b.matrices.len() {
        return Err(bad(format!(
            "{place}: {} matrices on card {}, {} on card {}",
            first.matrices.len(),
            first.card,
            b.matrices.len(),
            b.card
        )));
    }
    Ok(())
}
