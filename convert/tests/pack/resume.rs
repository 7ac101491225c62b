//! Interrupted conversions: what they leave, and what the next run makes of it.

use super::source::*;
use gantry_formats::block::GgmlType;
use gantry_formats::gguf::{GgufWriter, Value};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TENSORS: usize = 24;

/// A source of 24 tensors of 4 MiB, and what an undisturbed run makes of it.
struct Scene {
    dir: TempDir,
    /// Options of every run.
    more: Vec<&'static str>,
}

fn leak(path: PathBuf) -> &'static str {
    Box::leak(path.display().to_string().into_boxed_str())
}

impl Scene {
    fn new() -> Self {
        let names: Vec<Tensor> = (0..TENSORS)
            .map(|n| tensor(format!("blk.{n}.w.weight"), &[2048, 1024], GgmlType::BF16))
            .collect();
        Self::of(&names, |_| Vec::new())
    }

    /// Experts over three cards, some on two or all of them.
    fn of_experts() -> Self {
        let tensors = [
            tensor("blk.0.ffn_down_exps.weight", &[1024, 512, 24], GgmlType::BF16),
            tensor("blk.1.ffn_down_exps.weight", &[1024, 512, 24], GgmlType::BF16),
        ];
        Self::of(&tensors, |folder| {
            let counts = folder.join("hot.csv");
            let lines = (0..24).map(|e| format!("0,{e},{}\n1,{e},{}\n", 40_000 / (e + 1), 400 * (e + 1)));
            let text = format!("layer_id,expert_id,count\n{}", lines.collect::<String>());
            fs::write(&counts, text).expect("written");
            vec!["--cards", "3", "--placement", "replicate:6", "--hotness", leak(counts)]
        })
    }

    fn of(names: &[Tensor], more: impl FnOnce(&Path) -> Vec<&'static str>) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let more = more(dir.path());
        let scene = Self { dir, more };
        let keys = |w: &mut GgufWriter| {
            w.set("general.architecture", Value::Str(b"llama"));
        };
        write(&scene.path("m.gguf"), keys, names, 5);
        succeed(&scene.args("want.gantry", &[]));
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn args<'a>(&self, output: &str, more: &[&'a str]) -> Vec<&'a str> {
        let mut args = vec!["convert", leak(self.path("m.gguf")), "-o", leak(self.path(output))];
        // One thread and a record of every blob: slow enough to be caught.
        args.extend(["--allow-incomplete", "--threads", "1", "--sync-bytes", "1"]);
        args.extend(self.more.iter().copied().chain(more.iter().copied()));
        args
    }

    fn start(&self) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
        let command = command.args(self.args("m.gantry", &[])).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("gantry starts")
    }

    fn recorded(&self) -> usize {
        let journal = File::open(self.path("m.gantry.partial.journal"));
        journal.map_or(0, |f| BufReader::new(f).lines().count().saturating_sub(1))
    }

    /// Starts a run and ends it with `signal` once some blobs are recorded. A run that comes to its end before the
    /// signal reaches it, as on a fast disk, is begun again.
    fn interrupted(&self, signal: &str) -> std::process::Output {
        for _ in 0..50 {
            let mut child = self.start();
            let begin = Instant::now();
            let mut running = true;
            while running && self.recorded() < 3 {
                assert!(begin.elapsed() < Duration::from_secs(60), "nothing is recorded");
                std::thread::sleep(Duration::from_millis(1));
                running = child.try_wait().expect("a child").is_none();
            }
            if running {
                let pid = child.id().to_string();
                assert!(Command::new("kill").args([signal, &pid]).status().expect("kill starts").success());
            }
            let out = child.wait_with_output().expect("it ends");
            if !self.path("m.gantry").exists() {
                return out;
            }
            fs::remove_file(self.path("m.gantry")).expect("removed");
        }
        panic!("it was not interrupted");
    }

    fn is_as_wanted(&self) -> bool {
        fs::read(self.path("m.gantry")).expect("written")
            == fs::read(self.path("want.gantry")).expect("written")
    }

    fn leftovers(&self) -> bool {
        self.path("m.gantry.partial").exists() || self.path("m.gantry.partial.journal").exists()
    }
}

fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).expect("open");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 1], at).expect("write");
}

#[test]
fn signals_end_with_their_code_and_the_next_run_goes_on() {
    let scene = Scene::new();
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let out = scene.interrupted(signal);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{text}");
        assert!(text.contains("goes on from there"), "{text}");
        assert!(scene.leftovers());
        let again = gantry(&scene.args("m.gantry", &[]));
        let text = String::from_utf8_lossy(&again.stderr);
        assert!(again.status.success() && text.contains("resuming"), "{text}");
        assert!(scene.is_as_wanted() && !scene.leftovers());
        fs::remove_file(scene.path("m.gantry")).expect("removed");
    }
}

#[test]
fn experts_on_several_cards_go_on_too() {
    let scene = Scene::of_experts();
    let want = gantry_formats::container::Container::open(&scene.path("want.gantry")).expect("sound");
    let slots: usize = want.manifest().banks.iter().map(|b| b.experts.len()).sum();
    assert!(slots > 48, "{slots} slots: no expert has a copy");
    for signal in ["-INT", "-KILL"] {
        scene.interrupted(signal);
        let again = gantry(&scene.args("m.gantry", &[]));
        let text = String::from_utf8_lossy(&again.stderr);
        assert!(again.status.success() && text.contains("resuming"), "{text}");
        assert!(scene.is_as_wanted() && !scene.leftovers());
        fs::remove_file(scene.path("m.gantry")).expect("removed");
    }
}

#[test]
fn after_a_kill_only_sound_blobs_are_kept() {
    let scene = Scene::new();
    scene.interrupted("-KILL");
    // The first blob starts at the first segment: damage it. Tear the journal's last line, too.
    flip(&scene.path("m.gantry.partial"), (2 << 20) + 12_345);
    let journal = File::options().write(true).open(scene.path("m.gantry.partial.journal")).expect("open");
    let len = journal.metadata().expect("metadata").len();
    journal.set_len(len - 5).expect("cut");
    let out = gantry(&scene.args("m.gantry", &[]));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(scene.is_as_wanted() && !scene.leftovers());
}

#[test]
fn another_source_or_another_option_is_refused() {
    let scene = Scene::new();
    scene.interrupted("-KILL");
    refuse(&scene.args("m.gantry", &["--recipe", "lossless"]), 3, &["other options", "--no-resume"]);
    let source = scene.path("m.gguf");
    let times = fs::metadata(&source).expect("metadata").modified().expect("a time");
    flip(&source, 100_000);
    refuse(&scene.args("m.gantry", &[]), 3, &["source that has changed", "--no-resume"]);
    // Even where the time of change was put back, the bytes tell.
    File::options().write(true).open(&source).expect("open").set_modified(times).expect("set");
    refuse(&scene.args("m.gantry", &[]), 3, &["source changed", "--no-resume"]);
    flip(&source, 100_000);
    File::options().write(true).open(&source).expect("open").set_modified(times).expect("set");
    succeed(&scene.args("m.gantry", &[]));
    assert!(scene.is_as_wanted());
}

#[test]
fn starting_over_and_partial_files_without_a_journal() {
    let scene = Scene::new();
    scene.interrupted("-KILL");
    let out = gantry(&scene.args("m.gantry", &["--no-resume"]));
    assert!(out.status.success() && !String::from_utf8_lossy(&out.stderr).contains("resuming"));
    assert!(scene.is_as_wanted());
    fs::write(scene.path("m.gantry.partial"), vec![0xff; 5 << 20]).expect("written");
    succeed(&scene.args("m.gantry", &["--force"]));
    assert!(scene.is_as_wanted() && !scene.leftovers());
    fs::write(scene.path("m.gantry.partial.journal"), "gantry-journal").expect("written");
    succeed(&scene.args("m.gantry", &["--force"]));
    assert!(scene.is_as_wanted() && !scene.leftovers());
}
