//! A small SentencePiece vocabulary that can write any text: bytes, printable characters, frequent English pieces.

use gantry_formats::gguf::{GgufWriter, OwnedArray, OwnedValue};

/// Types of tokens in `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// What SentencePiece writes for a space.
const SPACE: char = '\u{2581}';

/// Frequent pieces; each also stands behind a space.
const PIECES: &str = "e t a o i n s r h l d c u m f p g w y b v k th he in er an re on at en nd ti es or te of ed is it al \
    ar st to nt ng ing and the ion ent ter was you ere his her that with for not have from this they will would there \
    their what about which when were been more one all out who them some could time than then now only its over also";

/// Special tokens, bytes, and printable characters: what a vocabulary must have room for.
pub(super) const LEAST: u64 = 3 + 256 + 1 + 94;

/// More tokens than any model has.
pub(super) const MOST: u64 = 1 << 24;

/// Adds a tokenizer of `size` tokens, padded with unused ones.
pub(super) fn add(writer: &mut GgufWriter, size: u64) {
    let mut list: Vec<(String, f32, i32)> = Vec::new();
    for (text, ty) in [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)] {
        list.push((text.into(), 0.0, ty));
    }
    list.extend((0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), 0.0, BYTE)));
    let printable = (33..127u8).map(|byte| char::from(byte).to_string());
    let behind = PIECES.split_whitespace().map(|piece| format!("{SPACE}{piece}"));
    let longer = PIECES.split_whitespace().filter(|piece| piece.len() > 1).map(str::to_string);
    let pieces = std::iter::once(SPACE.to_string()).chain(printable).chain(behind).chain(longer);
    // Pieces merge in order of their scores, earlier ones first.
    list.extend(pieces.enumerate().map(|(i, piece)| (piece, -(i as f32), NORMAL)));
    list.truncate(size as usize);
    let pad = (list.len() as u64..size).enumerate();
    list.extend(pad.map(|(i, _)| (format!("<unused{i}>"), -1e6, UNUSED)));

    let mut set = |key: &str, value: OwnedValue| {
        writer.set(format!("tokenizer.ggml.{key}"), value.view());
    };
    set("model", "llama".into());
    set("pre", "default".into());
    set("tokens", OwnedArray::new(list.iter().map(|t| t.0.as_str())).into());
    set("scores", OwnedArray::new(list.iter().map(|t| t.1)).into());
    set("token_type", OwnedArray::new(list.iter().map(|t| t.2)).into());
    set("unknown_token_id", 0u32.into());
    set("bos_token_id", 1u32.into());
    set("eos_token_id", 2u32.into());
    set("add_bos_token", true.into());
    set("add_eos_token", false.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_formats::gguf::Header;
    use std::collections::BTreeSet;

    fn tokens(header: &Header) -> Vec<&[u8]> {
        let list = header.get("tokenizer.ggml.tokens").and_then(|v| v.as_array());
        list.and_then(|list| list.strings()).expect("tokens").collect()
    }

    #[test]
    fn tokens_differ_and_bytes_are_there_in_any_size() {
        for size in [LEAST, 512, 3000] {
            let mut writer = GgufWriter::new(3);
            add(&mut writer, size);
            let header = writer.finish().expect("a header");
            let list = tokens(&header);
            assert_eq!(list.len() as u64, size);
            assert_eq!(list.iter().collect::<BTreeSet<_>>().len() as u64, size);
            for text in ["<0x00>", "<0xFF>", "\u{2581}", "!", "~"] {
                assert!(list.contains(&text.as_bytes()), "{text} in {size}");
            }
        }
    }
}
