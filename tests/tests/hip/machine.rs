//! `gantry-run` beside the stand-in, and what the stand-in saw.

use super::models;
use gantry_tests::{binary, built};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

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
        let file = |name: &str| File::create(self.file(name)).expect("a file");
        let log = self.file("log");
        // What an earlier run left.
        let _ = std::fs::remove_file(&log);
        let mut command = Command::new(binary("gantry-run"));
        // Each card is a device of one thread.
        let cards = self.settings.get("CARDS").and_then(|n| n.parse().ok()).unwrap_or(1);
        command.args(args).env("GANTRY_STANDIN_HIP_LOG", &log).env("ROCM_PATH", self.folder.path());
        command.env("POCL_DEVICES", vec!["basic"; cards].join(" "));
        for (name, value) in &self.settings {
            command.env(format!("GANTRY_STANDIN_HIP_{name}"), value);
        }
        let mut child = command.stdout(file("out")).stderr(file("err")).spawn().expect("the binary starts");
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child") {
                break status;
            }
            if start.elapsed() > LIMIT {
                child.kill().expect("it ends");
                panic!("{:?} did not end within {LIMIT:?}", self.settings);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = |name: &str| std::fs::read_to_string(self.file(name)).expect("UTF-8");
        let (out, err) = (text("out"), text("err"));
        let what = format!("{:?} ended with {status}\n{out}{err}", self.settings);
        let log = std::fs::read_to_string(&log).map(|text| Log::parse(&text)).unwrap_or_default();
        Seen { code: status.code(), out, err, what, log }
    }

    fn with(&self, head: &[&OsStr], args: &[&str], more: &[&str]) -> Seen {
        let tail = args.iter().chain(more).map(OsStr::new);
        self.run(&head.iter().copied().chain(tail).collect::<Vec<_>>())
    }

    /// `gantry-run bench FILE --measure load`.
    pub(crate) fn load(&self, container: &Path, device: &str, more: &[&str]) -> Seen {
        let args = ["--measure", "load", "-r", "1", "--threads", "2", "--device", device];
        self.with(&["bench".as_ref(), container.as_os_str()], &args, more)
    }

    /// `gantry-run FILE -p x -n 1`.
    pub(crate) fn write(&self, container: &Path, device: &str, more: &[&str]) -> Seen {
        let args = ["-p", "x", "-n", "1", "--threads", "2", "--device", device];
        self.with(&[container.as_os_str()], &args, more)
    }

    /// `gantry-run bench FILE` of one token, a run that is recorded before it is done.
    pub(crate) fn record(&self, container: &Path, device: &str) -> Seen {
        let args = ["-p", "0", "-n", "1", "-r", "1", "--threads", "2", "--device", device];
        self.with(&["bench".as_ref(), container.as_os_str()], &args, &[])
    }
}

/// What a run did.
pub(crate) struct Seen {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) log: Log,
    /// All of it, for messages.
    what: String,
}

impl Seen {
    /// It ended with `code`, said all of `words` on standard error, and gave back to the driver all that it had taken.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.what);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in what was said: {}", self.what);
        }
        self.is_clean();
    }

    /// It ended well, said all of `words` on standard output, and gave back all that it had taken.
    #[track_caller]
    pub(crate) fn shows(&self, words: &[&str]) {
        assert_eq!(self.code, Some(0), "{}", self.what);
        for word in words {
            assert!(self.out.contains(word), "{word:?} is not in what was said: {}", self.what);
        }
        self.is_clean();
    }

    /// Nothing panicked, nothing is left, and nothing was done wrongly.
    #[track_caller]
    pub(crate) fn is_clean(&self) {
        assert!(!self.err.contains("panicked"), "{}", self.what);
        assert!(self.log.left.is_empty(), "left: {:?}; {}", self.log.left, self.what);
        assert!(self.log.wrong.is_empty(), "wrong: {:?}; {}", self.log.wrong, self.what);
    }
}

/// What the stand-in saw.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// By function, how often it was called.
    pub(crate) called: BTreeMap<String, u64>,
    /// Bytes of each allocation that was made on a card.
    pub(crate) allocated: Vec<u64>,
    left: Vec<String>,
    wrong: Vec<String>,
}

impl Log {
    fn parse(text: &str) -> Self {
        let mut log = Self::default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("called", of)) => {
                    let (function, times) = of.split_once(' ').expect("a function and a number");
                    log.called.insert(function.into(), times.parse().expect("a number"));
                }
                Some(("allocated", bytes)) => log.allocated.push(bytes.parse().expect("a number")),
                Some(("left", what)) => log.left.push(what.into()),
                Some(("wrong", what)) => log.wrong.push(what.into()),
                _ => panic!("{line:?} in the stand-in's log"),
            }
        }
        log
    }
}
