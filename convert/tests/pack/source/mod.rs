//! Small sources for tests, and a check of a container that shares no code with the packing.

mod expect;

use gantry_formats::block::{GgmlType, fp16};
use gantry_formats::container::{Container, Part};
use gantry_formats::gguf::{DataWriter, Gguf, GgufWriter, OwnedArray, OwnedValue, Value, display_name};
use gantry_formats::hash;
use gantry_formats::layout::Layout;
use gantry_formats::source::ReadAt;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::{Command, Output};

/// A tensor of a test model.
pub(crate) struct Tensor {
    pub(crate) name: Vec<u8>,
    pub(crate) dims: Vec<u64>,
    pub(crate) ty: GgmlType,
}

pub(crate) fn tensor(name: impl Into<Vec<u8>>, dims: &[u64], ty: GgmlType) -> Tensor {
    Tensor { name: name.into(), dims: dims.into(), ty }
}

/// Numbers that look random and are the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn float(&mut self) -> f32 {
        (self.next() % 20_001) as f32 / 10_000.0 - 1.0
    }
}

/// Bytes of a tensor with finite values.
fn values(random: &mut Random, ty: GgmlType, elements: u64) -> Vec<u8> {
    let blocks = elements / ty.block_len();
    let mut out = Vec::new();
    for _ in 0..blocks {
        match ty {
            GgmlType::F32 => out.extend(random.float().to_le_bytes()),
            GgmlType::F16 => out.extend(fp16::f32_to_f16(random.float()).to_le_bytes()),
            GgmlType::BF16 => out.extend(((random.float().to_bits() >> 16) as u16).to_le_bytes()),
            _ => {
                // A small positive scale where most block types have one, anything elsewhere.
                let at = out.len();
                out.extend((0..ty.block_bytes()).map(|_| random.next() as u8));
                out[at..at + 2].copy_from_slice(&0x2000u16.to_le_bytes());
                if matches!(ty, GgmlType::Q4_1 | GgmlType::Q4_K) {
                    out[at + 2..at + 4].copy_from_slice(&0x2100u16.to_le_bytes());
                }
            }
        }
    }
    out
}

/// Keys of a llama with these numbers.
pub(crate) fn llama_keys(writer: &mut GgufWriter, layers: u32, experts: u32) {
    writer.set("general.architecture", Value::Str(b"llama"));
    let embd = 64;
    let pairs = [
        ("block_count", layers),
        ("context_length", 128),
        ("embedding_length", embd),
        ("feed_forward_length", 96),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("vocab_size", 100),
        ("expert_count", experts),
        ("expert_used_count", experts.min(2)),
    ];
    for (key, value) in pairs {
        writer.set(format!("llama.{key}"), Value::U32(value));
    }
    writer.set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    let words: Vec<String> = (0..100).map(|i| format!("t{i}")).collect();
    let tokens = OwnedValue::Array(OwnedArray::new(words.iter().map(String::as_str)));
    writer.set("tokenizer.ggml.tokens", tokens.view());
}

/// Tensors of a complete llama; weights have type `ty`.
pub(crate) fn llama_tensors(layers: u32, experts: u64, ty: GgmlType) -> Vec<Tensor> {
    let mut out = vec![tensor("token_embd.weight", &[64, 100], ty)];
    for n in 0..layers {
        let mut add =
            |name: &str, dims: &[u64], ty| out.push(tensor(format!("blk.{n}.{name}.weight"), dims, ty));
        add("attn_norm", &[64], GgmlType::F32);
        add("attn_q", &[64, 64], ty);
        add("attn_k", &[64, 32], ty);
        add("attn_v", &[64, 32], ty);
        add("attn_output", &[64, 64], ty);
        add("ffn_norm", &[64], GgmlType::F32);
        if experts > 0 {
            add("ffn_gate_inp", &[64, experts], GgmlType::F32);
            add("ffn_down_exps", &[96, 64, experts], ty);
            add("ffn_gate_exps", &[64, 96, experts], ty);
            add("ffn_up_exps", &[64, 96, experts], ty);
        } else {
            add("ffn_down", &[96, 64], ty);
            add("ffn_gate", &[64, 96], ty);
            add("ffn_up", &[64, 96], ty);
        }
    }
    out.push(tensor("output_norm.weight", &[64], GgmlType::F32));
    out
}

/// Writes a GGUF with random values.
pub(crate) fn write(path: &Path, keys: impl FnOnce(&mut GgufWriter), tensors: &[Tensor], seed: u64) {
    let mut random = Random(seed);
    write_bytes(path, keys, tensors, |t| values(&mut random, t.ty, t.dims.iter().product()));
}

/// Writes a GGUF of F32 tensors with these values, by tensor and index.
pub(crate) fn write_with(
    path: &Path,
    keys: impl FnOnce(&mut GgufWriter),
    tensors: &[Tensor],
    value: impl Fn(&Tensor, u64) -> f32,
) {
    write_bytes(path, keys, tensors, |t| {
        (0..t.dims.iter().product()).flat_map(|i| value(t, i).to_le_bytes()).collect()
    });
}

fn write_bytes(
    path: &Path,
    keys: impl FnOnce(&mut GgufWriter),
    tensors: &[Tensor],
    mut bytes: impl FnMut(&Tensor) -> Vec<u8>,
) {
    let mut writer = GgufWriter::new(3);
    keys(&mut writer);
    for t in tensors {
        writer.tensor(&t.name, &t.dims, t.ty).expect("a legal tensor");
    }
    let header = writer.finish().expect("a legal header");
    let mut data =
        DataWriter::new(BufWriter::new(File::create(path).expect("create")), &header).expect("write");
    for t in tensors {
        data.write(&bytes(t)).expect("write");
    }
    data.finish().expect("write");
}

/// A complete small llama.
pub(crate) fn llama(path: &Path, layers: u32, experts: u32, ty: GgmlType) {
    write(path, |w| llama_keys(w, layers, experts), &llama_tensors(layers, experts.into(), ty), 7);
}

/// Runs `gantry`.
pub(crate) fn gantry(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gantry")).args(args).output().expect("gantry starts")
}

/// Runs `gantry` and expects it to go well.
pub(crate) fn succeed(args: &[&str]) -> String {
    let out = gantry(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8")
}

/// Runs `gantry` and expects this exit code and these words on stderr.
pub(crate) fn refuse(args: &[&str], code: i32, words: &[&str]) {
    let out = gantry(args);
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{args:?}: no {word:?} in {text}");
    }
}

/// Checks a container against its source, byte by byte and in scalar code: hashes, padding, every value.
pub(crate) fn check(container: &Path, source: &Path) {
    let c = Container::open(container).expect("a sound container");
    let source = Gguf::open(source).expect("a sound source");
    for card in 0..c.header().cards.len() {
        let from = c.card(card).expect("all cards are there");
        let read = |at, n: u64| {
            let mut bytes = vec![0; n as usize];
            from.file.read_exact_at(from.offset + at, &mut bytes).expect("readable");
            bytes
        };
        for stretch in c.stretches(card) {
            let at = c.table().blobs()[stretch.blob].offset + stretch.offset;
            assert!(c.stretch_is_intact(&stretch, &read(at, stretch.bytes)), "{stretch:?}");
        }
        for blob in c.table().blobs().iter().filter(|b| b.card == card as u64) {
            assert_eq!(hash::hash(&read(blob.offset, blob.bytes)), blob.hash);
        }
        for gap in c.segment_padding(card) {
            assert!(read(gap.start, gap.end - gap.start).iter().all(|&b| b == 0));
        }
    }
    let m = c.manifest();
    for (s, shard) in m.sources.iter().zip(source.shards()) {
        let mut bytes = vec![0; shard.len() as usize];
        shard.source().read_exact_at(0, &mut bytes).expect("readable");
        assert_eq!((s.blake3.as_str(), s.bytes), (hash::hex(&hash::hash(&bytes)).as_str(), shard.len()));
    }
    let tensors: Vec<Vec<u8>> = source
        .tensors()
        .map(|t| {
            let mut bytes = vec![0; t.info.bytes as usize];
            source.read_tensor(&t, 0, &mut bytes).expect("readable");
            bytes
        })
        .collect();
    assert_eq!(m.source_tensors.len(), tensors.len());
    for ((s, bytes), t) in m.source_tensors.iter().zip(&tensors).zip(source.tensors()) {
        assert_eq!(
            (s.name.as_str(), s.ty, s.dims.as_slice()),
            (&*display_name(t.info.name()), t.info.ty, t.info.dims())
        );
        assert_eq!(s.blake3, hash::hex(&hash::hash(bytes)), "{}", s.name);
    }
    let read = |card: u32, at: u64, n: u64| {
        let from = c.card(card as usize).expect("all cards are there");
        let mut bytes = vec![0; n as usize];
        from.file.read_exact_at(from.offset + at, &mut bytes).expect("readable");
        bytes
    };
    for t in &m.tensors {
        let found = read(t.card, t.offset, t.bytes);
        check_matrix(c.layouts()[t.layout as usize], &t.parts, &tensors, &source, None, &found, &t.name);
    }
    for bank in &m.banks {
        for (slot, &expert) in bank.experts.iter().enumerate() {
            for x in &bank.matrices {
                let at = bank.offset + slot as u64 * bank.stride + x.offset;
                let (layout, found) = (c.layouts()[x.layout as usize], read(bank.card, at, x.bytes));
                check_matrix(layout, &x.parts, &tensors, &source, Some(expert), &found, &x.name);
            }
        }
    }
}

/// What a stored matrix must be, from the source and the scalar truths; `found` is what it is.
fn check_matrix(
    layout: Layout,
    parts: &[Part],
    tensors: &[Vec<u8>],
    source: &Gguf,
    expert: Option<u32>,
    found: &[u8],
    name: &str,
) {
    let mut sources = Vec::new();
    for part in parts {
        let t = source.tensor(part.source as usize).expect("a source tensor");
        let row = t.info.row_bytes() as usize;
        let first = expert.map_or(0, |e| u64::from(e) * t.info.dims()[1]) as usize;
        let rows = first + part.rows[0] as usize..first + part.rows[1] as usize;
        let bytes = tensors[part.source as usize][rows.start * row..rows.end * row].to_vec();
        sources.push(expect::Rows { ty: t.info.ty, cols: t.info.row_len() as usize, bytes });
    }
    expect::check(layout, &sources, found, name);
}
