//! Loading onto cards: both ways in, everything that can be verified, one card and two.

use super::card::Machine;
use super::models::{dense, kernels, split};
use serde_json::Value;

#[test]
fn what_was_verified_is_reported() {
    if !kernels() {
        return;
    }
    let machine = Machine::new();
    for (way, said) in [("read", "read "), ("map", "mapped ")] {
        let mut launches = Vec::new();
        for (level, what) in [
            ("device", "every byte verified on the card"),
            ("full", "every byte verified in place"),
            ("index", "only the index verified"),
            ("none", "weights not verified"),
        ] {
            let seen = machine.load(dense(), "cuda:0", &["--load", way, "--verify", level]);
            if (way, level) == ("map", "full") {
                seen.fails(2, &["verified by the cards; give --verify device"]);
                continue;
            }
            seen.shows(&[said, what, "ratio"]);
            launches.push((level, seen.log.called.get("cuLaunchKernelEx").copied().unwrap_or(0)));
            let pins = seen.log.called.get("cuMemHostRegister_v2").copied().unwrap_or(0);
            assert_eq!(pins > 0, way == "map", "{way}, {level}: {pins} pinned parts of a mapping");
            let seen = machine.load(dense(), "cuda:0", &["--load", way, "--verify", level, "--json"]);
            seen.shows(&[]);
            let document: Value = serde_json::from_str(&seen.out).expect("one JSON document");
            let load = &document["load"];
            assert_eq!((&load["mode"], &load["verified"]), (&way.into(), &level.into()), "{document}");
            assert_eq!(load["bytes"], document["bytes"]);
            assert!(document["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{document}");
        }
        let fewest = launches.iter().map(|(_, n)| *n).min();
        for (level, n) in launches {
            assert_eq!(
                Some(n) > fewest,
                level == "device",
                "{way}: {level} has {n} launches, the least is {fewest:?}"
            );
        }
    }
}

#[test]
fn without_a_word_the_card_verifies() {
    if !kernels() {
        return;
    }
    Machine::new().load(dense(), "cuda", &[]).shows(&["every byte verified on the card"]);
}

#[test]
fn a_container_for_two_cards_goes_to_two() {
    if !kernels() {
        return;
    }
    for way in ["read", "map"] {
        let machine = Machine::new().set("CARDS", 3);
        let seen = machine.load(split(), "cuda:2,1", &["--load", way]);
        seen.shows(&["every byte verified on the card"]);
        let container = gantry_formats::container::Container::open(split()).expect("a container");
        let segments: Vec<u64> = container.header().cards.iter().map(|card| card.bytes).collect();
        assert_eq!(segments.len(), 2);
        for bytes in segments {
            assert!(seen.log.allocated.iter().any(|got| *got >= bytes), "{bytes}: {:?}", seen.log.allocated);
        }
    }
    let words = ["packed for 2 cards, not for 1 card", "--cards 1"];
    Machine::new().load(split(), "cuda:0", &[]).fails(2, &words);
}

#[test]
fn a_model_is_loaded_and_verified_before_it_is_run() {
    if !kernels() {
        return;
    }
    let seen = Machine::new().write(dense(), "cuda:0", &[]);
    // Kernels other than that which hashes do not run here.
    seen.fails(
        1,
        &[
            "every byte verified on the card",
            "cuda:0: launching gantry_embed",
            "CUDA_ERROR_NOT_SUPPORTED (801)",
        ],
    );
}
