use super::fill::{self, Values};
use super::presets::PRESETS;
use super::spec::{Setting, Spec};
use super::{header, write};
use gantry_formats::arch::{self, Hparams};
use gantry_formats::block::{GgmlType, dequantize};
use gantry_formats::gguf::{Gguf, Header, ValueType};
use std::path::Path;

fn made(spec: &str, settings: &[&str], ty: GgmlType) -> Result<header::Model, String> {
    let (name, text) = PRESETS.iter().find(|(name, _)| *name == spec).expect("a preset");
    let mut spec = Spec::parse(name, text)?;
    for text in settings {
        spec.set(&text.parse::<Setting>()?)?;
    }
    header::model(&spec, ty, 1)
}

fn findings(header: &Header) -> Vec<String> {
    let table = arch::find(std::str::from_utf8(header.architecture().unwrap()).unwrap()).unwrap();
    let names: Vec<String> =
        header.tensors().iter().map(|t| String::from_utf8_lossy(t.name()).into()).collect();
    let tensors = names.iter().map(String::as_str).zip(header.tensors().iter().map(|t| t.dims()));
    let found = arch::check(table, &Hparams::read(header), header, tensors);
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn every_preset_passes_the_check_of_its_architecture() {
    for (name, text) in PRESETS {
        let spec = Spec::parse(name, text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let model = header::model(&spec, spec.ty, 1).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(findings(&model.header), [""; 0], "{name}");
        assert_eq!(model.fills.len(), model.header.tensors().len());
    }
    for arch in arch::ARCHITECTURES {
        let of = |(name, text): &(&str, &str)| {
            name.ends_with("-tiny") && Spec::parse(name, text).unwrap().arch.name == arch.name
        };
        assert!(PRESETS.iter().any(of), "{} has no tiny preset", arch.name);
    }
}

#[test]
fn sizes_are_as_described() {
    let parameters = |name: &str| -> u64 {
        let model = made(name, &[], GgmlType::BF16).unwrap();
        model.header.tensors().iter().map(|t| t.elements).sum()
    };
    for (name, millions) in
        [("qwen4exp-2b", 2_100), ("qwen3moe-1b", 1_000), ("qwen4exp-100m", 100), ("qwen4exp-tiny", 16)]
    {
        let found = parameters(name) as f64 / 1e6;
        assert!((found / f64::from(millions) - 1.0).abs() < 0.1, "{name}: {found} M");
    }
    assert!(made("qwen4exp-1gb", &[], GgmlType::Q8_0).unwrap().header.file_len() > 1_000_000_000);
}

fn file(folder: &Path, name: &str, model: &header::Model, threads: usize) -> Vec<u8> {
    let path = folder.join(name);
    let (hash, _) = write::write(model, &path, threads).expect("written");
    let bytes = std::fs::read(&path).expect("read");
    assert_eq!(hash, blake3::hash(&bytes).to_hex().as_str());
    bytes
}

#[test]
fn bytes_do_not_depend_on_threads_but_on_the_seed() {
    let folder = tempfile::tempdir().expect("a folder");
    for ty in [GgmlType::F32, GgmlType::Q8_0] {
        let model = made("deepseek4-tiny", &[], ty).unwrap();
        let one = file(folder.path(), "one.gguf", &model, 1);
        assert!(one == file(folder.path(), "eight.gguf", &model, 8), "{ty:?}");
        let again = made("deepseek4-tiny", &[], ty).unwrap();
        assert!(one == file(folder.path(), "again.gguf", &again, 3), "{ty:?}");
    }
    let (name, text) = PRESETS[0];
    let spec = Spec::parse(name, text).unwrap();
    let with = |seed| header::model(&spec, GgmlType::F32, seed).unwrap();
    let (a, b) = (file(folder.path(), "a", &with(1), 2), file(folder.path(), "b", &with(2), 2));
    assert!(a.len() == b.len() && a != b);
}

#[test]
fn force_replaces_ggufs_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.gguf");
    super::check_replaced(&path).expect("nothing is there");
    for (bytes, found) in [
        (&b""[..], None),
        (b"GGUF\x03\0\0\0", None),
        (b"\x89GTR\r\n\x1a\n and more", Some("a Gantry container")),
        (b"\x89GTC\r\n\x1a\n and more", Some("a card's file")),
        (b"{\"schema\": \"gantry-hotness\"}", Some("token counts")),
        (b"PK\x03\x04", Some("starts with 50 4b 03 04")),
    ] {
        std::fs::write(&path, bytes).expect("written");
        match (super::check_replaced(&path), found) {
            (Ok(()), None) => {}
            (Err(error), Some(found)) => assert!(error.to_string().contains(found), "{error}"),
            (result, _) => panic!("{bytes:?}: {result:?}"),
        }
    }
}

/// A tensor's values, and the values of the whole model's other types beside it.
fn values(gguf: &Gguf, bytes: &[u8], name: &str) -> (GgmlType, Vec<f32>) {
    let t = gguf.tensors().find(|t| t.display_name() == name).unwrap_or_else(|| panic!("{name}"));
    let raw = &bytes[t.start as usize..(t.start + t.bytes) as usize];
    let mut out = vec![0.0; t.elements as usize];
    dequantize(t.info.ty, raw, &mut out).expect("values");
    (t.info.ty, out)
}

#[test]
fn values_are_what_their_roles_ask_for() {
    let folder = tempfile::tempdir().expect("a folder");
    for (ty, inject) in [(GgmlType::F32, GgmlType::F32), (GgmlType::Q8_0, GgmlType::Q8_0)] {
        let model = made("qwen4exp-tiny", &[], ty).unwrap();
        let bytes = file(folder.path(), "model.gguf", &model, 2);
        let gguf = Gguf::open(&folder.path().join("model.gguf")).expect("a GGUF");
        let check = |name: &str, ty: GgmlType, mean: f64, std: f64| {
            let (found, list) = values(&gguf, &bytes, name);
            assert_eq!(found, ty, "{name}");
            let n = list.len() as f64;
            let m = list.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
            let s = (list.iter().map(|&x| (f64::from(x) - m).powi(2)).sum::<f64>() / n).sqrt();
            // Five standard errors, and a little for the rounding.
            assert!((m - mean).abs() < 5.0 * std / n.sqrt() + 1e-4, "{name}: mean {m}, expected {mean}");
            assert!((s / std - 1.0).abs() < 5.0 / (2.0 * n).sqrt() + 1e-2, "{name}: {s}, expected {std}");
        };
        check("blk.0.attn_qkv.weight", ty, 0.0, 1.0 / 16.0);
        check("blk.3.ffn_down_exps.weight", ty, 0.0, 1.0 / 16.0);
        check("blk.0.hc_attn_norm.weight", GgmlType::F32, 1.0, 0.1);
        check("blk.0.hc_attn_inject.weight", inject, 0.0, 1.0 / 32.0);
        check("blk.0.ffn_gate_inp.weight", GgmlType::F32, 0.0, 2.0 / 16.0);
        check("blk.0.ple_norm_key.weight", GgmlType::F32, 1.0, 0.1);
        check("token_embd.weight", ty, 0.0, 1.0);
        check("output.weight", ty, 0.0, 3.0 / 16.0);
        check("blk.0.ssm_conv1d.weight", GgmlType::F32, 0.0, 0.5);
        let (found, decay) = values(&gguf, &bytes, "blk.0.ssm_a");
        assert_eq!(found, GgmlType::F32);
        assert!(decay.iter().all(|a| (-std::f32::consts::E..=-1.0).contains(a)), "{decay:?}");
    }
}

#[test]
fn tokens_choose_different_experts() {
    let model = made("deepseek4-tiny", &[], GgmlType::BF16).unwrap();
    let tensors = model.header.tensors().iter();
    let place = tensors.clone().position(|t| t.name() == b"blk.0.ffn_gate_tid2eid.weight").expect("a table");
    let fill = &model.fills[place];
    assert_eq!((fill.ty, fill.values), (GgmlType::I32, Values::Chosen { of: 16 }));
    let mut bytes = Vec::new();
    fill.bytes(0..4 * 512, &mut Vec::new(), &mut bytes).unwrap();
    let ids: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let mut used = [0; 16];
    for row in ids.chunks(4) {
        row.iter().for_each(|&id| used[id as usize] += 1);
        assert!((1..4).all(|i| !row[..i].contains(&row[i])), "{row:?}");
    }
    assert!(used.iter().all(|&n| (80..180).contains(&n)), "{used:?}");
}

#[test]
fn types_are_those_of_converters() {
    let kind = |name, dims: &[u64]| fill::kind(name, dims, GgmlType::Q8_0);
    assert_eq!(kind("attn_q.weight", &[64, 64]), GgmlType::Q8_0);
    assert_eq!(kind("ffn_down_exps.weight", &[48, 64, 4]), GgmlType::F16);
    for exact in
        ["ffn_gate_inp.weight", "ssm_conv1d.weight", "hc_attn_fn.weight", "attn_compressor_ape.weight"]
    {
        assert_eq!(kind(exact, &[64, 64]), GgmlType::F32, "{exact}");
    }
    assert_eq!(kind("attn_q.bias", &[64]), GgmlType::F32);
    assert_eq!(kind("ssm_a", &[64]), GgmlType::F32);
}

#[test]
fn settings_change_keys_shapes_and_what_follows() {
    let model = made("qwen4exp-tiny", &["embedding_length=512", "ple.rows=9000"], GgmlType::F32).unwrap();
    let header = &model.header;
    assert_eq!(header.get("qwen4exp.embedding_length_per_layer_input").unwrap().as_u64(), Some(128));
    let multipliers = header.get("qwen4exp.ple.layer_multipliers").unwrap().as_array().unwrap();
    assert_eq!((multipliers.elem(), multipliers.len()), (ValueType::U64, 3));
    let sections = header.get("qwen4exp.rope.dimension_sections").unwrap().as_array().unwrap();
    assert_eq!(sections.elem(), ValueType::I32);
    assert_eq!(header.get("qwen4exp.rope.freq_base").unwrap().ty(), ValueType::F32);
    assert!(header.get("qwen4exp.ple.rows").is_none());
    let table = |h: &Header| h.tensors().iter().any(|t| t.name() == b"per_layer_token_embd.weight");
    assert!(table(header));
    let plain = made("qwen4exp-tiny", &["ple.layers="], GgmlType::F32).unwrap();
    assert!(!table(&plain.header));
    assert_eq!(findings(&plain.header), [""; 0]);
    let named = made("llama-tiny", &["general.name=bard the second"], GgmlType::F32).unwrap();
    assert_eq!(named.header.get("general.name").unwrap().as_str(), Some("bard the second"));
}

#[test]
fn merged_and_tied_forms_can_be_asked_for() {
    let (name, text) = PRESETS.iter().find(|(name, _)| *name == "qwen4exp-tiny").unwrap();
    let merged = r#"["hc_attn_down_inject.weight", "ffn_gate_up_exps.weight"]"#;
    let spec = Spec::parse(name, &text.replace(r#"["output.weight"]"#, merged)).unwrap();
    let model = header::model(&spec, GgmlType::F32, 1).unwrap();
    let has = |name: &str| model.header.tensors().iter().any(|t| t.name() == name.as_bytes());
    assert!(has("blk.1.hc_attn_down_inject.weight") && !has("blk.1.hc_attn_down.weight"));
    assert!(has("blk.1.ffn_gate_up_exps.weight") && !has("blk.1.ffn_up_exps.weight"));
    assert!(has("blk.1.hc_ffn_down.weight") && !has("output.weight"));
    assert_eq!(findings(&model.header), [""; 0]);
}

#[test]
fn what_no_model_can_have_is_refused_by_name() {
    let cases: [(&str, &[&str], &str); 16] = [
        ("llama-tiny", &["vocab_size="], "vocab_size is missing"),
        ("llama-tiny", &["vocab_size=100"], "at least 354 tokens"),
        ("llama-tiny", &["vocab_size=4000000000"], "vocab_size is 4000000000"),
        ("llama-tiny", &["block_count=513"], "block_count is 513"),
        ("llama-tiny", &["block_count=0"], "block_count is 0"),
        ("llama-tiny", &["embedding_length=-1"], "-1 is negative"),
        ("llama-tiny", &["embedding_length=5000000000"], "2^32 or more"),
        ("llama-tiny", &["embedding_length=0"], "embedding_length is 0"),
        ("llama-tiny", &["attention.head_count=0"], "attention.head_count is missing"),
        ("llama-tiny", &["attention.head_count_kv=3"], "a divisor of the 4 query heads"),
        ("llama-tiny", &["attention.head_count=x"], "attention.head_count is missing"),
        ("llama-moe-tiny", &["expert_used_count=99"], "at most the 16"),
        ("qwen4exp-tiny", &["block_count=8"], "an array of 4, expected at least 8"),
        ("qwen4exp-tiny", &["ple.rows=3"], "ple.rows must be a number"),
        ("qwen4exp-tiny", &["ple.rows=4000000000"], "ple.rows must be a number"),
        ("qwen4exp-tiny", &["ple.layers=[3]"], "one linear-attention layer"),
    ];
    for (preset, settings, want) in cases {
        let error = made(preset, settings, GgmlType::F32).expect_err(want);
        assert!(error.contains(want), "{settings:?}: {error}");
    }
    let huge = ["embedding_length=4000000000", "feed_forward_length=4000000000", "attention.head_count=2"];
    assert!(made("llama-tiny", &huge, GgmlType::F32).is_err());
    for (text, want) in [
        ("architecture = \"llama\"", "type"),
        ("architecture = \"none\"\ntype = \"F32\"\n[keys]", "known: llama"),
        ("architecture = \"llama\"\ntype = \"Q4_K\"\n[keys]", "expected F32"),
        ("architecture = \"llama\"\ntype = \"F32\"\ntensors = [\"x\"]\n[keys]", "\"x\""),
        ("architecture = \"llama\"\ntype = \"F32\"\nkey = 1\n[keys]", "unknown field"),
    ] {
        let error = Spec::parse("text", text).expect_err(want);
        assert!(error.contains(want), "{error}");
    }
    for (preset, key) in [
        ("llama-tiny", "attention.head_cuont=4"),
        ("llama-tiny", "llama.block_count=2"),
        ("llama-tiny", "ple.rows=9000"),
        ("llama-tiny", "ssm.state_size=9"),
        ("qwen3next-tiny", "ple.layer="),
    ] {
        let error = made(preset, &[key], GgmlType::F32).expect_err(key);
        let (name, _) = key.split_once('=').unwrap();
        assert!(error.contains(&format!("{name:?}")) && error.contains("attention.head_count, "), "{error}");
    }
    let error =
        Spec::parse("text", "architecture = \"llama\"\ntype = \"F32\"\n[keys]\nrope.base = 1").unwrap_err();
    assert!(error.contains("\"rope.base\""), "{error}");
    for text in ["novalue", "=1", "a b=1"] {
        text.parse::<Setting>().expect_err(text);
    }
}
