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
