//! The device sources as CUDA, for a device that is there. The build script compiles them for every generation.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::launch::{source_files, sources};

/// What `GANTRY_NVCC` names, or one on the path.
pub(crate) fn nvcc() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("GANTRY_NVCC") {
        return Some(path.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("nvcc")).find(|file| file.is_file())
}

/// What nvcc makes of a source, and what it says.
#[track_caller]
pub(crate) fn compile(nvcc: &Path, file: &Path, folder: &Path, archs: &[String]) -> (Vec<u8>, String) {
    let compiled = folder.join("kernels.fatbin");
    let mut command = Command::new(nvcc);
    command.args(["-x", "cu", "-std=c++17", "-O3", "-Werror", "all-warnings", "-fmad=true"]);
    command.args(["-Xptxas", "-v", "--threads", "2", "--fatbin"]).args(archs);
    command.arg("-I").arg(sources()).arg("-o").arg(&compiled).arg(file);
    let output = command.output().unwrap_or_else(|e| panic!("{}: {e}", nvcc.display()));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}:\n{text}", file.display());
    (std::fs::read(compiled).expect("what nvcc wrote"), text)
}

/// What nvcc makes of all sources for sm_90a: what the build script kept of it, or made here where it was built for others.
fn ptx_for_hopper() -> Option<String> {
    let kept = std::fs::read_to_string(concat!(env!("OUT_DIR"), "/kernels.ptx")).unwrap_or_default();
    if !kept.is_empty() {
        return Some(kept);
    }
    let nvcc = nvcc()?;
    let folder = tempfile::tempdir().expect("a folder");
    let all = folder.path().join("all.cu");
    let mut files = source_files(&sources());
    let cuda = std::fs::read_dir(sources().with_file_name("cuda")).expect("kernels/cuda");
    files
        .extend(cuda.map(|e| e.expect("a file").path()).filter(|p| p.extension().is_some_and(|e| e == "cu")));
    files.sort();
    let text: String = files.iter().map(|file| format!("#include \"{}\"\n", file.display())).collect();
    std::fs::write(&all, text).expect("a source");
    let ptx = folder.path().join("all.ptx");
    let mut command = Command::new(&nvcc);
    command.args(["-x", "cu", "-std=c++17", "-O3", "--ptx", "-arch=compute_90a", "-o"]).arg(&ptx).arg(&all);
    let output = command.output().unwrap_or_else(|e| panic!("{}: {e}", nvcc.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(std::fs::read_to_string(ptx).expect("what nvcc wrote"))
}

/// A kernel that is launched early reads nothing that another one may still write before it has waited: in what nvcc makes of
/// all sources for sm_90a, nothing but parameters and weights is loaded before the wait.
#[test]
fn every_kernel_waits_for_the_one_before() {
    let Some(ptx) = ptx_for_hopper() else {
        assert!(std::env::var_os("GANTRY_REQUIRE_NVCC").is_none(), "nvcc was not found");
        return eprintln!("not run: there is no nvcc");
    };
    let (mut kernels, mut in_turn) = (0, false);
    for kernel in ptx.split(".entry ").skip(1) {
        let (name, body) = kernel.split_once('(').expect("a name");
        let (before, after) =
            body.split_once("griddepcontrol.wait").unwrap_or_else(|| panic!("{name} does not wait"));
        // Weights never change: their loads, which alone have a policy, may come earlier. Others of what is taken never to change
        // the compiler might move.
        let weights = |line: &&str| line.contains("ld.global.nc") && line.contains("cache_hint");
        let early = before.lines().filter(|line| line.contains("ld.global")).find(|line| !weights(line));
        assert!(early.is_none(), "{name} reads before it waits: {early:?}");
        // Downs come after gates, which let them start only when the routing before is there.
        let told = before.contains("ld.relaxed");
        assert!(!told || name == "gantry_decode_downs_i8_block32", "{name} reads before it waits");
        in_turn |= name == "gantry_decode_gates_i8_block32" && !before.contains("launch_dependents");
        let moved = after.lines().find(|line| line.contains("ld.global.nc") && !weights(line));
        assert!(moved.is_none(), "{name}: {moved:?}");
        kernels += 1;
    }
    assert!(kernels > 80, "{kernels} kernels");
    assert!(in_turn, "downs may start before the experts of tokens are known");
}
