//! Loading: every fault is found before a weight is used, and named.
#![allow(missing_docs)]

mod oracle;
mod packing;

use gantry_formats::block::GgmlType;
use gantry_formats::container::{Alignment, card_file_name};
use gantry_formats::exit::{Exit, ExitCode};
use gantry_runtime::{Container, Device, LoadMode, Model, ModelOptions, Result, RuntimeError, Verify};
use oracle::Config;
use packing::How;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

fn small() -> Config {
    Config { vocab: 32, embd: 32, heads: 2, kv: 1, head: 16, ff: 32, layers: 1, ..Config::default() }
}

fn write(dir: &Path, config: Config, how: &How) -> PathBuf {
    let model = oracle::Model::random(config, 11);
    packing::pack(dir, &model.header, &model.tensors, how)
}

/// One for all: thousands of damaged files are tried.
fn device() -> &'static Device {
    static DEVICE: LazyLock<Device> = LazyLock::new(|| Device::cpu(Some(2)).unwrap());
    &DEVICE
}

fn load(path: &Path, options: &ModelOptions) -> Result<Model> {
    Model::load(&Container::open(path)?, device(), options)
}

fn refused(how: &How, config: Config) -> RuntimeError {
    let dir = tempfile::tempdir().unwrap();
    load(&write(dir.path(), config, how), &ModelOptions::default()).unwrap_err()
}

const MODES: [LoadMode; 2] = [LoadMode::Read, LoadMode::Map];

#[test]
fn each_flipped_byte_is_found_in_both_modes() {
    let dir = tempfile::tempdir().unwrap();
    let how = How { alignment: Alignment { segment: 1024, blob: 64, tensor: 32 }, ..How::default() };
    let path = write(dir.path(), small(), &how);
    let good = std::fs::read(&path).unwrap();
    let weights = Container::open(&path).unwrap().header().cards[0];
    let inside = weights.offset as usize..(weights.offset + weights.bytes) as usize;
    // Everything outside the weights, and every 7th byte of them.
    let outside = (0..good.len()).filter(|i| !inside.contains(i) && i % 3 == 0);
    for at in inside.clone().step_by(7).chain(outside) {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        std::fs::write(&path, &bad).unwrap();
        for mode in MODES {
            let error = load(&path, &ModelOptions { load: mode, ..ModelOptions::default() });
            let error = error.err().unwrap_or_else(|| panic!("byte {at} was not found ({mode:?})"));
            // Magic and version are read before the root, and say what they seem to be.
            let exit = error.exit();
            assert!(exit == Exit::Integrity || at < 24, "byte {at}: {error} ({exit:?})");
        }
    }
}

#[test]
fn damage_is_named_by_card_tensor_block_and_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { embd: 512, ff: 1024, vocab: 600, heads: 8, kv: 4, head: 64, ..small() };
    let how = How { cards: 2, ..How::default() };
    let path = write(dir.path(), config, &how);
    let container = Container::open(&path).unwrap();
    let tensor = container.manifest().tensors.iter().find(|t| t.name == "blk.0.ffn_gate_up.weight").unwrap();
    assert!(tensor.bytes > 2 << 20, "several blocks");
    let card = tensor.card as usize;
    let at = container.header().cards[card].offset + tensor.offset + (1 << 20) + 17;
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at as usize] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    for mode in MODES {
        let error = load(&path, &ModelOptions { load: mode, ..ModelOptions::default() }).unwrap_err();
        let text = error.to_string();
        for part in [&format!("card {card}"), "blk.0.ffn_gate_up.weight", "block 1", "1048576..2097152"] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        // Not looked for, not found: that is what these levels say.
        for verify in [Verify::Index, Verify::None] {
            load(&path, &ModelOptions { load: mode, verify: Some(verify), ..ModelOptions::default() })
                .unwrap();
        }
    }
}

#[test]
fn a_missing_or_exchanged_card_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let how = How { cards: 2, split_cards: true, ..How::default() };
    let path = write(dir.path(), small(), &how);
    load(&path, &ModelOptions::default()).unwrap();
    let card = |n| dir.path().join(card_file_name("m.gantry", n));
    let away = dir.path().join("away");
    std::fs::rename(card(1), &away).unwrap();
    let error = load(&path, &ModelOptions::default()).unwrap_err();
    assert!(error.to_string().contains("m.card1.gantry is missing"), "{error}");
    std::fs::copy(card(0), card(1)).unwrap();
    let error = load(&path, &ModelOptions::default()).unwrap_err();
    assert_eq!(error.exit(), Exit::Integrity, "{error}");
}

#[test]
fn a_file_that_shrinks_after_it_was_opened_is_an_error_not_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), small(), &How::default());
    for mode in MODES {
        let copy = dir.path().join("copy.gantry");
        std::fs::copy(&path, &copy).unwrap();
        let container = Container::open(&copy).unwrap();
        std::fs::OpenOptions::new().write(true).open(&copy).unwrap().set_len(5000).unwrap();
        let options = ModelOptions { load: mode, ..ModelOptions::default() };
        let error = Model::load(&container, device(), &options).unwrap_err();
        assert!(error.to_string().contains("file changed while reading"), "{error}");
        assert_eq!(error.exit(), Exit::Integrity);
    }
}

#[test]
fn what_cannot_run_here_is_refused_by_reason() {
    type Case = (fn() -> How, &'static str);
    let cases: [Case; 3] = [
        (
            || How {
                edit: |m| {
                    m.model.complete = false;
                    m.model.incomplete = vec!["blk.0.attn_q.weight: required tensor is missing".into()];
                },
                ..How::default()
            },
            "not runnable: blk.0.attn_q.weight",
        ),
        (|| How { edit: |m| m.layouts[0].version = 2, ..How::default() }, "version 2"),
        (|| How { edit: |m| m.layouts[0].name = "i8.frag".into(), ..How::default() }, "i8.frag"),
    ];
    for (how, text) in cases {
        let error = refused(&how(), small());
        assert!(error.to_string().contains(text), "{text:?} in {error}");
        assert_eq!(error.exit(), Exit::Incompatible, "{error}");
    }
}

#[test]
fn what_is_packed_for_another_device_runs_with_a_note() {
    let logits = |target: &str| {
        let dir = tempfile::tempdir().unwrap();
        let how = How { target: target.into(), ..How::default() };
        let model = load(&write(dir.path(), small(), &how), &ModelOptions::default()).unwrap();
        let logits = model.session().unwrap().prefill(&[1, 2, 3]).unwrap().to_vec();
        (logits, model.notes().to_vec())
    };
    let (here, none) = logits("cpu");
    let (there, notes) = logits("cuda:sm_90");
    assert_eq!((here, none), (there, Vec::new()));
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("packed for cuda:sm_90") && notes[0].contains("--target cpu"), "{notes:?}");
}

#[test]
fn experts_that_the_hyperparameters_misstate_are_refused() {
    use gantry_formats::gguf::GgufWriter;
    let model = oracle::Model::random(Config { experts: 4, used: 2, ..small() }, 1);
    let refused = |pairs: &[(&str, u32)], banks: bool| {
        let mut writer = GgufWriter::from_header(&model.header);
        for &(key, value) in pairs {
            writer.set(format!("llama.{key}"), gantry_formats::gguf::OwnedValue::from(value).view());
        }
        let header = writer.finish().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let how = How { banks, ..How::default() };
        let path = packing::pack(dir.path(), &header, &model.tensors, &how);
        let error = load(&path, &ModelOptions::default()).unwrap_err();
        assert_eq!(error.exit(), Exit::Input, "{error}");
        error.to_string()
    };
    for banks in [true, false] {
        for (key, value, part) in [
            ("expert_used_count", 0, "llama.expert_used_count is 0"),
            ("expert_used_count", 5, "at most the 4 that can be chosen"),
            ("expert_count", 5, "ffn_gate_inp"),
            ("expert_count", u32::MAX, "llama.expert_count"),
            ("expert_group_count", 3, "a divisor of the 4 experts"),
            ("expert_feed_forward_length", 16, "_exps.weight"),
        ] {
            let text = refused(&[(key, value)], banks);
            assert!(text.contains(part), "{part:?} in {text}");
        }
        // One expert of each group of one: two groups must be used for two experts.
        let text = refused(&[("expert_group_count", 4), ("expert_group_used_count", 1)], banks);
        assert!(text.contains("at most the 1 that can be chosen"), "{text}");
    }
}

#[test]
fn an_unknown_architecture_and_misstated_sizes_are_refused() {
    use gantry_formats::gguf::{GgufWriter, OwnedValue};
    let change = |key: &str, value: OwnedValue| {
        let model = oracle::Model::random(small(), 1);
        let mut writer = GgufWriter::from_header(&model.header);
        let header = writer.set(key, value.view()).finish().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = packing::pack(dir.path(), &header, &model.tensors, &How::default());
        load(&path, &ModelOptions::default()).unwrap_err()
    };
    let error = change("general.architecture", "mamba".into());
    assert!(error.to_string().contains("\"mamba\" is unknown"), "{error}");
    assert_eq!(error.exit(), Exit::Incompatible);
    // A dense model that claims experts.
    let error = change("llama.expert_count", 8u32.into());
    assert!(error.to_string().contains("expert_used_count"), "{error}");
    assert_eq!(error.exit(), Exit::Input);
    let error = change("llama.embedding_length", 48u32.into());
    assert!(error.to_string().contains("token_embd.weight"), "{error}");
    assert_eq!(error.exit(), Exit::Input);
    let error = change("llama.attention.head_count_kv", 3u32.into());
    assert!(error.to_string().contains("head_count_kv"), "{error}");
    for (key, value) in [
        ("attention.layer_norm_rms_epsilon", f32::NAN),
        ("attention.layer_norm_rms_epsilon", -1.0),
        ("rope.freq_base", 0.0),
        ("rope.freq_base", f32::INFINITY),
        ("rope.scaling.factor", -2.0),
    ] {
        let error = change(&format!("llama.{key}"), value.into());
        assert!(error.to_string().contains(key), "{error}");
        assert_eq!(error.exit(), Exit::Input);
    }
    let error = change("llama.rope.scaling.type", "longrope".into());
    assert!(error.to_string().contains("longrope"), "{error}");
}

#[test]
fn a_layout_without_a_kernel_is_refused_before_weights_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = oracle::Model::random(small(), 1);
    let up = model.tensors.iter_mut().find(|t| t.name == "blk.0.ffn_down.weight").unwrap();
    (up.ty, up.bytes) = (GgmlType::I32, vec![0; 32 * 32 * 4]);
    let (index, _) = model.header.find("blk.0.ffn_down.weight").unwrap();
    let mut writer = gantry_formats::gguf::GgufWriter::from_header(&model.header);
    let header = writer.set_type(index, GgmlType::I32).unwrap().finish().unwrap();
    let path = packing::pack(dir.path(), &header, &model.tensors, &How::default());
    // A damaged weight would be found too, if weights were read.
    let mut bytes = std::fs::read(&path).unwrap();
    let card = Container::open(&path).unwrap().header().cards[0];
    bytes[card.offset as usize] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = load(&path, &ModelOptions::default()).unwrap_err();
    assert!(error.to_string().contains("no gemm kernel for layout raw.i32"), "{error}");
    assert_eq!(error.exit(), Exit::Incompatible);
}

#[test]
fn too_little_memory_is_a_table_and_says_what_fits() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), Config { vocab: 600, ..small() }, &How::default());
    let roomy =
        load(&path, &ModelOptions { context: Some(100), batch: 1, ..ModelOptions::default() }).unwrap();
    let need = roomy.need()[0];
    assert_eq!(need.cache, 100 * 2 * 16 * 4);
    let options = |limit| ModelOptions {
        context: Some(100),
        batch: 1,
        memory_limit: Some(limit),
        ..ModelOptions::default()
    };
    load(&path, &options(need.total())).unwrap();
    let error = load(&path, &options(need.total() - need.cache / 2)).unwrap_err();
    assert!(error.to_string().contains("a context of 50 would fit"), "{error}");
    assert_eq!(error.exit(), Exit::Resources);
    let error = load(&path, &options(1)).unwrap_err();
    assert!(error.to_string().contains("no context fits"), "{error}");
}

#[test]
fn both_modes_load_the_same_bytes_and_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), small(), &How::default());
    let mut seen = Vec::new();
    for mode in MODES {
        let model = load(&path, &ModelOptions { load: mode, ..ModelOptions::default() }).unwrap();
        let logits = model.session().unwrap().prefill(&[1, 2, 3]).unwrap().to_vec();
        seen.push(logits);
        let said = model.load_report().to_string();
        let bytes = Container::open(&path).unwrap().header().cards[0].bytes;
        assert!(said.contains(&gantry_runtime::load::size_text(bytes)) && said.contains("GB/s"), "{said}");
        assert!(said.contains("every byte verified"), "{said}");
    }
    assert_eq!(seen[0], seen[1]);
}
