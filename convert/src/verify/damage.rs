//! Damage: what is not as it was written, and what that hits.

use gantry_formats::container::Container;
use gantry_formats::hash;
use serde::Serialize;
use std::ops::Range;

/// Which part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Region {
    /// The header page.
    Header,
    /// A file longer or shorter than its header says.
    Length,
    /// The source's GGUF headers.
    Metadata,
    /// The hash table.
    Table,
    /// The manifest.
    Manifest,
    /// A card's digest, or its own file as a whole.
    Card,
    /// Bytes that belong to nothing and must be zero.
    Padding,
    /// A tensor or an expert.
    Blob,
}

/// One damaged stretch of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Damage {
    /// Which part.
    pub(crate) region: Region,
    /// Its file, without folder.
    pub(crate) file: String,
    /// The card it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) card: Option<usize>,
    /// The tensor, or layer and expert.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// In an expert, the matrices that the stretch meets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) matrices: Vec<String>,
    /// First and last damaged block of 1 MiB, counted from 0 in the tensor or expert.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) blocks: Option<[u64; 2]>,
    /// First byte and the one after the last, in the file.
    pub(crate) bytes: [u64; 2],
    /// Whether every byte of it is zero, as after a hole in a copy.
    pub(crate) all_zero: bool,
    /// Found and expected.
    pub(crate) what: String,
}

impl Damage {
    /// The line for people and for scripts, after the word FAILED.
    pub(crate) fn line(&self) -> String {
        let mut out = String::new();
        if let Some(card) = self.card {
            out += &format!("card {card} ");
        }
        out += &match (&self.name, self.region) {
            (Some(name), _) => name.clone(),
            (None, Region::Header) => "header".into(),
            (None, Region::Length) => "file length".into(),
            (None, Region::Metadata) => "metadata section".into(),
            (None, Region::Table) => "hash table".into(),
            (None, Region::Manifest) => "manifest".into(),
            (None, Region::Card) => "card file".into(),
            (None, Region::Padding) => "padding".into(),
            (None, Region::Blob) => "blob".into(),
        };
        if !self.matrices.is_empty() {
            out += &format!(" ({})", self.matrices.join(", "));
        }
        match self.blocks {
            Some([first, last]) if first == last => out += &format!(" block {first}"),
            Some([first, last]) => out += &format!(" blocks {first}-{last}"),
            None => {}
        }
        out += &format!(": bytes {}..{} of {}", self.bytes[0], self.bytes[1], self.file);
        out += &format!(": {}{}", self.what, if self.all_zero { ", all zero" } else { "" });
        out
    }
}

/// A damaged stretch as the scan notes it: small, since a whole file of them may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    /// Padding between these bytes of a file: its first and last byte that is not zero.
    Padding { file: u32, from: u64, to: u64 },
    /// A stretch of a blob.
    Blob { blob: u32, block: u32, all_zero: bool },
}

/// Which tensor or expert each blob is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Holder {
    Tensor(u32),
    Expert { bank: u32, slot: u32 },
}

/// Holders by index of blob.
pub(super) fn holders(container: &Container) -> Vec<Holder> {
    let manifest = container.manifest();
    let mut out = vec![Holder::Tensor(0); container.table().blobs().len()];
    for (i, t) in manifest.tensors.iter().enumerate() {
        out[t.blob as usize] = Holder::Tensor(i as u32);
    }
    for (i, bank) in manifest.banks.iter().enumerate() {
        for slot in 0..bank.experts.len() {
            let holder = Holder::Expert { bank: i as u32, slot: slot as u32 };
            out[bank.first_blob as usize + slot] = holder;
        }
    }
    out
}

/// The name of what a blob holds.
pub(super) fn holder_name(container: &Container, holder: Holder) -> String {
    let manifest = container.manifest();
    match holder {
        Holder::Tensor(i) => manifest.tensors[i as usize].name.clone(),
        Holder::Expert { bank, slot } => {
            let bank = &manifest.banks[bank as usize];
            format!("layer {} expert {}", bank.layer, bank.experts[slot as usize])
        }
    }
}

/// Sorts marks and makes damage of them, neighbours joined.
pub(super) fn from_marks(container: &Container, mut marks: Vec<Mark>, holders: &[Holder]) -> Vec<Damage> {
    marks.sort_unstable();
    let mut out: Vec<Damage> = Vec::new();
    let mut last = None;
    for mark in marks {
        let damage = of_mark(container, mark, holders);
        let joins = matches!((last, mark), (Some(Mark::Blob { blob: a, block: b, all_zero: x }),
            Mark::Blob { blob, block, all_zero }) if (a, b + 1, x) == (blob, block, all_zero));
        last = Some(mark);
        match out.last_mut() {
            Some(before) if joins => {
                before.bytes[1] = damage.bytes[1];
                before.blocks = before.blocks.zip(damage.blocks).map(|(a, b)| [a[0], b[1]]);
                let new = damage.matrices.into_iter().filter(|m| !before.matrices.contains(m));
                let new: Vec<String> = new.collect();
                before.matrices.extend(new);
            }
            _ => out.push(damage),
        }
    }
    out
}

/// Name of the file that file index `file` stands for: the index file, then each card's own.
pub(super) fn file_label(container: &Container, file: u32) -> (String, Option<usize>) {
    let index = crate::weights::file_name(container.path());
    match file.checked_sub(1) {
        None => (index, None),
        Some(card) => {
            let card = card as usize;
            (gantry_formats::container::card_file_name(&index, card), Some(card))
        }
    }
}

fn of_mark(container: &Container, mark: Mark, holders: &[Holder]) -> Damage {
    let (blob, block, all_zero) = match mark {
        Mark::Padding { file, from, to } => {
            let (label, card) = file_label(container, file);
            return Damage {
                region: Region::Padding,
                file: label,
                card: card.or_else(|| card_at(container, from)),
                name: None,
                matrices: Vec::new(),
                blocks: None,
                bytes: [from, to],
                all_zero: false,
                what: "not zero".into(),
            };
        }
        Mark::Blob { blob, block, all_zero } => (blob as usize, u64::from(block), all_zero),
    };
    let entry = container.table().blobs()[blob];
    let card = entry.card as usize;
    let start = block * hash::SUBTREE;
    let inside = start..entry.bytes.min(start + hash::SUBTREE);
    let segment = container.header().cards[card].offset;
    let file = if container.split_cards() { card as u32 + 1 } else { 0 };
    Damage {
        region: Region::Blob,
        file: file_label(container, file).0,
        card: Some(card),
        name: Some(holder_name(container, holders[blob])),
        matrices: matrices(container, holders[blob], &inside),
        blocks: Some([block, block]),
        bytes: [segment + entry.offset + inside.start, segment + entry.offset + inside.end],
        all_zero,
        what: "BLAKE3 does not match".into(),
    }
}

fn card_at(container: &Container, at: u64) -> Option<usize> {
    let cards = container.header().cards.iter();
    let inside = |c: &gantry_formats::container::CardEntry| (c.offset..c.offset + c.bytes).contains(&at);
    if container.split_cards() { None } else { cards.enumerate().find(|(_, c)| inside(c)).map(|(i, _)| i) }
}

fn matrices(container: &Container, holder: Holder, inside: &Range<u64>) -> Vec<String> {
    let Holder::Expert { bank, .. } = holder else { return Vec::new() };
    let all = container.manifest().banks[bank as usize].matrices.iter();
    let meets = all.filter(|m| m.offset < inside.end && inside.start < m.offset + m.bytes);
    meets.map(|m| m.role.clone()).collect()
}
