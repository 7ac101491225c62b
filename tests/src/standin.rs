//! `gantry-run` beside a stand-in for a driver, and what the stand-in saw.

use crate::binary;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How a stand-in is asked for something.
pub struct Asked<'a> {
    /// What the names of its variables begin with: `GANTRY_STANDIN_HIP`.
    pub prefix: &'a str,
    /// Its variables, by the rest of their names.
    pub settings: &'a BTreeMap<&'static str, String>,
    /// Longer than any run takes.
    pub limit: Duration,
}

/// Runs `gantry-run` to its end, in `folder`; `prepare` says where the driver is.
///
/// # Panics
/// Where it does not end in time, or the stand-in's log is none.
pub fn run(folder: &Path, asked: &Asked<'_>, prepare: impl FnOnce(&mut Command)) -> Seen {
    let Asked { prefix, settings, limit } = asked;
    let path = |name: &str| folder.join(name);
    let file = |name: &str| File::create(path(name)).expect("a file");
    let log = path("log");
    // What an earlier run left.
    let _ = std::fs::remove_file(&log);
    let mut command = Command::new(binary("gantry-run"));
    prepare(&mut command);
    command.env(format!("{prefix}_LOG"), &log);
    for (name, value) in *settings {
        command.env(format!("{prefix}_{name}"), value);
    }
    let mut child = command.stdout(file("out")).stderr(file("err")).spawn().expect("the binary starts");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if start.elapsed() > *limit {
            child.kill().expect("it ends");
            panic!("{settings:?} did not end within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = |name: &str| std::fs::read_to_string(path(name)).expect("UTF-8");
    let (out, err) = (text("out"), text("err"));
    let what = format!("{settings:?} ended with {status}\n{out}{err}");
    let log = std::fs::read_to_string(&log).map(|text| Log::parse(&text)).unwrap_or_default();
    Seen { code: status.code(), out, err, what, log }
}

/// `gantry-run bench FILE --measure load`.
pub fn load(container: &Path, device: &str, more: &[&str]) -> Vec<OsString> {
    let args = ["--measure", "load", "-r", "1", "--threads", "2", "--device", device];
    with(&["bench".into(), container.into()], &args, more)
}

/// `gantry-run FILE -p x -n 1`.
pub fn write(container: &Path, device: &str, more: &[&str]) -> Vec<OsString> {
    with(&[container.into()], &["-p", "x", "-n", "1", "--threads", "2", "--device", device], more)
}

/// `gantry-run bench FILE` of one token, a run that is recorded before it is done.
pub fn record(container: &Path, device: &str) -> Vec<OsString> {
    let args = ["-p", "0", "-n", "1", "-r", "1", "--threads", "2", "--device", device];
    with(&["bench".into(), container.into()], &args, &[])
}

/// `gantry-run logits FILE` of tokens, into `out`.
pub fn logits(container: &Path, device: &str, tokens: &[u32], out: &Path, more: &[&str]) -> Vec<OsString> {
    let tokens: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let head = ["logits".into(), container.into(), "--out".into(), out.into()];
    with(&head, &["--tokens", &tokens.join(","), "--device", device, "--threads", "2"], more)
}

fn with(head: &[OsString], args: &[&str], more: &[&str]) -> Vec<OsString> {
    head.iter().cloned().chain(args.iter().chain(more).map(OsString::from)).collect()
}

/// What a run did.
pub struct Seen {
    /// How it ended.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// What the stand-in saw.
    pub log: Log,
    /// All of it, for messages.
    pub what: String,
}

impl Seen {
    /// It ended with `code`, said all of `words` on standard error, and gave back to the driver all that it had taken.
    #[track_caller]
    pub fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.what);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in what was said: {}", self.what);
        }
        self.is_clean();
    }

    /// It ended well, said all of `words` on standard output, and gave back all that it had taken.
    #[track_caller]
    pub fn shows(&self, words: &[&str]) {
        assert_eq!(self.code, Some(0), "{}", self.what);
        for word in words {
            assert!(self.out.contains(word), "{word:?} is not in what was said: {}", self.what);
        }
        self.is_clean();
    }

    /// Nothing panicked, nothing is left, and nothing was done wrongly.
    #[track_caller]
    pub fn is_clean(&self) {
        assert!(!self.err.contains("panicked"), "{}", self.what);
        assert!(self.log.left.is_empty(), "left: {:?}; {}", self.log.left, self.what);
        assert!(self.log.wrong.is_empty(), "wrong: {:?}; {}", self.log.wrong, self.what);
    }
}

/// What a stand-in saw.
#[derive(Debug, Default)]
pub struct Log {
    /// By function, how often it was called.
    pub called: BTreeMap<String, u64>,
    /// Bytes of each allocation that was made on a card.
    pub allocated: Vec<u64>,
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
