//! The device sources as CUDA: no warning, no spill, for every architecture.

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

#[test]
fn all_sources_compile_as_cuda_without_warnings_or_spills() {
    let Some(nvcc) = nvcc() else {
        let required = std::env::var_os("GANTRY_REQUIRE_NVCC").is_some_and(|v| v == "1");
        assert!(!required, "no nvcc: set GANTRY_NVCC or put it on the path");
        eprintln!("nothing was compiled: there is no nvcc, and GANTRY_NVCC is not set");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder for what is compiled");
    for file in source_files() {
        let archs = ["80", "90", "120"].map(|arch| format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
        let (_, text) = compile(&nvcc, &file, folder.path(), &archs);
        let reports: Vec<_> = text.lines().filter(|line| line.contains("bytes spill stores")).collect();
        assert!(!reports.is_empty(), "{}: no report of registers in\n{text}", file.display());
        for line in reports {
            assert!(
                line.contains(" 0 bytes spill stores, 0 bytes spill loads"),
                "{}: {line}",
                file.display()
            );
        }
    }
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
