//! What models say on the stand-in's card, which computes with the portable kernels.

use super::machine::{Machine, computes};
use super::models::{exact, experts, quantized, small};
use gantry_tests::standin;
use gantry_tests::{bard, golden_tokens, ids, logits, nmse, read_f32, same_bits};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;

/// The logits of tokens on a card.
pub(crate) fn on_card(
    machine: &Machine,
    container: &Path,
    device: &str,
    tokens: &[u32],
    more: &[&str],
) -> Vec<f32> {
    let out = machine.file("logits.f32");
    let more = [&["--force"][..], more].concat();
    machine.run(&standin::logits(container, device, tokens, &out, &more)).shows(&[]);
    read_f32(&out)
}

fn golden() -> Value {
    let text = std::fs::read_to_string(bard().join("golden.json")).expect("golden.json");
    serde_json::from_str(&text).expect("JSON")
}

/// The golden text is llama.cpp's, from the same weights; gaps between first and second are above 0.03.
#[test]
fn bard_writes_its_golden_text() {
    if !computes() {
        return;
    }
    for case in golden()["prompts"].as_array().expect("prompts") {
        let prompt = case["prompt"].as_str().expect("a prompt");
        let head = [exact().as_os_str(), "-p".as_ref(), prompt.as_ref()];
        let options = ["-n", "32", "--greedy", "--ignore-eos", "--json", "--device", "hip:0"];
        let seen = Machine::new().run(&head.into_iter().chain(options.map(OsStr::new)).collect::<Vec<_>>());
        seen.shows(&[]);
        let got: Value = serde_json::from_str(&seen.out).expect("one JSON document");
        assert_eq!(ids(&got["tokens"]), ids(&case["BF16"]["greedy_32"]), "{prompt:?}: {}", got["text"]);
    }
}

/// Exact weights, and those in the orders of matrix instructions of each generation that there are kernels for. Where int8
/// multiplies, activations are rounded: one that lies between two steps goes the other way where a sum differs in its last
/// bit, and then that token and those that see it differ by that step: all of them where each sees all before (`w8a8` and `compact`
/// of bard), else few, so that the median tells.
#[test]
fn logits_are_the_processors() {
    if !computes() {
        return;
    }
    let tokens = ids(&golden()["logits"]["tokens"]);
    let check = |model: &Path, generation: &str, tokens: &[u32], bounds: [f64; 2]| {
        let want = logits(model, tokens, &["--kv", "f32"]);
        let machine = Machine::new().set("GENERATION", generation);
        let got = on_card(&machine, model, "hip:0", tokens, &["--kv", "f32", "--batch", "16"]);
        let vocab = want.len() / tokens.len();
        let rows = got.chunks(vocab).zip(want.chunks(vocab));
        let mut rows: Vec<f64> = rows.map(|(got, want)| nmse(got, want)).collect();
        rows.sort_by(f64::total_cmp);
        let (whole, median) = (nmse(&got, &want), rows[rows.len() / 2]);
        println!("{}: NMSE {whole:.2e}, of a token {median:.2e}", model.display());
        assert!(whole <= bounds[0] && median <= bounds[1], "{}: {whole:e}, {median:e}", model.display());
    };
    let (none, few, many) = ([1e-10; 2], [1e-3, 1e-10], [1e-3; 2]);
    check(exact(), "gfx942", &tokens[..48], none);
    check(small(), "gfx942", &golden_tokens(24, 512), few);
    check(experts(), "gfx942", &golden_tokens(24, 512), few);
    for (recipe, generation, bounds) in [
        ("balanced", "gfx942", few),
        ("w8a8", "gfx942", many),
        ("compact", "gfx942", many),
        ("balanced", "gfx1100", few),
    ] {
        check(&quantized(recipe, generation), generation, &tokens[..24], bounds);
    }
}

/// However a prompt is cut, the bits are the same.
#[test]
fn batches_do_not_change_a_bit() {
    if !computes() {
        return;
    }
    let tokens = &ids(&golden()["logits"]["tokens"])[..40];
    let model = quantized("balanced", "gfx942");
    for model in [exact(), &model] {
        let of = |batch: &str| on_card(&Machine::new(), model, "hip:0", tokens, &["--batch", batch]);
        let whole = of("32");
        for batch in ["1", "7"] {
            assert!(same_bits(&whole, &of(batch)), "{} in batches of {batch}", model.display());
        }
    }
}
