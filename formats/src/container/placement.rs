//! The manifest's section on placement: which cards it was made for, by which rule, and what it predicts.
//!
//! Which card holds which expert is said by the [banks](super::Bank) alone; the section says why, and its hash covers
//! both, so that a map and the reasons for it cannot be taken apart.

use super::{Bank, Manifest};
use crate::hash::{self, Digest};
use crate::hotness::Hotness;
use crate::placement::{LayerPlacement, Placement};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Key derivation context of the section's hash.
const CONTEXT: &str = "gantry 1 placement";

/// Why experts lie where they lie. All shares are parts per million, rounded to nearest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementSection {
    /// The rule: `paired`, `layers`, `balanced`, `replicate:N`.
    pub strategy: String,
    /// How a card's share follows from its budget: `share`, `first`.
    pub fill: String,
    /// The cards that were placed for, as many as the header has.
    pub cards: Vec<PlacedCard>,
    /// Bytes of every budget that were left free.
    pub reserve: u64,
    /// Positions that the KV cache was estimated for; absent where the hyperparameters do not say.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub context: Option<u64>,
    /// Type of the KV cache in that estimate: `f32`, `f16`, `int8`.
    pub kv: String,
    /// The counts that decided; absent where experts were placed as if all were alike.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hotness: Option<HotnessSummary>,
    /// By card, the share of all routed tokens that it is expected to compute.
    pub shares_ppm: Vec<u32>,
    /// The same for each layer with experts in banks, ascending.
    pub layers: Vec<LayerShares>,
    /// The layer whose fullest card is furthest above the mean; absent without experts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub worst_layer: Option<u32>,
    /// [`compute_hash`](Self::compute_hash), hex.
    pub blake3: String,
}

/// A card that was placed for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedCard {
    /// Whether it is the host's memory.
    #[serde(skip_serializing_if = "is_false", default)]
    pub host: bool,
    /// Its budget in bytes: weights, KV cache and reserve together. Absent: no limit was given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes: Option<u64>,
    /// Bytes of the KV cache and other states that it was to keep besides its weights.
    pub kv_bytes: u64,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Which counts decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotnessSummary {
    /// Fingerprint of the routers that were measured, where the file said it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fingerprint: Option<String>,
    /// Tokens that were seen, 0 where that is not known.
    pub tokens: u64,
    /// BLAKE3, hex, of the counts as u64: number of layers, experts of a layer, then for each layer with counts its
    /// number and its counts by expert.
    pub blake3: String,
}

impl HotnessSummary {
    /// That of `hotness`.
    pub fn of(hotness: &Hotness) -> Self {
        let mut hasher = blake3::Hasher::new();
        let mut word = |n: u64| {
            hasher.update(&n.to_le_bytes());
        };
        word(hotness.layers.into());
        word(hotness.experts.into());
        for line in &hotness.counts {
            word(line.layer.into());
            line.counts.iter().for_each(|n| word(*n));
        }
        let blake3 = hash::hex(hasher.finalize().as_bytes());
        Self { fingerprint: hotness.fingerprint.clone(), tokens: hotness.tokens, blake3 }
    }
}

/// One layer's expected shares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerShares {
    /// Layer.
    pub layer: u32,
    /// By card.
    pub shares_ppm: Vec<u32>,
}

impl PlacementSection {
    /// `derive("gantry 1 placement", …)` over the section's fields in their order and the total map: the banks in
    /// order of layer and card, each with its experts by slot.
    ///
    /// Numbers are u64; a text is its length and its bytes, a list its length and its elements; what may be absent is
    /// 0, or 1 and its value.
    pub fn compute_hash(&self, banks: &[Bank]) -> Digest {
        let mut out = Canonical(blake3::Hasher::new_derive_key(CONTEXT));
        out.text(&self.strategy);
        out.text(&self.fill);
        out.number(self.cards.len() as u64);
        for card in &self.cards {
            out.number(card.host.into());
            out.option(card.bytes);
            out.number(card.kv_bytes);
        }
        out.number(self.reserve);
        out.option(self.context);
        out.text(&self.kv);
        out.number(self.hotness.is_some().into());
        if let Some(hotness) = &self.hotness {
            out.number(hotness.fingerprint.is_some().into());
            hotness.fingerprint.iter().for_each(|f| out.text(f));
            out.number(hotness.tokens);
            out.text(&hotness.blake3);
        }
        out.numbers(&self.shares_ppm);
        out.number(self.layers.len() as u64);
        for line in &self.layers {
            out.number(line.layer.into());
            out.numbers(&line.shares_ppm);
        }
        out.option(self.worst_layer.map(u64::from));
        let mut banks: Vec<&Bank> = banks.iter().collect();
        banks.sort_by_key(|b| (b.layer, b.card));
        out.number(banks.len() as u64);
        for bank in banks {
            out.number(bank.layer.into());
            out.number(bank.card.into());
            out.numbers(&bank.experts);
        }
        *out.0.finalize().as_bytes()
    }

    /// The section with the hash that belongs to it and `banks`.
    pub fn sealed(mut self, banks: &[Bank]) -> Self {
        self.blake3 = hash::hex(&self.compute_hash(banks));
        self
    }
}

/// Feeds a hasher what the section holds.
struct Canonical(blake3::Hasher);

impl Canonical {
    fn number(&mut self, n: u64) {
        self.0.update(&n.to_le_bytes());
    }

    fn numbers(&mut self, list: &[u32]) {
        self.number(list.len() as u64);
        list.iter().for_each(|n| self.number((*n).into()));
    }

    fn option(&mut self, n: Option<u64>) {
        self.number(n.is_some().into());
        n.into_iter().for_each(|n| self.number(n));
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }
}

impl Manifest {
    /// Which card holds which expert, as the banks say: layers with banks, ascending, of a container with `cards` cards.
    pub fn expert_map(&self, cards: usize) -> Placement {
        let mut layers: BTreeMap<u32, LayerPlacement> = BTreeMap::new();
        for bank in &self.banks {
            let empty = || LayerPlacement { layer: bank.layer, cards: vec![Vec::new(); cards] };
            let line = layers.entry(bank.layer).or_insert_with(empty);
            if let Some(here) = line.cards.get_mut(bank.card as usize) {
                here.extend(&bank.experts);
            }
        }
        Placement { layers: layers.into_values().collect() }
    }
}
