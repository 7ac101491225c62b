//! Damage of every kind, done to small containers.

use super::damage::{Damage, Region};
use super::report::Report;
use super::*;
use crate::failure::exit_of;
use crate::sample::{self, INDEX, Sample};
use gantry_formats::container::{CARD_HEADER_BYTES, HEADER_BYTES, ShardHeader, card_file_name};
use gantry_formats::layout::Layout;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use tempfile::TempDir;

fn written(sample: &Sample) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = sample.write(dir.path());
    (dir, path)
}

fn full(path: &Path) -> Report {
    examine(path, Depth::Full, 1).expect("readable")
}

/// XORs one byte of a file.
fn flip(path: &Path, at: u64, mask: u8) {
    let file = File::options().read(true).write(true).open(path).expect("open");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ mask], at).expect("write");
}

/// What a byte of the index file is, and the name of the blob that it is in.
fn region_at(container: &Container, at: u64) -> (Region, Option<String>) {
    let h = container.header();
    let sections = [(h.metadata, Region::Metadata), (h.table, Region::Table), (h.manifest, Region::Manifest)];
    if at < HEADER_BYTES {
        return (Region::Header, None);
    }
    for (section, region) in sections {
        if (section.offset..section.offset + section.bytes).contains(&at) {
            return (region, None);
        }
    }
    for (card, entry) in h.cards.iter().enumerate() {
        if !container.split_cards()
            && let Some(found) = blob_at(container, card, at.wrapping_sub(entry.offset))
        {
            return (Region::Blob, Some(found));
        }
    }
    (Region::Padding, None)
}

fn blob_at(container: &Container, card: usize, at: u64) -> Option<String> {
    let blobs = container.table().blobs().iter().enumerate();
    let mut here =
        blobs.filter(|(_, b)| b.card == card as u64 && (b.offset..b.offset + b.bytes).contains(&at));
    here.next().map(|(i, _)| container.blob_name(i))
}

#[test]
fn each_byte_flipped_once_is_found_where_it_is() {
    let (_dir, path) = written(&Sample::new());
    let container = Container::open(&path).expect("opens");
    let len = container.header().file_bytes;
    let mut counts = std::collections::BTreeMap::new();
    for at in 0..len {
        let mask = 1 << (at % 8);
        flip(&path, at, mask);
        let report = full(&path);
        let [damage] = &report.damage[..] else { panic!("byte {at}: {:?}", report.damage) };
        let (region, name) = region_at(&container, at);
        assert_eq!((damage.region, &damage.name), (region, &name), "byte {at}: {damage:?}");
        assert!((damage.bytes[0]..damage.bytes[1]).contains(&at), "byte {at}: {damage:?}");
        if region == Region::Padding {
            assert_eq!(damage.bytes, [at, at + 1]);
        }
        let error = report.verdict().expect_err("damaged");
        assert_eq!(exit_of(&error), Exit::Integrity);
        *counts.entry(format!("{region:?}")).or_insert(0u64) += 1;
        flip(&path, at, mask);
    }
    assert_eq!(counts.len(), 6, "every region was hit: {counts:?}");
    full(&path).verdict().expect("whole again");
}

#[test]
fn each_byte_of_a_card_file_flipped_once_is_found_where_it_is() {
    let sample = Sample { split_cards: true, ..Sample::new() };
    let (dir, path) = written(&sample);
    let container = Container::open(&path).expect("opens");
    for card in 0..2 {
        let name = card_file_name(INDEX, card);
        let file = dir.path().join(&name);
        let segment = container.header().cards[card].offset;
        for at in 0..fs::metadata(&file).expect("there").len() {
            flip(&file, at, 0x10);
            let report = full(&path);
            let [damage] = &report.damage[..] else { panic!("{name} byte {at}: {:?}", report.damage) };
            let blob = at.checked_sub(segment).and_then(|inside| blob_at(&container, card, inside));
            let region = match &blob {
                _ if at < CARD_HEADER_BYTES => Region::Card,
                Some(_) => Region::Blob,
                None => Region::Padding,
            };
            assert_eq!((damage.region, &damage.name), (region, &blob), "{name} byte {at}: {damage:?}");
            assert_eq!((damage.card, &damage.file), (Some(card), &name));
            assert!((damage.bytes[0]..damage.bytes[1]).contains(&at), "{name} byte {at}: {damage:?}");
            flip(&file, at, 0x10);
        }
    }
    full(&path).verdict().expect("whole again");
}

/// A sample whose first tensor has 3.5 MiB: chaining values, several blocks.
fn large() -> Sample {
    let mut sample = Sample::new();
    let bytes: Vec<u8> = (0..3_670_016u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 | 1).collect();
    let end = sample.segments[1];
    let rows = bytes.len() as u64 / 128;
    let mut tensors = sample::source();
    tensors[6].2 = vec![64, rows];
    let header = sample::header(&tensors);
    sample.metadata.shards = vec![ShardHeader {
        file_bytes: header.file_len(),
        header: header.raw().to_vec(),
        data_offset: header.data_offset(),
        residues: Vec::new(),
    }];
    sample.manifest.sources[0].bytes = header.file_len();
    sample.manifest.source_tensors[6].dims = vec![64, rows];
    sample.manifest.layouts[4] = Layout::Raw(gantry_formats::block::GgmlType::BF16).tag();
    sample.manifest.tensors.retain(|t| t.name == "blk.0.ffn_up.weight");
    sample.manifest.banks.clear();
    sample.manifest.aliases.clear();
    let tensor = &mut sample.manifest.tensors[0];
    (tensor.offset, tensor.bytes, tensor.blob) = (end, bytes.len() as u64, 0);
    tensor.shape = vec![rows, 64];
    tensor.parts[0].rows = [0, rows];
    sample.blobs = vec![Vec::new(), vec![(end, bytes)]];
    sample.segments[1] = end + 3_670_016 + 4096;
    sample
}

#[test]
fn blocks_of_a_large_tensor_are_told_apart_and_joined() {
    let (_dir, path) = written(&large());
    let start = Container::open(&path).map(|c| c.header().cards[1].offset + c.table().blobs()[0].offset);
    let start = start.expect("opens");
    full(&path).verdict().expect("whole");
    let mib = 1u64 << 20;
    let file = File::options().write(true).open(&path).expect("open");
    // A hole over all of block 1, one bit in block 2, another in the half block 3.
    file.write_all_at(&vec![0; mib as usize], start + mib).expect("write");
    flip(&path, start + 2 * mib + 5, 1);
    flip(&path, start + 3_670_015, 0x80);
    let before: Vec<u64> = (start - 64..start).collect();
    flip(&path, before[0], 7);
    for threads in [1, 3] {
        let report = examine(&path, Depth::Full, threads).expect("readable");
        let found: Vec<_> = report.damage.iter().map(|d| (d.region, d.blocks, d.all_zero)).collect();
        let want = [
            (Region::Padding, None, false),
            (Region::Blob, Some([1, 1]), true),
            (Region::Blob, Some([2, 3]), false),
        ];
        assert_eq!(found, want);
        assert_eq!(report.damage[2].bytes, [start + 2 * mib, start + 3_670_016]);
        let text = report.text();
        assert!(text.contains("card 1 blk.0.ffn_up.weight block 1"), "{text}");
        assert!(text.contains("all zero") && text.contains("blocks 2-3"), "{text}");
        let lines = report.check_lines();
        assert!(lines.contains("FAILED card 1 blk.0.ffn_up.weight blocks 2-3: bytes"), "{lines}");
        assert!(lines.contains("OK manifest\n") && !lines.contains("OK card 1 blk.0.ffn_up"), "{lines}");
    }
}

#[test]
fn all_damage_is_reported_with_what_it_hits() {
    let (_dir, path) = written(&Sample::new());
    let container = Container::open(&path).expect("opens");
    let at = |card: usize, inside: u64| container.header().cards[card].offset + inside;
    let bank = &container.manifest().banks[0];
    let down = bank.offset + bank.stride + bank.matrices[1].offset;
    flip(&path, at(0, 0), 1);
    flip(&path, at(0, down + 3), 1);
    flip(&path, at(1, 0), 1);
    flip(&path, at(1, 0) - 1, 1);
    let report = full(&path);
    let names: Vec<_> =
        report.damage.iter().map(|d| (d.card, d.name.as_deref(), d.matrices.join(" "))).collect();
    let want = [
        (Some(0), None, String::new()),
        (Some(0), Some("token_embd.weight"), String::new()),
        (Some(0), Some("layer 0 expert 2"), "ffn_gate_exps ffn_down_exps".into()),
        (Some(1), Some("blk.0.attn_output.weight"), String::new()),
    ];
    assert_eq!(names, want);
    let json = report.to_json();
    assert_eq!(json["ok"], false);
    assert_eq!(json["damage"][2]["name"], "layer 0 expert 2");
    assert_eq!(json["damage"][2]["matrices"][1], "ffn_down_exps");
}

#[test]
fn a_missing_card_is_not_a_mismatch() {
    let sample = Sample { split_cards: true, ..Sample::new() };
    let (dir, path) = written(&sample);
    fs::remove_file(dir.path().join(card_file_name(INDEX, 1))).expect("there");
    let report = full(&path);
    assert!(report.damage.is_empty());
    assert_eq!(report.missing, [1]);
    assert_eq!(exit_of(&report.verdict().expect_err("missing")), Exit::Input);
    assert!(report.check_lines().contains("MISSING card 1: m.card1.gantry\n"));
    flip(&dir.path().join(card_file_name(INDEX, 0)), 5000, 1);
    assert_eq!(exit_of(&full(&path).verdict().expect_err("damaged")), Exit::Integrity);
}

#[test]
fn swapped_card_files_are_both_reported() {
    let sample = Sample { split_cards: true, ..Sample::new() };
    let (dir, path) = written(&sample);
    let card = |n| dir.path().join(card_file_name(INDEX, n));
    fs::rename(card(0), dir.path().join("x")).expect("rename");
    fs::rename(card(1), card(0)).expect("rename");
    fs::rename(dir.path().join("x"), card(1)).expect("rename");
    let report = full(&path);
    assert_eq!(report.damage.iter().map(|d| d.card).collect::<Vec<_>>(), [Some(0), Some(1)]);
    assert!(report.damage[0].what.contains("it is card 1, expected card 0"), "{:?}", report.damage[0]);
}

#[test]
fn quick_reads_no_weights() {
    let (_dir, path) = written(&Sample::new());
    let segment = Container::open(&path).expect("opens").header().cards[0].offset;
    flip(&path, segment, 1);
    examine(&path, Depth::Quick, 1).and_then(|r| r.verdict()).expect("the index is whole");
    flip(&path, 100, 1);
    assert_eq!(examine(&path, Depth::Quick, 1).expect("readable").damage[0].region, Region::Header);
}

#[test]
fn several_damaged_sections_are_all_named() {
    let (_dir, path) = written(&Sample::new());
    let header = Container::open(&path).expect("opens").header().clone();
    for section in [header.metadata, header.table, header.manifest] {
        flip(&path, section.offset + section.bytes - 1, 1);
    }
    let found: Vec<Region> = full(&path).damage.iter().map(|d| d.region).collect();
    assert_eq!(found, [Region::Metadata, Region::Table, Region::Manifest]);
}

#[test]
fn truncated_before_and_while_reading() {
    let (_dir, path) = written(&Sample::new());
    let (container, _) = Container::open_tolerant(&path).expect("opens");
    let file = File::options().write(true).open(&path).expect("open");
    file.set_len(container.header().cards[1].offset + 1).expect("truncate");
    let error = payload::scan(&container, 2, &Progress::new("verify", 1)).expect_err("too short");
    assert_eq!(exit_of(&error), Exit::Integrity);
    assert!(format!("{error:#}").contains("file changed while reading"), "{error:#}");
    let found: Vec<Region> = full(&path).damage.iter().map(|d| d.region).collect();
    assert_eq!(found, [Region::Length, Region::Metadata, Region::Table, Region::Manifest]);
}

#[test]
fn joined_marks_keep_their_order() {
    let (_dir, path) = written(&large());
    let container = Container::open(&path).expect("opens");
    let holders = damage::holders(&container);
    let mark = |block, all_zero| damage::Mark::Blob { blob: 0, block, all_zero };
    let marks = vec![mark(3, false), mark(0, false), mark(1, false)];
    let found: Vec<Damage> = damage::from_marks(&container, marks, &holders);
    assert_eq!(found.iter().map(|d| d.blocks).collect::<Vec<_>>(), [Some([0, 1]), Some([3, 3])]);
}

fn against(sample: &Sample, source: &[u8]) -> against::Against {
    let (dir, path) = written(sample);
    let gguf = dir.path().join("sample.gguf");
    fs::write(&gguf, source).expect("write");
    full(&path).verdict().expect("intact");
    against::compare(&Container::open(&path).expect("opens"), &gguf, None, 2).expect("readable")
}

#[test]
fn a_container_is_what_its_source_gives() {
    for sample in [Sample::new(), Sample::lossless()] {
        let found = against(&sample, &sample.gguf);
        assert!(found.is_exact(), "{}", found.text());
        let json = found.to_json();
        let verdict = |i: usize| json["tensors"][i]["verdict"].as_str().map(str::to_owned);
        assert_eq!(verdict(0).as_deref(), Some("identical"));
        assert_eq!(verdict(2).as_deref(), Some("inverted"));
        let exact = sample.manifest.source_tensors[6].exact;
        assert_eq!(verdict(6).as_deref(), Some(if exact { "identical" } else { "derived" }));
        assert_eq!(json["tensors"][6]["max_error"].as_f64().map(|e| e > 0.0), Some(!exact));
    }
}

#[track_caller]
fn assert_against(change: impl FnOnce(&mut Sample, &mut Vec<u8>), word: &str) {
    let mut sample = Sample::new();
    let mut source = sample.gguf.clone();
    change(&mut sample, &mut source);
    let found = against(&sample, &source);
    assert!(!found.is_exact(), "{word}");
    let text = found.check_lines();
    assert!(text.contains(word), "{word:?} not in {text}");
}

#[test]
fn what_the_source_does_not_give_is_named() {
    let other = |s: &mut Sample, name: &str, at: usize| {
        let i = s.manifest.tensors.iter().position(|t| t.name == name).expect("there");
        let t = &s.manifest.tensors[i];
        let first = s.manifest.tensors.iter().chain([]).filter(|x| x.card == t.card).map(|x| x.blob).min();
        let slot = (t.blob - first.expect("one")) as usize;
        s.blobs[t.card as usize][slot].1[at] ^= 1;
    };
    // Row 9 of the fused matrix is row 1 of attn_k.
    assert_against(
        |s, _| other(s, "blk.0.attn_qkv.weight", 9 * 64 + 40),
        "attn_k.weight: 1 block differ from what the source gives, first at row 1 column 32",
    );
    assert_against(|s, _| other(s, "blk.0.ffn_up.weight", 0), "ffn_up.weight: 1 block");
    assert_against(|s, _| other(s, "token_embd.weight", 2 * 65), "token_embd.weight: 1 block differ");
    assert_against(
        |s, _| {
            let bank = &s.manifest.banks[1];
            let at = bank.matrices[1].offset as usize;
            s.blobs[1].last_mut().expect("a bank").1[at] ^= 1;
        },
        "ffn_down_exps.weight: 1 block differ from what the source gives, first at row 4",
    );
    assert_against(
        |s, _| s.manifest.source_tensors[6].max_error = Some(0.5),
        "ffn_up.weight: the manifest records",
    );
    assert_against(
        |s, _| s.manifest.source_tensors[6].exact = true,
        "ffn_up.weight: the manifest records exact",
    );
    assert_against(|s, _| s.manifest.source_tensors[0].blake3 = "00".repeat(32), "recorded BLAKE3");
    assert_against(|s, _| s.manifest.sources[0].blake3 = "00".repeat(32), "sample.gguf: BLAKE3");
    assert_against(|_, source| *source.last_mut().expect("bytes") ^= 1, "sample.gguf: BLAKE3");
    assert_against(
        |s, _| {
            // The bytes between the planes of the fused matrix: 15 · 64 is a multiple of 64, the bank's are not.
            let bank = &s.manifest.banks[0];
            let gap = bank.matrices[0].bytes as usize;
            s.blobs[0][3].1[gap] = 1;
        },
        "bytes between its planes are not zero",
    );
}

#[test]
fn another_source_is_refused() {
    let mut tensors = sample::source();
    tensors[1].2 = vec![32];
    tensors[1].3.truncate(128);
    tensors[3].0 = "blk.0.attn_x.weight";
    let (_, other) = sample::gguf(&tensors, 0);
    let found = against(&Sample::new(), &other);
    let text = found.check_lines();
    for word in ["sample.gguf: BLAKE3", "its header differs", "output_norm.weight", "blk.0.attn_x.weight"] {
        assert!(text.contains(word), "{word:?} not in {text}");
    }
}
