//! Where llama.cpp cannot judge: contexts in which sparse attention leaves much out, and what llama.cpp leaves out.
//!
//! The references are the programs in `tests/reference`: the same formulas in f64, one position after the other. Their
//! logits of some rows are committed; docs/PARITY.md says how they were made.

use super::altered::{with_u32, with_yarn};
use super::random::Lossless;
use gantry_tests::{bard, fixtures, golden, golden_tokens, ids, nmse, perplexity, read_f32, tokenize};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How far f32 may be from f64 in all rows, and in each: tens of times what is seen, a hundredth of what one small
/// tensor left out makes.
const ROUNDING: f64 = 1e-11;
const ROW: f64 = 1e-10;

/// A model, tokens, and which rows of logits the golden file has.
struct Case {
    name: &'static str,
    gguf: PathBuf,
    tokens: Vec<u32>,
    /// First row, and how many rows on the next one is.
    rows: (usize, usize),
}

impl Case {
    fn golden(&self) -> Vec<f32> {
        read_f32(&golden().join(format!("reference-{}.f32", self.name)))
    }

    fn chosen(&self, logits: &[f32]) -> Vec<f32> {
        let (first, step) = self.rows;
        let vocab = logits.len() / self.tokens.len();
        logits.chunks_exact(vocab).skip(first).step_by(step).flatten().copied().collect()
    }

    fn check(&self) {
        self.check_against(&self.golden());
    }

    fn check_against(&self, exact: &[f32]) {
        let ours = Lossless::new(&self.gguf).logits(&self.tokens, self.name);
        let ours = self.chosen(&ours);
        let vocab = exact.len() / self.tokens[self.rows.0..].iter().step_by(self.rows.1).count();
        let rows = ours.chunks_exact(vocab).zip(exact.chunks_exact(vocab)).map(|(o, e)| nmse(o, e));
        let (worst, error) = rows.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).expect("rows");
        let position = self.rows.0 + worst * self.rows.1;
        let all = nmse(&ours, exact);
        println!("{:<16} f64: NMSE {all:.2e}, worst row {error:.2e}", self.name);
        assert!(all <= ROUNDING, "{}: NMSE {all:e}, worst at position {position}", self.name);
        assert!(error <= ROW, "{}: NMSE {error:e} at position {position}", self.name);
    }

    /// What the reference gives: seconds.
    fn reference(&self) -> Vec<f32> {
        let folder = fixtures("tiny");
        let python = folder.parent().expect("a folder").join("venv/bin/python");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/run.py");
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let out = scratch.path().join("rows.f32");
        let tokens: Vec<String> = self.tokens.iter().map(u32::to_string).collect();
        let mut run = Command::new(python);
        run.arg(script).arg(&self.gguf).arg(tokens.join(",")).arg(&out);
        run.args(["--rows", &format!("{},{},{}", self.rows.0, self.tokens.len(), self.rows.1)]);
        let output = run.env("PYTHONDONTWRITEBYTECODE", "1").output().expect("python starts");
        assert!(output.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        read_f32(&out)
    }
}

/// Tokens 512 to 1,023 of the held-out text in the random models' vocabulary, BOS in place of the first.
fn second_context() -> Vec<u32> {
    let text = include_str!("../../reference/heldout.tokens");
    text.trim().split(',').map(|id| id.parse().expect("an id")).collect()
}

fn tiny(arch: &str) -> PathBuf {
    fixtures("tiny").join(format!("tiny-{arch}-F32.gguf"))
}

/// Every seventh row of the second context, all after the indexers have begun to leave something out.
fn long(name: &'static str) -> Case {
    Case { name, gguf: tiny(name), tokens: second_context(), rows: (68, 7) }
}

fn scaled_qwen3next() -> Case {
    let gguf = fixtures("dummies").join("dummy-qwen3next-moe.gguf");
    Case { name: "qwen3next-scaled", gguf, tokens: golden_tokens(64, 128), rows: (0, 1) }
}

/// Bard with an indexer that has something to choose: 8 blocks of 4, where the file as it is allows for all.
fn bard_top_32(folder: &Path) -> Case {
    let gguf =
        with_u32(folder, &fixtures("bard").join("bard-BF16.gguf"), "qwen4exp.attention.indexer.top_k", 32);
    let text = std::fs::read_to_string(bard().join("golden.json")).expect("golden.json");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    Case { name: "bard-top-32", gguf, tokens: ids(&json["logits"]["tokens"]), rows: (40, 7) }
}

#[test]
fn deepseek4_agrees_where_blocks_are_left_out() {
    long("deepseek4").check();
}

#[test]
fn qwen4exp_agrees_where_blocks_are_left_out() {
    long("qwen4exp").check();
}

#[test]
fn qwen3next_agrees() {
    long("qwen3next").check();
}

/// llama.cpp's graph of qwen3next leaves out one of the scales that the file has, `ssm_out.scale`.
#[test]
fn qwen3next_agrees_with_all_scales() {
    scaled_qwen3next().check();
}

#[test]
fn glm_dsa_agrees_where_positions_are_left_out() {
    long("glm-dsa").check();
}

#[test]
fn a_trained_model_agrees_where_blocks_are_left_out() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    bard_top_32(scratch.path()).check();
}

/// All rows that count of both contexts, as one number: exp of the mean −ln p of positions 257 to 511 of each, by the
/// references. llama.cpp gives the same for the last two, in which no choice among equal scores shows.
#[test]
fn long_contexts_agree_with_the_references() {
    let text = bard().join("heldout.txt");
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let plain = tiny("deepseek4");
    let yarn = with_yarn(scratch.path(), &plain, "deepseek4");
    let bard = bard_top_32(scratch.path()).gguf;
    for (name, gguf, want) in [
        ("deepseek4", plain, 26819.6990),
        ("glm-dsa", tiny("glm-dsa"), 23844.7660),
        ("deepseek4, YaRN", yarn, 27674.3822),
        ("bard-top-32", bard, 13.708151),
    ] {
        let model = Lossless::new(&gguf);
        let got = perplexity(&model.container, &text, 512, &["--chunks", "2"]);
        println!("{name:<16} perplexity {got:.4}, reference {want:.4}");
        assert!((got / want - 1.0).abs() < 1e-6, "{name}: {got}, reference {want}");
    }
}

/// llama.cpp rounds activations that meet BF16 weights, and then chooses other experts: only a reference can tell
/// whether a BF16 file is computed exactly.
#[test]
fn bf16_weights_meet_exact_activations() {
    for (arch, name) in [("deepseek4", "deepseek4-BF16"), ("qwen4exp", "qwen4exp-BF16")] {
        let gguf = fixtures("tiny").join(format!("tiny-{arch}-BF16.gguf"));
        let case = Case { name, gguf, tokens: golden_tokens(64, 512), rows: (0, 1) };
        case.check_against(&case.reference());
    }
}

#[test]
fn second_context_is_of_the_held_out_text() {
    let text = std::fs::read_to_string(bard().join("heldout.txt")).expect("the text");
    let model = Lossless::new(&tiny("llama"));
    // Far more than 1,024 tokens: no piece of this vocabulary has more than three bytes.
    let all = tokenize(&model.container, &text[..8192]);
    let second = second_context();
    assert_eq!(second[0], 1, "BOS");
    assert_eq!(second[1..], all[513..1024]);
}

/// Golden rows are what the reference gives. A test for each, so that they run beside each other.
fn golden_rows(case: &Case) {
    let error = nmse(&case.reference(), &case.golden());
    assert!(error <= 1e-14, "{}: NMSE {error:e} between the reference and its golden file", case.name);
}

#[test]
fn golden_rows_of_deepseek4() {
    golden_rows(&long("deepseek4"));
}

#[test]
fn golden_rows_of_glm_dsa() {
    golden_rows(&long("glm-dsa"));
}

#[test]
fn golden_rows_of_qwen3next() {
    golden_rows(&long("qwen3next"));
}

#[test]
fn golden_rows_of_qwen3next_with_all_scales() {
    golden_rows(&scaled_qwen3next());
}

#[test]
fn golden_rows_of_qwen4exp() {
    golden_rows(&long("qwen4exp"));
}

#[test]
fn golden_rows_of_a_trained_model() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    golden_rows(&bard_top_32(scratch.path()));
}
