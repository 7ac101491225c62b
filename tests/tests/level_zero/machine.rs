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

/// The driver.
fn driver() -> PathBuf {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| built(&["-p", "gantry-standin-ze"]));
    let library = binary("libgantry_standin_ze.so");
    assert!(library.is_file(), "{} was not built", library.display());
    library
}

/// Whether Level Zero's loader is here; else says that it is not.
pub(crate) fn loader() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = *FOUND.get_or_init(|| {
        let seen = Machine::without_cards().run(&["devices"]);
        !seen.out.contains("libze_loader.so.1 was not found")
    });
    assert!(found || std::env::var_os("GANTRY_REQUIRE_ZE").is_none(), "libze_loader.so.1 was not found");
    if !found {
        println!("not tested: libze_loader.so.1 was not found (libze1 has it)");
    }
    found
}

/// Whether kernels are computed; else says why not.
pub(crate) fn computes() -> bool {
    static WHY: OnceLock<Option<String>> = OnceLock::new();
    let why = WHY.get_or_init(|| {
        if !loader() {
            return Some("no loader".into());
        }
        let seen = Machine::new().load(models::small(), "level-zero:0", &[]);
        (seen.code != Some(0)).then_some(seen.err)
    });
    assert!(why.is_none() || std::env::var_os("GANTRY_REQUIRE_SPIRV").is_none(), "{why:?}");
    if let Some(why) = why {
        println!("not tested: {why}");
    }
    why.is_none()
}

/// A machine with a driver.
pub(crate) struct Machine {
    folder: tempfile::TempDir,
    settings: BTreeMap<&'static str, String>,
    driver: Option<PathBuf>,
}

impl Machine {
    /// One card.
    pub(crate) fn new() -> Self {
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("level-zero-kernels");
        std::fs::create_dir_all(&cache).expect("a folder");
        let folder = tempfile::tempdir().expect("a scratch folder");
        let machine = Self { folder, settings: BTreeMap::new(), driver: Some(driver()) };
        machine.set("CACHE", cache.display())
    }

    /// A loader, maybe, and no driver.
    pub(crate) fn without_cards() -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        Self { folder, settings: BTreeMap::new(), driver: None }
    }

    /// One card whose kernels do nothing, which needs no OpenCL.
    pub(crate) fn idle() -> Self {
        Self::new().set("SKIP", 1)
    }

    /// A file of this machine's.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// With `GANTRY_STANDIN_ZE_…` set.
    pub(crate) fn set(mut self, name: &'static str, value: impl ToString) -> Self {
        self.settings.insert(name, value.to_string());
        self
    }

    /// Runs `gantry-run` to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Seen {
        let asked = Asked { prefix: "GANTRY_STANDIN_ZE", settings: &self.settings, limit: LIMIT };
        standin::run(self.folder.path(), &asked, |command| {
            command.args(args).env_remove("ZE_ENABLE_ALT_DRIVERS");
            command.envs(self.driver.iter().map(|driver| ("ZE_ENABLE_ALT_DRIVERS", driver)));
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
