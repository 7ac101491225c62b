//! Bringing a tensor again to a card that has its model, and giving all memory back.

use super::card::Machine;
use super::models::{Spot, dense, in_large_blob, in_small_blob, kernels};
use gantry_formats::container::Container;
use gantry_tests::standin::Seen;

fn spots() -> [Spot; 2] {
    let container = Container::open(dense()).expect("a container");
    [in_small_blob(&container), in_large_blob(&container)]
}

#[test]
fn a_tensor_comes_again_and_is_verified() {
    if !kernels() {
        return;
    }
    let machine = Machine::new().set("SKIP", 1);
    let plain = machine.write(dense(), "cuda:0", &[]);
    plain.shows(&[]);
    for spot in spots() {
        let seen = machine.write(dense(), "cuda:0", &["--reload", &spot.name]);
        seen.shows(&[]);
        assert!(seen.err.contains(&format!("bytes of {}, verified on the card", spot.name)), "{}", seen.err);
        let launches = |of: &Seen| of.log.called["cuLaunchKernelEx"];
        assert_eq!(launches(&seen), launches(&plain) + 1);
        // A bit that changes on its way is found, here by nothing but the hash after the reload.
        let flips = Machine::new().set("SKIP", 1).set("FLIP", spot.at);
        flips.write(dense(), "cuda:0", &["--verify", "index"]).shows(&[]);
        let seen = flips.write(dense(), "cuda:0", &["--verify", "index", "--reload", &spot.name]);
        seen.fails(4, &[&spot.name, "do not match their BLAKE3"]);
    }
}

#[test]
fn what_cannot_come_again_is_refused() {
    if !kernels() {
        return;
    }
    let machine = Machine::new().set("SKIP", 1);
    machine
        .write(dense(), "cuda:0", &["--reload", "blk.77"])
        .fails(2, &["\"blk.77\" is no tensor or expert"]);
}

#[test]
fn what_memory_is_taken_for_is_told_and_a_leak_is_named() {
    if !kernels() {
        return;
    }
    let machine = Machine::new().set("SKIP", 1);
    let seen = machine.write(dense(), "cuda:0", &["-v"]);
    seen.shows(&[]);
    let bytes = Container::open(dense()).expect("a container").header().cards[0].bytes;
    for words in ["cuda:0: ", "a card's arena", "tables of a model", "the driver's own", &spots()[1].name] {
        assert!(seen.err.contains(words), "{words:?} is missing: {}", seen.err);
    }
    let arena = seen.err.lines().find(|line| line.contains("a card's arena")).expect("the arena");
    let told: u64 = arena.split_whitespace().next().expect("a number").parse().expect("a number");
    assert!(told >= bytes && told < bytes + 4096, "{arena}");
    assert!(!seen.err.contains("warning"), "{}", seen.err);

    // A driver that does not give back what is freed.
    let keeps = Machine::new().set("SKIP", 1).set("KEEP", 80 << 20);
    let seen = keeps.write(dense(), "cuda:0", &[]);
    seen.shows(&[]);
    assert!(seen.err.contains("warning: cuda:0 has 83886080 bytes less free than before"), "{}", seen.err);
}
