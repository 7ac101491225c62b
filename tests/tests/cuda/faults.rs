//! Every call of the driver failing, once.

use super::card::Machine;
use super::models::{kernels, small, split};
use gantry_tests::standin::Seen;

/// Functions that free what they get even where they fail, and that nobody listens to.
const FREES: [&str; 9] = [
    "cuDevicePrimaryCtxRelease_v2",
    "cuEventDestroy_v2",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostUnregister",
    "cuModuleUnload",
    "cuStreamDestroy_v2",
];

/// Functions that are called while something is freed too, or while cards are brought to rest.
const ALSO_FREES: [&str; 3] = ["cuCtxSetCurrent", "cuMemsetD8Async", "cuStreamSynchronize"];

const ALLOCATES: [&str; 2] = ["cuMemAlloc_v2", "cuMemHostAlloc"];

/// Lets each function fail that `work` calls: the first times, and one in the middle.
fn each_fails(cards: usize, work: impl Fn(&Machine) -> Seen, clean: impl Fn(&Seen)) {
    let whole = work(&Machine::new().set("CARDS", cards));
    clean(&whole);
    let called = &whole.log.called;
    for expected in ["cuMemAlloc_v2", "cuLaunchKernelEx", "cuEventRecord", "cuMemFree_v2", "cuModuleLoadData"]
    {
        assert!(called.contains_key(expected), "{expected} is not called: {called:?}");
    }
    for (function, &times) in called {
        let mut turns: Vec<u64> = (1..=times.min(3)).collect();
        // How often some functions are called depends on how threads meet; the middle is always reached.
        turns.extend(Some(times / 2).filter(|turn| *turn > 3));
        for turn in turns {
            let seen = work(&Machine::new().set("CARDS", cards).set("FAIL", format!("{function}:{turn}")));
            let frees = FREES.contains(&function.as_str());
            let also_frees = turn > 3 && ALSO_FREES.contains(&function.as_str());
            if (frees || also_frees) && !seen.err.contains("CUDA_ERROR_UNKNOWN") {
                clean(&seen);
                continue;
            }
            match function.as_str() {
                name if ALLOCATES.contains(&name) => seen.fails(6, &["error: cuda:", "bytes", " are free"]),
                // Asked for where something else failed.
                "cuGetErrorName" => seen.fails(1, &["error: cuda:", "unknown error (801)"]),
                _ => seen.fails(1, &["error: cuda:", "CUDA_ERROR_UNKNOWN (999)"]),
            }
        }
    }
}

#[test]
fn while_a_container_is_read() {
    if kernels() {
        each_fails(1, |machine| machine.load(small(), "cuda:0", &[]), |seen| seen.shows(&["ratio"]));
    }
}

#[test]
fn while_a_container_is_mapped() {
    if kernels() {
        let map = |machine: &Machine| machine.load(small(), "cuda:0", &["--load", "map"]);
        each_fails(1, map, |seen| seen.shows(&["ratio"]));
    }
}

#[test]
fn while_two_cards_are_filled() {
    if kernels() {
        let two = |machine: &Machine| machine.load(split(), "cuda:0,1", &[]);
        each_fails(2, two, |seen| seen.shows(&["ratio"]));
    }
}

#[test]
fn while_a_model_is_made_ready() {
    if kernels() {
        // Without a fault it ends where the stand-in cannot compute.
        let write = |machine: &Machine| machine.write(small(), "cuda:0", &[]);
        each_fails(1, write, |seen| seen.fails(1, &["CUDA_ERROR_NOT_SUPPORTED"]));
    }
}

#[test]
fn while_a_run_is_recorded() {
    if !kernels() {
        return;
    }
    let record = |machine: &Machine| machine.record(small(), "cuda:0");
    let whole = record(&Machine::new());
    for expected in
        ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphLaunch"]
    {
        assert!(whole.log.called.contains_key(expected), "{expected} is not called: {:?}", whole.log.called);
    }
    // More launches are recorded than were made to hash, so that the one in the middle is recorded.
    each_fails(1, record, |seen| seen.fails(1, &["launching a graph: CUDA_ERROR_NOT_SUPPORTED"]));
}

#[test]
fn two_cards_that_both_fail_are_brought_to_rest() {
    if kernels() {
        // The stand-in cannot compute. Each card has a thread, and neither waits for the other.
        let seen = Machine::new().set("CARDS", 2).write(split(), "cuda:0,1", &[]);
        seen.fails(1, &["error: cuda:", "CUDA_ERROR_NOT_SUPPORTED"]);
    }
}

#[test]
fn while_a_run_is_recorded_on_two_cards() {
    if !kernels() {
        return;
    }
    let record = |machine: &Machine| machine.record(split(), "cuda:0,cuda:1");
    let whole = record(&Machine::new().set("CARDS", 2));
    for expected in ["cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess", "cuGraphLaunch"] {
        assert!(whole.log.called.contains_key(expected), "{expected} is not called: {:?}", whole.log.called);
    }
    assert_eq!(whole.log.called["cuStreamBeginCapture_v2"], 2, "both cards are recorded");
    each_fails(2, record, |seen| seen.fails(1, &["launching a graph: CUDA_ERROR_NOT_SUPPORTED"]));
}

#[test]
fn cards_that_reach_each_other_already_are_taken() {
    if kernels() {
        let machine = Machine::new().set("CARDS", 2).set("FAIL", "cuCtxEnablePeerAccess:2=704");
        machine.record(split(), "cuda:0,1").fails(1, &["launching a graph: CUDA_ERROR_NOT_SUPPORTED"]);
    }
}

#[test]
fn while_kernels_are_measured() {
    if kernels() {
        let measure = |machine: &Machine| {
            let text = small().to_str().expect("UTF-8");
            let only = ["--measure", "kernels", "--device", "cuda:0", "--only", "n=1", "-c", "16"];
            machine.run(&[&["bench", text], only.as_slice()].concat())
        };
        let idle = |machine: Machine| machine.set("SKIP", 1).set("MEMORY", 32 << 20);
        let names =
            ["cuMemHostAlloc", "cuLaunchKernelEx", "cuGraphLaunch", "cuEventElapsedTime_v2", "cuEventRecord"];
        for name in names {
            let seen = measure(&idle(Machine::new().set("FAIL", format!("{name}:3"))));
            match name {
                "cuMemHostAlloc" => seen.fails(6, &["could be pinned for tables of a batch"]),
                _ => seen.fails(1, &["error: cuda:0: ", "CUDA_ERROR_UNKNOWN (999)"]),
            }
        }
        let middle = measure(&idle(Machine::new())).log.called["cuLaunchKernelEx"] / 2;
        let seen = measure(&idle(Machine::new().set("FAIL", format!("cuLaunchKernelEx:{middle}"))));
        seen.fails(1, &["error: cuda:0: launching gantry_", "CUDA_ERROR_UNKNOWN (999)"]);
    }
}

#[test]
fn memory_that_a_context_lacks_is_memory() {
    if !kernels() {
        return;
    }
    for function in ["cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuModuleLoadData"] {
        let machine = Machine::new().set("FAIL", format!("{function}:1=2"));
        machine.load(small(), "cuda:0", &[]).fails(6, &["error: cuda:0: ", "CUDA_ERROR_OUT_OF_MEMORY (2)"]);
    }
}

#[test]
fn other_errors_of_allocations_are_not_taken_for_lack_of_memory() {
    if !kernels() {
        return;
    }
    for function in ALLOCATES {
        let machine = Machine::new().set("FAIL", format!("{function}:1=700"));
        machine
            .load(small(), "cuda:0", &[])
            .fails(1, &["error: cuda:0: ", "CUDA_ERROR_ILLEGAL_ADDRESS (700)"]);
    }
    let machine = Machine::new().set("FAIL", "cuModuleGetFunction:1=500");
    machine.load(small(), "cuda:0", &[]).fails(5, &["no CUDA kernel is called gantry_blake3"]);
}
