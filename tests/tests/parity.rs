//! Logits and tokens against llama.cpp's.

use gantry_formats::gguf::{GgufWriter, Header, OwnedValue};
use gantry_tests::{fixtures, golden, golden_tokens, nmse, read_f32, run_ok};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

fn convert(folder: &Path, gguf: &Path) -> PathBuf {
    let name = gguf.file_stem().expect("a name").to_string_lossy().into_owned();
    let out = folder.join(format!("{name}.gantry"));
    run_ok(
        "gantry",
        &[
            "convert".as_ref(),
            gguf.as_os_str(),
            "-o".as_ref(),
            out.as_os_str(),
            "--recipe".as_ref(),
            "lossless".as_ref(),
        ],
    );
    out
}

fn logits(container: &Path, tokens: &str, batch: &str, out: &Path) -> Vec<f32> {
    let args = ["--force", "--tokens", tokens, "--batch", batch, "--out"].map(OsStr::new);
    let head: [&OsStr; 2] = ["logits".as_ref(), container.as_os_str()];
    let args: Vec<&OsStr> = head.into_iter().chain(args).chain([out.as_os_str()]).collect();
    run_ok("gantry-run", &args);
    read_f32(out)
}

#[test]
fn tiny_llama_agrees_with_llama_cpp() {
    agrees_with_llama_cpp("llama");
}

#[test]
fn tiny_llama_with_experts_agrees_with_llama_cpp() {
    agrees_with_llama_cpp("llama-moe");
}

/// Random models of F32, BF16 and Q8_0, all their layouts exact. llama.cpp rounds activations for the last two, so
/// that F32 is the tight check.
fn agrees_with_llama_cpp(arch: &str) {
    let models = fixtures("tiny");
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let tokens: Vec<String> = golden_tokens().iter().map(u32::to_string).collect();
    let tokens = tokens.join(",");
    for ty in ["F32", "BF16", "Q8_0"] {
        let container = convert(scratch.path(), &models.join(format!("tiny-{arch}-{ty}.gguf")));
        let out = scratch.path().join("logits.f32");
        let prefill = logits(&container, &tokens, "64", &out);
        let decode = logits(&container, &tokens, "1", &out);
        assert!(
            prefill.iter().map(|v| v.to_bits()).eq(decode.iter().map(|v| v.to_bits())),
            "{arch} {ty}: batch split"
        );
        for way in ["prefill", "decode"] {
            let exact = read_f32(&golden().join(format!("{arch}-F32-{way}.f32")));
            let theirs = read_f32(&golden().join(format!("{arch}-{ty}-{way}.f32")));
            let ours = nmse(&prefill, &exact);
            let bound = if ty == "F32" { 1e-8 } else { 1.5 * nmse(&theirs, &exact) };
            println!("tiny-{arch} {ty} {way}: NMSE {ours:.3e}, bound {bound:.3e}");
            assert!(ours <= bound, "{arch} {ty} {way}: NMSE {ours:e} is above {bound:e}");
        }
    }
}

#[test]
fn smollm2_writes_what_llama_cpp_writes() {
    let models = fixtures("smollm2");
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let text = std::fs::read_to_string(golden().join("smollm2.json")).expect("smollm2.json");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut containers = std::collections::HashMap::new();
    for case in json["prompts"].as_array().expect("prompts") {
        let model = case["model"].as_str().expect("a model").replace("SmolLM2-135M-Instruct.", "smollm2-");
        let prompt = case["prompt"].as_str().expect("a prompt");
        let container = containers
            .entry(model.to_string())
            .or_insert_with(|| convert(scratch.path(), &models.join(&model)));
        let args =
            ["tokenize".as_ref(), container.as_os_str(), "-p".as_ref(), prompt.as_ref(), "--json".as_ref()];
        let tokens: serde_json::Value = serde_json::from_slice(&run_ok("gantry-run", &args)).expect("JSON");
        let mut ids: Vec<u64> =
            tokens["tokens"].as_array().expect("tokens").iter().filter_map(|t| t["id"].as_u64()).collect();
        assert_eq!(
            ids.len() as u64,
            case["n_prompt_tokens"].as_u64().expect("a number"),
            "{model} {prompt:?}"
        );

        let want: Vec<u64> =
            case["greedy_32"].as_array().expect("tokens").iter().filter_map(|t| t.as_u64()).collect();
        let prompt_len = ids.len();
        ids.extend(&want);
        let list: Vec<String> = ids.iter().map(u64::to_string).collect();
        let all = logits(container, &list.join(","), "512", &scratch.path().join("logits.f32"));
        let vocab = all.len() / ids.len();
        let row = |i: usize| &all[i * vocab..(i + 1) * vocab];

        // The golden file has the five largest logits of the prompt's last row, with five decimals.
        let pairs = case["last_row_top5"].as_array().expect("pairs").iter();
        let (got, want_top): (Vec<f32>, Vec<f32>) = pairs
            .map(|p| {
                (
                    row(prompt_len - 1)[p[0].as_u64().expect("an id") as usize],
                    p[1].as_f64().expect("a logit") as f32,
                )
            })
            .unzip();
        let (top, bound) = (nmse(&got, &want_top), if model.contains("F32") { 1e-8 } else { 1e-3 });
        println!("{model} {prompt:?}: NMSE of the five largest logits {top:.2e}");
        assert!(top <= bound, "{model} {prompt:?}: {got:?}, llama.cpp {want_top:?}");
        // Teacher-forced: each step's best token is llama.cpp's, or a shown near-tie.
        for (step, &want) in want.iter().enumerate() {
            let row = row(prompt_len - 1 + step);
            let best = (0..vocab).fold(0, |best, i| if row[i] > row[best] { i } else { best });
            if best as u64 == want {
                continue;
            }
            let margin = row[best] - row[want as usize];
            println!("{model} {prompt:?} step {step}: {best} before {want} by {margin}");
            assert!(
                !model.contains("F32") && margin < 0.35,
                "{model} {prompt:?} step {step}: {best}, llama.cpp {want}, margin {margin}"
            );
        }
    }
}

#[test]
fn text_is_generated_through_every_way_of_loading() {
    let models = fixtures("smollm2");
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let container = convert(scratch.path(), &models.join("smollm2-Q8_0.gguf"));
    for load in ["read", "map"] {
        let out = run_ok(
            "gantry-run",
            &[
                container.as_os_str(),
                "-p".as_ref(),
                "The capital of France is".as_ref(),
                "-n".as_ref(),
                "8".as_ref(),
                "--greedy".as_ref(),
                "--load".as_ref(),
                load.as_ref(),
            ],
        );
        let text = String::from_utf8(out).expect("UTF-8");
        assert!(text.contains("Paris"), "--load {load} wrote {text:?}");
    }
}

#[test]
fn what_cannot_run_is_said_when_it_is_planned_inspected_and_run() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    // A tiny llama under a name that no program knows.
    let source = std::fs::read(fixtures("tiny").join("tiny-llama-Q8_0.gguf")).expect("a model");
    let header = Header::read(&source, "a model").expect("a GGUF header");
    let name = OwnedValue::from("unheard-of");
    let renamed = GgufWriter::from_header(&header).set("general.architecture", name.view()).finish();
    let renamed = renamed.expect("a GGUF header");
    let gguf = scratch.path().join("renamed.gguf");
    let mut bytes = renamed.raw().to_vec();
    bytes.resize(renamed.data_offset() as usize, 0);
    bytes.extend(&source[header.data_offset() as usize..]);
    std::fs::write(&gguf, bytes).expect("a file");

    let container = scratch.path().join("renamed.gantry");
    let way = ["--recipe", "lossless", "--allow-incomplete"].map(OsStr::new);
    let with = |command: &'static str, more: &[&OsStr]| {
        let args = [&[command.as_ref(), gguf.as_os_str()], &way[..], more].concat();
        run_ok("gantry", &args)
    };
    assert!(String::from_utf8_lossy(&with("plan", &[])).contains("unheard-of"));
    with("convert", &["-o".as_ref(), container.as_os_str()]);
    let json = run_ok("gantry", &["inspect".as_ref(), container.as_os_str(), "--json".as_ref()]);
    let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(json["runnable"], false, "{json}");
    assert!(json["not_runnable_because"].to_string().contains("unheard-of"), "{json}");
    let refused = gantry_tests::run("gantry-run", &[container.as_os_str(), "-p".as_ref(), "a".as_ref()]);
    assert_eq!(refused.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("unheard-of"));
}
