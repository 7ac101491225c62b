//! What each card needs: weights, and what a sequence keeps for a context.

use crate::kv::KvType;
use crate::weights::Opened;
use gantry_formats::arch::{self, BlockState, Hparams};
use gantry_formats::container::{CardEntry, CardInfo, Container};
use gantry_formats::gguf::Header;
use serde::Serialize;
use std::collections::BTreeSet;

/// Context that is assumed where neither the command nor the model says, and the most that is taken from the model.
const CONTEXT: u64 = 4096;

/// The estimate.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Memory {
    /// Positions.
    pub(super) context: u64,
    /// Type of the KV cache.
    pub(super) kv_type: &'static str,
    /// Whether the metadata say how large a KV cache is.
    pub(super) kv_known: bool,
    /// Per card.
    pub(super) cards: Vec<CardMemory>,
}

/// One card's.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CardMemory {
    /// The card's target.
    pub(super) target: Option<String>,
    /// Bytes of its segment, padding included.
    pub(super) weight_bytes: u64,
    /// Bytes of keys and values, and of other states.
    pub(super) kv_bytes: u64,
    /// Both.
    pub(super) total_bytes: u64,
}

/// Weights as they lie in the segments, keys and values of every layer on the card that holds its attention. What was not
/// asked for is as it was counted when a container was placed.
pub(super) fn estimate(opened: &Opened, header: &Header, context: Option<u64>, kv: Option<KvType>) -> Memory {
    let placed = match opened {
        Opened::Container(container) => container.manifest().placement.as_ref(),
        Opened::Gguf(_) => None,
    };
    let counted = placed.and_then(|section| section.context.zip(KvType::parse(&section.kv).ok()));
    let as_placed = placed.filter(|_| counted.is_some() && context.is_none() && kv.is_none());
    let hparams = Hparams::read(header);
    let context = context.or(counted.map(|(context, _)| context));
    let context = context.unwrap_or_else(|| hparams.context_length.unwrap_or(CONTEXT).min(CONTEXT));
    let kv = kv.or(counted.map(|(_, kv)| kv)).unwrap_or(KvType::F32);
    let layers = states(opened, header, &hparams, context);
    let layer_bytes = |layer: usize| kv.bytes(&layers.get(layer).copied().flatten().unwrap_or_default());
    let cards = match opened {
        Opened::Gguf(gguf) => {
            let kv = (0..layers.len()).map(layer_bytes).fold(0, u64::saturating_add);
            vec![card(None, gguf.tensors().map(|t| t.bytes).sum(), kv)]
        }
        Opened::Container(container) => {
            let owners = attention_cards(container, layers.len());
            let estimated = |n: usize| {
                let here = owners.iter().enumerate().filter(|(_, cards)| cards.contains(&n));
                let kv = here.map(|(layer, cards)| layer_bytes(layer) / cards.len().max(1) as u64);
                kv.fold(0, u64::saturating_add)
            };
            let cards = container.header().cards.iter().zip(&container.manifest().cards).enumerate();
            let of = |(n, (entry, info)): (usize, (&CardEntry, &CardInfo))| {
                let recorded = as_placed.and_then(|section| section.cards.get(n)).map(|card| card.kv_bytes);
                card(Some(info.target.clone()), entry.bytes, recorded.unwrap_or_else(|| estimated(n)))
            };
            cards.map(of).collect()
        }
    };
    let kv_known = !layers.is_empty() && layers.iter().all(Option::is_some);
    Memory { context, kv_type: kv.name(), kv_known, cards }
}

fn card(target: Option<String>, weight_bytes: u64, kv_bytes: u64) -> CardMemory {
    CardMemory { target, weight_bytes, kv_bytes, total_bytes: weight_bytes.saturating_add(kv_bytes) }
}

/// What each block keeps.
fn states(opened: &Opened, header: &Header, h: &Hparams, context: u64) -> Vec<Option<BlockState>> {
    let names: BTreeSet<Vec<u8>> = match opened {
        Opened::Gguf(gguf) => gguf.tensors().map(|t| t.name().to_vec()).collect(),
        Opened::Container(c) => {
            c.manifest().source_tensors.iter().map(|t| t.name.clone().into_bytes()).collect()
        }
    };
    arch::states(h, header, context, |name| names.contains(name.as_bytes()))
}

/// The cards that hold a layer's attention; where none is known, all that hold anything of it.
fn attention_cards(container: &Container, layers: usize) -> Vec<BTreeSet<usize>> {
    let mut attention = vec![BTreeSet::new(); layers];
    let mut any = attention.clone();
    for t in &container.manifest().tensors {
        let Some(layer) = t.layer.map(|l| l as usize).filter(|l| *l < layers) else { continue };
        any[layer].insert(t.card as usize);
        if t.role.starts_with("attn_k") || t.role.starts_with("attn_q") {
            attention[layer].insert(t.card as usize);
        }
    }
    for (own, any) in attention.iter_mut().zip(any) {
        if own.is_empty() {
            *own = any;
        }
    }
    attention
}
