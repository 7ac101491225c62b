//! Opening a container: what is accepted, and what is refused by name.

mod sample;

use gantry_formats::container::*;
use gantry_formats::exit::{Exit, ExitCode};
use gantry_formats::hash;
use gantry_formats::source::ReadAt;
use sample::{INDEX, Sample};
use std::path::Path;
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn open(path: &Path) -> Result<Container, (Exit, String)> {
    Container::open(path).map_err(|e| (e.exit(), e.to_string()))
}

/// What opening says after `change` was made to the manifest and all hashes were made to fit.
fn refused(change: impl FnOnce(&mut Sample)) -> (Exit, String) {
    let dir = folder();
    let mut sample = Sample::new();
    change(&mut sample);
    open(&sample.write(dir.path())).expect_err("refused")
}

#[track_caller]
fn assert_refused(change: impl FnOnce(&mut Sample), word: &str) {
    let (exit, text) = refused(change);
    assert!(text.contains(word), "{word:?} not in {text:?}");
    assert_eq!(exit, Exit::Input, "{text}");
}

#[test]
fn a_sample_opens_in_one_file_and_in_several() {
    for split_cards in [false, true] {
        let dir = folder();
        let sample = Sample { split_cards, ..Sample::new() };
        let container = open(&sample.write(dir.path())).expect("opens");
        assert_eq!(container.manifest(), &sample.manifest);
        assert_eq!(container.metadata(), &sample.metadata);
        assert_eq!(container.split_cards(), split_cards);
        assert_eq!(container.blob_name(2), "blk.0.attn_qkv.weight");
        assert_eq!(container.blob_name(4), "layer 0 expert 2");
        for card in 0..2 {
            let source = container.card(card).expect("there");
            for stretch in container.stretches(card) {
                let blob = container.table().blobs()[stretch.blob];
                let mut bytes = vec![0; stretch.bytes as usize];
                source.file.read_exact_at(source.offset + blob.offset + stretch.offset, &mut bytes).unwrap();
                assert!(container.stretch_is_intact(&stretch, &bytes));
                assert_eq!(blob.hash, hash::hash(&bytes), "a blob's hash is its plain BLAKE3");
                if let Some(first) = bytes.first_mut() {
                    *first ^= 1;
                    assert!(!container.stretch_is_intact(&stretch, &bytes));
                }
            }
        }
    }
}

#[test]
fn bytes_are_the_same_each_time() {
    let (a, b) = (folder(), folder());
    let read = |dir: &TempDir| std::fs::read(Sample::new().write(dir.path())).unwrap();
    assert_eq!(read(&a), read(&b));
}

#[test]
fn versions_and_flags() {
    let dir = folder();
    let sample = Sample::new();
    let (skeleton, finished) = sample.finish();
    let with = |change: &dyn Fn(&mut Header)| {
        let mut header = finished.header.clone();
        change(&mut header);
        header.root = header.compute_root();
        open(&sample.write_with(dir.path(), &skeleton, &header, &finished.tail))
    };
    let (exit, text) = with(&|h| h.version.0 = 2).expect_err("major");
    assert_eq!(exit, Exit::Incompatible);
    assert!(text.contains("structure version 2.0"), "{text}");
    with(&|h| h.version.1 = 9).expect("a minor version is taken");
    let (exit, text) = with(&|h| h.required |= 1 << 40).expect_err("required");
    assert_eq!(exit, Exit::Incompatible);
    assert!(text.contains("0x10000000000"), "{text}");
    let container = with(&|h| h.optional = 1 << 7).expect("optional");
    assert!(container.notes()[0].contains("0x80"), "{:?}", container.notes());
    let (exit, text) = refused(|s| s.manifest.schema += 1);
    assert_eq!(exit, Exit::Incompatible);
    assert!(text.contains("schema 2"), "{text}");
    let (exit, text) = refused(|s| s.manifest.layouts[4].version += 1);
    assert_eq!(exit, Exit::Incompatible);
    assert!(text.contains("q8_0.split has version 2") && text.contains("blk.0.attn_qkv"), "{text}");
    let (exit, text) = refused(|s| s.manifest.layouts[3].name = "gguf.q9".into());
    assert_eq!(exit, Exit::Incompatible);
    assert!(text.contains("gguf.q9") && text.contains("blk.0.attn_output"), "{text}");
}

#[test]
fn a_flipped_layout_tag_with_fixed_hashes_is_refused() {
    assert_refused(|s| s.manifest.layouts[4] = s.manifest.layouts[0].clone(), "blk.0.attn_qkv.weight");
    assert_refused(|s| s.manifest.layouts[2].name = "raw.bf16".into(), "blk.0.ffn_down_exps.weight");
    assert_refused(
        |s| {
            s.manifest.layouts[4].params.insert("plane_align".into(), 4096.into());
        },
        "blk.0.attn_qkv.weight",
    );
}

#[test]
fn broken_manifests_are_refused_by_name() {
    assert_refused(
        |s| s.manifest.tensors[1].name = "token_embd.weight".into(),
        "token_embd.weight occurs twice",
    );
    assert_refused(|s| s.manifest.tensors[0].offset += 64, "token_embd.weight: card 0 offset 64");
    assert_refused(|s| s.manifest.tensors[0].bytes -= 2, "token_embd.weight");
    assert_refused(|s| s.manifest.tensors[0].blob = 1, "token_embd.weight");
    assert_refused(|s| s.manifest.tensors[0].blob = u64::MAX, "there is no blob");
    assert_refused(|s| s.manifest.tensors[0].card = 1, "token_embd.weight");
    assert_refused(|s| s.manifest.tensors[0].layout = 77, "layout 77 of 5");
    assert_refused(|s| s.manifest.tensors[0].shape = vec![1 << 40, 1 << 40], "cannot have the shape");
    assert_refused(|s| s.manifest.tensors[0].shape = vec![64, 10], "token_embd.weight");
    assert_refused(|s| s.manifest.tensors[0].parts[0].source = 99, "there is no source tensor 99");
    assert_refused(|s| s.manifest.tensors[0].parts[0].source = 6, "token_embd.weight");
    assert_refused(|s| s.manifest.tensors[2].parts.swap_remove(0).source = 0, "blk.0.attn_qkv.weight");
    assert_refused(|s| s.manifest.tensors[2].parts[0].rows = [8, 0], "blk.0.attn_qkv.weight");
    assert_refused(|s| s.manifest.tensors[2].parts[0].rows = [1, 9], "blk.0.attn_qkv.weight");
    assert_refused(|s| drop(s.manifest.tensors.remove(1)), "blob 1 belongs to no tensor");
    assert_refused(|s| s.manifest.aliases[0].of = "nothing".into(), "alias output.weight");
    assert_refused(|s| s.manifest.aliases[0].name = "output_norm.weight".into(), "occurs twice");
    assert_refused(|s| s.manifest.sources.clear(), "0 sources");
    assert_refused(|s| s.manifest.source_tensors[0].dims = vec![1 << 40; 3], "differs from the GGUF header");
    assert_refused(|s| s.manifest.source_tensors[2].dims = vec![48, 8], "differs from the GGUF header");
    assert_refused(
        |s| s.manifest.source_tensors[1].shard = 1,
        "output_norm.weight differs from the GGUF header",
    );
    assert_refused(|s| drop(s.manifest.cards.pop()), "1 cards");
}

#[test]
fn broken_banks_are_refused_by_name() {
    assert_refused(|s| s.manifest.banks[0].stride += 1, "bank of layer 0 on card 0");
    assert_refused(|s| s.manifest.banks[0].stride = u64::MAX - 511, "bank of layer 0 on card 0");
    assert_refused(|s| s.manifest.banks[0].first_blob = u64::MAX, "bank of layer 0 on card 0");
    assert_refused(|s| s.manifest.banks[1].card = 0, "bank of layer 0 on card 0");
    assert_refused(|s| s.manifest.banks[0].matrices[1].offset = 0, "ffn_down_exps");
    assert_refused(|s| s.manifest.banks[0].offset += 1, "is no multiple of");
    assert_refused(|s| s.manifest.banks[0].matrices[1].offset += 1, "is no multiple of");
    assert_refused(|s| s.manifest.banks[0].matrices[0].parts[0].source = 2, "is no stack of experts");
    assert_refused(|s| s.manifest.source_tensors[8].dims[2] = 4, "differs from the GGUF header");
    assert_refused(|s| s.manifest.banks[0].experts.clear(), "bank of layer 0 on card 0");
}

#[test]
fn room_between_segments_and_sections_is_refused() {
    for split_cards in [false, true] {
        let dir = folder();
        let sample = Sample { split_cards, ..Sample::new() };
        let (skeleton, finished) = sample.finish();
        let segment = u64::from(skeleton.alignment.segment);
        let mut moved = skeleton.clone();
        moved.segments[1].offset += segment;
        let header = |skeleton: &Skeleton, by: u64| {
            let mut header = finished.header.clone();
            for (card, segment) in header.cards.iter_mut().zip(&skeleton.segments) {
                card.offset = segment.offset;
            }
            for section in [&mut header.metadata, &mut header.table, &mut header.manifest] {
                section.offset += by;
            }
            header.file_bytes += by;
            header.root = header.compute_root();
            header
        };
        let by = if split_cards { 0 } else { segment };
        moved.tail_offset += by;
        let path = sample.write_with(dir.path(), &moved, &header(&moved, by), &finished.tail);
        let (exit, text) = open(&path).expect_err("room before a segment");
        assert_eq!((exit, text.contains("card 1: segment")), (Exit::Input, true), "{text}");
        let mut moved = skeleton.clone();
        moved.tail_offset += 64;
        let path = sample.write_with(dir.path(), &moved, &header(&moved, 64), &finished.tail);
        let (exit, text) = open(&path).expect_err("room before a section");
        assert_eq!((exit, text.contains("is not at the next 64")), (Exit::Input, true), "{text}");
    }
}

#[test]
fn broken_tables_are_refused() {
    assert_refused(|s| s.blobs[0][1].0 = s.blobs[0][0].0, "blob 1 is misplaced on card 0");
    assert_refused(|s| s.blobs[0][1].0 += 1, "blob 1 is misplaced on card 0");
    assert_refused(|s| s.blobs[1][0].0 = u64::MAX - 63, "blob 5 is misplaced on card 1");
    assert_refused(|s| s.metadata.shards.clear(), "metadata section");
}

#[test]
fn files_of_another_length_are_refused() {
    let dir = folder();
    let path = Sample::new().write(dir.path());
    let whole = std::fs::read(&path).unwrap();
    for len in [whole.len() - 1, 5000, 4096, 4095, 100, 8] {
        std::fs::write(&path, &whole[..len]).unwrap();
        let (exit, text) = open(&path).expect_err("too short");
        assert_eq!(exit, Exit::Integrity, "{len}: {text}");
    }
    std::fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
    assert_eq!(open(&path).expect_err("too long").0, Exit::Integrity);
    for (bytes, word) in [(&b""[..], "empty"), (b"GGUF....", "gantry convert"), (b"<html>", "magic")] {
        std::fs::write(&path, bytes).unwrap();
        let (exit, text) = open(&path).expect_err("not a container");
        assert_eq!(exit, Exit::Input);
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn a_file_of_holes_that_claims_a_large_section_is_refused_in_pieces() {
    let dir = folder();
    let sample = Sample::new();
    let (skeleton, finished) = sample.finish();
    let mut header = finished.header.clone();
    let path = sample.write(dir.path());
    let end = header.file_bytes;
    let (metadata, manifest) = (header.metadata, header.manifest);
    header.metadata = Section { offset: end, bytes: 200 << 20 };
    header.file_bytes = end + (200 << 20);
    header.root = header.compute_root();
    sample.write_with(dir.path(), &skeleton, &header, &finished.tail);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(header.file_bytes).unwrap();
    let (exit, text) = open(&path).expect_err("not the metadata");
    assert_eq!((exit, text.contains("metadata")), (Exit::Integrity, true), "{text}");
    // A manifest has room for what a container of so few tensors can have to say, and no more.
    header.metadata = metadata;
    header.manifest = Section { offset: manifest.offset, bytes: 5 << 20 };
    header.file_bytes = end + header.manifest.bytes;
    header.root = header.compute_root();
    sample.write_with(dir.path(), &skeleton, &header, &finished.tail);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(header.file_bytes).unwrap();
    assert!(open(&path).expect_err("over the limit").1.contains("at most"));
}

#[test]
fn a_text_mode_transfer_is_recognised() {
    let dir = folder();
    let path = Sample::new().write(dir.path());
    let bytes = std::fs::read(&path).unwrap();
    let text: Vec<u8> = bytes.iter().copied().filter(|b| *b != b'\r').collect();
    std::fs::write(&path, text).unwrap();
    assert!(open(&path).expect_err("damaged").1.contains("line ends"));
    std::fs::write(&path, bytes.iter().map(|b| b & 0x7f).collect::<Vec<_>>()).unwrap();
    assert!(open(&path).expect_err("damaged").1.contains("high bits"));
}

#[test]
fn every_flip_of_the_header_page_is_damage() {
    let dir = folder();
    let path = Sample::new().write(dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    for at in 0..HEADER_BYTES as usize {
        bytes[at] ^= 1 << (at % 8);
        let error = Header::parse(&bytes[..HEADER_BYTES as usize], &path).expect_err("damaged");
        assert_eq!(error.exit(), Exit::Integrity, "byte {at}: {error}");
        bytes[at] ^= 1 << (at % 8);
    }
}

#[test]
fn card_files_belong_to_their_place() {
    let dir = folder();
    let sample = Sample { split_cards: true, ..Sample::new() };
    let path = sample.write(dir.path());
    let card = |n| dir.path().join(card_file_name(INDEX, n));
    let (zero, one) = (std::fs::read(card(0)).unwrap(), std::fs::read(card(1)).unwrap());

    std::fs::write(card(0), &one).unwrap();
    std::fs::write(card(1), &zero).unwrap();
    let (exit, text) = open(&path).expect_err("swapped");
    assert_eq!(exit, Exit::Integrity);
    assert!(text.contains("it is card 1, expected card 0"), "{text}");
    let (_, faults) = Container::open_tolerant(&path).expect("the index is whole");
    assert_eq!(faults.len(), 2);

    std::fs::write(card(0), &zero).unwrap();
    std::fs::remove_file(card(1)).unwrap();
    let container = open(&path).expect("a host that needs only card 0");
    assert!(container.card(0).is_ok());
    let missing = container.card(1).expect_err("missing");
    assert_eq!(missing.exit(), Exit::Input);
    assert!(missing.to_string().contains("m.card1.gantry"), "{missing}");

    std::fs::write(card(1), &one[..one.len() - 1]).unwrap();
    assert!(open(&path).expect_err("truncated").1.contains("bytes long"));
    assert!(open(&card(0)).expect_err("no index").1.contains("one card's file"));
    let mut other = sample.clone();
    other.manifest.recipe = "q8".into();
    let dir2 = folder();
    other.write(dir2.path());
    std::fs::copy(dir2.path().join(card_file_name(INDEX, 1)), card(1)).unwrap();
    assert!(open(&path).expect_err("another container's").1.contains("another container"));
}

#[test]
fn swapped_segments_are_refused() {
    let dir = folder();
    let sample = Sample::new();
    let (skeleton, finished) = sample.finish();
    let mut header = finished.header.clone();
    let (a, b) = (header.cards[0], header.cards[1]);
    header.cards[0] = CardEntry { offset: a.offset, bytes: a.bytes, ..b };
    header.cards[1] = CardEntry { offset: b.offset, bytes: b.bytes, ..a };
    header.root = header.compute_root();
    open(&sample.write_with(dir.path(), &skeleton, &header, &finished.tail)).expect_err("swapped lines");
    let mut header = finished.header.clone();
    header.cards[0].digest = b.digest;
    header.root = header.compute_root();
    let (exit, text) =
        open(&sample.write_with(dir.path(), &skeleton, &header, &finished.tail)).expect_err("digest");
    assert_eq!(exit, Exit::Integrity);
    assert!(text.contains("card 0"), "{text}");
}
