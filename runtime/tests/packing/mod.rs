//! Packs containers for tests, without `gantry`: what the loader needs, written by hand.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part of it")]

use gantry_formats::block::GgmlType;
use gantry_formats::container::{
    self, Alias, Alignment, Bank, BankMatrix, CardInfo, Manifest, Metadata, Model, Part, Placer, SCHEMA,
    ShardHeader, Skeleton, Source, SourceTensor, StoredTensor, Table, Tool,
};
use gantry_formats::gguf::Header;
use gantry_formats::hash::{self, TreeHash};
use gantry_formats::layout::{Layout, LayoutTag};
use gantry_formats::role::Role;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A tensor of the source.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub ty: GgmlType,
    /// `ne0` first.
    pub dims: Vec<u64>,
    pub bytes: Vec<u8>,
}

/// How to pack.
#[derive(Clone)]
pub struct How {
    /// Query, key and value in one matrix; gate and up in another.
    pub fuse: bool,
    pub split_cards: bool,
    /// Experts in banks, dealt out to all cards; else stacked in one matrix.
    pub banks: bool,
    /// Tensors are dealt out to this many cards.
    pub cards: usize,
    pub alignment: Alignment,
    pub target: String,
    /// Changes the manifest before it is written.
    pub edit: fn(&mut Manifest),
}

impl Default for How {
    fn default() -> Self {
        Self {
            fuse: true,
            split_cards: false,
            banks: true,
            cards: 1,
            alignment: Alignment { segment: 4096, blob: 256, tensor: 64 },
            target: "cpu".into(),
            edit: |_| (),
        }
    }
}

/// The layout that a source type gets.
pub fn layout_of(ty: GgmlType) -> Layout {
    if ty == GgmlType::Q8_0 { Layout::q8_0_split() } else { Layout::identity(ty) }
}

struct Stored {
    name: String,
    sources: Vec<usize>,
}

/// Names that are fused under another one, in order.
fn fusion(base: &str) -> Option<&'static str> {
    match base {
        "attn_q" | "attn_k" | "attn_v" => Some("attn_qkv"),
        "ffn_gate" | "ffn_up" => Some("ffn_gate_up"),
        "ffn_gate_exps" | "ffn_up_exps" => Some("ffn_gate_up_exps"),
        _ => None,
    }
}

fn group(tensors: &[Tensor], fuse: bool, banks: bool) -> Vec<Stored> {
    let mut out: Vec<Stored> = Vec::new();
    for (i, t) in tensors.iter().enumerate() {
        let role = Role::of(&t.name, t.dims.len());
        let fused = fusion(role.base).filter(|_| fuse && t.name.ends_with(".weight"));
        // Whole stacks one after another are not what experts with more rows each would be.
        let fused = fused.filter(|_| banks || t.dims.len() < 3);
        let name = match (fused, role.layer) {
            (Some(base), Some(layer)) => format!("blk.{layer}.{base}.weight"),
            _ => t.name.clone(),
        };
        match out.iter_mut().find(|s| s.name == name && tensors[s.sources[0]].ty == t.ty) {
            Some(stored) => stored.sources.push(i),
            None => out.push(Stored { name, sources: vec![i] }),
        }
    }
    for stored in &mut out {
        // q before k before v, gate before up, whatever the file's order.
        const ORDER: [&str; 7] =
            ["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "ffn_gate_exps", "ffn_up_exps"];
        let order = |base: &str| ORDER.iter().position(|b| *b == base);
        stored.sources.sort_by_key(|&i| order(Role::of(&tensors[i].name, 2).base));
    }
    out
}

fn rows(t: &Tensor) -> u64 {
    t.dims[1..].iter().product()
}

fn stored_bytes(layout: Layout, rows: u64, cols: u64, source: &[u8]) -> Vec<u8> {
    let Layout::Q8_0Split { .. } = layout else { return source.to_vec() };
    let planes = layout.planes(rows, cols).unwrap();
    let mut out = vec![0; layout.bytes(rows, cols).unwrap() as usize];
    for (i, block) in source.chunks_exact(34).enumerate() {
        out[32 * i..][..32].copy_from_slice(&block[2..]);
        out[planes[1].offset as usize + 2 * i..][..2].copy_from_slice(&block[..2]);
    }
    out
}

/// Writes `DIR/m.gantry` and gives its path.
pub fn pack(dir: &Path, header: &Header, tensors: &[Tensor], how: &How) -> PathBuf {
    let stored = group(tensors, how.fuse, how.banks);
    let (banked, stored): (Vec<_>, Vec<_>) =
        stored.into_iter().partition(|s| how.banks && tensors[s.sources[0]].dims.len() == 3);
    let mut placers = vec![Placer::new(how.alignment); how.cards];
    let mut manifest = Manifest {
        schema: SCHEMA,
        model: Model {
            architecture: String::from_utf8(header.architecture().unwrap_or_default().to_vec()).unwrap(),
            arch_version: 1,
            name: None,
            parameters: tensors.iter().map(|t| t.dims.iter().product::<u64>()).sum(),
            complete: true,
            incomplete: Vec::new(),
        },
        target: how.target.clone(),
        recipe: "lossless".into(),
        layouts: Vec::new(),
        cards: Vec::new(),
        tensors: Vec::new(),
        banks: Vec::new(),
        placement: None,
        aliases: Vec::new(),
        sources: vec![Source { file: "m.gguf".into(), bytes: header.file_len(), blake3: "0".repeat(64) }],
        source_tensors: Vec::new(),
        tool: Tool { name: "test".into(), version: "0".into() },
        options: BTreeMap::new(),
        warnings: Vec::new(),
    };
    for t in tensors {
        manifest.source_tensors.push(SourceTensor {
            name: t.name.clone(),
            shard: 0,
            ty: t.ty,
            dims: t.dims.clone(),
            blake3: hash::hex(&hash::hash(&t.bytes)),
            exact: true,
            max_error: None,
            lost_blocks: 0,
            subnormal_blocks: 0,
        });
    }
    let mut blobs = Vec::new();
    for (card, placer) in placers.iter_mut().enumerate() {
        for (_, s) in stored.iter().enumerate().filter(|(i, _)| i * how.cards / stored.len() == card) {
            let first = &tensors[s.sources[0]];
            let layout = layout_of(first.ty);
            let all_rows: u64 = s.sources.iter().map(|&i| rows(&tensors[i])).sum();
            let source: Vec<u8> = s.sources.iter().flat_map(|&i| tensors[i].bytes.iter().copied()).collect();
            let bytes = stored_bytes(layout, all_rows, first.dims[0], &source);
            let offset = placer.tensor(bytes.len() as u64).unwrap();
            let role = Role::of(&s.name, first.dims.len());
            manifest.tensors.push(StoredTensor {
                name: s.name.clone(),
                role: role.base.into(),
                layer: role.layer,
                layout: index(&mut manifest.layouts, layout),
                shape: if first.dims.len() == 1 { first.dims.clone() } else { vec![all_rows, first.dims[0]] },
                card: card as u32,
                offset,
                bytes: bytes.len() as u64,
                blob: blobs.len() as u64,
                parts: parts(tensors, s, rows),
            });
            blobs.push((card, offset, bytes));
        }
        for layer in 0..64 {
            let role = |s: &&Stored| Role::of(&s.name, 3).layer == Some(layer);
            let own: Vec<&Stored> = banked.iter().filter(role).collect();
            if !own.is_empty() {
                bank(tensors, &own, (layer, card, how), placer, &mut manifest, &mut blobs);
            }
        }
    }
    if !tensors.iter().any(|t| t.name == "output.weight") {
        manifest.aliases.push(Alias { name: "output.weight".into(), of: "token_embd.weight".into() });
    }
    let mut table = Table::default();
    let mut segments: Vec<Vec<u8>> =
        placers.iter().map(|p| vec![0; p.segment_bytes().unwrap() as usize]).collect();
    for (card, offset, bytes) in &blobs {
        let (digest, values) = digest(bytes);
        table.push(*card as u64, *offset, bytes.len() as u64, digest, &values);
        segments[*card][*offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    for card in 0..how.cards {
        let weight_bytes = blobs.iter().filter(|b| b.0 == card).map(|b| b.2.len() as u64).sum();
        manifest.cards.push(CardInfo { target: how.target.clone(), weight_bytes });
    }
    (how.edit)(&mut manifest);
    let lengths: Vec<u64> = segments.iter().map(|s| s.len() as u64).collect();
    let skeleton = Skeleton::new(how.alignment, how.split_cards, &lengths).unwrap();
    let shard = ShardHeader {
        file_bytes: header.file_len(),
        header: header.raw().to_vec(),
        data_offset: header.data_offset(),
        residues: Vec::new(),
    };
    let done = container::finish(&skeleton, &manifest, &Metadata { shards: vec![shard] }, &table).unwrap();
    let mut file = vec![0; skeleton.tail_offset as usize];
    let page = done.header.to_bytes();
    file[..page.len()].copy_from_slice(&page);
    for (card, segment) in segments.iter().enumerate() {
        let at = skeleton.segments[card].offset as usize;
        if how.split_cards {
            let mut own = vec![0; at];
            let page = container::card_file_header(&done.header, card);
            own[..page.len()].copy_from_slice(&page);
            own.extend_from_slice(segment);
            std::fs::write(dir.join(container::card_file_name("m.gantry", card)), own).unwrap();
        } else {
            file[at..][..segment.len()].copy_from_slice(segment);
        }
    }
    file.extend_from_slice(&done.tail);
    let path = dir.join("m.gantry");
    std::fs::write(&path, file).unwrap();
    path
}

fn index(layouts: &mut Vec<LayoutTag>, layout: Layout) -> u32 {
    let tag = layout.tag();
    let found = layouts.iter().position(|t| *t == tag).unwrap_or_else(|| {
        layouts.push(tag);
        layouts.len() - 1
    });
    found as u32
}

fn parts(tensors: &[Tensor], s: &Stored, rows: fn(&Tensor) -> u64) -> Vec<Part> {
    let part = |&i: &usize| Part { source: i as u32, rows: [0, rows(&tensors[i])], cols: None };
    s.sources.iter().map(part).collect()
}

/// The experts of a layer that fall to a card.
fn bank(
    tensors: &[Tensor],
    matrices: &[&Stored],
    (layer, card, how): (u32, usize, &How),
    placer: &mut Placer,
    manifest: &mut Manifest,
    blobs: &mut Vec<(usize, u64, Vec<u8>)>,
) {
    let count = tensors[matrices[0].sources[0]].dims[2];
    let experts: Vec<u32> = (0..count as u32).filter(|e| *e as usize % how.cards == card).collect();
    if experts.is_empty() {
        return;
    }
    let mut listed = Vec::new();
    let mut slots: Vec<Vec<u8>> = vec![Vec::new(); experts.len()];
    for s in matrices {
        let first = &tensors[s.sources[0]];
        let layout = layout_of(first.ty);
        let all_rows: u64 = s.sources.iter().map(|&i| tensors[i].dims[1]).sum();
        let offset = slots[0].len().next_multiple_of(how.alignment.tensor as usize);
        for (slot, &expert) in slots.iter_mut().zip(&experts) {
            let one = |&i: &usize| {
                let len = tensors[i].bytes.len() / count as usize;
                &tensors[i].bytes[expert as usize * len..][..len]
            };
            let source: Vec<u8> = s.sources.iter().flat_map(one).copied().collect();
            slot.resize(offset, 0);
            slot.extend(stored_bytes(layout, all_rows, first.dims[0], &source));
        }
        listed.push(BankMatrix {
            name: s.name.clone(),
            role: Role::of(&s.name, 3).base.into(),
            layout: index(&mut manifest.layouts, layout),
            shape: vec![all_rows, first.dims[0]],
            offset: offset as u64,
            bytes: (slots[0].len() - offset) as u64,
            parts: parts(tensors, s, |t| t.dims[1]),
        });
    }
    let bytes = slots[0].len() as u64;
    let (offset, stride) = placer.bank(experts.len() as u64, bytes).unwrap();
    let first_blob = blobs.len() as u64;
    let places = slots.into_iter().enumerate();
    blobs.extend(places.map(|(slot, bytes)| (card, offset + slot as u64 * stride, bytes)));
    manifest.banks.push(Bank {
        layer,
        card: card as u32,
        offset,
        stride,
        bytes,
        first_blob,
        experts,
        matrices: listed,
    });
}

fn digest(bytes: &[u8]) -> (hash::Digest, Vec<hash::Digest>) {
    let len = bytes.len() as u64;
    if len <= hash::CHUNK {
        return (hash::hash(bytes), Vec::new());
    }
    let mut tree = TreeHash::new(len);
    tree.insert(&hash::pieces(len, 0, bytes));
    tree.finish().unwrap()
}
