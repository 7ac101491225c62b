//! Every call of HIP failing, a table of it, and memory that the host's part of a model does not give back.

use super::machine::{Machine, computes, kernels};
use super::models::{experts, small, split};
use gantry_tests::standin::Seen;

/// Functions that free what they get even where they fail, and that nobody listens to.
const FREES: [&str; 8] = [
    "hipEventDestroy",
    "hipFree",
    "hipGraphDestroy",
    "hipGraphExecDestroy",
    "hipHostFree",
    "hipHostUnregister",
    "hipModuleUnload",
    "hipStreamDestroy",
];

/// Functions that are called while something is freed too, or while cards are brought to rest.
const ALSO_FREES: [&str; 4] =
    ["hipEventSynchronize", "hipMemsetD8Async", "hipSetDevice", "hipStreamSynchronize"];

const ALLOCATES: [&str; 3] = ["hipExtMallocWithFlags", "hipHostMalloc", "hipMalloc"];

/// Lets each function fail that `work` calls: the first times, and one in the middle.
fn each_fails(machine: impl Fn() -> Machine, work: impl Fn(&Machine) -> Seen) {
    let whole = work(&machine());
    whole.shows(&[]);
    let called = &whole.log.called;
    for expected in ["hipMalloc", "hipMemcpyHtoDAsync", "hipEventRecord", "hipFree", "hipModuleLoadData"] {
        assert!(called.contains_key(expected), "{expected} is not called: {called:?}");
    }
    println!("{:<30} {:>6} {:>6}  exit  error", "call", "times", "turn");
    for (function, &times) in called {
        let mut turns: Vec<u64> = (1..=times.min(2)).collect();
        // How often some functions are called depends on how threads meet; the middle is always reached.
        turns.extend(Some(times / 2).filter(|turn| *turn > 2));
        for turn in turns {
            let seen = work(&machine().set("FAIL", format!("{function}:{turn}")));
            let error = seen.err.lines().find(|line| line.starts_with("error: ")).unwrap_or("");
            println!("{function:<30} {times:>6} {turn:>6} {:>5}  {error}", seen.code.unwrap_or(-1));
            let name = function.as_str();
            let quiet = FREES.contains(&name) || turn > 2 && ALSO_FREES.contains(&name);
            match name {
                _ if quiet && seen.code == Some(0) => seen.shows(&[]),
                name if ALLOCATES.contains(&name) => seen.fails(6, &["error: hip:", "free"]),
                _ => seen.fails(1, &["error: hip:", "hipErrorUnknown (999)"]),
            }
        }
    }
}

#[test]
fn while_a_container_is_read() {
    if computes() {
        each_fails(Machine::new, |machine| machine.load(small(), "hip:0", &[]));
    }
}

#[test]
fn while_a_container_is_mapped() {
    if kernels() {
        each_fails(Machine::idle, |machine| {
            machine.load(small(), "hip:0", &["--load", "map", "--verify", "index"])
        });
    }
}

#[test]
fn while_text_is_written() {
    if computes() {
        each_fails(Machine::new, |machine| machine.write(experts(), "hip:0", &["--verify", "index"]));
    }
}

#[test]
fn while_a_run_is_recorded() {
    if !computes() {
        return;
    }
    let seen = Machine::idle().record(experts(), "hip:0");
    for expected in ["hipStreamBeginCapture", "hipStreamEndCapture", "hipGraphInstantiate", "hipGraphLaunch"]
    {
        assert!(seen.log.called.contains_key(expected), "{expected} is not called: {:?}", seen.log.called);
    }
    each_fails(Machine::idle, |machine| machine.record(experts(), "hip:0"));
}

#[test]
fn while_a_run_is_recorded_on_two_cards() {
    if !computes() {
        return;
    }
    let two = || Machine::idle().set("CARDS", 2);
    let seen = two().record(split(), "hip:0,1");
    for expected in ["hipDeviceCanAccessPeer", "hipDeviceEnablePeerAccess", "hipExtMallocWithFlags"] {
        assert!(seen.log.called.contains_key(expected), "{expected} is not called: {:?}", seen.log.called);
    }
    each_fails(two, |machine| machine.record(split(), "hip:0,1"));
}

#[test]
fn memory_that_a_stream_or_kernels_lack_is_memory() {
    if !kernels() {
        return;
    }
    for function in ["hipStreamCreateWithFlags", "hipModuleLoadData"] {
        let machine = Machine::idle().set("FAIL", format!("{function}:1=2"));
        machine.load(small(), "hip:0", &[]).fails(6, &["error: hip:0: ", "hipErrorOutOfMemory (2)"]);
    }
    for function in ["hipMalloc", "hipHostMalloc"] {
        let machine = Machine::idle().set("FAIL", format!("{function}:1=700"));
        machine.load(small(), "hip:0", &[]).fails(1, &["error: hip:0: ", "hipErrorIllegalAddress (700)"]);
    }
    let machine = Machine::idle().set("FAIL", "hipModuleGetFunction:1=500");
    machine.load(small(), "hip:0", &[]).fails(5, &["no HIP kernel is called gantry_blake3"]);
}

#[test]
fn a_leak_is_told() {
    if computes() {
        let keeps = Machine::idle().set("KEEP", 80 << 20);
        let seen = keeps.write(small(), "hip:0", &["--verify", "index"]);
        seen.shows(&[]);
        assert!(seen.err.contains("warning: hip:0 has 83886080 bytes less free than before"), "{}", seen.err);
    }
}
