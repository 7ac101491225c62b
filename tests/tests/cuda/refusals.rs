//! What is refused before a weight is read.

use super::card::Machine;
use super::models::{drafting, experts, kernels, other, small, split};
use gantry_formats::container::Container;
use gantry_tests::standin::Seen;
use std::path::Path;

/// Nothing as large as a model came onto a card.
#[track_caller]
fn read_nothing(seen: &Seen) {
    let most = seen.log.allocated.iter().max().copied().unwrap_or(0);
    assert!(most < 1 << 16, "{most} bytes were allocated");
    assert!(!seen.log.called.contains_key("cuMemcpyHtoDAsync_v2"), "{:?}", seen.log.called);
}

#[test]
fn containers_for_other_devices() {
    for target in ["cpu", "cuda:sm_100", "hip:gfx942"] {
        let container = other(target);
        let machine = Machine::new();
        let seen = machine.load(&container, "cuda:0", &[]);
        seen.fails(5, &[&format!("packed for {target}"), "sm_90", "gantry replan --target cuda:sm_90"]);
        read_nothing(&seen);
        let seen = machine.write(&container, "cuda:0", &[]);
        seen.fails(5, &[target, "gantry replan"]);
        read_nothing(&seen);
    }
}

#[test]
fn cards_that_are_not_there() {
    let machine = Machine::new().set("CARDS", 2);
    for seen in [machine.load(small(), "cuda:2", &[]), machine.write(small(), "cuda:2", &[])] {
        seen.fails(5, &["cuda:2: there are 2 cards here", "gantry-run devices"]);
        read_nothing(&seen);
    }
}

#[test]
fn cards_that_do_not_reach_each_other() {
    let machine = Machine::new().set("CARDS", 3).set("PEERS", 0);
    let seen = machine.write(split(), "cuda:2,1", &[]);
    seen.fails(5, &["cuda:2 does not reach the memory of cuda:1", "or one card"]);
    read_nothing(&seen);
}

#[test]
fn places_that_no_card_is_named_for() {
    let machine = Machine::new().set("CARDS", 2);
    let seen = machine.write(split(), "cuda:0,1", &["--cards", "3"]);
    seen.fails(5, &["on 3 cards, --device names 2", "--cards 2"]);
    read_nothing(&seen);
}

#[test]
fn a_cpu_beside_cards() {
    let machine = Machine::new().set("CARDS", 2);
    let seen = machine.write(split(), "cuda:0,1", &["--cards", "1GiB,cpu:1GiB"]);
    seen.fails(5, &["card 1 is the host's", "--device cuda:0,cpu"]);
    read_nothing(&seen);
}

#[test]
fn cards_with_too_little_memory() {
    if !kernels() {
        return;
    }
    let machine = Machine::new().set("MEMORY", 1_000_000);
    let seen = machine.load(small(), "cuda:0", &[]);
    let bytes = Container::open(small()).expect("a container").header().cards[0].bytes;
    assert!(bytes > 1_000_000);
    seen.fails(6, &["cuda:0: no ", "a card's arena", "1000000 are free"]);
    read_nothing(&seen);
    let seen = machine.write(small(), "cuda:0", &[]);
    seen.fails(6, &["free"]);
    read_nothing(&seen);
}

/// What is typed wrong is wrong on every machine: no driver is looked for before it is said.
#[test]
fn wrong_usage_is_told_without_a_driver() {
    let bare = Machine::without_driver();
    let cases: [(&Path, &str, &[&str], i32, &str); 9] = [
        (small(), "cuda:x", &[], 2, "is no device"),
        (small(), "cuda:0", &["--threads", "0"], 2, "threads"),
        (small(), "cuda:0", &["--spec", "2"], 2, "no block that drafts"),
        (drafting(), "cuda:0", &["--spec", "65"], 2, "give 1 to 64"),
        (drafting(), "cuda:0", &["--spec", "32"], 5, "give --spec 31 or less"),
        (drafting(), "cuda:0,1", &["--spec", "2"], 5, "several cards do not draft tokens"),
        (experts(), "cuda:0,cpu", &["--ep-verify"], 2, "another order"),
        (split(), "cuda:0,1", &["--cards", "3"], 5, "--device names 2"),
        (small(), "cpu", &["--reload", "x"], 2, "give --device cuda:0"),
    ];
    for (model, device, more, code, word) in cases {
        let seen = bare.write(model, device, more);
        seen.fails(code, &[word]);
        assert!(!seen.err.contains("libcuda"), "{}", seen.err);
    }
    let bench = |more: &[&str]| bare.run(&[&["bench", small().to_str().expect("UTF-8")], more].concat());
    for (more, word) in [
        (&["--measure", "load", "-p", "5"][..], "--prompt means nothing for --measure load"),
        (&["--measure", "load", "--kv", "f16"], "--kv means nothing for --measure load"),
        (
            &["--measure", "kernels", "--device", "cuda:0", "--spec", "2"],
            "--spec means nothing for --measure kernels",
        ),
        (&["--measure", "kernels", "--threads", "2"], "--threads means nothing for --measure kernels"),
        (&["--svg", "x.svg"], "--svg means nothing for --measure text"),
    ] {
        bench(more).fails(2, &[word]);
    }
}

#[test]
fn a_shortage_beside_the_host_names_the_card() {
    if !kernels() {
        return;
    }
    let limit = ["--memory-limit", "1KiB", "--cards", "1GiB,cpu:1GiB"];
    let seen = Machine::new().set("MEMORY", 4u64 << 30).write(experts(), "cuda:0,cpu", &limit);
    seen.fails(6, &["not enough memory of cuda:0 for this model"]);
    read_nothing(&seen);
}
