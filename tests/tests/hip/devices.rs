//! `gantry-run devices`.

use super::machine::Machine;
use super::models::small;
use gantry_tests::standin::Seen;
use serde_json::Value;
use std::process::Command;

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

/// Cards of the family in a document.
fn cards(document: &Value) -> Vec<&Value> {
    let all = document["devices"].as_array().expect("devices");
    all.iter().filter(|card| card["device"].as_str().is_some_and(|name| name.starts_with("hip:"))).collect()
}

#[test]
fn a_card_is_listed_with_what_it_takes() {
    let machine = Machine::idle();
    listed(&machine).shows(&[
        "hip:0, Stand-in, gfx942, 2 multiprocessors",
        "64.0 of 64.0 GiB free, driver for HIP 6.3.42131",
        "takes containers for hip:gfx942\n",
    ]);
    let all = document(&machine);
    assert_eq!(all["hip_error"], Value::Null);
    let expected = serde_json::json!({
        "device": "hip:0",
        "description": "Stand-in",
        "generation": "gfx942",
        "multiprocessors": 2,
        "memory_bytes": 64u64 << 30,
        "memory_free_bytes": 64u64 << 30,
        "error": null,
        "driver": "HIP 6.3.42131",
        "targets": ["hip:gfx942"],
    });
    assert_eq!(cards(&all), [&expected]);
}

#[test]
fn every_card_is_listed_with_its_generation_alone() {
    for generation in ["gfx90a", "gfx928", "gfx950", "gfx1100", "gfx1201"] {
        let machine = Machine::idle().set("CARDS", 3).set("GENERATION", generation).set("MEMORY", 3 << 29);
        let target = format!("hip:{generation}");
        listed(&machine).shows(&["hip:0, ", "hip:2, ", "1.5 of 1.5 GiB free", &target]);
        let all = document(&machine);
        assert_eq!(cards(&all).len(), 3);
        assert_eq!(cards(&all)[2]["targets"], serde_json::json!([target]));
    }
    listed(&Machine::idle().set("GENERATION", "gfx906"))
        .shows(&["hip:0, Stand-in, gfx906", "takes no containers"]);
}

#[test]
fn a_machine_without_cards_has_its_cpu() {
    // A library without cards, as in a container that was given none.
    let none = Machine::idle().set("CARDS", 0);
    let seen = listed(&none);
    seen.shows(&["hip: the driver has no cards\n"]);
    assert!(!seen.out.contains("hip:0") && !seen.out.contains("hipError"), "{}", seen.out);
    assert_eq!(document(&none)["hip_error"], Value::Null);
    none.load(small(), "hip:0", &[]).fails(5, &["hip:0: there are 0 cards here"]);

    let bare = Machine::without_library();
    listed(&bare).shows(&["hip: libamdhip64.so was not found;", "ROCm"]);
    assert_eq!(document(&bare)["hip_error"], Value::Null);
    let words = ["no HIP driver: libamdhip64.so was not found", "--device cpu"];
    bare.load(small(), "hip:0", &[]).fails(5, &words);
}

#[test]
fn an_old_library_is_named() {
    let machine = Machine::idle().set("VERSION", 50_731_921);
    listed(&machine).shows(&["driver is for HIP 5.7.31921"]);
    let words = ["driver is for HIP 5.7.31921", "needs HIP 6.0.0", "ROCm"];
    machine.load(small(), "hip:0", &[]).fails(5, &words);
}

#[test]
fn a_library_that_lacks_functions_or_is_none_is_named() {
    let machine = Machine::without_library();
    let source = machine.file("none.c");
    std::fs::write(&source, "int hipInit(unsigned flags) { return flags; }\n").expect("space");
    let done =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(machine.library()).arg(&source).status();
    assert!(done.expect("cc is needed").success());
    listed(&machine).shows(&["the HIP driver lacks hip"]);
    machine.load(small(), "hip:0", &[]).fails(5, &["the HIP driver lacks hipDriverGetVersion"]);

    std::fs::write(machine.library(), "no library").expect("space");
    listed(&machine).shows(&["libamdhip64.so.6"]);
    machine.load(small(), "hip:0", &[]).fails(1, &["libamdhip64.so.6 cannot be opened"]);
}

#[test]
fn whatever_call_fails_the_cpu_is_listed_and_the_rest_explained() {
    let called = Machine::idle().run(&["devices"]).log.called;
    assert!(called.len() >= 8, "{called:?}");
    for (function, times) in called {
        for turn in 1..=times {
            let seen = listed(&Machine::idle().set("FAIL", format!("{function}:{turn}")));
            seen.shows(&["hipErrorUnknown (999)"]);
        }
    }
}
