//! A real model of 135M parameters.

use gantry_tests::{best, fixtures, golden, ids, logits, nmse, run_ok, tokenize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

fn convert(folder: &Path, gguf: &Path) -> PathBuf {
    let out = folder.join(gguf.file_name().expect("a name")).with_extension("gantry");
    gantry_tests::convert(gguf, &out, &["--recipe", "lossless"]);
    out
}

#[test]
fn smollm2_writes_what_llama_cpp_writes() {
    let models = fixtures("smollm2");
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let text = std::fs::read_to_string(golden().join("smollm2.json")).expect("smollm2.json");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut containers = HashMap::new();
    for case in json["prompts"].as_array().expect("prompts") {
        let model = case["model"].as_str().expect("a model").replace("SmolLM2-135M-Instruct.", "smollm2-");
        let prompt = case["prompt"].as_str().expect("a prompt");
        let container = containers
            .entry(model.to_string())
            .or_insert_with(|| convert(scratch.path(), &models.join(&model)));
        let mut all = tokenize(container, prompt);
        let prompt_len = all.len();
        assert_eq!(Some(prompt_len as u64), case["n_prompt_tokens"].as_u64(), "{model} {prompt:?}");

        let want = ids(&case["greedy_32"]);
        all.extend(&want);
        let rows = logits(container, &all, &["--batch", "512"]);
        let vocab = rows.len() / all.len();
        let row = |i: usize| &rows[i * vocab..(i + 1) * vocab];

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
            let best = best(row);
            if best as u32 == want {
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
