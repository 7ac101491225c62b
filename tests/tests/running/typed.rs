//! Drafts and sessions through `gantry-run`.

use super::models::Made;
use gantry_formats::gguf::OwnedValue;
use gantry_tests::{binary, ids, json, run, tokenize};
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const PRESETS: [&str; 2] = ["qwen4exp-mtp-tiny", "deepseek4-tiny"];
const PROMPT: &str = "the time was when all of them were here";

/// `gantry-run CONTAINER -p TEXT --json` with more options.
fn write(container: &Path, text: &str, options: &[&str]) -> Value {
    let mut args = vec![container.as_os_str()];
    args.extend(["-p", text, "--json"].map(OsStr::new));
    args.extend(options.iter().map(OsStr::new));
    json("gantry-run", &args)
}

fn same_text(container: &Path, options: &[&str], spec: &str) -> Value {
    let plain = write(container, PROMPT, options);
    let drafted = write(container, PROMPT, &[options, &["--spec", spec]].concat());
    for key in ["text", "tokens", "end", "prompt_tokens"] {
        assert_eq!(drafted[key], plain[key], "{key}, --spec {spec} {options:?}");
    }
    assert_eq!(drafted["decode"]["tokens"], plain["decode"]["tokens"], "--spec {spec} {options:?}");
    assert!(plain["drafts"].is_null());
    let count = |key: &str| drafted["drafts"][key].as_u64().expect("a count");
    let taken = plain["decode"]["tokens"].as_u64().expect("a count");
    assert_eq!(count("steps") + count("accepted"), taken, "--spec {spec} {options:?}: {drafted}");
    drafted
}

#[test]
fn spec_writes_the_same_text() {
    for preset in PRESETS {
        let random = Made::new(preset, &[]);
        same_text(&random.container(), &["-n", "12", "--greedy", "--ignore-eos"], "2");
        let made = random.foreseeable(0.01);
        let container = made.container();
        for spec in ["1", "3", "8"] {
            let greedy = same_text(&container, &["-n", "40", "--greedy", "--ignore-eos"], spec);
            let count = |key: &str| greedy["drafts"][key].as_u64().expect("a count");
            assert!(2 * count("accepted") > count("drafted"), "{preset}: {greedy}");
            same_text(&container, &["-n", "40", "--temp", "1.2", "--seed", "7", "--ignore-eos"], spec);
        }
        same_text(&container, &["-n", "40", "--greedy", "--ignore-eos", "--batch", "1"], "8");
        same_text(&container, &["-n", "1", "--greedy", "--ignore-eos"], "8");
        same_text(&container, &["-n", "0", "--greedy", "--ignore-eos"], "8");
    }
}

#[test]
fn spec_ends_where_the_text_ends() {
    for preset in PRESETS {
        let made = Made::new(preset, &[]).foreseeable(0.01);
        let container = made.container();
        let prompt = tokenize(&container, PROMPT).len();
        for room in [0, 1, 2, 5, 9] {
            let context = (prompt + room).to_string();
            let full = same_text(&container, &["--greedy", "--ignore-eos", "-c", &context], "8");
            assert_eq!(full["end"], "context", "{preset}");
            assert_eq!(ids(&full["tokens"]).len(), room + 1, "{preset}");
        }
        // A context shorter than a window.
        let full = write(&container, "a", &["--greedy", "--ignore-eos", "-c", "4", "--spec", "8"]);
        assert_eq!(full["end"], "context", "{preset}");

        // The model ends its text in the middle of a window.
        let tokens = ids(&write(&container, PROMPT, &["-n", "40", "--greedy", "--ignore-eos"])["tokens"]);
        let at = (3..tokens.len()).find(|&i| !tokens[..i].contains(&tokens[i])).expect("a token of its own");
        let eos = HashMap::from([("tokenizer.ggml.eos_token_id", OwnedValue::from(tokens[at]))]);
        let made = made.with_keys(&eos);
        for spec in ["1", "2", "3", "8"] {
            let ended = same_text(&made.container(), &["--greedy"], spec);
            assert_eq!((&ended["end"], ids(&ended["tokens"]).len()), (&"eog".into(), at), "{preset}");
        }
    }
}

/// What `gantry-run chat` says to some lines.
fn chat(container: &Path, lines: &str, options: &[&str]) -> (String, String) {
    let mut child = Command::new(binary("gantry-run"))
        .arg("chat")
        .arg(container)
        .args(["-n", "20", "--stats"])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("gantry-run starts");
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("an end");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    (String::from_utf8_lossy(&output.stdout).into_owned(), said)
}

#[test]
fn a_conversation_with_drafts_is_the_one_without() {
    let template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]";
    let keys = HashMap::from([("tokenizer.chat_template", OwnedValue::from(template))]);
    for preset in PRESETS {
        let made = Made::new(preset, &[]).foreseeable(0.01).with_keys(&keys);
        let lines = "the time\nwhat about them\nover and out\n";
        for sampling in [&["--greedy"][..], &["--temp", "1", "--seed", "3"]] {
            let (plain, _) = chat(&made.container(), lines, sampling);
            assert_eq!(plain.lines().count(), 3, "{plain}");
            for spec in ["1", "3", "8"] {
                let (drafted, said) = chat(&made.container(), lines, &[sampling, &["--spec", spec]].concat());
                assert_eq!(drafted, plain, "{preset}, --spec {spec} {sampling:?}\n{said}");
                assert!(said.contains("drafted tokens accepted"), "{said}");
            }
        }
    }
}

#[test]
fn a_session_in_a_file_goes_on() {
    for preset in ["llama-tiny", "qwen4exp-mtp-tiny", "deepseek4-tiny"] {
        let made = Made::new(preset, &[]);
        let (container, file) = (made.container(), made.folder().join("s.session"));
        let at = file.to_str().expect("UTF-8");
        let options = ["-n", "6", "--greedy", "--ignore-eos"];
        let specs: &[&[&str]] = if preset == "llama-tiny" { &[&[]] } else { &[&[], &["--spec", "3"]] };
        for spec in specs {
            let kept =
                |text: &str| write(&container, text, &[&options[..], spec, &["--session", at]].concat());
            let all = |parts: &[&Value], last: &str| -> Vec<u32> {
                parts.iter().flat_map(|p| ids(&p["prompt_tokens"]).into_iter().chain(ids(&p[last]))).collect()
            };
            let first = kept(PROMPT);
            assert_eq!(first["tokens"], write(&container, PROMPT, &options)["tokens"], "{preset} {spec:?}");
            let second = kept(" and then");
            let third = kept(" over");
            // The same without a file: everything before is the prompt, and every token that was shown is in it.
            for (before, now) in [(vec![&first], &second), (vec![&first, &second], &third)] {
                let mut seen = all(&before, "tokens");
                let own = ids(&now["prompt_tokens"]);
                assert!(
                    !own.contains(&1),
                    "{preset} {spec:?}: another beginning of a text in the middle: {own:?}"
                );
                seen.extend(own);
                let mut want = Vec::new();
                for _ in 0..6 {
                    let logits = gantry_tests::logits(&container, &seen, &[]);
                    let next = gantry_tests::best(&logits[logits.len() - 512..]) as u32;
                    want.push(next);
                    seen.push(next);
                }
                assert_eq!(ids(&now["tokens"]), want, "{preset} {spec:?}");
            }
            std::fs::remove_file(&file).expect("a file");
        }
    }
}

#[test]
fn a_session_that_does_not_fit_is_refused_and_stays() {
    let made = Made::new("llama-tiny", &[]);
    let other = Made::new("llama-tiny", &["context_length=1000"]);
    let file = made.folder().join("s.session");
    let at = file.to_str().expect("UTF-8");
    let options = ["-n", "2", "--greedy", "--ignore-eos", "--session", at];
    write(&made.container(), PROMPT, &options);
    let saved = std::fs::read(&file).expect("a session");
    let refused = |container: &Path, more: &[&str], why: &str| {
        let mut args = vec![container.as_os_str()];
        args.extend(["-p", "a"].iter().chain(&options).chain(more).map(OsStr::new));
        let output = run("gantry-run", &args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why) && output.stdout.is_empty(), "{why}: {said}");
    };
    refused(&other.container(), &[], "no session of this container");
    refused(&made.container(), &["-c", "8"], "longer than the context");
    refused(&made.container(), &["--kv", "f16"], "another shape");
    assert!(std::fs::read(&file).expect("a session") == saved, "a refused session was changed");
    std::fs::write(&file, &saved[..saved.len() - 1]).expect("space");
    refused(&made.container(), &[], "damaged");
    std::fs::write(&file, "").expect("space");
    refused(&made.container(), &[], "no session");
    // Neither the container nor a folder is a session's file.
    for place in [made.container(), made.folder().to_path_buf()] {
        let args = ["-p".as_ref(), "a".as_ref(), "--session".as_ref(), place.as_os_str()];
        let output = run("gantry-run", &[&[made.container().as_os_str()], &args[..]].concat());
        assert_eq!(output.status.code(), Some(2));
    }
}
