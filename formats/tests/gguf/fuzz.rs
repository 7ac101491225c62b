//! Damage of every kind: nothing may panic, and what is accepted must keep the promises of an open file.

use crate::bytes::*;
use gantry_formats::gguf::{Gguf, GgufWriter, Header};
use proptest::prelude::*;

/// Opens `bytes` in both ways that there are, and checks what an accepted file promises.
fn fuzz_one(bytes: &[u8]) {
    let Ok(model) = Gguf::from_sources(vec![("x.gguf".into(), bytes.to_vec())]) else { return };
    let header = model.header();
    let len = bytes.len() as u64;
    assert_eq!(header.raw(), &bytes[..header.raw().len()]);
    let mut pieces = header.gaps();
    pieces.push(0..header.raw().len() as u64);
    for t in model.tensors() {
        assert!(t.range().end <= len);
        assert_eq!(model.find(t.name()).map(|found| found.index), Some(t.index));
        pieces.push(t.range());
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces.sort_by_key(|piece| piece.start);
    let mut at = 0;
    for piece in pieces {
        assert_eq!(piece.start, at, "bytes that nothing covers, or twice");
        at = piece.end;
    }
    assert_eq!(at, len);
    for entry in header.entries() {
        let value = entry.value().expect("decodes");
        assert_eq!(value.ty(), entry.ty);
        assert!(header.get(entry.key).is_some());
        if let Some(array) = value.as_array() {
            assert_eq!(array.iter().count(), array.len());
        }
        let mut again = Vec::new();
        value.encode(&mut again);
        assert_eq!(again, entry.raw);
    }
    let parsed = Header::parse(header.raw().to_vec(), len, "x.gguf").expect("the same bytes");
    assert_eq!(parsed.tensors(), header.tensors());
    let rewritten = GgufWriter::from_header(header).finish().expect("the same header");
    assert_eq!(rewritten.raw(), header.raw());
}

/// A file with a value of most kinds and three tensors.
fn rich() -> Vec<u8> {
    let mut file = good()
        .key(kv("general.alignment", U32, &32u32.to_le_bytes()))
        .key(kv("bool", BOOL, &[1]))
        .key(kv_array("bools", BOOL, 2, &[0, 1]))
        .key(kv_array("words", STR, 2, &[text(b"ab"), text(b"\xff")].concat()))
        .key(kv_array("bytes", U8, 3, &[1, 2, 3]));
    file.tensors.push(tensor(b"b", &[0, 3], F32, 64));
    file.tensors.push(tensor(b"c", &[32, 2], Q8_0, 64));
    file.data.resize(64 + 68, 0);
    file.build()
}

#[test]
fn truncated_at_every_byte() {
    let whole = rich();
    fuzz_one(&whole);
    assert!(Gguf::from_sources(vec![("x".into(), whole.clone())]).is_ok());
    for len in 0..whole.len() {
        let error = Gguf::from_sources(vec![("x".into(), whole[..len].to_vec())]).expect_err("short");
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn every_single_bit() {
    let whole = rich();
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fuzz_one(&bytes);
    }
}

#[test]
fn every_byte_at_its_extremes() {
    let whole = rich();
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            fuzz_one(&bytes);
        }
        if let Some(eight) = whole.clone().get_mut(at..at + 8) {
            for value in [u64::MAX, 1 << 63, i64::MAX as u64, u64::MAX - 31, 1 << 32] {
                eight.copy_from_slice(&value.to_le_bytes());
                let bytes = [&whole[..at], eight, &whole[at + 8..]].concat();
                fuzz_one(&bytes);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn random_damage(flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = rich();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        fuzz_one(&bytes);
    }

    #[test]
    fn random_bytes_behind_a_good_start(rest in proptest::collection::vec(any::<u8>(), 0..200), keys in 0u64..3, tensors in 0u64..3) {
        fuzz_one(&raw(tensors, keys, &rest));
        fuzz_one(&rest);
    }
}
