//! Perplexity of held-out text against llama.cpp's.

use gantry_tests::{bard, convert, fixtures, perplexity};

/// As `llama-perplexity -c 256` computes it: 198 chunks of 256 tokens, the last 127 of each scored.
#[test]
fn held_out_text_is_as_likely_as_in_llama_cpp() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let golden = std::fs::read_to_string(bard().join("golden.json")).expect("golden.json");
    let golden: serde_json::Value = serde_json::from_str(&golden).expect("JSON");
    // BF16 weights hold the F32 file's values, and meet activations in f32: the F32 figure counts for both.
    for (ty, want) in [("BF16", "F32"), ("Q8_0", "Q8_0")] {
        let container = scratch.path().join("bard.gantry");
        convert(&fixtures("bard").join(format!("bard-{ty}.gguf")), &container, &["--recipe", "lossless"]);
        let got = perplexity(&container, &bard().join("heldout.txt"), 256, &[]);
        let want = golden["heldout_perplexity"]["value"][want].as_f64().expect("a number");
        println!("bard {ty}: perplexity {got:.4}, llama.cpp {want:.4}");
        assert!((got / want - 1.0).abs() < 1e-3, "{ty}: {got}, llama.cpp {want}");
    }
}

/// int8 keys and values cost less than 1 % of perplexity against f16.
#[test]
fn int8_keys_and_values_keep_the_perplexity() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let container = scratch.path().join("bard.gantry");
    convert(&bard().join("bard-qwen4exp-BF16.gguf"), &container, &["--recipe", "lossless"]);
    let of = |kv: &str| perplexity(&container, &bard().join("heldout.txt"), 256, &["--kv", kv]);
    let (half, int8) = (of("f16"), of("int8"));
    println!("bard BF16: perplexity {int8:.5} with int8 keys and values, {half:.5} with f16");
    assert!(int8 != half && (int8 / half - 1.0).abs() < 0.01, "{int8}, with f16 {half}");
}
