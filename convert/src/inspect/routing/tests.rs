//! Statistics against plain formulas, and the view's forms.

use super::balance::Balance;
use super::*;
use gantry_formats::hotness::{Hotness, LayerCounts};

fn layer(layer: u32, counts: &[u64]) -> LayerCounts {
    LayerCounts { layer, counts: counts.to_vec() }
}

#[test]
fn balance_follows_the_formulas() {
    // Mean 4, variance (16 + 4 + 4 + 0) / 4 = 6; entropy of shares 1/2, 1/8, 1/8, 1/4 is 1.75 bits.
    let b = Balance::of(&layer(3, &[8, 2, 2, 4]));
    assert_eq!((b.layer, b.choices), (3, 16));
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
    close(b.max_over_mean, 2.0);
    close(b.variation, 6f64.sqrt() / 4.0);
    close(b.effective_experts, 2f64.powf(1.75));
    close(b.least_share, 0.125);
    close(b.most_share, 0.5);
    assert_eq!(b.top.iter().map(|t| t.expert).collect::<Vec<_>>(), [0, 3, 1, 2], "ties by id");
    let even = Balance::of(&layer(0, &[u64::MAX / 4; 4]));
    close(even.max_over_mean, 1.0);
    close(even.variation, 0.0);
    close(even.effective_experts, 4.0);
    let one = Balance::of(&layer(0, &[0, 9, 0]));
    close(one.effective_experts, 1.0);
    assert_eq!((one.unused, one.top.len()), (vec![0, 2], 1));
    let none = Balance::of(&layer(0, &[0, 0]));
    assert_eq!((none.max_over_mean, none.variation, none.effective_experts), (0.0, 0.0, 0.0));
}

#[test]
fn the_view_fits_a_terminal_and_says_its_schema() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("counts.json");
    let big = u64::MAX / 4096;
    let counts = vec![layer(0, &[big; 512]), layer(7, &[0; 512]), layer(4095, &[[big, 0]; 256].concat())];
    let hotness = Hotness { fingerprint: None, layers: 4096, experts: 512, tokens: u64::MAX, counts };
    std::fs::write(&path, hotness.to_json()).expect("write");
    let routing = of_text(&path).expect("sound").expect("counts");
    let text = routing.text();
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    for word in [
        "token counts (JSON)",
        "layer 4095: expert 0 has 2.00 times",
        "256 experts were never chosen",
        "in layer 7",
    ] {
        assert!(text.replace("\n            ", " ").contains(word), "{word:?} not in {text}");
    }
    let json = serde_json::to_value(&routing).expect("JSON");
    let keys: Vec<&str> = json.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = [
        "by_layers",
        "experts",
        "experts_used",
        "files",
        "fingerprint",
        "format",
        "layers",
        "model",
        "tokens",
        "unused_experts",
        "warnings",
        "worst_layer",
    ];
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, expected);
    assert_eq!((&json["worst_layer"], &json["unused_experts"]), (&4095.into(), &(512 + 256).into()));
    assert_eq!(json["by_layers"][2]["top"][1]["expert"], 2);
    let twice = of(&[path.clone(), path], None).expect_err("tokens that do not fit");
    assert!(twice.to_string().contains("does not fit 64 bits"), "{twice}");
}

#[test]
fn what_is_meant_to_be_counts_is_refused_and_models_are_let_through() {
    let dir = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("write");
        path
    };
    assert!(of_text(&write("a.csv", b"layer_id,expert_id,count\n0,1,2\n")).expect("sound").is_some());
    let error = of_text(&write("b.csv", b"layer_id,expert_id,count\n0,1,-2\n")).expect_err("negative");
    assert_eq!(crate::failure::exit_of(&error), gantry_formats::exit::Exit::Input);
    assert!(error.to_string().contains("/b.csv: line 2: "), "{error}");
    let newer = write("c.json", br#"{"schema": "gantry-hotness", "version": 2}"#);
    let error = of_text(&newer).expect_err("newer");
    assert_eq!(crate::failure::exit_of(&error), gantry_formats::exit::Exit::Incompatible);
    assert!(of_text(&write("m.gguf", b"GGUF\x03\0\0\0")).expect("not text").is_none());
    assert!(of_text(&dir.path().join("absent")).expect("not here").is_none());
}
