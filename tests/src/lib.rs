//! What whole-system tests share: test inputs made on demand, the two binaries, and comparisons.

pub mod standin;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// The folder of a group of test inputs, made by `tests/fixtures/make_fixtures.py` where it is not there yet.
/// Groups: `hostile`, `tiny`, `dummies`, `bard`, `smollm2`, `vocab`.
///
/// # Panics
/// Where the inputs cannot be made: a test that lacks its input has failed.
pub fn fixtures(group: &str) -> PathBuf {
    static LOOKED_AT: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = target_dir().join("fixtures");
    let mut looked_at = LOOKED_AT.lock().unwrap_or_else(PoisonError::into_inner);
    if looked_at.contains(group) {
        return out.join(group);
    }
    let script = root.join("fixtures/make_fixtures.py");
    let status = Command::new("python3").arg(&script).arg(&out).arg(group).status();
    let status = status.unwrap_or_else(|e| panic!("python3 is needed to make test inputs: {e}"));
    assert!(status.success(), "{} {group} ended with {status}", script.display());
    looked_at.insert(group.to_owned());
    out.join(group)
}

/// The folder of committed golden values.
pub fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// The folder of bard: its BF16 file, golden values and held-out text.
pub fn bard() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("bard")
}

fn target_dir() -> PathBuf {
    // The test binary lies in TARGET/PROFILE/deps.
    let own = std::env::current_exe().expect("the test binary has a path");
    own.ancestors().nth(3).expect("the test binary lies in target/PROFILE/deps").to_path_buf()
}

/// One of the two binaries, built by cargo once per test process.
pub fn binary(name: &str) -> PathBuf {
    static BUILT: std::sync::Once = std::sync::Once::new();
    let own = std::env::current_exe().expect("the test binary has a path");
    let profile = own.ancestors().nth(2).expect("target/PROFILE/deps");
    BUILT.call_once(|| {
        // With an example among them cargo gives dependencies the features that tests give them, so that after `cargo
        // test --workspace` nothing has to be built once more.
        built(&["--workspace", "--bin", "gantry", "--bin", "gantry-run", "--example", "generate"]);
    });
    profile.join(name)
}

/// Lets cargo build something in the profile of this test.
///
/// # Panics
/// Where it does not build.
pub fn built(what: &[&str]) {
    let own = std::env::current_exe().expect("the test binary has a path");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet"]).args(what);
    if own.ancestors().nth(2).is_some_and(|profile| profile.ends_with("release")) {
        build.arg("--release");
    }
    let status = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo starts");
    assert!(status.success(), "cargo build {} failed", what.join(" "));
}

/// Runs a binary to its end.
pub fn run<S: AsRef<OsStr>>(name: &str, args: &[S]) -> Output {
    Command::new(binary(name)).args(args).output().expect("the binary starts")
}

/// Runs a binary, which must succeed; its stdout.
pub fn run_ok<S: AsRef<OsStr>>(name: &str, args: &[S]) -> Vec<u8> {
    let output = run(name, args);
    let shown: Vec<_> = args.iter().map(|a| a.as_ref().to_string_lossy()).collect();
    assert!(
        output.status.success(),
        "{name} {}\n{}",
        shown.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// Little-endian f32 values of a file.
pub fn read_f32(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Normalised mean squared error: Σ(got − want)² / Σ want².
pub fn nmse(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len(), "number of values");
    let sum =
        |f: &dyn Fn(f64, f64) -> f64| got.iter().zip(want).map(|(&g, &w)| f(g.into(), w.into())).sum::<f64>();
    sum(&|g, w| (g - w) * (g - w)) / sum(&|_, w| w * w)
}

/// Token ids that the golden files of random models were made with: the first 64, for a vocabulary of 512 or 128.
pub fn golden_tokens(count: usize, vocab: u32) -> Vec<u32> {
    let mut s = 12345u32;
    let mut next = || {
        s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        3 + (s >> 8) % (vocab - 3)
    };
    (0..count).map(|_| next()).collect()
}

/// Whether all bits are equal.
pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.iter().map(|v| v.to_bits()).eq(b.iter().map(|v| v.to_bits()))
}

/// Converts `gguf` to `out`, replacing what is there.
pub fn convert(gguf: &Path, out: &Path, options: &[&str]) {
    let mut args = vec!["convert".as_ref(), gguf.as_os_str(), "-o".as_ref(), out.as_os_str()];
    args.extend(options.iter().map(OsStr::new));
    args.push("--force".as_ref());
    run_ok("gantry", &args);
}

/// A container `NAME.gantry` in `folder` of the model that `gantry synth` makes of `preset`, converted with `options`.
pub fn synthesised(folder: &Path, name: &str, preset: &[&str], options: &[&str]) -> PathBuf {
    let gguf = folder.join(format!("{name}.gguf"));
    let text = gguf.to_str().expect("UTF-8");
    run_ok("gantry", &[&["synth"], preset, &["-o", text, "--force"]].concat());
    let out = folder.join(format!("{name}.gantry"));
    convert(&gguf, &out, options);
    std::fs::remove_file(&gguf).expect("its own file");
    out
}

/// The same of bard.
pub fn bard_converted(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let out = folder.join(format!("{name}.gantry"));
    convert(&bard().join("bard-qwen4exp-BF16.gguf"), &out, options);
    out
}

/// The logits of all `tokens`, row after row.
pub fn logits(container: &Path, tokens: &[u32], options: &[&str]) -> Vec<f32> {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let out = scratch.path().join("logits.f32");
    let tokens: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let tokens = tokens.join(",");
    let mut args = vec!["logits".as_ref(), container.as_os_str(), "--out".as_ref(), out.as_os_str()];
    args.extend(["--tokens", &tokens].map(OsStr::new));
    args.extend(options.iter().map(OsStr::new));
    run_ok("gantry-run", &args);
    read_f32(&out)
}

/// The one JSON document that a binary writes.
pub fn json<S: AsRef<OsStr>>(name: &str, args: &[S]) -> serde_json::Value {
    serde_json::from_slice(&run_ok(name, args)).expect("one JSON document")
}

/// The perplexity of a text file by `gantry-run perplexity`, `context` tokens at a time.
pub fn perplexity(container: &Path, text: &Path, context: usize, options: &[&str]) -> f64 {
    let context = context.to_string();
    let mut args = vec![
        "perplexity".as_ref(),
        container.as_os_str(),
        "--text".as_ref(),
        text.as_os_str(),
        "--json".as_ref(),
    ];
    args.extend(["--context", &context].map(OsStr::new));
    args.extend(options.iter().map(OsStr::new));
    json("gantry-run", &args)["perplexity"].as_f64().expect("a number")
}

/// The tokens of a text, control tokens in it read as such.
pub fn tokenize(container: &Path, text: &str) -> Vec<u32> {
    let args: [&OsStr; 5] =
        ["tokenize".as_ref(), container.as_os_str(), "-p".as_ref(), text.as_ref(), "--json".as_ref()];
    let found = json("gantry-run", &args);
    let tokens = found["tokens"].as_array().expect("tokens");
    tokens.iter().map(|t| t["id"].as_u64().expect("an id") as u32).collect()
}

/// Ids in a JSON array.
pub fn ids(array: &serde_json::Value) -> Vec<u32> {
    array.as_array().expect("an array").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

/// Where the largest value is; the first of equal ones.
pub fn best(row: &[f32]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}
