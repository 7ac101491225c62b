//! What is refused, and with which words.

use super::machine::{Machine, computes, loader};
use super::models::{other, small};
use gantry_formats::container::Container;
use gantry_tests::standin::Seen;

#[track_caller]
fn read_nothing(seen: &Seen) {
    assert!(!seen.err.contains("load:"), "{}", seen.err);
}

#[test]
fn containers_for_other_targets() {
    if !loader() {
        return;
    }
    for target in ["level-zero:dg2", "cuda:sm_90", "cpu"] {
        let seen = Machine::idle().load(&other(target), "level-zero:0", &[]);
        seen.fails(5, &[target, "level-zero:0", "bmg", "--target level-zero:bmg"]);
        read_nothing(&seen);
    }
}

#[test]
fn cards_that_are_not_there() {
    if loader() {
        let words = ["level-zero:1: there is 1 card here, from level-zero:0"];
        Machine::idle().load(small(), "level-zero:1", &[]).fails(5, &words);
    }
}

#[test]
fn a_compiler_that_refuses_kernels_is_quoted() {
    if loader() {
        let machine = Machine::idle().set("REFUSE", "error: too clever by half");
        let words = ["level-zero:0: ", "as SPIR-V was refused: error: too clever by half", "(1879048196)"];
        machine.load(small(), "level-zero:0", &[]).fails(1, &words);
    }
}

#[test]
fn groups_and_allocations_that_a_card_does_not_have() {
    if !loader() {
        return;
    }
    let narrow = Machine::idle().set("GROUP", 128);
    narrow.load(small(), "level-zero:0", &[]).fails(1, &["its groups have 256 members, the card takes 128"]);
    let bytes = Container::open(small()).expect("a container").header().cards[0].bytes;
    let tight = Machine::idle().set("MOST", bytes / 2).set("RELAXED", 0);
    let words = ["level-zero:0: ", &format!("the driver gives {} bytes in one allocation", bytes / 2)];
    tight.load(small(), "level-zero:0", &["--verify", "index"]).fails(1, &words);
    // Where more is to be had for the asking, it is asked for.
    let asked = Machine::idle().set("MOST", bytes / 2).load(small(), "level-zero:0", &["--verify", "index"]);
    asked.shows(&["only the index verified"]);
    assert!(asked.log.allocated.contains(&bytes), "{:?}", asked.log.allocated);
}

#[test]
fn cards_with_too_little_memory() {
    if !loader() {
        return;
    }
    let machine = Machine::idle().set("MEMORY", 1_000_000).set("MOST", 1 << 30);
    let seen = machine.load(small(), "level-zero:0", &["--verify", "index"]);
    seen.fails(6, &["level-zero:0: no ", "a card's arena", "1000000 are free"]);
    read_nothing(&seen);
}

#[test]
fn without_a_loader_the_library_is_named() {
    // A machine that has the loader cannot be made to have none: its path is the system's.
    if std::env::var_os("GANTRY_REQUIRE_ZE").is_none() && !loader() {
        let seen = Machine::without_cards().load(small(), "level-zero:0", &[]);
        seen.fails(5, &["libze_loader.so.1 was not found", "--device cpu"]);
    }
}

#[test]
fn larger_allocations_compute_the_same() {
    if computes() {
        let bytes = Container::open(small()).expect("a container").header().cards[0].bytes;
        let seen = Machine::new().set("MOST", bytes / 2).load(small(), "level-zero:0", &[]);
        seen.shows(&[]);
    }
}

/// Level Zero has no way to let a card read what is mapped.
#[test]
fn mappings_are_not_pinned() {
    if loader() {
        let seen = Machine::idle().load(small(), "level-zero:0", &["--load", "map"]);
        seen.fails(1, &["level-zero:0: pinning a mapping", "ZE_RESULT_ERROR_UNSUPPORTED_FEATURE"]);
    }
}
