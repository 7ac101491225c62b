//! The program `gantry-run`: output, exit codes, signals, pipes.
#![cfg(feature = "cli")]
#![allow(missing_docs)]

mod oracle;
mod packing;

use assert_cmd::Command;
use gantry_formats::block::GgmlType;
use oracle::Config;
use packing::How;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

fn config() -> Config {
    Config { vocab: 300, tokenizer: true, ..Config::default() }
}

fn model(dir: &Path) -> PathBuf {
    let model = oracle::Model::random(config(), 21);
    packing::pack(dir, &model.header, &model.tensors, &How::default())
}

fn gantry_run() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry-run"));
    command.timeout(Duration::from_secs(60));
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn text_goes_to_stdout_and_timings_to_stderr() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path());
    let run = |extra: &[&str]| {
        let mut command = gantry_run();
        command.arg(&path).args(["-p", "hello", "-n", "12", "--greedy", "--ignore-eos"]).args(extra);
        command.assert().success().get_output().clone()
    };
    let plain = run(&[]);
    let stderr = text(&plain.stderr);
    for part in ["load:", "GB/s", "every byte verified", "prompt: 7 tokens", "decode: 11 tokens", "tok/s"] {
        assert!(stderr.contains(part), "{part:?} in {stderr}");
    }
    let document: serde_json::Value = serde_json::from_slice(&run(&["--json"]).stdout).unwrap();
    assert_eq!(document["tokens"].as_array().unwrap().len(), 12);
    assert_eq!(document["prompt_tokens"].as_array().unwrap().len(), 7);
    assert_eq!(document["end"], "length");
    assert_eq!(document["load"]["verified"], "full");
    assert_eq!(text(&plain.stdout), format!("{}\n", document["text"].as_str().unwrap()));
    assert_eq!(run(&["--load", "map", "--threads", "1"]).stdout, plain.stdout);
}

#[test]
fn a_seed_gives_the_same_text_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path());
    let run = |seed: &str| {
        let args = ["-p", "ab", "-n", "40", "--temp", "2", "--ignore-eos", "--json", "--seed", seed];
        let output = gantry_run().arg(&path).args(args).assert().success().get_output().stdout.clone();
        serde_json::from_slice::<serde_json::Value>(&output).unwrap()["tokens"].clone()
    };
    assert_eq!(run("5"), run("5"));
    assert_ne!(run("5"), run("6"));
}

#[test]
fn logits_are_every_position_little_endian() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path());
    let run = |extra: &[&str]| {
        let out = dir.path().join("l.f32");
        gantry_run()
            .arg("logits")
            .arg(&path)
            .args(extra)
            .args(["--force", "--out"])
            .arg(&out)
            .assert()
            .success();
        std::fs::read(out).unwrap()
    };
    let batch = run(&["--tokens", "1,263,264,265"]);
    assert_eq!(batch.len(), 4 * 300 * 4);
    assert_eq!(run(&["--tokens", "1,263,264,265", "--batch", "1"]), batch);
    let values: Vec<f32> = batch.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let want = oracle::Model::random(config(), 21).logits(&[1, 263, 264, 265]);
    assert!(oracle::nmse(&values, &want) < 1e-11);
    assert!(!run(&["-p", "abc"]).is_empty());
}

#[test]
fn tokenize_shows_ids() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path());
    let output = gantry_run().arg("tokenize").arg(&path).args(["-p", "abc", "--json"]).assert().success();
    let document: serde_json::Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(document["ids"], serde_json::json!([1, 259, 260, 261, 262]));
    let output =
        gantry_run().arg("tokenize").arg(&path).args(["-p", "abc", "--no-special"]).assert().success();
    assert_eq!(text(&output.get_output().stdout).lines().count(), 4);
}

#[test]
fn drafts_of_any_number_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let model = oracle::Model::random(config(), 22);
    let file = packing::pack(dir.path(), &model.header, &model.tensors, &How::default());
    for most in ["18446744073709551615", "18446744073709551614", "65"] {
        gantry_run().arg(&file).args(["-p", "a", "-n", "1", "--spec", most]).assert().code(2);
        gantry_run()
            .arg("bench")
            .arg(&file)
            .args(["-p", "1", "-n", "1", "-r", "1", "--spec", most])
            .assert()
            .code(2);
    }
}

#[test]
fn perplexity_bench_devices_and_completions_answer() {
    for experts in [0, 6] {
        let dir = tempfile::tempdir().unwrap();
        let model = oracle::Model::random(Config { experts, used: 2, ..config() }, 21);
        commands_answer(
            dir.path(),
            &packing::pack(dir.path(), &model.header, &model.tensors, &How::default()),
        );
    }
    let devices = gantry_run().arg("devices").assert().success().get_output().stdout.clone();
    assert!(text(&devices).starts_with("cpu"));
    let bash = gantry_run().args(["completions", "bash"]).assert().success().get_output().stdout.clone();
    let bash = String::from_utf8(bash).unwrap();
    let states: Vec<&str> =
        bash.lines().filter_map(|l| l.trim().strip_prefix("cmd=\"")?.strip_suffix('"')).collect();
    assert!(states.len() > 8, "{bash}");
    for state in states.iter().filter(|state| !state.is_empty()) {
        assert!(bash.lines().any(|l| l.trim() == format!("{state})")), "nothing is completed after {state}");
    }
}

fn commands_answer(dir: &Path, path: &Path) {
    let document = dir.join("t.txt");
    std::fs::write(&document, "the quick brown fox ".repeat(10)).unwrap();
    let args = ["-c", "32", "--json"];
    let output = gantry_run().arg("perplexity").arg(path).arg("--text").arg(&document).args(args).assert();
    let answer: serde_json::Value = serde_json::from_slice(&output.success().get_output().stdout).unwrap();
    // 200 letters and BOS make 6 chunks of 32, 15 tokens of each scored.
    assert_eq!((&answer["chunks"], &answer["scored"]), (&6.into(), &90.into()));
    assert!(answer["perplexity"].as_f64().unwrap() > 1.0);
    let short = gantry_run().arg("perplexity").arg(path).arg("--text").arg(&document).assert();
    assert!(text(&short.code(2).get_output().stderr).contains("two whole contexts"));

    let args = ["-p", "8", "-n", "4", "-r", "2", "--json"];
    let output = gantry_run().arg("bench").arg(path).args(args).assert().success();
    let answer: serde_json::Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert!(answer["decode"]["tokens_per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_token_without_an_embedding_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    // The tokenizer knows 300 tokens, the model 264: "a" is 260, "d" 263, "e" 264.
    let model = oracle::Model::random(Config { vocab: 264, beyond: 36, ..config() }, 21);
    let path = packing::pack(dir.path(), &model.header, &model.tensors, &How::default());
    let document = dir.path().join("t.txt");
    let refused = |args: &[&str]| {
        let output = gantry_run().args(args).assert().code(2).get_output().clone();
        assert!(text(&output.stderr).contains("ids 0 to 263"), "{}", text(&output.stderr));
    };
    let (m, t) = (path.to_str().unwrap(), document.to_str().unwrap());
    // 32 tokens with BOS and a space: "z" is scored, and never goes through the model.
    std::fs::write(&document, format!("{}z", "a".repeat(29))).unwrap();
    refused(&["perplexity", m, "--text", t, "-c", "16"]);
    refused(&[m, "-p", "z", "-n", "1"]);
    let out = dir.path().join("kept");
    std::fs::write(&out, "kept").unwrap();
    refused(&["logits", m, "--tokens", "1,264", "--force", "--out", out.to_str().unwrap()]);
    assert_eq!(std::fs::read(&out).unwrap(), b"kept");
}

#[test]
fn faults_leave_with_their_codes() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path());
    let code = |args: &[&str], code: i32, part: &str| {
        let output = gantry_run().args(args).assert().code(code).get_output().clone();
        assert!(text(&output.stderr).contains(part), "{part:?} in {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    };
    let m = path.to_str().unwrap();
    code(&[], 2, "Usage");
    code(&[m, "-p", "a", "--temp=-1"], 2, "temp");
    code(&[m, "-p", "a", "--threads", "0"], 2, "threads");
    code(&[m, "-p", "abcdef", "-c", "3"], 2, "context is full");
    let unborn = dir.path().join("unborn.f32");
    code(&["logits", m, "--tokens", "300", "--out", unborn.to_str().unwrap()], 2, "token 300");
    assert!(!unborn.exists());
    code(&["/no/such/file", "-p", "a"], 3, "No such file");
    code(&[m, "-p", "a", "--memory-limit", "1KiB"], 6, "short by");
    code(&["chat", m], 5, "no chat template");
    let gguf = dir.path().join("x.gguf");
    std::fs::write(&gguf, b"GGUF\x03\0\0\0").unwrap();
    code(&[gguf.to_str().unwrap(), "-p", "a"], 3, "gantry convert");

    let card = gantry_runtime::Container::open(&path).unwrap().header().cards[0];
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[card.offset as usize + 5] ^= 4;
    let bad = dir.path().join("bad.gantry");
    std::fs::write(&bad, bytes).unwrap();
    code(&[bad.to_str().unwrap(), "-p", "a"], 4, "card 0, token_embd.weight, block 0");
    code(&[bad.to_str().unwrap(), "-p", "a", "--load", "map"], 4, "token_embd.weight");
}

#[test]
fn a_container_without_a_tokenizer_says_so_and_still_takes_ids() {
    let dir = tempfile::tempdir().unwrap();
    let model = oracle::Model::random(Config::default(), 2);
    let path = packing::pack(dir.path(), &model.header, &model.tensors, &How::default());
    let output = gantry_run().arg(&path).args(["-p", "a"]).assert().code(5).get_output().clone();
    assert!(text(&output.stderr).contains("container has no tokenizer"));
    let out = dir.path().join("logits.f32");
    let args = ["--tokens", "1,2", "--out", out.to_str().unwrap()];
    gantry_run().arg("logits").arg(&path).args(args).assert().success();
}

#[test]
fn a_closed_pipe_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = endless(&model(dir.path()));
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn signals_end_the_text_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path());
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut child = endless(&path);
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.fill_buf().unwrap();
        let id = child.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
        let mut rest = Vec::new();
        out.read_to_end(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(rest.ends_with(b"\n"), "the text ends with its line");
        let mut timings = String::new();
        child.stderr.take().unwrap().read_to_string(&mut timings).unwrap();
        assert!(timings.contains("decode:"), "{timings}");
    }
}

/// Waits until `is` holds, as long as a loaded machine may need.
fn wait_until(what: &str, is: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: not after a minute");
}

#[test]
fn interrupted_logits_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path());
    let folder = dir.path().join("out");
    std::fs::create_dir(&folder).unwrap();
    let names = || std::fs::read_dir(&folder).unwrap().count();
    // More than can be computed before a signal comes.
    let tokens = vec!["1"; 50_000].join(",");
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let child = std::process::Command::new(env!("CARGO_BIN_EXE_gantry-run"))
            .arg("logits")
            .arg(&path)
            .args([
                "--tokens",
                &tokens,
                "--batch",
                "1",
                "-c",
                "60000",
                "--beyond-context",
                "-t",
                "1",
                "--out",
            ])
            .arg(folder.join("l.f32"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until("its output is begun", || names() > 0);
        let id = child.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), names()), (Some(code), 0), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("nothing was written"), "{}", text(&output.stderr));
    }
}

#[test]
fn a_session_is_not_saved_with_a_part_of_a_prompt() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path());
    let kept = dir.path().join("s.session");
    let session = kept.to_str().unwrap();
    let long = ["-c", "60000", "--beyond-context", "-t", "1", "--batch", "1", "--session", session];
    gantry_run().arg(&path).args(["-p", "a", "-n", "1"]).args(long).assert().success();
    let before = std::fs::read(&kept).unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_gantry-run"))
        .arg(&path)
        .args(["-p", &"a".repeat(50_000), "-n", "1"])
        .args(long)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("session:") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "it goes on from the session");
    }
    std::thread::sleep(Duration::from_millis(300));
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let mut said = String::new();
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert!(std::fs::read(&kept).unwrap() == before, "{said}");
    // Where it had begun with the prompt, it says so.
    assert!(!said.contains("prompt:") || said.contains("the session was not saved"), "{said}");
}

#[test]
fn the_second_signal_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    // Nobody reads this pipe, and it is full: the program cannot write its text, and so not end it cleanly.
    let (reader, writer) = std::io::pipe().unwrap();
    let mut filler = writer.try_clone().unwrap();
    let filling = std::thread::spawn(move || filler.write_all(&[0; 1 << 20]));
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_gantry-run"))
        .arg(model(dir.path()))
        .args(["-p", "a", "--ignore-eos", "-t", "1"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.starts_with("load:"), "{line}");
    // It computes, then sleeps in its first write: the main thread, and no other computes for it.
    let stat = format!("/proc/{}/stat", child.id());
    let (mut asleep, mut before) = (0, String::new());
    while asleep < 5 {
        std::thread::sleep(Duration::from_millis(100));
        let now = std::fs::read_to_string(&stat).unwrap();
        // After the name: the state, then, of all threads, time in the program and in the system as the 12th and 13th.
        let fields: Vec<&str> = now.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let now = [fields[0], fields[11], fields[12]].join(" ");
        asleep = if fields[0] == "S" && now == before { asleep + 1 } else { 0 };
        before = now;
    }
    let id = child.id().to_string();
    for signal in ["-INT", "-TERM"] {
        assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
    }
    assert_eq!(child.wait().unwrap().code(), Some(143));
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("decode:"), "{rest}");
    drop(reader);
    assert!(filling.join().unwrap().is_err());
}

#[test]
fn a_signal_while_nothing_is_under_way_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_gantry-run"))
        .args(["tokenize", "-p", "-"])
        .arg(model(dir.path()))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // It waits for its input; only how long it takes to start is unknown.
    std::thread::sleep(Duration::from_millis(500));
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let dense = [GgmlType::F32, GgmlType::BF16, GgmlType::Q8_0].map(|ty| (ty, 0));
    for (ty, experts) in dense.into_iter().chain([(GgmlType::F32, 5), (GgmlType::Q8_0, 5)]) {
        let config = Config { ty, vocab: 64, experts, used: 2, ..Config::default() };
        let model = oracle::Model::random(config, 9);
        let path = packing::pack(dir.path(), &model.header, &model.tensors, &How::default());
        let run = |isa: &str| {
            let out = dir.path().join("l.f32");
            let mut command = gantry_run();
            command.env("GANTRY_SIMD", isa).arg("logits").arg(&path).args([
                "--force",
                "--tokens",
                "1,2,3,4,5",
            ]);
            command.arg("--out").arg(&out).assert().success();
            std::fs::read(out).unwrap()
        };
        let portable = run("portable");
        for isa in gantry_kernels::cpu::Isa::available() {
            assert!(run(isa.name()) == portable, "{ty}, {}", isa.name());
        }
    }
    gantry_run().env("GANTRY_SIMD", "mmx").arg("devices").assert().code(5);
}

/// Writes for long enough to be interrupted.
fn endless(path: &Path) -> Child {
    std::process::Command::new(env!("CARGO_BIN_EXE_gantry-run"))
        .arg(path)
        .args(["-p", "a", "--ignore-eos", "--temp", "3", "-c", "200000", "--beyond-context", "-t", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}
