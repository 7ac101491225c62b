//! Places: which card holds which group, and where its blobs lie in the segment.
//!
//! A segment holds its card's tensors, then its banks, then copies of the source.

use super::assign::{Asked, Assigned};
use super::cards::{Beside, refusal, state_bytes};
use super::fuse::{Group, Matrix};
use super::{BlobPlan, CardPlan, Options, TensorPlan};
use crate::failure::Refusal;
use crate::kv::KvType;
use anyhow::Result;
use gantry_formats::arch::NO_INT8_ENTRIES;
use gantry_formats::container::{Bank, BankMatrix, Placer, Skeleton, StoredTensor};
use gantry_formats::exit::Exit;
use gantry_formats::layout::Layout;
use gantry_formats::placement::{LayerExperts, Placement, Strategy};
use std::collections::BTreeSet;

/// Everything in its place.
pub(super) struct Places {
    pub(super) layouts: Vec<Layout>,
    pub(super) stored: Vec<StoredTensor>,
    pub(super) banks: Vec<Bank>,
    pub(super) blobs: Vec<BlobPlan>,
    /// Planned tensors whose source is stored too, and the blobs of that.
    copies: Vec<(usize, u64)>,
    pub(super) cards: Vec<CardPlan>,
    pub(super) skeleton: Skeleton,
    /// The rule that was followed.
    pub(super) strategy: Strategy,
    /// The layers with banks, and the cards of their experts.
    pub(super) experts: Vec<LayerExperts>,
    pub(super) map: Placement,
    /// Bytes that each card had for them, where they were spread.
    pub(super) usable: Vec<Option<u64>>,
}

/// Gives every group a card and an offset. `map` says which card holds which expert where that is not to be decided
/// anew.
pub(super) fn place(
    tensors: &[TensorPlan],
    groups: Vec<Group>,
    options: &Options,
    beside: &Beside<'_>,
    kept: Option<Kept<'_>>,
) -> Result<Places> {
    check_kv(options, beside)?;
    let asked = Asked::new(&groups, options, beside)?;
    let Assigned { strategy, cards, experts, map, usable } = match kept {
        Some(kept) => asked.keep(kept),
        None => asked.assign()?,
    };
    let copies = tensors.iter().filter(|t| t.with_source).map(|t| Layout::identity(t.ty));
    let mut layouts: Vec<Layout> = tensors.iter().map(|t| t.layout).chain(copies).collect();
    layouts.sort_unstable();
    layouts.dedup();
    let count = options.cards.cards.len();
    let specs = options.cards.cards.iter();
    let mut places = Places {
        layouts,
        stored: Vec::new(),
        banks: Vec::new(),
        blobs: Vec::new(),
        copies: Vec::new(),
        cards: specs.map(|c| CardPlan { host: c.host, budget: c.bytes, ..CardPlan::default() }).collect(),
        skeleton: Skeleton::new(options.alignment, options.split_cards, &[]).ok_or_else(too_large)?,
        strategy,
        experts,
        map,
        usable,
    };
    let whole_layers = strategy == Strategy::Layers && count > 1;
    let scratch = beside.scratch(beside.context, count, whole_layers);
    let states = beside.states(beside.context);
    let mut segments = Vec::new();
    for card in 0..count {
        let mut placer = Placer::new(options.alignment);
        let (mut layers, mut blocks) = (BTreeSet::new(), BTreeSet::new());
        for wanted in [Part::Tensors, Part::Banks, Part::Copies] {
            for (group, home) in groups.iter().zip(&cards).filter(|(g, _)| Part::of(g) == wanted) {
                let here = match group {
                    Group::Bank { layer, .. } => places.bank(group, *layer, card, &mut placer),
                    Group::Tensor(m) | Group::Copy(m) => match *home == card {
                        true => places.tensor(group, m, card, &mut placer).map(|()| true),
                        false => Some(false),
                    },
                };
                if here.ok_or_else(too_large)? {
                    layers.extend(layer(group));
                    // Where a layer's attention is, there its keys and values are.
                    blocks.extend(layer(group).filter(|_| wanted == Part::Tensors));
                }
            }
        }
        let info = &mut places.cards[card];
        info.layers = layers.len() as u64;
        // As long as they are all known.
        let kv = state_bytes(&states, blocks.iter().copied(), options.cards.kv);
        let known = !blocks.is_empty() && kv.len() == blocks.len();
        info.kv_bytes = known.then(|| kv.into_values().fold(0, u64::saturating_add));
        info.scratch_bytes = scratch.as_ref().and_then(|bytes| bytes.get(card).copied());
        info.segment_bytes = placer.segment_bytes().ok_or_else(too_large)?;
        segments.push(info.segment_bytes);
    }
    let kept = kept.is_some();
    if !places.cards.iter().all(|card| card.fits(options.cards.reserve, kept)) {
        return Err(Asked::new(&groups, options, beside)?.short());
    }
    places.skeleton =
        Skeleton::new(options.alignment, options.split_cards, &segments).ok_or_else(too_large)?;
    Ok(places)
}

/// Refuses what no backend keeps: the runtime would, in these words.
fn check_kv(options: &Options, beside: &Beside<'_>) -> Result<()> {
    let compressed =
        || beside.states(Some(beside.context.unwrap_or(1))).iter().flatten().any(|state| state.entries > 0);
    if options.cards.kv == KvType::Int8 && compressed() {
        return Err(refusal(Exit::Incompatible, NO_INT8_ENTRIES));
    }
    Ok(())
}

/// A map that stays as it is: a container that is packed for another target keeps its experts where they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept<'a> {
    pub(super) strategy: Strategy,
    pub(super) map: &'a Placement,
    /// Cards of stored tensors, by name.
    pub(super) tensors: &'a std::collections::HashMap<String, usize>,
}

/// Parts of a segment, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Tensors,
    Banks,
    Copies,
}

impl Part {
    fn of(group: &Group) -> Self {
        match group {
            Group::Tensor(_) => Self::Tensors,
            Group::Bank { .. } => Self::Banks,
            Group::Copy(_) => Self::Copies,
        }
    }
}

fn too_large() -> anyhow::Error {
    Refusal::new(Exit::Input, "the container would pass 64 bits")
}

/// The layer of a group, where it belongs to one.
pub(super) fn layer(group: &Group) -> Option<u32> {
    match group {
        Group::Tensor(m) | Group::Copy(m) => m.layer,
        Group::Bank { layer, .. } => Some(*layer),
    }
}

impl Places {
    fn layout(&self, layout: Layout) -> u32 {
        self.layouts.iter().position(|l| *l == layout).unwrap_or(0) as u32
    }

    /// Tells the planned tensors which blobs hold their sources.
    pub(super) fn note_copies(&self, tensors: &mut [TensorPlan]) {
        for &(tensor, blob) in &self.copies {
            tensors[tensor].copy = Some(blob);
        }
    }

    fn tensor(&mut self, group: &Group, m: &Matrix, card: usize, placer: &mut Placer) -> Option<()> {
        let blob = self.blobs.len() as u64;
        if let Group::Copy(m) = group {
            self.copies.extend(m.members.iter().map(|&tensor| (tensor, blob)));
        }
        let offset = placer.tensor(m.bytes)?;
        self.push_blob(card, offset, m.bytes);
        let Matrix { name, role, layer, shape, bytes, parts, .. } = m.clone();
        let (layout, card) = (self.layout(m.layout), card as u32);
        self.stored.push(StoredTensor { name, role, layer, layout, shape, card, offset, bytes, blob, parts });
        Some(())
    }

    /// The experts of `layer` that lie on `card`, as one bank; false where there are none.
    fn bank(&mut self, group: &Group, layer: u32, card: usize, placer: &mut Placer) -> Option<bool> {
        let Group::Bank { bytes, matrices, .. } = group else { return Some(false) };
        let line = self.map.layers.iter().find(|l| l.layer == layer)?;
        let experts = line.cards.get(card).filter(|experts| !experts.is_empty()).cloned();
        let Some(experts) = experts else { return Some(false) };
        let blob = self.blobs.len() as u64;
        let (offset, stride) = placer.bank(experts.len() as u64, *bytes)?;
        for slot in 0..experts.len() as u64 {
            self.push_blob(card, offset + slot * stride, *bytes);
        }
        self.cards[card].expert_bytes += experts.len() as u64 * bytes;
        let matrices = matrices.iter().map(|(offset, m)| BankMatrix {
            name: m.name.clone(),
            role: m.role.clone(),
            layout: self.layout(m.layout),
            shape: m.shape.clone(),
            offset: *offset,
            bytes: m.bytes,
            parts: m.parts.clone(),
        });
        let matrices = matrices.collect();
        let (card, bytes) = (card as u32, *bytes);
        self.banks.push(Bank { layer, card, offset, stride, bytes, first_blob: blob, experts, matrices });
        Some(true)
    }

    fn push_blob(&mut self, card: usize, offset: u64, bytes: u64) {
        self.blobs.push(BlobPlan { card, offset, bytes });
        self.cards[card].weight_bytes += bytes;
    }
}
