//! The same model in two forms, and models that differ in one thing.

use super::*;
use crate::sample::{self, Sample};
use gantry_formats::block::GgmlType;
use std::fs;
use tempfile::TempDir;

struct Room(TempDir);

impl Room {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn gguf(&self, name: &str, change: impl FnOnce(&mut Vec<sample::SourceTensorBytes>)) -> PathBuf {
        let mut tensors = sample::source();
        change(&mut tensors);
        let path = self.0.path().join(name);
        fs::write(&path, sample::gguf(&tensors, 0).1).expect("write");
        path
    }

    fn container(&self, name: &str, sample: &Sample) -> PathBuf {
        let folder = self.0.path().join(name);
        fs::create_dir(&folder).expect("new");
        sample.write(&folder)
    }
}

fn diff(a: &Path, b: &Path) -> Report {
    compare(a, b, true, 2).expect("readable")
}

#[test]
fn a_lossless_container_is_its_source() {
    let room = Room::new();
    let gguf = room.gguf("a.gguf", |_| {});
    let container = room.container("c", &Sample::lossless());
    let report = diff(&gguf, &container);
    assert!(report.is_same(), "{}", report.text(false));
    let json = report.to_json();
    assert_eq!((&json["same_tensors"], json["tensors"].as_array().map(Vec::len)), (&10.into(), Some(0)));
    assert!(json["repacked_tensors"].as_u64() > Some(0));
    assert!(diff(&container, &container).is_same());
    assert!(diff(&gguf, &gguf).is_same());
}

#[test]
fn a_requantized_tensor_has_an_error() {
    let room = Room::new();
    let (a, b) = (room.container("a", &Sample::lossless()), room.container("b", &Sample::new()));
    let report = diff(&a, &b);
    assert!(!report.is_same());
    let json = report.to_json();
    let tensor = &json["tensors"][0];
    assert_eq!(json["tensors"].as_array().map(Vec::len), Some(1));
    assert_eq!(tensor["name"], "blk.0.ffn_up.weight");
    let recorded = Sample::new().manifest.source_tensors[6].max_error.expect("recorded");
    assert_eq!(tensor["max_error"].as_f64(), Some(recorded.into()));
    assert_eq!(tensor["count"], 320);
    assert!(tensor["differing"].as_u64() > Some(200));
    assert!(report.text(false).contains("blk.0.ffn_up.weight"));
    let values = compare(&a, &b, false, 1).expect("readable");
    assert!(!values.is_same(), "the type differs");
}

#[test]
fn added_removed_and_reshaped_tensors_and_keys() {
    let room = Room::new();
    let a = room.gguf("a.gguf", |_| {});
    let b = room.gguf("b.gguf", |t| {
        t[0].0 = "new.weight";
        t[1].2 = vec![32, 2];
        t[2].3[2] ^= 1;
        t[6].1 = GgmlType::F32;
        t[6].3 = sample::floats(GgmlType::BF16, &t[6].3).iter().flat_map(|v| v.to_le_bytes()).collect();
    });
    let json = diff(&a, &b).to_json();
    let rows: Vec<(&str, &str)> = json["tensors"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|t| (t["name"].as_str().unwrap_or_default(), t["status"].as_str().unwrap_or_default()))
        .collect();
    let want = [
        ("token_embd.weight", "removed"),
        ("output_norm.weight", "changed"),
        ("blk.0.attn_q.weight", "changed"),
        ("blk.0.ffn_up.weight", "changed"),
        ("new.weight", "added"),
    ];
    assert_eq!(rows, want);
    assert_eq!(json["tensors"][2]["differing"], 1);
    assert_eq!(json["tensors"][3]["differing"], 0, "another type, the same values");
    let text = diff(&a, &b).text(false);
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
}

#[test]
fn a_changed_key_is_named() {
    let room = Room::new();
    let mut sample = Sample::lossless();
    let header = &mut sample.metadata.shards[0].header;
    let at = header.windows(6).position(|w| w == b"Sample").expect("there");
    header[at] = b'T';
    let (a, b) = (room.container("a", &Sample::lossless()), room.container("b", &sample));
    let report = diff(&a, &b);
    let json = report.to_json();
    assert_eq!(json["metadata"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["metadata"][0]["key"], "general.name");
    assert_eq!(
        (&json["metadata"][0]["a"], &json["metadata"][0]["b"]),
        (&"\"Sample\"".into(), &"\"Tample\"".into())
    );
    assert!(json["packing"].as_array().is_some_and(|p| p.iter().any(|c| c["key"] == "root")));
    assert!(!report.is_same());
}
