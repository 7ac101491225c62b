//! The views, of the sample as a container and as a GGUF.

use super::*;
use crate::sample::Sample;
use gantry_formats::block::GgmlType;
use gantry_formats::gguf::{GgufWriter, Value};
use std::path::Path;

struct Room {
    _dir: tempfile::TempDir,
    container: Opened,
    gguf: Opened,
}

fn room(sample: &Sample) -> Room {
    let dir = tempfile::tempdir().expect("a folder");
    let path = sample.write(dir.path());
    let gguf = dir.path().join("sample.gguf");
    std::fs::write(&gguf, &sample.gguf).expect("write");
    let container = Opened::open(&path).expect("a container");
    Room { container, gguf: Opened::open(&gguf).expect("a GGUF"), _dir: dir }
}

fn summary(opened: &Opened) -> (String, serde_json::Value) {
    let headers = opened.headers();
    let memory = memory::estimate(opened, headers[0], Some(100), Some(KvType::F16));
    let summary = summary::of(opened, &headers, &items::of(opened), memory, Path::new("m"));
    (summary.text(), serde_json::to_value(&summary).expect("JSON"))
}

#[track_caller]
fn assert_narrow(text: &str) {
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
}

#[test]
fn summaries() {
    let room = room(&Sample::new());
    let (text, json) = summary(&room.container);
    assert_narrow(&text);
    for word in [
        "Sample, llama",
        "recipe lossless",
        "output.weight = token_embd.weight",
        "a warning",
        "none",
        "not run",
    ] {
        assert!(text.contains(word), "{word:?} not in {text}");
    }
    assert_eq!(json["by_layout"].as_array().map(Vec::len), Some(5));
    assert_eq!(json["container"]["requantized_tensors"], 1);
    let total =
        |key: &str| json[key].as_array().map(|t| t.iter().filter_map(|t| t["bytes"].as_u64()).sum::<u64>());
    assert_eq!(total("by_layout"), total("by_role"));
    assert_eq!(total("by_layout"), total("by_layers"));
    assert_eq!(total("by_layout"), total("by_card"));
    // One layer, whose attention has parts on both cards: 2 heads × (32 + 32) values × 2 bytes × 100 positions.
    let cards = json["memory"]["cards"].as_array().expect("cards");
    assert_eq!(cards.iter().filter_map(|c| c["kv_bytes"].as_u64()).sum::<u64>(), 2 * 64 * 2 * 100);
    let (text, json) = summary(&room.gguf);
    assert_narrow(&text);
    assert_eq!(json["parameters"], 640 + 64 + 512 + 256 + 192 + 512 + 320 + 576 + 384);
    assert_eq!(json["memory"]["cards"][0]["kv_bytes"], 2 * 64 * 2 * 100);
}

#[test]
fn lists_are_sorted_and_filtered() {
    let room = room(&Sample::new());
    let names = |filter: Option<&str>, sort| {
        let list = tensors::select(items::of(&room.container), filter, sort);
        assert_narrow(&tensors::text(&list));
        list.into_iter().map(|i| i.name.into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(None, Sort::Offset).len(), 10);
    assert_eq!(names(None, Sort::Bytes)[0], "token_embd.weight");
    assert_eq!(names(Some("*_exps*"), Sort::Name).len(), 4);
    assert_eq!(
        names(Some("blk.?.attn_*"), Sort::Name),
        ["blk.0.attn_output.weight", "blk.0.attn_qkv.weight"]
    );
    assert_eq!(names(None, Sort::Layer)[0], "output_norm.weight");
    assert_eq!(names(None, Sort::Type)[0], "blk.0.attn_output.weight");
    let json = tensors::to_json(&tensors::select(items::of(&room.gguf), None, Sort::Offset));
    assert_eq!(json["tensors"][0]["layout"], "BF16");
}

#[test]
fn metadata_keeps_what_json_cannot_hold() {
    let room = room(&Sample::new());
    let headers = room.container.headers();
    let rows = metadata::rows(&headers, None);
    assert_narrow(&metadata::text(&rows, false));
    let json = metadata::to_json(&metadata::rows(&headers, Some("sample.*")), false);
    assert_eq!(json["metadata"][0]["value"], "\\xff\\xfe");
    assert_eq!(json["metadata"][1]["value"], "NaN");
    assert_eq!(json["metadata"].as_array().map(Vec::len), Some(2));
    assert!(metadata::text(&rows, true).contains("general.name str \"Sample\""));
}

#[test]
fn a_tensor_without_values_may_claim_any_number_of_experts() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.gguf");
    let mut writer = GgufWriter::new(3);
    writer.set("general.architecture", Value::Str(b"other"));
    writer.tensor("blk.0.ffn_up_exps.weight", &[0, 1, 1 << 60], GgmlType::F32).expect("a tensor");
    let header = writer.finish().expect("a header");
    let mut bytes = header.raw().to_vec();
    bytes.resize(header.file_len() as usize, 0);
    std::fs::write(&path, bytes).expect("write");
    let opened = Opened::open(&path).expect("a GGUF");
    let view = tensor::view(&opened, "blk.0.ffn_up_exps.weight", false).expect("there").to_json();
    assert_eq!(view["values"]["count"], 0);
}

#[test]
fn one_tensor_in_every_form() {
    let room = room(&Sample::lossless());
    let view = |opened: &Opened, name: &str| tensor::view(opened, name, false).expect("there");
    for name in
        ["token_embd.weight", "blk.0.attn_k.weight", "blk.0.ffn_down_exps.weight", "blk.0.empty.weight"]
    {
        let (a, b) = (view(&room.container, name), view(&room.gguf, name));
        assert_eq!(a.to_json()["values"], b.to_json()["values"], "{name}");
        assert_eq!(a.to_json()["experts"], b.to_json()["experts"], "{name}");
        assert_narrow(&a.text());
        assert_narrow(&b.text());
    }
    let fused = view(&room.container, "blk.0.attn_qkv.weight").to_json();
    assert_eq!(fused["values"]["count"], 15 * 64);
    assert_eq!(fused["places"].as_array().map(Vec::len), Some(3));
    assert_eq!(fused["scales"][0]["blocks"], 30);
    let alias = view(&room.container, "output.weight").to_json();
    assert_eq!((&alias["alias"], &alias["name"]), (&"output.weight".into(), &"token_embd.weight".into()));
    let experts = view(&room.container, "blk.0.ffn_gate_exps.weight").to_json();
    assert_eq!(experts["experts"].as_array().map(Vec::len), Some(3));
    assert_eq!(experts["places"][1]["stored"], "blk.0.ffn_gate_exps.weight expert 1");
    let error = tensor::view(&room.gguf, "nothing", false).map(|_| ()).expect_err("no such tensor");
    assert!(error.to_string().contains("--tensors"));
}
