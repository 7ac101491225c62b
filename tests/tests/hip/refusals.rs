//! What is refused, and with which words.

use super::machine::{Machine, kernels};
use super::models::{experts, other, small, split};
use gantry_tests::standin::Seen;

/// No weight came onto a card.
#[track_caller]
fn read_nothing(seen: &Seen) {
    assert!(!seen.err.contains("load:"), "{}", seen.err);
    assert!(!seen.log.called.contains_key("hipMemcpyHtoDAsync"), "{:?}", seen.log.called);
}

#[test]
fn containers_for_other_targets() {
    for target in ["hip:gfx90a", "hip:gfx1100", "cuda:sm_90", "cpu"] {
        let container = other(target);
        let seen = Machine::idle().load(&container, "hip:0", &[]);
        seen.fails(5, &[target, "gfx942", "gantry replan --target hip:gfx942"]);
        read_nothing(&seen);
        let seen = Machine::idle().write(&container, "hip:0", &[]);
        seen.fails(5, &[target, "gantry replan"]);
        read_nothing(&seen);
    }
}

#[test]
fn cards_that_are_not_there() {
    let machine = Machine::idle().set("CARDS", 2);
    for seen in [machine.load(small(), "hip:2", &[]), machine.write(small(), "hip:2", &[])] {
        seen.fails(5, &["hip:2: there are 2 cards here, from hip:0"]);
        read_nothing(&seen);
    }
    let mixed = machine.write(split(), "hip:0,cuda:0", &[]);
    mixed.fails(5, &["hip:0 and cuda:0 do not reach each other's memory"]);
    read_nothing(&mixed);
}

/// The compiler here does not know them, so that there is no code object.
#[test]
fn generations_that_were_not_compiled() {
    for generation in ["gfx928", "gfx950"] {
        let machine = Machine::idle().set("GENERATION", generation);
        let seen = machine.load(&other(&format!("hip:{generation}")), "hip:0", &[]);
        seen.fails(5, &["built without HIP kernels for hip:0", "GANTRY_CLANG_HIP"]);
        read_nothing(&seen);
    }
}

#[test]
fn a_code_object_that_the_library_refuses() {
    if kernels() {
        let machine = Machine::idle().set("FAIL", "hipModuleLoadData:1=209");
        let seen = machine.load(small(), "hip:0", &[]);
        seen.fails(1, &["error: hip:0: loading kernels: hipErrorNoBinaryForGpu (209)"]);
        read_nothing(&seen);
    }
}

#[test]
fn cards_with_too_little_memory() {
    if !kernels() {
        return;
    }
    let seen = Machine::idle().set("MEMORY", 1_000_000).load(small(), "hip:0", &[]);
    seen.fails(6, &["hip:0: no ", "a card's arena", "1000000 are free"]);
    read_nothing(&seen);
    let seen = Machine::idle().set("MEMORY", 1_000_000).write(small(), "hip:0", &[]);
    seen.fails(6, &["hip:0", "free"]);
    read_nothing(&seen);
}

#[test]
fn what_the_hosts_card_does_not_do() {
    if kernels() {
        let refused = Machine::idle().write(experts(), "hip:0,cpu", &["--ep-verify"]);
        refused.fails(2, &["another order"]);
        read_nothing(&refused);
    }
}
