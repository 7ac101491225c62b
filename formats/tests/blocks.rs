//! Block codecs against PyPI's `gguf`, bit for bit; see `fixtures/make_blocks.py`.

use gantry_formats::block::{GgmlType, dequantize, fp16, iq3xxs_grid, q8_0};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

/// The SHA-256 in lower-case hex.
fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_e8_codebook_is_the_published_one() {
    assert_eq!(
        sha256(iq3xxs_grid().as_flattened()),
        "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d"
    );
}

#[test]
fn the_codebook_file_is_the_generated_one() {
    assert_eq!(
        sha256(include_bytes!("../src/block/grids.bin")),
        "73200ae7c65920e044fd65660b5c6ef66d2bdd99c3e9897a1e32eadd1d7d21f2"
    );
}

#[test]
fn every_type_decodes_as_gguf_does() {
    let mut rest: &[u8] = include_bytes!("data/blocks.bin");
    let mut seen = BTreeSet::new();
    while !rest.is_empty() {
        let mut word = || {
            let (word, tail) = rest.split_first_chunk::<4>().expect("a whole record");
            rest = tail;
            u32::from_le_bytes(*word)
        };
        let (id, count, len, size) = (word(), word() as usize, word() as usize, word() as usize);
        let ty = GgmlType::from_id(id).expect("a type in use");
        assert_eq!((ty.block_len(), ty.block_bytes()), (len as u64, size as u64), "{ty}");
        let (blocks, tail) = rest.split_at(count * size);
        let (values, tail) = tail.split_at(4 * count * len);
        rest = tail;
        let mut out = vec![0.0; count * len];
        dequantize(ty, blocks, &mut out).expect("whole blocks");
        for (i, (got, want)) in out.iter().zip(values.as_chunks::<4>().0).enumerate() {
            let want = f32::from_le_bytes(*want);
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{ty} block {} value {}: {got:e}, want {want:e}", i / len, i % len);
        }
        seen.insert(ty);
    }
    assert_eq!(seen, GgmlType::ALL.iter().copied().collect());
}

/// `tensor` of the generator script.
fn tensor(n: usize) -> Vec<f32> {
    let mut state = 1_u64;
    (0..n)
        .map(|i| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (m, block) = ((state >> 40) as i32, (i / 32) as i32);
            match (block % 3, i % 32) {
                (0, 0) => 127.0,
                (0, _) => (m % 509 - 254) as f32 * 0.5,
                _ => (m - (1 << 23)) as f32 * 2.0_f32.powi(block * 7 % 41 - 45),
            }
        })
        .collect()
}

#[test]
fn quantized_q8_0_is_gguf_s() {
    let facts: serde_json::Value =
        serde_json::from_str(include_str!("data/q8_0.json")).expect("the generator writes JSON");
    let x = tensor(facts["values"].as_u64().expect("a count") as usize);
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(facts["f32"], sha256(&bytes), "the same tensor");
    let quantized = |x: &[f32]| {
        let blocks = x.as_chunks::<{ q8_0::LEN }>().0.iter();
        let bytes: Vec<u8> =
            blocks.flat_map(|x| q8_0::quantize_block(x).expect("finite").to_bytes()).collect();
        sha256(&bytes)
    };
    assert_eq!(facts["q8_0 of f32"], quantized(&x));
    let narrow: Vec<f32> = x.iter().map(|x| fp16::bf16_to_f32((x.to_bits() >> 16) as u16)).collect();
    assert_eq!(facts["q8_0 of bf16"], quantized(&narrow));
}
