//! A small model in both forms, built by hand: a GGUF, and the container that should be made of it.
//!
//! It has one of everything: raw, carried, split and requantized matrices, a fused one, experts over two cards,
//! an empty tensor, an alias, a residue between tensors. Tests break a piece of it before it is written.
#![allow(dead_code, reason = "each test takes what it needs")]

use gantry_formats::block::{GgmlType, dequantize, fp16, q8_0};
use gantry_formats::container::*;
use gantry_formats::gguf::{GgufWriter, Header as GgufHeader, Value};
use gantry_formats::hash::{self, TreeHash};
use gantry_formats::layout::Layout;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Small alignments, so that every kind of padding exists in a few KiB.
pub(crate) const ALIGNMENT: Alignment = Alignment { segment: 4096, blob: 512, tensor: 64 };

/// Name of the index file.
pub(crate) const INDEX: &str = "m.gantry";

/// A source tensor: name, type, dims with `ne0` first, bytes.
pub(crate) type SourceTensorBytes = (&'static str, GgmlType, Vec<u64>, Vec<u8>);

/// A container before it is put together. Hashes and places are computed by [`Sample::write`].
#[derive(Clone)]
pub(crate) struct Sample {
    pub split_cards: bool,
    pub manifest: Manifest,
    pub metadata: Metadata,
    /// Per card its blobs in order, each with its offset.
    pub blobs: Vec<Vec<(u64, Vec<u8>)>>,
    pub segments: Vec<u64>,
    /// The source file.
    pub gguf: Vec<u8>,
}

/// Bytes of `elements` values that are finite in every type of `ty`, different for each `seed`.
pub(crate) fn values(ty: GgmlType, elements: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 * 2.0 - 1.0
    };
    let floats: Vec<f32> = (0..elements).map(|_| next()).collect();
    match ty {
        GgmlType::F32 => floats.iter().flat_map(|v| v.to_le_bytes()).collect(),
        GgmlType::F16 => floats.iter().flat_map(|v| fp16::f32_to_f16(*v).to_le_bytes()).collect(),
        GgmlType::BF16 => floats.iter().flat_map(|v| fp16::f32_to_bf16(*v).to_le_bytes()).collect(),
        GgmlType::Q8_0 => quantize(&floats),
        other => {
            let len = other.bytes_for(elements).unwrap() as usize;
            let mut bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(37) ^ seed as u8).collect();
            for block in bytes.chunks_mut(other.block_bytes() as usize) {
                block[..4].copy_from_slice(&[0x12, 0x20, 0x34, 0x21]);
            }
            bytes
        }
    }
}

/// Q8_0 blocks of `values`.
pub(crate) fn quantize(values: &[f32]) -> Vec<u8> {
    let blocks = values.as_chunks::<32>().0.iter();
    blocks.flat_map(|x| q8_0::quantize_block(x).unwrap().to_bytes()).collect()
}

/// Two planes of Q8_0 blocks, the second at a multiple of `align`.
pub(crate) fn split(blocks: &[u8], align: usize) -> Vec<u8> {
    let (blocks, _) = blocks.as_chunks::<34>();
    let mut out: Vec<u8> = blocks.iter().flat_map(|b| b[2..].to_vec()).collect();
    out.resize(out.len().next_multiple_of(align), 0);
    out.extend(blocks.iter().flat_map(|b| b[..2].to_vec()));
    out
}

/// Values of `bytes` as f32.
pub(crate) fn floats(ty: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / ty.block_bytes() as usize * ty.block_len() as usize];
    dequantize(ty, bytes, &mut out).unwrap();
    out
}

/// The source's tensors.
pub(crate) fn source() -> Vec<SourceTensorBytes> {
    use GgmlType::*;
    let list: [(&'static str, GgmlType, &[u64]); 10] = [
        ("token_embd.weight", BF16, &[64, 10]),
        ("output_norm.weight", F32, &[64]),
        ("blk.0.attn_q.weight", Q8_0, &[64, 8]),
        ("blk.0.attn_k.weight", Q8_0, &[64, 4]),
        ("blk.0.attn_v.weight", Q8_0, &[64, 3]),
        ("blk.0.attn_output.weight", Q4_K, &[256, 2]),
        ("blk.0.ffn_up.weight", BF16, &[64, 5]),
        ("blk.0.ffn_gate_exps.weight", Q8_0, &[64, 3, 3]),
        ("blk.0.ffn_down_exps.weight", F16, &[32, 4, 3]),
        ("blk.0.empty.weight", F32, &[32, 0]),
    ];
    let tensor = |(i, (name, ty, dims)): (usize, (&'static str, GgmlType, &[u64]))| {
        (name, ty, dims.to_vec(), values(ty, dims.iter().product(), i as u64 + 1))
    };
    list.into_iter().enumerate().map(tensor).collect()
}

/// The source file's header.
pub(crate) fn header(tensors: &[SourceTensorBytes]) -> GgufHeader {
    let mut writer = GgufWriter::new(3);
    writer.set("general.architecture", Value::Str(b"llama"));
    writer.set("general.name", Value::Str(b"Sample"));
    writer.set("general.file_type", Value::U32(32));
    writer.set("llama.context_length", Value::U32(64));
    writer.set("llama.block_count", Value::U32(1));
    writer.set("llama.embedding_length", Value::U32(64));
    writer.set("llama.attention.head_count", Value::U32(2));
    writer.set("sample.odd", Value::Str(b"\xff\xfe"));
    writer.set("sample.nan", Value::F32(f32::NAN));
    for (name, ty, dims, _) in tensors {
        writer.tensor(name, dims, *ty).unwrap();
    }
    writer.finish().unwrap()
}

/// A GGUF file of these tensors; gaps are filled with `gap`.
pub(crate) fn gguf(tensors: &[SourceTensorBytes], gap: u8) -> (GgufHeader, Vec<u8>) {
    let header = header(tensors);
    let mut file = vec![gap; header.file_len() as usize];
    file[..header.raw().len()].copy_from_slice(header.raw());
    for (info, (_, _, _, bytes)) in header.tensors().iter().zip(tensors) {
        let range = header.range_of(info);
        file[range.start as usize..range.end as usize].copy_from_slice(bytes);
    }
    (header, file)
}

impl Sample {
    /// The sample over two cards.
    pub(crate) fn new() -> Self {
        Self::of(&source(), false)
    }

    /// The same with `blk.0.ffn_up.weight` kept as it is: every value is the source's.
    pub(crate) fn lossless() -> Self {
        Self::of(&source(), true)
    }

    /// A container of these tensors, which are those of [`source`] with other bytes.
    pub(crate) fn of(tensors: &[SourceTensorBytes], lossless: bool) -> Self {
        let (header, gguf) = gguf(tensors, 0xaa);
        let residues = header.gaps().into_iter().filter(|g| !g.is_empty());
        let residues = residues.map(|g| (g.start, gguf[g.start as usize..g.end as usize].to_vec())).collect();
        let shard = ShardHeader {
            file_bytes: gguf.len() as u64,
            header: header.raw().to_vec(),
            data_offset: header.data_offset(),
            residues,
        };
        let layouts =
            [Layout::Raw(GgmlType::BF16), Layout::Raw(GgmlType::F32), Layout::Raw(GgmlType::F16)].into_iter();
        let layouts = layouts.chain([Layout::Block(GgmlType::Q4_K), Layout::Q8_0Split { plane_align: 64 }]);
        let mut sample = Self {
            split_cards: false,
            manifest: Manifest {
                schema: SCHEMA,
                model: Model {
                    architecture: "llama".into(),
                    arch_version: 1,
                    name: Some("Sample".into()),
                    parameters: tensors.iter().map(|t| t.2.iter().product::<u64>()).sum(),
                    complete: false,
                    incomplete: vec!["blk.0.attn_norm.weight: required tensor is missing".into()],
                },
                target: "cpu".into(),
                recipe: "lossless".into(),
                layouts: layouts.map(Layout::tag).collect(),
                cards: vec![CardInfo { target: "cpu".into(), weight_bytes: 0 }; 2],
                tensors: Vec::new(),
                banks: Vec::new(),
                placement: None,
                aliases: vec![Alias { name: "output.weight".into(), of: "token_embd.weight".into() }],
                sources: vec![Source {
                    file: "sample.gguf".into(),
                    bytes: gguf.len() as u64,
                    blake3: hash::hex(&hash::hash(&gguf)),
                }],
                source_tensors: tensors.iter().map(|t| source_tensor(t, lossless)).collect(),
                tool: Tool { name: "gantry".into(), version: "0.1.0".into() },
                options: BTreeMap::new(),
                warnings: vec!["a warning".into()],
            },
            metadata: Metadata { shards: vec![shard] },
            blobs: vec![Vec::new(), Vec::new()],
            segments: Vec::new(),
            gguf,
        };
        sample.place(tensors, lossless);
        sample
    }

    fn place(&mut self, tensors: &[SourceTensorBytes], lossless: bool) {
        let part = |source: u32, rows: u64| Part { source, rows: [0, rows], cols: None };
        let q8 = |i: usize| match tensors[i].1 {
            GgmlType::Q8_0 => tensors[i].3.clone(),
            ty => quantize(&floats(ty, &tensors[i].3)),
        };
        let fused = split(&[q8(2), q8(3), q8(4)].concat(), 64);
        let [t0, t1, t5, t9] = [0, 1, 5, 9].map(|i: usize| tensors[i].3.clone());
        let mut placer = Placer::new(ALIGNMENT);
        self.tensor(0, &mut placer, "token_embd.weight", 0, &[10, 64], t0, vec![part(0, 10)]);
        self.tensor(0, &mut placer, "output_norm.weight", 1, &[64], t1, vec![part(1, 1)]);
        let parts = vec![part(2, 8), part(3, 4), part(4, 3)];
        self.tensor(0, &mut placer, "blk.0.attn_qkv.weight", 4, &[15, 64], fused, parts);
        self.bank(0, &mut placer, &[0, 2], tensors);
        self.segments.push(placer.segment_bytes().unwrap());
        let mut placer = Placer::new(ALIGNMENT);
        self.tensor(1, &mut placer, "blk.0.attn_output.weight", 3, &[2, 256], t5, vec![part(5, 2)]);
        let (up_layout, up) = if lossless { (0, tensors[6].3.clone()) } else { (4, split(&q8(6), 64)) };
        self.tensor(1, &mut placer, "blk.0.ffn_up.weight", up_layout, &[5, 64], up, vec![part(6, 5)]);
        self.tensor(
            1,
            &mut placer,
            "blk.0.empty.weight",
            1,
            &[0, 32],
            t9,
            vec![Part { rows: [0, 0], ..part(9, 0) }],
        );
        self.bank(1, &mut placer, &[1], tensors);
        self.segments.push(placer.segment_bytes().unwrap());
    }

    #[allow(clippy::too_many_arguments, reason = "a row of a table")]
    fn tensor(
        &mut self,
        card: usize,
        placer: &mut Placer,
        name: &str,
        layout: u32,
        shape: &[u64],
        bytes: Vec<u8>,
        parts: Vec<Part>,
    ) {
        let len = bytes.len() as u64;
        let offset = placer.tensor(len).unwrap();
        let role = gantry_formats::role::Role::of(name, shape.len());
        self.manifest.tensors.push(StoredTensor {
            name: name.into(),
            role: role.base.into(),
            layer: role.layer,
            layout,
            shape: shape.to_vec(),
            card: card as u32,
            offset,
            bytes: len,
            blob: self.blobs.iter().map(Vec::len).sum::<usize>() as u64,
            parts,
        });
        self.manifest.cards[card].weight_bytes += len;
        self.blobs[card].push((offset, bytes));
    }

    fn bank(&mut self, card: usize, placer: &mut Placer, experts: &[u32], tensors: &[SourceTensorBytes]) {
        let blob = |expert: u32| {
            let gate = split(&tensors[7].3[expert as usize * 6 * 34..][..6 * 34], 64);
            let mut blob = gate.clone();
            blob.resize(blob.len().next_multiple_of(64), 0);
            let down_at = blob.len() as u64;
            blob.extend(&tensors[8].3[expert as usize * 4 * 64..][..4 * 64]);
            (gate.len() as u64, down_at, blob)
        };
        let (gate_bytes, down_at, first) = blob(0);
        let (offset, stride) = placer.bank(experts.len() as u64, first.len() as u64).unwrap();
        let matrix = |name: &str, layout, shape: [u64; 2], offset, bytes, source| BankMatrix {
            name: format!("blk.0.{name}.weight"),
            role: name.into(),
            layout,
            shape: shape.to_vec(),
            offset,
            bytes,
            parts: vec![Part { source, rows: [0, shape[0]], cols: None }],
        };
        self.manifest.banks.push(Bank {
            layer: 0,
            card: card as u32,
            offset,
            stride,
            bytes: first.len() as u64,
            first_blob: self.blobs.iter().map(Vec::len).sum::<usize>() as u64,
            experts: experts.to_vec(),
            matrices: vec![
                matrix("ffn_gate_exps", 4, [3, 64], 0, gate_bytes, 7),
                matrix("ffn_down_exps", 2, [4, 32], down_at, 256, 8),
            ],
        });
        for (slot, &expert) in experts.iter().enumerate() {
            self.manifest.cards[card].weight_bytes += first.len() as u64;
            self.blobs[card].push((offset + slot as u64 * stride, blob(expert).2));
        }
    }

    /// Header and sections, all hashes computed.
    pub(crate) fn finish(&self) -> (Skeleton, Finished) {
        let skeleton = Skeleton::new(ALIGNMENT, self.split_cards, &self.segments).unwrap();
        let mut table = Table::default();
        for (card, blobs) in self.blobs.iter().enumerate() {
            for (offset, bytes) in blobs {
                let (hash, values) = blob_hash(bytes);
                table.push(card as u64, *offset, bytes.len() as u64, hash, &values);
            }
        }
        let finished = finish(&skeleton, &self.manifest, &self.metadata, &table).unwrap();
        (skeleton, finished)
    }

    /// Writes index and card files into `folder`; gives the index file's path.
    pub(crate) fn write(&self, folder: &Path) -> PathBuf {
        let (skeleton, finished) = self.finish();
        self.write_with(folder, &skeleton, &finished.header, &finished.tail)
    }

    /// The same with a header that a test has changed.
    pub(crate) fn write_with(
        &self,
        folder: &Path,
        skeleton: &Skeleton,
        header: &Header,
        tail: &[u8],
    ) -> PathBuf {
        let mut index = header.to_bytes();
        index.resize(skeleton.tail_offset as usize, 0);
        for (card, blobs) in self.blobs.iter().enumerate() {
            let segment = skeleton.segments[card];
            let mut file = Vec::new();
            let out = if self.split_cards { &mut file } else { &mut index };
            if self.split_cards {
                *out = card_file_header(header, card);
                out.resize((segment.offset + segment.bytes) as usize, 0);
            }
            for (offset, bytes) in blobs {
                // A test may have put a blob where it cannot be.
                let at = segment.offset.saturating_add(*offset) as usize;
                if let Some(place) = out.get_mut(at..at.saturating_add(bytes.len())) {
                    place.copy_from_slice(bytes);
                }
            }
            if self.split_cards {
                std::fs::write(folder.join(card_file_name(INDEX, card)), file).unwrap();
            }
        }
        index.extend(tail);
        let path = folder.join(INDEX);
        std::fs::write(&path, index).unwrap();
        path
    }
}

/// Plain hash and stored chaining values of a blob.
pub(crate) fn blob_hash(bytes: &[u8]) -> (hash::Digest, Vec<hash::Digest>) {
    let len = bytes.len() as u64;
    if hash::subtree_count(len) == 0 {
        return (hash::hash(bytes), Vec::new());
    }
    let mut tree = TreeHash::new(len);
    tree.insert(&hash::pieces(len, 0, bytes));
    tree.finish().unwrap()
}

fn source_tensor((name, ty, dims, bytes): &SourceTensorBytes, lossless: bool) -> SourceTensor {
    let exact = lossless || *name != "blk.0.ffn_up.weight";
    let error = || {
        let from = floats(*ty, bytes);
        let to = floats(GgmlType::Q8_0, &quantize(&from));
        from.iter().zip(&to).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    SourceTensor {
        name: name.to_string(),
        shard: 0,
        ty: *ty,
        dims: dims.clone(),
        blake3: hash::hex(&hash::hash(bytes)),
        exact,
        max_error: (!exact).then(error),
        lost_blocks: 0,
        subnormal_blocks: 0,
    }
}
