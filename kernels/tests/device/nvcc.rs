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

/// A kernel that is launched early and does not wait reads what the one before it has not written yet.
#[test]
fn every_kernel_waits_for_the_one_before() {
    let cuda = sources().with_file_name("cuda");
    let folders = [sources(), cuda].map(|folder| std::fs::read_dir(&folder).expect("a folder of kernels"));
    let mut kernels = 0;
    for file in folders.into_iter().flatten().map(|entry| entry.expect("a file").path()) {
        let source = std::fs::read_to_string(&file).expect("a source");
        // Launched by the loader, which never lets it start early.
        if file.ends_with("blake3.cu") {
            continue;
        }
        let heads: Vec<usize> = source
            .match_indices("KERNEL")
            .chain(source.match_indices("kernel(PRODUCT_GROUP)"))
            .map(|(at, _)| at)
            .filter(|at| {
                let line = source[..*at].rsplit('\n').next().unwrap_or_default();
                line.trim().is_empty() && !source[*at..].starts_with("KERNEL_OF_TWO(name")
            })
            .collect();
        let begins = source.matches("BEGIN();").count();
        assert_eq!(begins, heads.len(), "{}: as many kernels as begin by waiting", file.display());
        kernels += begins;
    }
    assert!(kernels >= 50, "{kernels} kernels");
}
