//! Random models of each architecture.

use gantry_tests::{convert, fixtures, golden, golden_tokens, logits, nmse, perplexity, read_f32, same_bits};
use std::path::{Path, PathBuf};

/// How far logits may be from llama.cpp's where both compute in f32: about 50 times what is seen.
const EXACT: f64 = 1e-11;

pub(super) struct Lossless {
    _folder: tempfile::TempDir,
    pub(super) container: PathBuf,
}

impl Lossless {
    pub(super) fn new(gguf: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let container = folder.path().join("model.gantry");
        convert(gguf, &container, &["--recipe", "lossless"]);
        Self { _folder: folder, container }
    }

    /// The logits of a prompt as one batch, which one token after the other must give too.
    pub(super) fn logits(&self, tokens: &[u32], name: &str) -> Vec<f32> {
        let whole = logits(&self.container, tokens, &["--batch", "64"]);
        let single = logits(&self.container, tokens, &["--batch", "1"]);
        let nmse = nmse(&single, &whole);
        assert!(same_bits(&whole, &single), "{name}: decode differs from prefill, NMSE {nmse:e}");
        whole
    }
}

fn golden_logits(name: &str, way: &str) -> Vec<f32> {
    read_f32(&golden().join(format!("{name}-{way}.f32")))
}

/// F32, BF16 and Q8_0, all their layouts exact. llama.cpp rounds activations for the last two, so that F32 is the
/// tight check.
fn tiny(arch: &str) {
    let tokens = golden_tokens(64, 512);
    for ty in ["F32", "BF16", "Q8_0"] {
        let gguf = fixtures("tiny").join(format!("tiny-{arch}-{ty}.gguf"));
        let ours = Lossless::new(&gguf).logits(&tokens, &format!("{arch} {ty}"));
        for way in ["prefill", "decode"] {
            let exact = golden_logits(&format!("{arch}-F32"), way);
            let theirs = nmse(&golden_logits(&format!("{arch}-{ty}"), way), &exact);
            check(arch, ty, way, &ours, &exact, if ty == "F32" { EXACT } else { 1.5 * theirs });
        }
    }
}

/// A model as llama.cpp's tests make it: F32, two layers.
fn dummy(arch: &str, bound: f64) {
    let gguf = fixtures("dummies").join(format!("dummy-{arch}.gguf"));
    let ours = Lossless::new(&gguf).logits(&golden_tokens(64, 128), arch);
    for way in ["prefill", "decode"] {
        check(arch, "F32", way, &ours, &golden_logits(&format!("dummy-{arch}"), way), bound);
    }
}

fn check(arch: &str, ty: &str, way: &str, ours: &[f32], exact: &[f32], bound: f64) {
    let error = nmse(ours, exact);
    println!("{arch:<16} {ty:<4} {way:<7}  NMSE {error:.2e}  bound {bound:.2e}");
    assert!(error <= bound, "{arch} {ty} {way}: NMSE {error:e} is above {bound:e}");
}

#[test]
fn llama_agrees() {
    tiny("llama");
}

#[test]
fn llama_with_experts_agrees() {
    tiny("llama-moe");
}

#[test]
fn olmoe_agrees() {
    tiny("olmoe");
}

#[test]
fn qwen3moe_agrees() {
    tiny("qwen3moe");
}

#[test]
fn qwen4exp_agrees() {
    tiny("qwen4exp");
}

#[test]
fn qwen4exp_without_n_grams_agrees() {
    tiny("qwen4exp-nople");
}

#[test]
fn qwen4exp_with_merged_inject_agrees() {
    tiny("qwen4exp-merged");
}

#[test]
fn deepseek4_agrees() {
    tiny("deepseek4");
}

#[test]
fn qwen2_agrees() {
    dummy("qwen2-dense", EXACT);
}

#[test]
fn qwen3_agrees() {
    dummy("qwen3-dense", EXACT);
}

/// llama.cpp's graph leaves out `ssm_out.scale`, which the file has: see `reference.rs`.
#[test]
fn qwen3next_agrees_but_for_a_scale() {
    dummy("qwen3next-moe", 1e-8);
}

#[test]
fn glm_dsa_agrees() {
    dummy("glm-dsa-moe", EXACT);
}

/// Long enough for windows that slide, blocks of 128 that are compressed and selections that leave something out.
fn no_cut_of_a_prompt_changes_a_bit(arch: &str) {
    let tokens = golden_tokens(300, 512);
    let model = Lossless::new(&fixtures("tiny").join(format!("tiny-{arch}-F32.gguf")));
    let run = |batch, threads| logits(&model.container, &tokens, &["--batch", batch, "--threads", threads]);
    let whole = run("300", "1");
    for (batch, threads) in [("300", "2"), ("1", "2"), ("3", "1"), ("5", "2"), ("32", "1"), ("129", "2")] {
        let got = run(batch, threads);
        let row = whole.chunks(512).zip(got.chunks(512)).position(|(a, b)| !same_bits(a, b));
        assert_eq!(row, None, "{arch}, batches of {batch}, {threads} threads: first position that differs");
    }
}

#[test]
fn no_cut_of_a_prompt_changes_a_bit_of_llama() {
    no_cut_of_a_prompt_changes_a_bit("llama");
}

#[test]
fn no_cut_of_a_prompt_changes_a_bit_of_qwen3next() {
    no_cut_of_a_prompt_changes_a_bit("qwen3next");
}

#[test]
fn no_cut_of_a_prompt_changes_a_bit_of_qwen4exp() {
    no_cut_of_a_prompt_changes_a_bit("qwen4exp");
}

#[test]
fn no_cut_of_a_prompt_changes_a_bit_of_deepseek4() {
    no_cut_of_a_prompt_changes_a_bit("deepseek4");
}

#[test]
fn no_cut_of_a_prompt_changes_a_bit_of_glm_dsa() {
    no_cut_of_a_prompt_changes_a_bit("glm-dsa");
}

/// llama.cpp's perplexity of held-out text in contexts of 512, F32 throughout. Random models are sure of wrong tokens,
/// which makes their perplexity an exact number of many digits.
///
/// Of deepseek4 and glm-dsa the first context only. In the second one a few positions have fewer scores above 0 than
/// the indexer may choose, and more that are exactly 0 than it still needs: llama.cpp takes those that its partial sort
/// leaves there, we the lowest. Neither is wrong; `reference.rs` has that context.
#[test]
fn long_contexts_agree() {
    let text = gantry_tests::bard().join("heldout.txt");
    for (arch, chunks, want) in [
        ("llama", "2", 26689.3058),
        ("qwen3next", "2", 36181.4471),
        ("qwen4exp", "2", 1263.4246),
        ("deepseek4", "1", 28640.0727),
        ("glm-dsa", "1", 25574.6126),
    ] {
        let model = Lossless::new(&fixtures("tiny").join(format!("tiny-{arch}-F32.gguf")));
        let got = perplexity(&model.container, &text, 512, &["--chunks", chunks]);
        println!("tiny-{arch}: perplexity {got:.4}, llama.cpp {want:.4}");
        assert!((got / want - 1.0).abs() < 1e-6, "{arch}: {got}, llama.cpp {want}");
    }
}
