//! Containers whose manifest was changed and hashed again: whatever the numbers, every verb ends with an answer.

use crate::sample::Sample;
use crate::verify::{Depth, examine};
use crate::{diff, export, inspect};
use gantry_formats::container::Manifest;
use serde_json::Value;
use std::path::Path;

/// Every number in a document, by the path that leads to it.
fn numbers(value: &Value, path: &str, out: &mut Vec<String>) {
    match value {
        Value::Number(_) => out.push(path.into()),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, v)| numbers(v, &format!("{path}/{i}"), out))
        }
        Value::Object(map) => map.iter().for_each(|(k, v)| numbers(v, &format!("{path}/{k}"), out)),
        _ => {}
    }
}

#[test]
fn no_number_in_a_manifest_brings_a_verb_down() {
    let dir = tempfile::tempdir().expect("a folder");
    let sample = Sample::new();
    let document = serde_json::to_value(&sample.manifest).expect("JSON");
    let mut places = Vec::new();
    numbers(&document, "", &mut places);
    assert!(places.len() > 100, "{}", places.len());
    let mut opened = 0;
    for place in &places {
        let old = document.pointer(place).and_then(Value::as_u64).unwrap_or(0);
        for new in [0, 1, old + 1, old.wrapping_sub(1), 1 << 31, u32::MAX.into(), 1 << 40, 1 << 63, u64::MAX]
        {
            let mut changed = document.clone();
            *changed.pointer_mut(place).expect("there") = new.into();
            let Ok(manifest) = serde_json::from_value::<Manifest>(changed) else { continue };
            let path = Sample { manifest, ..sample.clone() }.write(dir.path());
            let Ok(report) = examine(&path, Depth::Full, 1) else { continue };
            opened += 1;
            assert!(report.damage.is_empty(), "{place} = {new}");
            use_it(&path, dir.path());
        }
    }
    assert!(opened > 100, "{opened} of them are legal");
}

/// Runs the verbs for what they do to memory and arithmetic; their answers do not matter.
fn use_it(path: &Path, folder: &Path) {
    let out = folder.join("out.gguf");
    let _ = export::quietly(path, &out);
    let _ = std::fs::remove_file(&out);
    let _ = diff::quietly(path, path);
    for name in ["token_embd.weight", "blk.0.attn_qkv.weight", "blk.0.ffn_down_exps.weight"] {
        let _ = inspect::quietly(path, name);
    }
}
