//! Compiles the CUDA kernels into one fat binary, where nvcc is found. The PTX of `sm_90a` stays beside it, for a test that reads
//! it; it is empty where that generation was not compiled.
//!
//! `GANTRY_NVCC` names it; else it is looked for in `CUDA_HOME`, on the `PATH`, and where NVIDIA's installer puts it.
//! Without it the crate is built all the same, with a warning and no CUDA kernels, unless `GANTRY_REQUIRE_NVCC` is set.
//! `GANTRY_CUDA_TARGETS` (`sm_90 sm_120`) names fewer generations than all, for quick builds.

use crate::kept::{files, once, out};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Generations with machine code of their own; newer ones take the PTX of the last. `sm_90` is compiled as `sm_90a`, which has
/// matrix instructions of four warps that no other generation has.
const TARGETS: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"];

/// What the kernels are made of.
const FOLDERS: [&str; 2] = ["cuda", "device"];

pub(crate) fn build() {
    println!("cargo:rerun-if-changed=cuda");
    for name in ["GANTRY_NVCC", "GANTRY_REQUIRE_NVCC", "GANTRY_CUDA_TARGETS", "CUDA_HOME"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    println!("cargo:rustc-env=GANTRY_CUDA_COMPILED={}", targets().join(" "));
    let (fatbin, ptx) = (out().join("kernels.fatbin"), out().join("kernels.ptx"));
    match nvcc() {
        Some(nvcc) => {
            // nvcc takes minutes.
            let version = Command::new(&nvcc).arg("--version").output();
            let version = version.unwrap_or_else(|e| panic!("{}: {e}", nvcc.display()));
            let (version, targets) = (version.stdout, targets().join(" "));
            once("cuda.rs", &FOLDERS, &[&version, targets.as_bytes()], &[fatbin.clone(), ptx], || {
                compile(&nvcc, &fatbin)
            });
        }
        None => {
            let missing = "nvcc was not found (GANTRY_NVCC names it): built without CUDA kernels";
            assert!(env::var_os("GANTRY_REQUIRE_NVCC").is_none(), "{missing}");
            println!("cargo:warning={missing}");
            std::fs::write(&fatbin, []).expect("OUT_DIR can be written");
            std::fs::write(&ptx, []).expect("OUT_DIR can be written");
        }
    }
}

fn nvcc() -> Option<PathBuf> {
    if let Some(named) = env::var_os("GANTRY_NVCC") {
        // One that is named and is not there is a mistake, not an absence.
        return Some(named.into());
    }
    let homes = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin"));
    let path =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    let folders = homes.into_iter().chain(path).chain(["/usr/local/cuda/bin".into()]);
    folders.map(|folder| folder.join("nvcc")).find(|nvcc| nvcc.is_file())
}

fn targets() -> Vec<String> {
    let wanted = env::var("GANTRY_CUDA_TARGETS").unwrap_or_else(|_| TARGETS.join(" "));
    wanted.split_whitespace().map(String::from).collect()
}

/// One source that takes in all of `device` and `cuda`, so that none is left out.
fn all_sources(out: &Path) -> PathBuf {
    let is_source = |file: &&PathBuf| file.extension().is_some_and(|e| e == "c" || e == "cu");
    let text: String = files(&FOLDERS)
        .iter()
        .filter(is_source)
        .map(|file| format!("#include \"{}\"\n", file.display()))
        .collect();
    let all = out.with_file_name("kernels.cu");
    std::fs::write(&all, text).expect("OUT_DIR can be written");
    all
}

/// The generation whose PTX a target's machine code is made of. Making PTX takes three times as long as making machine code of
/// it, and nothing in the sources tells these two apart.
fn ptx_of(target: &str) -> &str {
    if target == "sm_89" { "sm_86" } else { target }
}

fn compile(nvcc: &Path, out: &Path) {
    let targets = targets();
    let mut command = Command::new(nvcc);
    command.args(["-std=c++17", "-O3", "--threads", "0", "-Werror", "all-warnings", "-Xptxas", "-v"]);
    for (i, target) in targets.iter().enumerate() {
        let own = if target == "sm_90" { "a" } else { "" };
        let from = ptx_of(target).replace("sm_", "compute_");
        command.arg("-gencode").arg(format!("arch={from}{own},code={target}{own}"));
        let virtual_target = target.replace("sm_", "compute_");
        // PTX of the oldest, for generations between those that are named, and of the newest, for those to come.
        if i == 0 || i + 1 == targets.len() {
            command.arg("-gencode").arg(format!("arch={virtual_target},code={virtual_target}"));
        }
    }
    let between = out.with_file_name("between");
    std::fs::create_dir_all(&between).expect("OUT_DIR can be written");
    command.arg("--keep").arg("--keep-dir").arg(&between);
    command.args(["--fatbin", "-o"]).arg(out).arg(all_sources(out));
    let done = command.output().unwrap_or_else(|e| panic!("{}: {e}", nvcc.display()));
    let said = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(done.status.success(), "{} failed:\n{said}", nvcc.display());
    // A kernel whose registers go to memory has become another: slower, and on the generation where it happens only.
    let mut reports = said.lines().filter(|line| line.contains("bytes spill stores")).peekable();
    assert!(reports.peek().is_some(), "{} tells nothing of registers:\n{said}", nvcc.display());
    let spills = reports.find(|line| !line.contains(" 0 bytes spill stores, 0 bytes spill loads"));
    assert!(spills.is_none(), "a kernel spills registers: {}\n{said}", spills.unwrap_or_default());

    // Where there is one generation, its PTX has no name of its own.
    let ptx = ["kernels.compute_90a.ptx", "kernels.ptx"].map(|name| between.join(name));
    let ptx = ptx.iter().find(|file| targets.iter().any(|t| t == "sm_90") && file.is_file());
    let ptx = ptx.map(|file| std::fs::read(file).expect("what nvcc wrote")).unwrap_or_default();
    std::fs::write(out.with_extension("ptx"), ptx).expect("OUT_DIR can be written");
    std::fs::remove_dir_all(&between).expect("OUT_DIR can be written");
}
