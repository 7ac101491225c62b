//! `gantry-run devices`.

use super::card::Machine;
use super::models;
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
    let document: Value = serde_json::from_str(&seen.out).expect("one JSON document");
    assert_eq!((&document["schema"], &document["command"]), (&1.into(), &"devices".into()));
    assert_eq!(document["devices"][0]["device"], "cpu");
    document
}

#[test]
fn a_card_is_listed_with_what_it_takes() {
    let machine = Machine::new();
    let words = [
        "cuda:0, Stand-in, sm_90, 2 multiprocessors",
        "4.0 of 4.0 GiB free, driver for CUDA 13.0",
        "takes containers for cuda:sm_80, cuda:sm_86, cuda:sm_89, cuda:sm_90\n",
    ];
    listed(&machine).shows(&words);
    let all = document(&machine);
    assert_eq!(all["cuda_error"], Value::Null);
    let card = &all["devices"][1];
    let expected = serde_json::json!({
        "device": "cuda:0",
        "description": "Stand-in",
        "generation": "sm_90",
        "multiprocessors": 2,
        "memory_bytes": 4u64 << 30,
        "memory_free_bytes": 4u64 << 30,
        "error": null,
        "driver": "CUDA 13.0",
        "targets": ["cuda:sm_80", "cuda:sm_86", "cuda:sm_89", "cuda:sm_90"],
    });
    assert_eq!(card, &expected);
}

#[test]
fn every_card_is_listed() {
    let machine = Machine::new().set("CARDS", 3).set("GENERATION", 120).set("MEMORY", 3 << 29);
    listed(&machine).shows(&["cuda:0, ", "cuda:2, ", "1.5 of 1.5 GiB free", "cuda:sm_120"]);
    assert_eq!(document(&machine)["devices"].as_array().expect("devices").len(), 4);
}

#[test]
fn a_machine_without_cards_has_its_cpu() {
    // A driver without cards, as in a container that was given none.
    let none = Machine::new().set("CARDS", 0);
    let seen = listed(&none);
    seen.shows(&[]);
    assert!(!seen.out.contains("cuda:0") && !seen.out.contains("CUDA_ERROR"), "{}", seen.out);
    assert!(seen.out.contains("\ncuda: the driver has no cards\n"), "{}", seen.out);
    assert_eq!(document(&none)["cuda_error"], Value::Null);
    none.load(models::small(), "cuda:0", &[]).fails(5, &["cuda:0: there are 0 cards here"]);

    if std::path::Path::new("/proc/driver/nvidia/version").exists() {
        println!("not tested: this machine has a driver of its own");
        return;
    }
    let bare = Machine::without_driver();
    let seen = listed(&bare);
    seen.shows(&[]);
    seen.shows(&["\ncuda: libcuda.so was not found; for such cards install NVIDIA's driver for"]);
    assert!(!seen.out.contains("cuda:0"), "{}", seen.out);
    let all = document(&bare);
    assert_eq!((all["devices"].as_array().map(Vec::len), &all["cuda_error"]), (Some(1), &Value::Null));
    bare.load(models::small(), "cuda:0", &[]).fails(5, &["libcuda.so was not found", "--device cpu"]);
}

#[test]
fn an_old_driver_is_named() {
    let machine = Machine::new().set("VERSION", 12_080);
    listed(&machine).shows(&["the cuda driver is for CUDA 12.8", "needs CUDA 13.0"]);
    let error = document(&machine)["cuda_error"].to_string();
    assert!(error.contains("12.8"), "{error}");
    let words = ["for CUDA 12.8", "needs CUDA 13.0", "install NVIDIA's driver for CUDA 13 or newer"];
    machine.load(models::small(), "cuda:0", &[]).fails(5, &words);
}

#[test]
fn a_driver_that_lacks_functions_is_named() {
    let machine = Machine::without_driver();
    let source = machine.library().with_extension("c");
    std::fs::write(&source, "int nothing;\n").expect("space");
    let done =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(machine.library()).arg(&source).status();
    assert!(done.expect("cc is needed").success());
    // Words of a line that is broken at 80 columns.
    listed(&machine).shows(&["the CUDA driver lacks cu", "13", "newer"]);
    machine.load(models::small(), "cuda:0", &[]).fails(5, &["the CUDA driver lacks cu", "CUDA 13 or newer"]);
}

#[test]
fn a_card_of_an_old_generation_is_listed_and_refused() {
    let machine = Machine::new().set("GENERATION", 70);
    let seen = listed(&machine);
    seen.shows(&["cuda:0, Stand-in, sm_70", "cannot be used", "takes no containers"]);
    let card = &document(&machine)["devices"][1];
    assert_eq!(
        (card["targets"].as_array().map(Vec::len), &card["memory_free_bytes"]),
        (Some(0), &Value::Null)
    );
    assert!(card["error"].as_str().is_some_and(|e| e.contains("sm_70")), "{card}");
    let words = ["cuda:0 (Stand-in) is of generation sm_70", "sm_80 and newer"];
    machine.load(models::small(), "cuda:0", &[]).fails(5, &words);
}

#[test]
fn whatever_call_fails_the_cpu_is_listed_and_the_rest_explained() {
    let called = Machine::new().run(&["devices"]).log.called;
    assert!(called.len() >= 10, "{called:?}");
    for (function, times) in called {
        for turn in 1..=times {
            let seen = listed(&Machine::new().set("FAIL", format!("{function}:{turn}")));
            // What fails while it is given back fails unheard.
            let heard = function != "cuDevicePrimaryCtxRelease_v2";
            seen.shows(if heard { &["CUDA_ERROR_UNKNOWN (999)"] } else { &[] });
        }
    }
}
