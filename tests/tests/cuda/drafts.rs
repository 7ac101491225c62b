//! Drafts, and rows of n-gram tables: all that the host does for them, with kernels that do nothing but choose. All logits
//! are equal then, so that every draft is right.

use super::card::Machine;
use super::models::{drafting, kernels, small};
use gantry_tests::standin::Seen;
use serde_json::Value;

fn write(machine: &Machine, device: &str, more: &[&str]) -> Seen {
    let model = drafting().to_str().expect("UTF-8");
    let text = "so much of a text that its rows go by way of the card's memory, and not from where they are";
    let head =
        [model, "-p", text, "--greedy", "--ignore-eos", "--device", device, "--json", "--threads", "3"];
    machine.run(&[&head, more].concat())
}

fn document(seen: &Seen) -> Value {
    seen.shows(&[]);
    serde_json::from_str(&seen.out).expect("one JSON document")
}

#[test]
fn a_card_verifies_what_its_block_drafts() {
    if !kernels() {
        return;
    }
    let machine = Machine::new().set("SKIP", 1);
    let plain = document(&write(&machine, "cuda:0", &["-n", "24"]));
    assert!(plain["prompt_tokens"].as_array().expect("tokens").len() > 33, "{plain}");
    // 31 are more than the head takes at once.
    for spec in ["1", "3", "15", "31"] {
        let seen = write(&machine, "cuda:0", &["-n", "24", "--spec", spec]);
        let drafted = document(&seen);
        assert_eq!(drafted["tokens"], plain["tokens"], "--spec {spec}");
        let count = |key: &str| drafted["drafts"][key].as_u64().expect("a count");
        assert!(count("accepted") >= 11 && count("steps") <= 12, "--spec {spec}: {drafted}");
        // Windows are recorded once and replayed.
        let called = |name: &str| seen.log.called.get(name).copied().unwrap_or(0);
        let recorded = called("cuStreamBeginCapture_v2");
        assert!(recorded > 0 && called("cuGraphLaunch") >= recorded, "{:?}", seen.log.called);
    }
}

#[test]
fn drafts_go_on_in_another_run() {
    if !kernels() {
        return;
    }
    let machine = Machine::new().set("SKIP", 1);
    let file = machine.file("session");
    let file = file.to_str().expect("UTF-8");
    for spec in ["3", "3"] {
        document(&write(&machine, "cuda:0", &["-n", "7", "--spec", spec, "--session", file]));
    }
    let other = write(&machine, "cuda:0", &["-n", "7", "--spec", "2", "--session", file]);
    other.fails(2, &["it does not fit these options"]);
}

#[test]
fn what_does_not_draft_is_refused_before_a_weight_is_read() {
    let refused = |seen: Seen, code: i32, word: &str| {
        seen.fails(code, &[word]);
        assert!(!seen.err.contains("load:"), "{}", seen.err);
    };
    let machine = Machine::new().set("CARDS", 2);
    let no_block = machine.write(small(), "cuda:0", &["--spec", "2"]);
    refused(no_block, 2, "this model has no block that drafts tokens");
    if !kernels() {
        return;
    }
    refused(write(&machine, "cuda:0", &["--spec", "32"]), 5, "give --spec 31 or less");
    refused(write(&machine, "cuda:0,1", &["--spec", "2"]), 5, "several cards do not draft tokens");
}

#[test]
fn a_step_that_rows_are_gathered_for_ends_a_graph() {
    if !kernels() {
        return;
    }
    let bench = |device: &str, cards: u64| {
        let machine = Machine::new().set("SKIP", 1).set("CARDS", cards);
        let model = drafting().to_str().expect("UTF-8");
        let seen = machine.run(&["bench", model, "-p", "0", "-n", "3", "-r", "1", "--device", device]);
        seen.shows(&["tg3"]);
        seen.log.called["cuStreamBeginCapture_v2"]
    };
    assert_eq!(bench("cuda:0", 1), 2, "what comes before the rows, and what takes them");
    assert_eq!(bench("cuda:0,1", 2), 3, "the second card takes no rows");
}
