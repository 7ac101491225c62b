//! `gantry-run` beside the stand-in, and what the stand-in saw.

use gantry_tests::standin::{self, Asked, Seen};
use gantry_tests::{binary, built};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

/// Longer than any of these runs takes.
const LIMIT: Duration = Duration::from_secs(120);

/// The driver's library.
pub(crate) fn library() -> PathBuf {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| built(&["-p", "gantry-standin"]));
    let library = binary("libgantry_standin.so");
    assert!(library.is_file(), "{} was not built", library.display());
    library
}

/// A machine with a driver.
pub(crate) struct Machine {
    folder: tempfile::TempDir,
    settings: BTreeMap<&'static str, String>,
}

impl Machine {
    /// One card.
    pub(crate) fn new() -> Self {
        let machine = Self::without_driver();
        std::fs::copy(library(), machine.library()).expect("a copy of the library");
        machine
    }

    /// No card and no driver.
    pub(crate) fn without_driver() -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        std::fs::create_dir(folder.path().join("lib")).expect("a folder");
        Self { folder, settings: BTreeMap::new() }
    }

    /// Where the driver's library lies.
    pub(crate) fn library(&self) -> PathBuf {
        self.folder.path().join("lib/libcuda.so")
    }

    /// A file of this machine's.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// With `GANTRY_STANDIN_…` set.
    pub(crate) fn set(mut self, name: &'static str, value: impl ToString) -> Self {
        self.settings.insert(name, value.to_string());
        self
    }

    /// Runs `gantry-run` to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Seen {
        let asked = Asked { prefix: "GANTRY_STANDIN", settings: &self.settings, limit: LIMIT };
        standin::run(self.folder.path(), &asked, |command| {
            command.args(args).env("LD_LIBRARY_PATH", self.folder.path().join("lib"));
        })
    }

    /// [`standin::load`]
    pub(crate) fn load(&self, container: &Path, device: &str, more: &[&str]) -> Seen {
        self.run(&standin::load(container, device, more))
    }

    /// [`standin::write`]
    pub(crate) fn write(&self, container: &Path, device: &str, more: &[&str]) -> Seen {
        self.run(&standin::write(container, device, more))
    }

    /// [`standin::record`]
    pub(crate) fn record(&self, container: &Path, device: &str) -> Seen {
        self.run(&standin::record(container, device))
    }
}
