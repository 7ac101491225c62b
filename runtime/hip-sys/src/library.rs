//! Finding the library.

use libloading::Library;
use std::path::{Path, PathBuf};

/// What it is called, with and without the number of its interface.
const NAMES: [&str; 3] = ["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"];

/// Where ROCm puts it.
const USUAL: &str = "/opt/rocm/lib";

/// Why there is no library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLibrary {
    /// None was found.
    #[error("libamdhip64.so was not found (ROCM_PATH names the folder of ROCm)")]
    Absent,
    /// One was found that cannot be opened.
    #[error("{path} cannot be opened: {why}")]
    Broken {
        /// Where it is.
        path: PathBuf,
        /// What the system's loader says.
        why: String,
    },
    /// It lacks a function.
    #[error("{path} has no function {symbol}")]
    Symbol {
        /// Where it is, or what it is called.
        path: PathBuf,
        /// The first function that is missing.
        symbol: &'static str,
    },
}

/// Opens the library: that of `ROCM_PATH` where that is set, else the one that the system's loader finds, else that of ROCm's
/// usual folder.
pub(crate) fn open() -> Result<(PathBuf, Library), NoLibrary> {
    open_from(std::env::var_os("ROCM_PATH").map(PathBuf::from).as_deref())
}

fn open_from(named: Option<&Path>) -> Result<(PathBuf, Library), NoLibrary> {
    if let Some(root) = named {
        // Whoever names a folder wants no other.
        return in_folder(&root.join("lib"))?.ok_or(NoLibrary::Absent);
    }
    for name in NAMES {
        // SAFETY: it opens the library if there is one; its initialisers are AMD's own.
        if let Ok(library) = unsafe { Library::new(name) } {
            return Ok((name.into(), library));
        }
    }
    in_folder(Path::new(USUAL))?.ok_or(NoLibrary::Absent)
}

fn in_folder(folder: &Path) -> Result<Option<(PathBuf, Library)>, NoLibrary> {
    let Some(path) = NAMES.map(|name| folder.join(name)).into_iter().find(|path| path.is_file()) else {
        return Ok(None);
    };
    // SAFETY: as above.
    match unsafe { Library::new(&path) } {
        Ok(library) => Ok(Some((path, library))),
        Err(error) => Err(NoLibrary::Broken { path, why: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::{NoLibrary, open_from};

    #[test]
    fn a_folder_that_is_named_is_the_one_that_is_looked_in() {
        let root = tempfile::tempdir().expect("a scratch folder");
        assert_eq!(open_from(Some(root.path())).err(), Some(NoLibrary::Absent));
        std::fs::create_dir(root.path().join("lib")).expect("a folder");
        let path = root.path().join("lib/libamdhip64.so.6");
        std::fs::write(&path, "no library").expect("a file");
        match open_from(Some(root.path())) {
            Err(NoLibrary::Broken { path: found, why }) => assert!(found == path && !why.is_empty(), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}
