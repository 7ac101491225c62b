//! One file per broken rule, each different from a good one in one respect, with the words that the message must
//! have. The names are those of the project's list of odd inputs.

use crate::bytes::*;
use gantry_formats::exit::{Exit, ExitCode};
use gantry_formats::gguf::{Gguf, GgufError, Value};

fn open(bytes: Vec<u8>) -> Result<Gguf<Vec<u8>>, GgufError> {
    Gguf::from_sources(vec![("x.gguf".into(), bytes)])
}

#[track_caller]
fn refused(name: &str, bytes: Vec<u8>, words: &[&str]) {
    let Err(error) = open(bytes) else { panic!("{name} was accepted") };
    let said = error.to_string();
    for word in words.iter().chain(&["x.gguf: "]) {
        assert!(said.contains(word), "{name}: expected {word:?} in {said:?}");
    }
    assert_eq!(error.exit(), Exit::Input, "{name}");
}

#[track_caller]
fn accepted(name: &str, bytes: Vec<u8>) -> Gguf<Vec<u8>> {
    open(bytes).unwrap_or_else(|error| panic!("{name} was refused: {error}"))
}

#[test]
fn good() {
    let file = accepted("g00_ok", crate::bytes::good().build());
    let t = file.find("a.weight").expect("there");
    assert_eq!((t.dims(), t.elements, t.bytes, t.range()), (&[32][..], 32, 64, 128..192));
    assert_eq!(file.header().architecture(), Some(&b"llama"[..]));
    let mut v2 = crate::bytes::good();
    v2.version = 2;
    assert_eq!(accepted("version 2", v2.build()).header().version(), 2);
}

#[test]
fn header() {
    refused("h01_empty", vec![], &["empty"]);
    refused("h02_magic_only", b"GGUF".to_vec(), &["truncated header"]);
    let page = &b"<!doctype html><html><body>429 Too Many Requests</body></html>"[..];
    refused("h03_html", page.to_vec(), &["HTML page, not GGUF"]);
    refused("h03 after blanks", [b"\xef\xbb\xbf \r\n", page].concat(), &["HTML page, not GGUF"]);
    let mut pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:".to_vec();
    pointer.extend([b'0'; 64]);
    pointer.extend(b"\nsize 123\n");
    refused("h04_lfs_pointer", pointer, &["git-lfs pointer"]);
    let big = [&b"GGUF"[..], &3u32.to_be_bytes(), &[0; 16]].concat();
    refused("h05_big_endian", big, &["big-endian"]);
    let v1 = [&b"GGUF"[..], &1u32.to_le_bytes(), &[0; 8]].concat();
    refused("h06_v1", v1, &["version 1"]);
    for (version, word) in [(4, "version 4"), (0, "version 0"), (u32::MAX, "version 4294967295")] {
        let mut file = crate::bytes::good();
        file.version = version;
        refused("h07_v4", file.build(), &[word]);
    }
    refused("h08_nkv_2e32", raw(0, 1 << 32, &[]), &["metadata count", "4294967296"]);
    refused("h08 within the limit", raw(0, 1000, &[0; 64]), &["metadata count"]);
    refused("tensors 2e63", raw(1 << 63, 0, &[]), &["tensor count"]);
    refused("tensors within the limit", raw(1000, 0, &[0; 64]), &["tensor count"]);
    refused("h10_keylen_huge", raw(0, 1, &0xFFFF_FFFF_FFFF_u64.to_le_bytes()), &["key length"]);
    let long = kv(&"k".repeat(65_536), U8, &[0]);
    refused("key of 65,536 bytes", crate::bytes::good().key(long).build(), &["key length", "65535"]);
    accepted("key of 65,535 bytes", crate::bytes::good().key(kv(&"k".repeat(65_535), U8, &[0])).build());
    refused("h12_empty_key", raw(0, 1, &kv("", U8, &[0])), &["empty key"]);
    refused("h14_arrlen_2e63", raw(0, 1, &kv_array("x", U8, 1 << 63, &[])), &["array length"]);
    refused("string array 2e61", raw(0, 1, &kv_array("x", STR, 1 << 61, &[])), &["array length"]);
    refused(
        "string 137 GB",
        raw(0, 1, &kv("x", STR, &(1u64 << 37).to_le_bytes())),
        &["string length", "`x`"],
    );
    let strings = kv_array("x", STR, 2, &[&text(b"a")[..], &u64::MAX.to_le_bytes()].concat());
    refused("second string of an array", raw(0, 1, &strings), &["string length", "`x`"]);
    refused("h15_kv_type_13", raw(0, 1, &kv("x", 13, &[0; 8])), &["value type 13"]);
    refused("array of type 13", raw(0, 1, &kv_array("x", 13, 0, &[])), &["value type 13"]);
    let inner = [&U8.to_le_bytes()[..], &1u64.to_le_bytes(), &[7]].concat();
    let nested = kv_array("x", ARR, 2, &inner.repeat(2));
    refused("h16_arr_of_arr", crate::bytes::good().key(nested).build(), &["nested array"]);
    let one = [&ARR.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    refused("h17_arr_depth_3000", raw(0, 1, &kv("x", ARR, &one.repeat(3000))), &["nested array"]);
    refused("h18_bool_2", crate::bytes::good().key(kv("x", BOOL, &[2])).build(), &["bool", "`x`"]);
    let bools = kv_array("x", BOOL, 3, &[1, 0, 3]);
    refused("bool 3 in an array", crate::bytes::good().key(bools).build(), &["bool 3", "`x`"]);
    refused("h19_dup_key", crate::bytes::good().key(arch()).build(), &["duplicate key"]);
    let mut bare = crate::bytes::good();
    bare.kvs.clear();
    refused("h23_no_arch", bare.build(), &["general.architecture"]);
    let matrix = bare.clone().key(kv_str("general.type", b"imatrix"));
    assert!(accepted("an imatrix needs none", matrix.build()).is_imatrix());
    refused(
        "a model does",
        bare.clone().key(kv_str("general.type", b"model")).build(),
        &["general.architecture"],
    );
    let number = bare.key(kv("general.architecture", U32, &[0; 4]));
    refused("architecture is a number", number.build(), &["general.architecture"]);
}

#[test]
fn odd_but_good_values() {
    let file = crate::bytes::good().key(kv_str("general.name", b"caf\xe9"));
    let file = accepted("h21_value_not_utf8", file.build());
    assert_eq!(file.get("general.name"), Some(Value::Str(b"caf\xe9")));
    let tokens = [text(b"\xff"), text(b""), text(b"\xe2\x96")].concat();
    let file = crate::bytes::good().key(kv_array("tokenizer.ggml.tokens", STR, 3, &tokens));
    let file = accepted("h22_token_bytes", file.build());
    let array = file.get("tokenizer.ggml.tokens").and_then(|v| v.as_array()).expect("an array");
    let strings: Vec<&[u8]> = array.strings().expect("of strings").collect();
    assert_eq!(strings, [&b"\xff"[..], b"", b"\xe2\x96"]);
    assert_eq!(array.get(2), Some(Value::Str(b"\xe2\x96")));
    assert_eq!(array.get(3), None);
}

#[test]
fn other_files() {
    for (bytes, word) in [
        (&b"PK\x03\x04\x00\x00\x08\x08"[..], "zip archive"),
        (b"lmggxxxx", "before GGUF"),
        (b"\x10\0\0\0\0\0\0\0{\"a\":1}", "safetensors"),
        (b"<?xml version='1.0'?><Error>", "XML document"),
        (b"GG", "truncated header"),
        (b"GGU\0aaaaaaaa", "not a GGUF"),
        (b"\0\0\0\0", "00 00 00 00"),
    ] {
        refused(word, bytes.to_vec(), &[word]);
    }
}

#[test]
fn alignment() {
    let with = |align: u32| {
        let mut file = crate::bytes::good().key(kv("general.alignment", U32, &align.to_le_bytes()));
        file.align = (align as usize).clamp(1, 1 << 12);
        file
    };
    refused("a01_align_0", with(0).build(), &["general.alignment"]);
    refused("a02_align_24", with(24).build(), &["general.alignment is 24"]);
    assert_eq!(accepted("a04_align_64", with(64).build()).header().alignment(), 64);
    assert_eq!(accepted("alignment 1", with(1).build()).header().alignment(), 1);
    refused("alignment 2 GiB", with(1 << 31).build(), &["a.weight"]);
    let short = crate::bytes::good().key(kv("general.alignment", U16, &[32, 0]));
    refused("u16", short.build(), &["general.alignment", "u16"]);
    let mut two = with(64);
    two.tensors.push(tensor(b"b.weight", &[16], BF16, 64));
    two.data = ones(48);
    accepted("second at 64", two.build());
    two.tensors.push(tensor(b"c.weight", &[16], BF16, 96));
    two.data = ones(96);
    refused("third at 96", two.build(), &["c.weight", "96", "128"]);
}

#[test]
fn tensor_table() {
    let two = |second: Vec<u8>, data: usize| {
        let mut file = crate::bytes::good();
        file.tensors.push(second);
        file.data = ones(data);
        file.build()
    };
    let one = |dims: &[u64], ty| crate::bytes::good().with(dims, ty, 0, ones(32)).build();
    refused(
        "t01_dup_tensor",
        two(tensor(b"a.weight", &[32], BF16, 64), 64),
        &["duplicate tensor `a.weight`"],
    );
    refused("t02_overlap", two(tensor(b"b.weight", &[32], BF16, 32), 128), &["b.weight", "32", "64"]);
    refused("t03_hole", two(tensor(b"b.weight", &[32], BF16, 96), 96), &["b.weight", "96", "64"]);
    refused("backwards", two(tensor(b"b.weight", &[32], BF16, 0), 96), &["b.weight"]);
    let far = crate::bytes::good().with(&[32], BF16, 1 << 40, ones(32));
    refused("t05_offset_1e40", far.build(), &["a.weight"]);
    let whole = crate::bytes::good().build();
    refused("t07_short_by_1", whole[..whole.len() - 1].to_vec(), &["a.weight", "192", "191", "truncated"]);
    refused("t08_no_data", whole[..128].to_vec(), &["a.weight"]);
    refused("no padding", crate::bytes::good().header(), &["a.weight"]);
    let single = accepted("t10_ndims_0", crate::bytes::good().with(&[], BF16, 0, ones(1)).build());
    assert_eq!(single.tensor(0).map(|t| (t.elements, t.bytes, t.rows())), Some((1, 2, 1)));
    refused("t11_ndims_5", one(&[32, 1, 1, 1, 1], BF16), &["a.weight", "5 dimensions"]);
    accepted("four dimensions", one(&[8, 2, 1, 2], BF16));
    let mut empty = crate::bytes::good();
    empty.tensors.insert(0, tensor(b"z", &[0], F32, 0));
    let empty = accepted("t13_dim_0", empty.build());
    assert_eq!(empty.find("z").map(|t| (t.elements, t.bytes, t.rows(), t.row_bytes())), Some((0, 0, 0, 0)));
    accepted("[32, 0]", one(&[32, 0], Q8_0));
    refused("t14_dim_2e63", one(&[1 << 63], BF16), &["a.weight"]);
    refused("t15_wrap_elems", one(&[1 << 32, 1 << 32], BF16), &["a.weight"]);
    refused("wrap to a small number", one(&[1 << 32, 1 << 31, 2, 1], F32), &["a.weight", "64 bits"]);
    refused("t17_dim_2e42p1", one(&[(1 << 42) + 1], F32), &["a.weight"]);
    refused("t18_type_999", one(&[32], 999), &["a.weight", "999"]);
    refused("t19_type_removed_4", one(&[32], 4), &["a.weight", "4 (Q4_2)", "removed"]);
    accepted("t21_bf16_row_48", crate::bytes::good().with(&[48], BF16, 0, ones(48)).build());
    refused("Q8_0 row of 48", one(&[48], Q8_0), &["a.weight", "48", "multiple of 32"]);
    refused("Q8_0 rows of 16, two of them", one(&[16, 2], Q8_0), &["a.weight", "multiple of 32"]);
    for (length, word) in [(64u64, "name of 64"), (1 << 40, "name of 1099511627776")] {
        let mut file = crate::bytes::good();
        file.tensors = vec![[&length.to_le_bytes()[..], &[b'n'; 64]].concat()];
        refused("t22_name_64", file.build(), &[word]);
    }
    let mut long = crate::bytes::good();
    long.tensors = vec![tensor(&[0xff; 63], &[32], BF16, 0)];
    assert!(accepted("63 bytes that are not text", long.build()).find([0xff; 63]).is_some());
    let mut more = crate::bytes::good();
    more.tensor_count = Some(2);
    refused("t25_count_one_more", more.build(), &["tensor"]);
    let mut bare = crate::bytes::good();
    bare.tensors.clear();
    bare.data.clear();
    assert_eq!(accepted("no tensor", bare.header()).tensor_count(), 0);
}

#[test]
fn values_are_not_looked_at() {
    let value = |data: Vec<u8>, ty| {
        let mut file = crate::bytes::good();
        file.tensors = vec![tensor(b"blk.0.ffn_down.weight", &[32, 2], ty, 0)];
        file.data = data;
        accepted("a value", file.build())
    };
    for first in [0x0000u16, 0x42fe, 0x4afe, 0x367e, 0x02fe, 0x7f80, 0x7fc0] {
        let mut data = ones(64);
        data[..2].copy_from_slice(&first.to_le_bytes());
        let file = value(data, BF16);
        let mut two = [0; 2];
        let t = file.tensor(0).expect("there");
        file.read_tensor(&t, 0, &mut two).expect("readable");
        assert_eq!(u16::from_le_bytes(two), first);
        assert!(file.read_tensor(&t, 127, &mut two).is_err());
    }
    value([&[0x00, 0x7e], &[1; 32][..], &[0x00, 0xbc], &[0x80; 32]].concat(), Q8_0);
}

#[test]
fn gaps_cover_what_nothing_else_does() {
    let mut file = crate::bytes::good().with(&[3], F32, 0, vec![0; 12]);
    let unpadded = accepted("cut after the last tensor", file.build());
    let end = file.header().len() as u64;
    assert_eq!(unpadded.shards()[0].gaps(), vec![end..128; 1]);
    file.data.extend([7; 100]);
    file.tensors.push(tensor(b"b", &[0], F32, 32));
    file.tensors.push(tensor(b"c", &[1], F32, 32));
    let trailing = accepted("bytes after the last tensor", file.build());
    let start = trailing.header().data_offset();
    let end = file.header().len() as u64;
    assert_eq!(trailing.shards()[0].gaps(), [end..start, start + 12..start + 32, start + 36..start + 112]);
}
