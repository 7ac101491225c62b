//! Experts over several cards, from the source and back, on a trained model and the counts that were measured on it.

use gantry_tests::{bard, convert, golden_tokens, json, logits, run, run_ok, same_bits};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

struct Room {
    dir: tempfile::TempDir,
    source: PathBuf,
    counts: String,
}

impl Room {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a scratch folder");
        let counts = bard().join("bard.imatrix.gguf").display().to_string();
        Self { dir, source: bard().join("bard-qwen4exp-BF16.gguf"), counts }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn convert(&self, name: &str, more: &[&str]) -> PathBuf {
        let out = self.path(name);
        convert(&self.source, &out, &[&["--recipe", "lossless"], more].concat());
        out
    }
}

fn words<'a>(head: &[&'a (dyn AsRef<OsStr> + 'a)], more: &'a [&'a str]) -> Vec<&'a OsStr> {
    head.iter().map(|w| (*w).as_ref()).chain(more.iter().map(|w| OsStr::new(*w))).collect()
}

fn same(a: &Path, b: &Path) -> bool {
    std::fs::read(a).expect("bytes") == std::fs::read(b).expect("bytes")
}

#[test]
fn convert_verify_replan_export_over_two_and_three_cards() {
    let room = Room::new();
    let one = room.convert("one.gantry", &[]);
    let tokens = golden_tokens(24, 2048);
    let alone = logits(&one, &tokens, &[]);
    for (i, way) in [
        &["--cards", "2", "--hotness", &room.counts][..],
        &["--cards", "3", "--placement", "balanced", "--hotness", &room.counts],
        &["--cards", "3", "--placement", "replicate:2", "--hotness", &room.counts],
        &["--cards", "64MiB,cpu:8MiB", "--context", "256", "--hotness", &room.counts],
    ]
    .into_iter()
    .enumerate()
    {
        let direct = room.convert(&format!("direct{i}.gantry"), way);
        run_ok("gantry", &words(&[&"verify", &direct, &"--against", &room.source], &[]));
        let moved = room.path(&format!("moved{i}.gantry"));
        run_ok("gantry", &words(&[&"replan", &one, &"-o", &moved], way));
        assert!(same(&direct, &moved), "{way:?}: replan gives other bytes than convert");
        let back = room.path(&format!("back{i}.gantry"));
        run_ok("gantry", &words(&[&"replan", &moved, &"-o", &back], &["--cards", "1"]));
        assert!(same(&one, &back), "{way:?}: back on one card it is another container");
        let gguf = room.path(&format!("back{i}.gguf"));
        run_ok("gantry", &words(&[&"export", &moved, &"-o", &gguf], &[]));
        assert!(same(&room.source, &gguf), "{way:?}: the source did not come back");
        run_ok("gantry", &words(&[&"diff", &moved, &one], &[]));
        assert!(same_bits(&alone, &logits(&moved, &tokens, &[])), "{way:?}: other logits than on one card");
    }
}

#[test]
fn what_was_measured_decides_and_shows() {
    let room = Room::new();
    let way = ["--cards", "2", "--hotness", &room.counts];
    let out = room.convert("m.gantry", &way);
    let plan = json("gantry", &words(&[&"plan", &room.source, &"--json"], &way));
    let [after, before] =
        ["report", "before"].map(|k| plan["placement"][k]["mean_balance_ppm"].as_u64().expect("a number"));
    assert!(after >= before, "placing by counts must not be worse than without: {after} {before}");
    let view = json(
        "gantry",
        &words(&[&"inspect", &out, &"--placement", &"--json", &"--hotness", &room.counts], &[]),
    );
    // The counts that decided, once more: what was expected is what they give.
    for card in view["cards"].as_array().expect("cards") {
        assert_eq!(card["predicted_ppm"], card["measured_ppm"]);
    }
    assert_eq!(view["recorded"]["hotness"]["tokens"], view["tokens"]);
    let page = room.path("placement.html");
    let args = [&"inspect" as &dyn AsRef<OsStr>, &out, &"--placement", &"--report", &page];
    let text = String::from_utf8(run_ok("gantry", &words(&args, &[]))).expect("UTF-8");
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(
        html.starts_with("<!doctype html>") && html.contains("<svg") && html.trim_end().ends_with("</html>")
    );
    assert!(!html.contains("<script") && !html.contains("http"), "it fetches nothing");
    assert_eq!(run("gantry", &words(&args, &[])).status.code(), Some(2), "an existing page was replaced");
    run_ok("gantry", &words(&args, &["--force"]));
}

#[test]
fn what_is_read_is_never_written_over() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    let gguf = bard().join("bard-qwen4exp-BF16.gguf");
    let gguf = gguf.to_str().expect("UTF-8");
    let counts = path("counts.gguf");
    std::fs::copy(bard().join("bard.imatrix.gguf"), &counts).expect("a copy");
    let recipe = path("own.toml");
    std::fs::write(&recipe, "[[rule]]\nlayout = \"keep\"\n").expect("space");
    let container = path("two.gantry");
    run_ok("gantry", &["convert", gguf, "--cards", "2", "--split-cards", "-o", &container]);
    let before = |path: &str| std::fs::read(path).expect("bytes");
    let card = path("two.card1.gantry");
    let cases: [(&str, Vec<&str>); 6] = [
        (&counts, vec!["convert", gguf, "--cards", "2", "--hotness", &counts, "-o", &counts]),
        (&recipe, vec!["convert", gguf, "--recipe", &recipe, "-o", &recipe]),
        (&counts, vec!["replan", &container, "--cards", "3", "--hotness", &counts, "-o", &counts]),
        (&container, vec!["inspect", &container, "--placement", "--report", &container]),
        (&card, vec!["inspect", &container, "--placement", "--report", &card]),
        (&counts, vec!["inspect", &container, "--placement", "--hotness", &counts, "--report", &counts]),
    ];
    for (target, mut args) in cases {
        let bytes = before(target);
        args.push("--force");
        let out = gantry_tests::run("gantry", &args);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains("itself"), "{args:?}: {text}");
        assert!(before(target) == bytes, "{args:?} changed its input");
    }
}
