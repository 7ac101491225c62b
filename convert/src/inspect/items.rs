//! What is stored, one item per tensor, or per matrix of a bank.

use crate::weights::Opened;
use gantry_formats::container::{Container, HEADER_BYTES};
use gantry_formats::gguf::Gguf;
use gantry_formats::role::Role;
use serde::Serialize;
use std::borrow::Cow;

/// A stored tensor, or one matrix of all experts of a bank.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Item<'a> {
    /// Its name.
    pub(super) name: Cow<'a, str>,
    /// Its role: the base name.
    pub(super) role: Cow<'a, str>,
    /// Its layer.
    pub(super) layer: Option<u32>,
    /// Layout, or in a GGUF the type.
    pub(super) layout: Cow<'a, str>,
    /// Shape, outermost first, of one expert where there are several.
    pub(super) shape: Vec<u64>,
    /// Experts of a bank.
    pub(super) experts: Option<u64>,
    /// Card, or in a GGUF the shard.
    pub(super) card: u32,
    /// First byte in the file; of a bank's first expert.
    pub(super) offset: u64,
    /// Bytes, of all experts together.
    pub(super) bytes: u64,
}

/// All items, in order of place.
pub(super) fn of(opened: &Opened) -> Vec<Item<'_>> {
    match opened {
        Opened::Container(container) => of_container(container),
        Opened::Gguf(gguf) => of_gguf(gguf),
    }
}

fn of_container(container: &Container) -> Vec<Item<'_>> {
    let manifest = container.manifest();
    let segment = |card: u32| container.header().cards.get(card as usize).map_or(HEADER_BYTES, |c| c.offset);
    let names: Vec<String> = container.layouts().iter().map(|l| l.to_string()).collect();
    let layout = |i: u32| Cow::Owned(names[i as usize].clone());
    let mut items = Vec::with_capacity(manifest.tensors.len());
    items.extend(manifest.tensors.iter().map(|t| Item {
        name: (&t.name).into(),
        role: (&t.role).into(),
        layer: t.layer,
        layout: layout(t.layout),
        shape: t.shape.clone(),
        experts: None,
        card: t.card,
        offset: segment(t.card) + t.offset,
        bytes: t.bytes,
    }));
    for bank in &manifest.banks {
        let experts = bank.experts.len() as u64;
        items.extend(bank.matrices.iter().map(|m| Item {
            name: (&m.name).into(),
            role: (&m.role).into(),
            layer: Some(bank.layer),
            layout: layout(m.layout),
            shape: m.shape.clone(),
            experts: Some(experts),
            card: bank.card,
            offset: segment(bank.card) + bank.offset + m.offset,
            bytes: m.bytes * experts,
        }));
    }
    items.sort_by_key(|i| (i.card, i.offset));
    items
}

fn of_gguf(gguf: &Gguf) -> Vec<Item<'_>> {
    let item = |t: gantry_formats::gguf::Tensor<'_>| {
        let name = t.display_name();
        let dims = t.dims().iter().filter(|d| **d > 1).count();
        let Role { layer, base, .. } = Role::of(&name, dims);
        let role = base.to_string().into();
        Item {
            role,
            layer,
            name: name.into(),
            layout: t.ty.name().into(),
            shape: t.dims().iter().rev().copied().collect(),
            experts: None,
            card: t.shard as u32,
            offset: t.start,
            bytes: t.bytes,
        }
    };
    gguf.tensors().map(item).collect()
}
