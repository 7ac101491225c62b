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
    let files = |folder: PathBuf| {
        let files =
            std::fs::read_dir(&folder).expect("a folder of kernels").map(|entry| entry.expect("a file"));
        files.map(|entry| (entry.path(), std::fs::read_to_string(entry.path()).expect("a source")))
    };
    let mut kernels = 0;
    for (file, source) in files(sources()) {
        let heads = ["KERNEL", "kernel(PRODUCT_GROUP)"].map(|head| {
            let heads = source.match_indices(head).filter(|(at, _)| {
                source[..*at].rsplit('\n').next().is_some_and(|line| line.trim().is_empty())
            });
            heads.count()
        });
        let begins = source.matches("BEGIN();").count();
        assert_eq!(begins, heads.iter().sum::<usize>(), "{}: kernels, and those that wait", file.display());
        kernels += begins;
    }
    assert!(kernels >= 50, "{kernels} kernels");
    // Several of these share what begins with it.
    for (file, source) in files(sources().with_file_name("cuda")) {
        let has = file.extension().is_some_and(|e| e == "cu");
        assert!(!has || source.contains("BEGIN();"), "{}: its kernels wait for none", file.display());
    }
}
