//! `gantry-run` beside the stand-in, and what the stand-in saw.

use super::models;
use gantry_tests::standin::{self, Asked, Seen};
use gantry_tests::{binary, built};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};
use std::time::Duration;

/// Longer than any of these runs takes, kernels that are built for the first time among it.
const LIMIT: Duration = Duration::from_secs(400);

/// HIP's library.
fn library() -> PathBuf {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| built(&["-p", "gantry-standin-hip"]));
    let library = binary("libgantry_standin_hip.so");
    assert!(library.is_file(), "{} was not built", library.display());
    library
}

/// Whether `gantry-run` has HIP kernels; else says that it has none.
pub(crate) fn kernels() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = *FOUND.get_or_init(|| {
        let seen = Machine::idle().load(models::small(), "hip:0", &["--verify", "index"]);
        !seen.err.contains("built without HIP kernels")
    });
    assert!(found || std::env::var_os("GANTRY_REQUIRE_CLANG").is_none(), "built without HIP kernels");
    if !found {
        println!("not tested: gantry-run was built without HIP kernels, for which a clang is needed");
    }
    found
}

/// Whether kernels are computed; else says why not.
pub(crate) fn computes() -> bool {
    static WHY: OnceLock<Option<String>> = OnceLock::new();
    if !kernels() {
        return false;
    }
    let why = WHY.get_or_init(|| {
        let seen = Machine::new().load(models::small(), "hip:0", &[]);
        (seen.code != Some(0)).then_some(seen.what)
    });
    let required = std::env::var_os("GANTRY_REQUIRE_OPENCL").is_some_and(|v| v == "1");
    assert!(why.is_none() || !required, "{why:?}");
    if let Some(why) = why {
        println!("not tested: {why}");
    }
    why.is_none()
}

/// A machine with ROCm.
pub(crate) struct Machine {
    folder: tempfile::TempDir,
    settings: BTreeMap<&'static str, String>,
}

impl Machine {
    /// One card.
    pub(crate) fn new() -> Self {
        let machine = Self::without_library();
        std::fs::copy(library(), machine.library()).expect("a copy of the library");
        machine
    }

    /// No card and no library.
    pub(crate) fn without_library() -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        std::fs::create_dir(folder.path().join("lib")).expect("a folder");
        Self { folder, settings: BTreeMap::new() }
    }

    /// One card whose kernels do nothing, which needs no OpenCL where the card does not verify.
    pub(crate) fn idle() -> Self {
        Self::new().set("SKIP", 1)
    }

    /// Where the library lies.
    pub(crate) fn library(&self) -> PathBuf {
        self.folder.path().join("lib/libamdhip64.so.6")
    }

    /// A file of this machine's.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// With `GANTRY_STANDIN_HIP_…` set.
    pub(crate) fn set(mut self, name: &'static str, value: impl ToString) -> Self {
        self.settings.insert(name, value.to_string());
        self
    }

    /// Runs `gantry-run` to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Seen {
        let asked = Asked { prefix: "GANTRY_STANDIN_HIP", settings: &self.settings, limit: LIMIT };
        standin::run(self.folder.path(), &asked, |command| {
            // Each card is a device of one thread.
            let cards = self.settings.get("CARDS").and_then(|n| n.parse().ok()).unwrap_or(1);
            command.args(args).env("ROCM_PATH", self.folder.path());
            command.env("POCL_DEVICES", vec!["basic"; cards].join(" "));
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
