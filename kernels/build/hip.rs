//! Compiles the kernels of `device` and `hip` for AMD's and Hygon's cards, a code object for each generation, where a clang is
//! found that knows them, with its linker (lld). Nothing of ROCm is needed.
//!
//! `GANTRY_CLANG_HIP` names it; else it is looked for on the `PATH`. Without it the crate is built all the same, with a warning
//! and no HIP kernels, unless `GANTRY_REQUIRE_CLANG` is set.
//! `GANTRY_HIP_TARGETS` (`gfx942 gfx950`) names other generations than are compiled by default: fewer for quick builds, or those
//! that only other compilers know, gfx950 (clang 20) and gfx928 (Hygon's).

use crate::kept::{files, once, out};
use std::env;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the kernels are made of.
const FOLDERS: [&str; 2] = ["device", "hip"];

/// Generations that clang 19 knows. Each runs its own code object alone.
const TARGETS: [&str; 4] = ["gfx90a", "gfx942", "gfx1100", "gfx1201"];

/// Each operation rounds by itself (`-ffp-contract=off`).
const OPTIONS: [&str; 11] = [
    "-x",
    "hip",
    "--offload-device-only",
    "--no-gpu-bundle-output",
    "-nogpuinc",
    "-nogpulib",
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-Wall",
    "-Rpass-analysis=kernel-resource-usage",
];

pub(crate) fn build() {
    println!("cargo:rerun-if-changed=hip");
    for name in ["GANTRY_CLANG_HIP", "GANTRY_HIP_TARGETS", "GANTRY_REQUIRE_CLANG", "PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    if env::var_os("CARGO_FEATURE_HIP").is_none() {
        return;
    }
    let targets = targets();
    let made: Vec<PathBuf> = targets.iter().map(|target| out().join(format!("{target}.co"))).collect();
    match clang() {
        Some(clang) => {
            let version = Command::new(&clang).arg("--version").output();
            let version = version.unwrap_or_else(|e| panic!("{}: {e}", clang.display())).stdout;
            let how = format!("{} {} {}", OPTIONS.join(" "), targets.join(" "), is_required());
            once("hip.rs", &FOLDERS, &[&version, how.as_bytes()], &made, || compile(&clang, &targets, &made));
            list(&targets, &made);
        }
        None => {
            let missing = "no clang that compiles for amdgcn was found, with lld (GANTRY_CLANG_HIP names it; packages \
                           clang-19 and lld-19): built without HIP kernels";
            assert!(!is_required(), "{missing}");
            println!("cargo:warning={missing}");
            list(&[], &[]);
        }
    }
}

/// Whether kernels must be there, and as they are meant to be; else a compiler that warns of more, or has other ideas of registers,
/// is good enough.
fn is_required() -> bool {
    env::var_os("GANTRY_REQUIRE_CLANG").is_some()
}

/// Writes what `src/hip.rs` takes in.
fn list(targets: &[String], made: &[PathBuf]) {
    let mut text = String::from("&[\n");
    for (target, made) in targets.iter().zip(made) {
        writeln!(text, "    ({target:?}, include_bytes!({made:?})),").expect("text takes text");
    }
    text.push_str("]\n");
    std::fs::write(out().join("hip.rs"), text).expect("OUT_DIR can be written");
}

fn clang() -> Option<PathBuf> {
    if let Some(named) = env::var_os("GANTRY_CLANG_HIP") {
        // One that is named and is not there is a mistake, not an absence.
        return Some(named.into());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let names = ["clang-19", "clang-20", "clang-21", "clang-22", "clang"];
    let mut found =
        names.iter().flat_map(|name| env::split_paths(&path).map(move |folder| folder.join(name)));
    found.find(|clang| clang.is_file() && compiles(clang))
}

/// Whether it knows these cards and has its linker.
fn compiles(clang: &Path) -> bool {
    let says = |option: &str| {
        let said = Command::new(clang).arg(option).stderr(Stdio::null()).output();
        said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default()
    };
    // Older ones lack the lane instructions' names, or make calls of square roots.
    let new = says("-dumpversion")
        .split('.')
        .next()
        .and_then(|v| v.trim().parse().ok())
        .is_some_and(|v: u32| v >= 19);
    let linker = says("--print-prog-name=lld");
    new && says("--print-targets").contains("amdgcn") && Path::new(linker.trim()).is_absolute()
}

fn targets() -> Vec<String> {
    let wanted = env::var("GANTRY_HIP_TARGETS").unwrap_or_else(|_| TARGETS.join(" "));
    wanted.split_whitespace().map(String::from).collect()
}

/// One source that takes in all of `device` and `hip`, so that none is left out.
fn all_sources() -> PathBuf {
    let is_source = |file: &&PathBuf| file.extension().is_some_and(|e| e == "c" || e == "hip");
    let text: String = files(&FOLDERS)
        .iter()
        .filter(is_source)
        .map(|file| format!("#include \"{}\"\n", file.display()))
        .collect();
    let all = out().join("kernels.hip");
    std::fs::write(&all, text).expect("OUT_DIR can be written");
    all
}

/// All generations at once.
fn compile(clang: &Path, targets: &[String], made: &[PathBuf]) {
    let all = all_sources();
    let started: Vec<_> = targets
        .iter()
        .zip(made)
        .map(|(target, made)| {
            let mut command = Command::new(clang);
            command.args(OPTIONS).arg(format!("--offload-arch={target}"));
            // From gfx10 on a group may be spread over two compute units, whose caches its barriers then have to bring in line.
            if target.starts_with("gfx1") {
                command.arg("-mcumode");
            }
            if is_required() {
                command.arg("-Werror");
            }
            command.arg("-o").arg(made).arg(&all).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap_or_else(|e| panic!("{}: {e}", clang.display()))
        })
        .collect();
    for (target, started) in targets.iter().zip(started) {
        let done = started.wait_with_output().expect("what clang says can be read");
        let said =
            [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(done.status.success(), "{} failed for {target}:\n{said}", clang.display());
        // A kernel whose registers go to memory has become another: slower, and on the generation where it happens only.
        let mut scratch = said.lines().filter(|line| line.contains("ScratchSize [bytes/lane]: ")).peekable();
        assert!(scratch.peek().is_some(), "{} tells nothing of registers:\n{said}", clang.display());
        if let Some(spills) = scratch.find(|line| !line.contains("ScratchSize [bytes/lane]: 0 ")) {
            let spills = format!("a kernel spills registers on {target}: {spills}");
            assert!(!is_required(), "{spills}");
            println!("cargo:warning={spills}");
        }
    }
}
