//! Places: which card holds which group, and where its blobs lie in the segment.

use super::fuse::{Group, Matrix};
use super::{BlobPlan, CardPlan, Options, TensorPlan};
use crate::failure::Refusal;
use anyhow::Result;
use gantry_formats::container::{Bank, BankMatrix, MAX_CARDS, Placer, Skeleton, StoredTensor};
use gantry_formats::exit::Exit;
use gantry_formats::layout::Layout;
use gantry_formats::placement;
use std::collections::BTreeMap;

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
}

/// Gives every group a card and an offset.
pub(super) fn place(tensors: &[TensorPlan], groups: Vec<Group>, options: &Options) -> Result<Places> {
    let cards = assign(&groups, options.cards)?;
    let copies = tensors.iter().filter(|t| t.with_source).map(|t| Layout::identity(t.ty));
    let mut layouts: Vec<Layout> = tensors.iter().map(|t| t.layout).chain(copies).collect();
    layouts.sort_unstable();
    layouts.dedup();
    let mut places = Places {
        layouts,
        stored: Vec::new(),
        banks: Vec::new(),
        blobs: Vec::new(),
        copies: Vec::new(),
        cards: vec![CardPlan::default(); options.cards],
        skeleton: Skeleton::new(options.alignment, options.split_cards, &[]).ok_or_else(too_large)?,
    };
    let mut segments = Vec::new();
    for card in 0..options.cards {
        let mut placer = Placer::new(options.alignment);
        let mut layers = std::collections::BTreeSet::new();
        for (group, _) in groups.iter().zip(&cards).filter(|(_, c)| **c == card) {
            layers.extend(layer(group));
            places.add(group, card, &mut placer).ok_or_else(too_large)?;
        }
        let info = &mut places.cards[card];
        info.layers = layers.len() as u64;
        info.blocks = layers.into_iter().collect();
        info.segment_bytes = placer.segment_bytes().ok_or_else(too_large)?;
        segments.push(info.segment_bytes);
    }
    places.skeleton =
        Skeleton::new(options.alignment, options.split_cards, &segments).ok_or_else(too_large)?;
    Ok(places)
}

fn too_large() -> anyhow::Error {
    Refusal::new(Exit::Input, "the container would pass 64 bits")
}

fn layer(group: &Group) -> Option<u32> {
    match group {
        Group::Tensor(m) | Group::Copy(m) => m.layer,
        Group::Bank { layer, .. } => Some(*layer),
    }
}

fn bytes(group: &Group) -> u64 {
    match group {
        Group::Tensor(m) | Group::Copy(m) => m.bytes,
        Group::Bank { experts, bytes, .. } => experts.saturating_mul(*bytes),
    }
}

/// Whether a tensor outside the layers is used after them.
fn is_head(group: &Group) -> bool {
    matches!(group, Group::Tensor(m) | Group::Copy(m) if m.layer.is_none() && m.role.starts_with("output"))
}

/// The card of each group: layers in runs, what comes before them on the first card, the head on the last.
fn assign(groups: &[Group], cards: usize) -> Result<Vec<usize>> {
    if cards == 0 || cards > MAX_CARDS {
        return Err(Refusal::new(Exit::Usage, format!("--cards {cards}: expected 1 to {MAX_CARDS}")));
    }
    let mut layers: BTreeMap<u32, u64> = BTreeMap::new();
    let (mut first, mut last) = (0u64, 0u64);
    for group in groups {
        let sum = match layer(group) {
            Some(layer) => layers.entry(layer).or_default(),
            None if is_head(group) => &mut last,
            None => &mut first,
        };
        *sum = sum.saturating_add(bytes(group));
    }
    let weights: Vec<u64> = layers.values().copied().collect();
    let map = placement::layers(&weights, first, last, cards).ok_or_else(|| {
        let text = format!(
            "--cards {cards}: the model has {} layers, and each card takes whole layers",
            weights.len()
        );
        Refusal::new(Exit::Usage, text)
    })?;
    let of: BTreeMap<u32, usize> = layers.keys().copied().zip(map).collect();
    Ok(groups
        .iter()
        .map(|group| match layer(group) {
            Some(layer) => of[&layer],
            None if is_head(group) => cards - 1,
            None => 0,
        })
        .collect())
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

    fn add(&mut self, group: &Group, card: usize, placer: &mut Placer) -> Option<()> {
        let blob = self.blobs.len() as u64;
        if let Group::Copy(m) = group {
            self.copies.extend(m.members.iter().map(|&tensor| (tensor, blob)));
        }
        match group {
            Group::Tensor(m) | Group::Copy(m) => {
                let offset = placer.tensor(m.bytes)?;
                self.push_blob(card, offset, m.bytes);
                let Matrix { name, role, layer, shape, bytes, parts, .. } = m.clone();
                let (layout, card) = (self.layout(m.layout), card as u32);
                self.stored.push(StoredTensor {
                    name,
                    role,
                    layer,
                    layout,
                    shape,
                    card,
                    offset,
                    bytes,
                    blob,
                    parts,
                });
            }
            Group::Bank { layer, experts, bytes, matrices } => {
                let (offset, stride) = placer.bank(*experts, *bytes)?;
                for slot in 0..*experts {
                    self.push_blob(card, offset + slot * stride, *bytes);
                }
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
                self.banks.push(Bank {
                    layer: *layer,
                    card: card as u32,
                    offset,
                    stride,
                    bytes: *bytes,
                    first_blob: blob,
                    experts: (0..*experts as u32).collect(),
                    matrices,
                });
            }
        }
        Some(())
    }

    fn push_blob(&mut self, card: usize, offset: u64, bytes: u64) {
        self.blobs.push(BlobPlan { card, offset, bytes });
        self.cards[card].weight_bytes += bytes;
    }
}
