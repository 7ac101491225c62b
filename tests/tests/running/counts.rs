//! How often experts were used, as `--record-hotness` writes it.

use super::models::Made;
use gantry_tests::{ids, json, run_ok, tokenize};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;

const PROMPT: &str = "what would there be when the others were not here";

/// Counts of a run by layer, the tokens that they are of, and what was written.
fn record(made: &Made, options: &[&str]) -> (Vec<(u64, Vec<u64>)>, u64, Value) {
    let file = made.folder().join("hot.json");
    let container = made.container();
    let mut args = vec![container.as_os_str(), "-p".as_ref(), PROMPT.as_ref(), "--record-hotness".as_ref()];
    args.push(file.as_os_str());
    args.extend(["--json", "--greedy", "--ignore-eos"].iter().chain(options).map(OsStr::new));
    let written = json("gantry-run", &args);
    let (counts, tokens) = counts(&file);
    (counts, tokens, written)
}

fn counts(file: &Path) -> (Vec<(u64, Vec<u64>)>, u64) {
    let found: Value = serde_json::from_slice(&std::fs::read(file).expect("counts")).expect("JSON");
    assert_eq!((&found["schema"], &found["version"]), (&"gantry-hotness".into(), &1.into()));
    let number = |v: &Value| v.as_u64().expect("a number");
    let layer = |l: &Value| {
        let counts = l["counts"].as_array().expect("counts").iter().map(number).collect();
        (number(&l["layer"]), counts)
    };
    let layers = found["counts"].as_array().expect("layers").iter().map(layer).collect();
    (layers, number(&found["tokens"]))
}

/// Layers with experts in the trunk, and all with experts.
fn layers(preset: &str) -> (Vec<u64>, usize) {
    match preset {
        // Four, and one that only drafts.
        "qwen4exp-mtp-tiny" | "deepseek4-tiny" => ((0..4).collect(), 5),
        "glm-dsa-tiny" => ((1..4).collect(), 3),
        _ => ((0..4).collect(), 4),
    }
}

const PRESETS: [&str; 5] =
    ["llama-moe-tiny", "qwen3next-tiny", "qwen4exp-mtp-tiny", "deepseek4-tiny", "glm-dsa-tiny"];

#[test]
fn every_token_counts_for_each_of_its_experts() {
    for preset in PRESETS {
        let made = Made::new(preset, &[]);
        let prompt = tokenize(&made.container(), PROMPT).len() as u64;
        let (trunk, all) = layers(preset);
        let (whole, tokens, _) = record(&made, &["-n", "9"]);
        // The last token's logits are wanted by nobody: it is not computed.
        assert_eq!(tokens, prompt + 8, "{preset}");
        assert_eq!(whole.len(), all, "{preset}");
        for (layer, counts) in &whole {
            let sum: u64 = counts.iter().sum();
            let want = if trunk.contains(layer) { 2 * tokens } else { 0 };
            assert_eq!((sum, counts.len()), (want, 8), "{preset}, layer {layer}: {counts:?}");
            assert!(counts.iter().all(|c| *c <= tokens), "{preset}, layer {layer}: {counts:?}");
        }
        let spread = whole.iter().filter(|(_, c)| c.iter().any(|n| *n != c[0])).count();
        assert!(spread > 0, "{preset}: all experts alike");
        for batch in ["1", "3"] {
            let (split, also, _) = record(&made, &["-n", "9", "--batch", batch]);
            assert_eq!((split, also), (whole.clone(), tokens), "{preset}, batches of {batch}");
        }
    }
}

#[test]
fn where_all_experts_are_used_each_counts_every_token() {
    for preset in PRESETS {
        let made = Made::new(preset, &["expert_count=4", "expert_used_count=4"]);
        let (trunk, _) = layers(preset);
        let (found, tokens, _) = record(&made, &["-n", "3"]);
        for (layer, counts) in found {
            let each = if trunk.contains(&layer) { tokens } else { 0 };
            assert_eq!(counts, [each; 4], "{preset}, layer {layer}");
        }
    }
}

/// A token that was drafted and then rejected went through the trunk's experts like any other, and counts.
#[test]
fn rejected_drafts_count_and_accepted_ones_count_once() {
    for preset in ["qwen4exp-mtp-tiny", "deepseek4-tiny"] {
        for share in [1.0, 0.01] {
            let made = Made::new(preset, &[]).foreseeable(share);
            let prompt = tokenize(&made.container(), PROMPT).len() as u64;
            let (plain, _, text) = record(&made, &["-n", "13"]);
            let (found, tokens, drafted) = record(&made, &["-n", "13", "--spec", "3"]);
            assert_eq!(text["tokens"], drafted["tokens"]);
            let count = |key: &str| drafted["drafts"][key].as_u64().expect("a count");
            let rejected = count("drafted") - count("accepted");
            assert_eq!(tokens, prompt + 12 + rejected, "{preset}, {share}: {}", drafted["drafts"]);
            for ((layer, with), (_, without)) in found.iter().zip(&plain) {
                let more: Vec<u64> = with.iter().zip(without).map(|(a, b)| a - b).collect();
                let each = if *layer < 4 { 2 * rejected } else { 0 };
                assert_eq!(more.iter().sum::<u64>(), each, "{preset}, layer {layer}: {with:?}, {without:?}");
            }
        }
    }
}

#[test]
fn inspect_reads_what_was_recorded() {
    for preset in PRESETS {
        let made = Made::new(preset, &[]);
        let (found, tokens, written) = record(&made, &["-n", "5"]);
        assert_eq!(ids(&written["tokens"]).len(), 5);
        let (container, file) = (made.container(), made.folder().join("hot.json"));
        let args = [
            "inspect".as_ref(),
            container.as_os_str(),
            "--routing".as_ref(),
            file.as_os_str(),
            "--json".as_ref(),
        ];
        let seen = json("gantry", &args);
        assert_eq!(
            (&seen["command"], &seen["tokens"]),
            (&"inspect routing".into(), &tokens.into()),
            "{preset}"
        );
        assert_eq!((&seen["experts"], &seen["experts_used"]), (&8.into(), &2.into()), "{preset}");
        let by_layers = seen["by_layers"].as_array().expect("layers");
        assert_eq!(by_layers.len(), found.len(), "{preset}");
        for (layer, (number, counts)) in by_layers.iter().zip(&found) {
            assert_eq!(layer["layer"], *number, "{preset}");
            let Some(top) = layer["top"].as_array().and_then(|t| t.first()) else { continue };
            let most = counts.iter().max().expect("counts");
            assert_eq!(top["count"], *most, "{preset}, layer {number}: {layer}");
        }
        run_ok("gantry", &["inspect".as_ref(), file.as_os_str()]);
        // Counts of this model are none of another.
        let other = Made::new("llama-moe-tiny", &["expert_count=16"]);
        let container = other.container();
        let args = ["inspect".as_ref(), container.as_os_str(), "--routing".as_ref(), file.as_os_str()];
        assert!(!gantry_tests::run("gantry", &args).status.success(), "{preset}");
    }
}
