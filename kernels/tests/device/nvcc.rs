//! The device sources as CUDA, for a device that is there. The build script compiles them for every generation.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::launch::sources;

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
