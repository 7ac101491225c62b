//! What the host does for a token, beside cards: decoding against the stand-in for HIP, whose kernels do nothing and whose calls
//! return at once. Run it alone on a quiet machine: `cargo bench -p gantry-tests --bench host_overhead`.
//!
//! The stand-in's own time is in what is measured. It is printed, never asserted.

use gantry_tests::{binary, built, convert, run_ok};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Tokens of a run.
const TOKENS: &str = "2000";

fn main() {
    // `cargo test --benches` only builds it.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    built(&["-p", "gantry-standin-hip"]);
    let folder = tempfile::tempdir().expect("a scratch folder");
    std::fs::create_dir(folder.path().join("lib")).expect("a folder");
    let library = folder.path().join("lib/libamdhip64.so");
    std::fs::copy(binary("libgantry_standin_hip.so"), &library).expect("a copy of the library");
    println!("{:<18} {:>9} {:>9} {:>14} {:>10}", "model", "device", "tok/s", "us per token", "calls");
    for (preset, cards) in [("llama-tiny", 1), ("qwen3moe-tiny", 1), ("qwen3moe-tiny", 2)] {
        let [gguf, packed] = ["m.gguf", "m.gantry"].map(|name| folder.path().join(name));
        run_ok("gantry", &["synth", preset, "-o", gguf.to_str().expect("UTF-8"), "--force"]);
        convert(&gguf, &packed, &["--target", "hip:gfx942", "--cards", &cards.to_string()]);
        measure(preset, &packed, folder.path(), cards);
    }
}

fn measure(preset: &str, packed: &Path, rocm: &Path, cards: usize) {
    let device = if cards == 1 { "hip:0" } else { "hip:0,1" };
    let options =
        ["-p", "0", "-n", TOKENS, "-r", "5", "-c", "4096", "--verify", "index", "--device", device, "--json"];
    let head = [OsStr::new("bench"), packed.as_os_str()];
    let log = rocm.join("log");
    let count = cards.to_string();
    let env = [
        ("ROCM_PATH", rocm.as_os_str()),
        ("GANTRY_STANDIN_HIP_LOG", log.as_os_str()),
        ("GANTRY_STANDIN_HIP_SKIP", "2".as_ref()),
        ("GANTRY_STANDIN_HIP_CARDS", count.as_ref()),
    ];
    let args: Vec<&OsStr> = head.into_iter().chain(options.map(OsStr::new)).collect();
    let done = Command::new(binary("gantry-run")).args(&args).envs(env).output().expect("the binary starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let document: serde_json::Value = serde_json::from_slice(&done.stdout).expect("one JSON document");
    let rate = document["decode"]["tokens_per_second"].as_f64().expect("a number");
    let seen = std::fs::read_to_string(&log).expect("the stand-in's log");
    let calls =
        seen.lines().filter_map(|line| line.strip_prefix("called ")?.rsplit_once(' ')?.1.parse::<u64>().ok());
    // Of all runs, and of what was done once.
    let calls = calls.sum::<u64>() as f64 / (6.0 * TOKENS.parse::<f64>().expect("a number"));
    println!("{preset:<18} {device:>9} {rate:>9.0} {:>14.1} {calls:>10.1}", 1e6 / rate);
}
