//! Containers that this program is too old for, or that say they cannot run: refused by their index, before a weight
//! is read.
#![cfg(feature = "cli")]
#![allow(missing_docs)]

mod oracle;
mod packing;

use assert_cmd::Command;
use gantry_formats::arch;
use gantry_formats::container::Manifest;
use gantry_formats::exit::{Exit, ExitCode};
use gantry_runtime::{Container, Device, Model, ModelOptions, RuntimeError};
use oracle::Config;
use packing::How;
use std::path::Path;

/// A container whose manifest says what `edit` makes of it, and whose weights are all damaged: whoever reads one of
/// them says so.
fn damaged(dir: &Path, edit: fn(&mut Manifest)) -> std::path::PathBuf {
    let config = Config { vocab: 300, tokenizer: true, ..Config::default() };
    let model = oracle::Model::random(config, 21);
    let path = packing::pack(dir, &model.header, &model.tensors, &How { edit, ..How::default() });
    let card = Container::open(&path).unwrap().header().cards[0];
    let mut bytes = std::fs::read(&path).unwrap();
    for byte in &mut bytes[card.offset as usize..(card.offset + card.bytes) as usize] {
        *byte ^= 0x55;
    }
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Exit code and message of every command that computes.
fn refusals(path: &Path) -> Vec<(Option<i32>, String)> {
    let out = path.with_extension("f32");
    let text = path.with_extension("txt");
    std::fs::write(&text, "a text of some words").unwrap();
    let (path, out, text) = (path.to_str().unwrap(), out.to_str().unwrap(), text.to_str().unwrap());
    let commands: [&[&str]; 4] = [
        &[path, "-p", "a"],
        &["logits", path, "--tokens", "1", "--out", out],
        &["perplexity", path, "--text", text, "-c", "8"],
        &["bench", path],
    ];
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gantry-run"));
        let output = command.args(args).assert().failure().get_output().clone();
        assert!(output.stdout.is_empty());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    commands.map(run).to_vec()
}

#[test]
fn damage_is_seen_where_nothing_else_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    for (code, said) in refusals(&damaged(dir.path(), |_| ())) {
        assert_eq!(code, Some(4), "{said}");
    }
}

#[test]
fn a_later_version_of_an_architecture_is_refused_before_a_weight_is_read() {
    let known = arch::find("llama").unwrap().version;
    let dir = tempfile::tempdir().unwrap();
    for (version, edit) in [
        (
            known + 1,
            (|m| m.model.arch_version = arch::find("llama").unwrap().version + 1) as fn(&mut Manifest),
        ),
        (u32::MAX, |m| m.model.arch_version = u32::MAX),
    ] {
        let path = damaged(dir.path(), edit);
        let container = Container::open(&path).unwrap();
        let error = Model::load(&container, &Device::cpu(Some(1)).unwrap(), &ModelOptions::default());
        let error = error.expect_err("a later version");
        assert_eq!(error.exit(), Exit::Incompatible, "{error}");
        for (code, said) in refusals(&path) {
            assert_eq!(code, Some(5), "{said}");
            for part in ["llama", &version.to_string(), &known.to_string()] {
                assert!(said.contains(part), "{part}: {said}");
            }
        }
    }
}

#[test]
fn what_is_marked_as_incomplete_is_refused_before_a_weight_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = damaged(dir.path(), |m| {
        m.model.complete = false;
        m.model.incomplete = vec!["a block is missing".into()];
    });
    for (code, said) in refusals(&path) {
        assert_eq!(code, Some(5), "{said}");
        assert!(said.contains("a block is missing"), "{said}");
    }
    let container = Container::open(&path).unwrap();
    let error = gantry_runtime::model::plan(&container, 8).expect_err("incomplete");
    assert!(matches!(error, RuntimeError::Incompatible(_)), "{error}");
}
