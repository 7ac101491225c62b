//! Every call of the driver failing.

use super::machine::{Machine, computes, loader};
use super::models::{experts, small, split};
use gantry_tests::standin::Seen;

/// Functions that free what they get even where they fail, and that nobody listens to.
const FREES: [&str; 10] = [
    "zeCommandListDestroy",
    "zeCommandQueueDestroy",
    "zeContextDestroy",
    "zeEventDestroy",
    "zeEventPoolDestroy",
    "zeKernelDestroy",
    "zeMemFreeExt",
    "zeModuleBuildLogDestroy",
    "zeModuleBuildLogGetString",
    "zeModuleDestroy",
];

/// Functions that are called where cards are brought to rest too.
const ALSO_FREES: [&str; 3] = ["zeCommandListAppendBarrier", "zeEventHostReset", "zeEventHostSynchronize"];

const ALLOCATES: [&str; 2] = ["zeMemAllocDevice", "zeMemAllocHost"];

/// Lets each function fail that `work` calls: the first times, and one in the middle.
fn each_fails(machine: impl Fn() -> Machine, work: impl Fn(&Machine) -> Seen) {
    let whole = work(&machine());
    whole.shows(&[]);
    let called = &whole.log.called;
    for expected in ["zeMemAllocDevice", "zeCommandListAppendMemoryCopy", "zeEventCreate", "zeMemFreeExt"] {
        assert!(called.contains_key(expected), "{expected} is not called: {called:?}");
    }
    println!("{:<42} {:>7} {:>6} exit", "call", "times", "turn");
    for (function, &times) in called {
        let mut turns: Vec<u64> = (1..=times.min(2)).collect();
        // How often some functions are called depends on how threads meet; the middle is always reached.
        turns.extend(Some(times / 2).filter(|turn| *turn > 2));
        for turn in turns {
            let seen = work(&machine().set("FAIL", format!("{function}:{turn}")));
            println!("{function:<42} {times:>7} {turn:>6} {}", seen.code.unwrap_or(-1));
            let name = function.as_str();
            let quiet = FREES.contains(&name) || ALSO_FREES.contains(&name);
            match name {
                _ if quiet && seen.code == Some(0) => seen.shows(&[]),
                // A pool with fewer events than were asked for will do.
                "zeEventCreate" if turn > 1 => seen.is_clean(),
                name if ALLOCATES.contains(&name) => seen.fails(6, &["error: level-zero:"]),
                _ => seen.fails(1, &["error: level-zero:", "ZE_RESULT_ERROR_UNKNOWN (2147483646)"]),
            }
        }
    }
}

#[test]
fn while_a_container_is_loaded() {
    if loader() {
        each_fails(Machine::idle, |machine| machine.load(small(), "level-zero:0", &["--verify", "index"]));
    }
}

#[test]
fn while_a_container_is_verified_on_the_card() {
    if computes() {
        each_fails(Machine::new, |machine| machine.load(small(), "level-zero:0", &[]));
    }
}

#[test]
fn while_a_run_is_recorded() {
    if !computes() {
        return;
    }
    let seen = Machine::new().record(experts(), "level-zero:0");
    for expected in ["zeCommandListCreate", "zeCommandListClose", "zeCommandQueueExecuteCommandLists"] {
        assert!(seen.log.called.contains_key(expected), "{expected} is not called: {:?}", seen.log.called);
    }
    each_fails(Machine::new, |machine| machine.record(experts(), "level-zero:0"));
}

#[test]
fn while_two_cards_are_filled() {
    if loader() {
        let two = || Machine::idle().set("CARDS", 2);
        each_fails(two, |machine| machine.load(split(), "level-zero:0,1", &["--verify", "index"]));
    }
}
