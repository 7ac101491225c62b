//! What compilers made stays in the target folder: cargo runs this for every profile and every set of features, whose kernels
//! are the same.

use std::env;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

/// Cargo's folder for what is made here.
pub(crate) fn out() -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
}

/// All files of some folders beside `build`, in order.
pub(crate) fn files(folders: &[&str]) -> Vec<PathBuf> {
    let here = env::current_dir().expect("a folder to build in");
    let files = folders.iter().flat_map(|folder| {
        let files = std::fs::read_dir(here.join(folder)).expect("the folder of kernels can be read");
        files.map(|file| file.expect("the folder of kernels can be read").path())
    });
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    files
}

/// Makes files of OUT_DIR by `compile`, or takes what it made before of the same `folders` by the same `means`: compilers as
/// they name themselves, options. `build` is the file of the family in `build`.
pub(crate) fn once(build: &str, folders: &[&str], means: &[&[u8]], made: &[PathBuf], compile: impl FnOnce()) {
    let mut hash = DefaultHasher::new();
    means.iter().for_each(|bytes| hash.write(bytes));
    let here = env::current_dir().expect("a folder to build in");
    for file in files(folders).iter().chain([&here.join("build").join(build)]) {
        // Where the checkout lies changes nothing.
        hash.write(file.strip_prefix(&here).unwrap_or(file).as_os_str().as_encoded_bytes());
        hash.write(&std::fs::read(file).expect("a file of the kernels can be read"));
    }
    let out = out();
    let target = out.ancestors().nth(4).expect("OUT_DIR is target/PROFILE/build/PACKAGE/out");
    let folder = target.join("kernels");
    let kept = |made: &Path| {
        let name = made.file_name().expect("a file").to_string_lossy();
        folder.join(format!("{:016x}-{name}", hash.finish()))
    };
    if !made.iter().all(|made| kept(made).is_file()) {
        compile();
        std::fs::create_dir_all(&folder).expect("the target folder can be written");
        for made in made {
            // Another cargo may be at it.
            let whole = folder.join(format!("{}.part", std::process::id()));
            std::fs::copy(made, &whole)
                .expect("what was compiled is there, and the target folder can be written");
            std::fs::rename(&whole, kept(made)).expect("the target folder can be written");
        }
    }
    for made in made {
        std::fs::copy(kept(made), made).expect("OUT_DIR can be written");
    }
}
