//! `gantry-run devices`.

use super::machine::{Machine, loader};
use super::models::small;
use gantry_tests::standin::Seen;
use serde_json::Value;

fn listed(machine: &Machine) -> Seen {
    let seen = machine.run(&["devices"]);
    assert!(seen.out.lines().all(|line| line.chars().count() <= 80), "{}", seen.out);
    assert!(seen.out.contains("takes containers of every target"), "the CPU is missing: {}", seen.out);
    seen
}

fn document(machine: &Machine) -> Value {
    let seen = machine.run(&["devices", "--json"]);
    seen.shows(&[]);
    serde_json::from_str(&seen.out).expect("one JSON document")
}

/// The first card of the family in a document.
fn card(document: &Value) -> &Value {
    let all = document["devices"].as_array().expect("devices");
    let found = all.iter().find(|card| card["device"] == "level-zero:0");
    found.unwrap_or_else(|| panic!("no card in {document}"))
}

#[test]
fn a_card_is_listed_with_what_it_takes() {
    if !loader() {
        return;
    }
    let machine = Machine::idle();
    listed(&machine).shows(&[
        "level-zero:0, Stand-in, bmg, 2 multiprocessors",
        "4.0 of 4.0 GiB free, driver for Level Zero 1.4",
        "takes containers for level-zero:bmg\n",
    ]);
    let all = document(&machine);
    assert_eq!(all["level_zero_error"], Value::Null);
    let expected = serde_json::json!({
        "device": "level-zero:0",
        "description": "Stand-in",
        "generation": "bmg",
        "multiprocessors": 2,
        "memory_bytes": 4u64 << 30,
        "memory_free_bytes": 4u64 << 30,
        "error": null,
        "driver": "Level Zero 1.4",
        "targets": ["level-zero:bmg"],
    });
    assert_eq!(card(&all), &expected);
}

#[test]
fn generations_are_known_by_device_ids() {
    if !loader() {
        return;
    }
    for (id, name) in [(0x56a0, "dg2"), (0x0bd5, "pvc"), (0xe212, "bmg")] {
        let target = format!("level-zero:{name}");
        let all = document(&Machine::idle().set("DEVICE", id).set("CARDS", 2));
        assert_eq!(card(&all)["targets"], serde_json::json!([target]));
    }
    let unknown = Machine::idle().set("DEVICE", 0x64a0);
    listed(&unknown).shows(&["level-zero:0, Stand-in, 8086:64a0", "cannot be used", "takes no containers"]);
    unknown.load(small(), "level-zero:0", &[]).fails(5, &["is of generation 8086:64a0", "dg2, bmg and pvc"]);
}

#[test]
fn a_machine_without_a_driver_has_its_cpu() {
    if !loader() {
        return;
    }
    for none in [Machine::without_cards(), Machine::idle().set("CARDS", 0)] {
        let seen = listed(&none);
        seen.shows(&["level-zero: the driver has no cards\n"]);
        none.load(small(), "level-zero:0", &[]).fails(5, &["level-zero:0: there are 0 cards here"]);
    }
}

#[test]
fn an_old_driver_is_named() {
    if !loader() {
        return;
    }
    let machine = Machine::idle().set("API", 1 << 16 | 1);
    listed(&machine).shows(&["driver is for Level Zero 1.1"]);
    let words = ["for Level Zero 1.1", "needs Level Zero 1.3"];
    machine.load(small(), "level-zero:0", &[]).fails(5, &words);
}

#[test]
fn whatever_call_fails_the_cpu_is_listed_and_the_rest_explained() {
    if !loader() {
        return;
    }
    let called = Machine::idle().run(&["devices"]).log.called;
    assert!(called.len() >= 8, "{called:?}");
    for (function, times) in called {
        for turn in 1..=times {
            let seen = listed(&Machine::idle().set("FAIL", format!("{function}:{turn}")));
            seen.shows(&[]);
            // What fails while it is given back fails unheard.
            let heard = function == "zeContextDestroy" || seen.out.contains("ZE_RESULT_ERROR_UNKNOWN");
            assert!(heard, "{function}:{turn}: {}", seen.out);
        }
    }
}
