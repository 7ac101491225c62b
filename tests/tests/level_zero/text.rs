//! What models say on the stand-in's card, which computes with the kernels that ship.

use super::machine::{Machine, computes};
use super::models::{exact, experts, quantized, small};
use gantry_tests::standin;
use gantry_tests::{bard, golden_tokens, ids, logits, nmse, read_f32};
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
    // Kernels count looks for microseconds, of which a processor takes a hundred in one, while another card's are still built.
    let more = [&["--card-timeout", "86400"][..], more].concat();
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
        let options =
            ["-n", "32", "--greedy", "--ignore-eos", "--json", "--device", "level-zero:0", "--kv", "f32"];
        let seen = Machine::new().run(&head.into_iter().chain(options.map(OsStr::new)).collect::<Vec<_>>());
        seen.shows(&[]);
        let got: Value = serde_json::from_str(&seen.out).expect("one JSON document");
        assert_eq!(ids(&got["tokens"]), ids(&case["BF16"]["greedy_32"]), "{prompt:?}: {}", got["text"]);
    }
}

/// Nearly what the processor computes: with int8 products, a sum of another order may round an activation the other way.
#[test]
fn logits_are_the_processors() {
    if !computes() {
        return;
    }
    let tokens = ids(&golden()["logits"]["tokens"]);
    for (model, tokens, bound) in [
        (exact(), &tokens[..32], 1e-10),
        (quantized(), &tokens[..32], 1e-5),
        (small(), &golden_tokens(24, 512)[..], 1e-5),
        (experts(), &golden_tokens(24, 512)[..], 1e-5),
    ] {
        let want = logits(model, tokens, &["--kv", "f32"]);
        let more = ["--kv", "f32", "--batch", "16"];
        let got = on_card(&Machine::new(), model, "level-zero:0", tokens, &more);
        let error = nmse(&got, &want);
        println!("{}: NMSE {error:.2e}, bound {bound:.0e}", model.display());
        assert!(error <= bound, "{}: {error:e}", model.display());
    }
}
