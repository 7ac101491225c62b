//! What `gantry plan` predicts of memory beside weights, beside what the runtime reckons with; and containers that are
//! packed to the byte, in the budgets that they were packed for.

use gantry_formats::placement::{CardSpec, Strategy};
use gantry_runtime::{Container, Device, Model, ModelOptions};
use gantry_tests::{convert, json, run, run_ok};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Small models of every architecture.
const PRESETS: [&str; 11] = [
    "llama-tiny",
    "llama-moe-tiny",
    "qwen2-tiny",
    "qwen3-tiny",
    "qwen3moe-tiny",
    "olmoe-tiny",
    "qwen3next-tiny",
    "qwen4exp-tiny",
    "qwen4exp-mtp-tiny",
    "deepseek4-tiny",
    "glm-dsa-tiny",
];

const CONTEXT: u64 = 96;

struct Room {
    folder: tempfile::TempDir,
    gguf: PathBuf,
}

impl Room {
    fn new(preset: &str) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let gguf = folder.path().join("m.gguf");
        run_ok("gantry", &["synth", preset, "-o", gguf.to_str().expect("UTF-8")]);
        Self { folder, gguf }
    }

    fn container(&self) -> PathBuf {
        self.folder.path().join("m.gantry")
    }

    fn plan(&self, options: &[&str]) -> Value {
        let args: Vec<&OsStr> = ["plan".as_ref(), self.gguf.as_os_str()].to_vec();
        let more = ["--json", "--context", &CONTEXT.to_string()].map(String::from);
        let more: Vec<&OsStr> = more.iter().map(OsStr::new).chain(options.iter().map(OsStr::new)).collect();
        json("gantry", &[args, more].concat())
    }
}

fn number(card: &Value, key: &str) -> u64 {
    card[key].as_u64().unwrap_or_else(|| panic!("{key} of {card}"))
}

/// Budgets that hold a plan's cards to the byte.
fn just(plan: &Value) -> String {
    let cards = plan["cards"].as_array().expect("cards").iter();
    let total = |card: &Value| {
        ["segment_bytes", "kv_bytes", "scratch_bytes"].map(|key| card[key].as_u64().unwrap_or(0))
    };
    cards.map(|card| format!("{}B", total(card).iter().sum::<u64>())).collect::<Vec<_>>().join(",")
}

fn compare(preset: &str, container: &Path, plan: &Value, rule: &str, threads: usize) {
    let cards = plan["cards"].as_array().expect("cards");
    let placement: Strategy = rule.parse().expect("a rule");
    let options = ModelOptions {
        context: Some(CONTEXT as usize),
        cards: Some(vec![CardSpec { host: false, bytes: None }; cards.len()]),
        placement: Some(placement),
        ..ModelOptions::default()
    };
    let container = Container::open(container).expect("a container");
    let device = Device::cpu(Some(threads)).expect("a processor");
    let model = Model::load(&container, &device, &options).expect("a model");
    for (card, (need, said)) in model.need().iter().zip(cards).enumerate() {
        let name = format!("{preset}, {rule}, card {card} of {}, {threads} threads", cards.len());
        let (scratch, kv) = (number(said, "scratch_bytes"), said["kv_bytes"].as_u64().unwrap_or(0));
        assert!(scratch >= need.scratch, "{name}: {scratch} predicted, {} needed", need.scratch);
        let most = 2 * need.scratch + (4 << 20);
        assert!(scratch <= most, "{name}: {scratch} predicted, {} needed", need.scratch);
        assert!(kv >= need.cache, "{name}: {kv} of KV cache predicted, {} needed", need.cache);
        assert!(number(said, "segment_bytes") >= need.weights, "{name}: {said} {need:?}");
    }
}

#[test]
fn what_is_predicted_is_enough_and_not_much_more() {
    for preset in PRESETS {
        let room = Room::new(preset);
        let has_experts = !room.plan(&[])["banks"].as_array().expect("banks").is_empty();
        let rules: &[&str] = if has_experts { &["paired", "layers"] } else { &["layers"] };
        for recipe in ["lossless", "balanced"] {
            convert(&room.gguf, &room.container(), &["--recipe", recipe]);
            for rule in rules {
                for cards in ["1", "2", "3"] {
                    let plan = room.plan(&["--recipe", recipe, "--cards", cards, "--placement", rule]);
                    for threads in [1, 64] {
                        compare(preset, &room.container(), &plan, rule, threads);
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_packed_to_the_byte_runs_in_its_budgets() {
    for preset in PRESETS {
        let room = Room::new(preset);
        let has_experts = !room.plan(&[])["banks"].as_array().expect("banks").is_empty();
        let rules: &[&str] = if has_experts { &["paired", "layers"] } else { &["layers"] };
        for rule in rules {
            for count in ["1", "2", "3"] {
                let cards = just(&room.plan(&["--cards", count, "--placement", rule]));
                let context = CONTEXT.to_string();
                let options = ["--cards", &cards, "--placement", rule, "--context", &context];
                convert(&room.gguf, &room.container(), &options);
                let out = room.folder.path().join("logits.f32");
                let paths = [room.container(), out].map(|path| path.to_str().expect("UTF-8").to_string());
                let args = ["logits", &paths[0], "--out", &paths[1], "--force", "--tokens", "1,2,3"];
                let output = run("gantry-run", &[&args[..], &options[..2], &options[4..]].concat());
                let text = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{preset}, {rule} on {cards}: {text}");
                assert!(!text.contains("while loading"), "{preset}, {rule} on {cards}: {text}");
            }
        }
    }
}
