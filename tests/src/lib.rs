//! What whole-system tests share: test inputs made on demand, the two binaries, and comparisons.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of a group of test inputs, made by `tests/fixtures/make_fixtures.py` where it is not there yet.
/// Groups: `hostile`, `tiny`, `dummies`, `bard`, `smollm2`, `vocab`.
///
/// # Panics
/// Where the inputs cannot be made: a test that lacks its input has failed.
pub fn fixtures(group: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = target_dir().join("fixtures");
    let script = root.join("fixtures/make_fixtures.py");
    let status = Command::new("python3").arg(&script).arg(&out).arg(group).status();
    let status = status.unwrap_or_else(|e| panic!("python3 is needed to make test inputs: {e}"));
    assert!(status.success(), "{} {group} ended with {status}", script.display());
    out.join(group)
}

/// The folder of committed golden values.
pub fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
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
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--bin", "gantry", "--bin", "gantry-run"]);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        let status =
            build.current_dir(env!("CARGO_MANIFEST_DIR")).arg("--workspace").status().expect("cargo starts");
        assert!(status.success(), "the binaries do not build");
    });
    profile.join(name)
}

/// Runs a binary to its end.
pub fn run<S: AsRef<std::ffi::OsStr>>(name: &str, args: &[S]) -> Output {
    Command::new(binary(name)).args(args).output().expect("the binary starts")
}

/// Runs a binary, which must succeed; its stdout.
pub fn run_ok<S: AsRef<std::ffi::OsStr>>(name: &str, args: &[S]) -> Vec<u8> {
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

/// The 64 token ids of the golden files of random models with a vocabulary of 512.
pub fn golden_tokens() -> Vec<u32> {
    let mut s = 12345u32;
    let mut next = || {
        s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        3 + (s >> 8) % 509
    };
    (0..64).map(|_| next()).collect()
}
