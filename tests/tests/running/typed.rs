//! Drafts and sessions through `gantry-run`.

use super::models::{Made, on_card};
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
    args.extend(["--device", "cuda:0"].map(OsStr::new).iter().filter(|_| on_card()));
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

#[test]
fn bench_measures_with_drafts() {
    for preset in PRESETS {
        let container = Made::new(preset, &[]).foreseeable(0.01);
        let container = container.container();
        let bench = |more: &[&str]| {
            let mut args: Vec<&OsStr> = vec!["bench".as_ref(), container.as_os_str()];
            args.extend(["-p", "8", "-n", "24", "-r", "2"].iter().chain(more).map(OsStr::new));
            run("gantry-run", &args)
        };
        let found: Value = serde_json::from_slice(&bench(&["--spec", "3", "--json"]).stdout).expect("JSON");
        let count = |key: &str| found["drafts"][key].as_u64().expect("a count");
        assert_eq!(
            (found["decode"]["tokens"].as_u64(), count("steps") + count("accepted")),
            (Some(24), 24),
            "{found}"
        );
        assert!(count("accepted") > 0, "{preset}: {found}");
        let plain: Value = serde_json::from_slice(&bench(&["--json"]).stdout).expect("JSON");
        assert!(plain["drafts"].is_null());
        let shown = bench(&["--spec", "2", "--profile"]).stdout;
        let shown = String::from_utf8(shown).expect("UTF-8");
        assert!(
            shown.contains("with drafts") && shown.contains("accepted") && shown.contains("decode by part"),
            "{shown}"
        );
    }
    let made = Made::new("llama-tiny", &[]);
    let container = made.container();
    let args: [&OsStr; 4] = ["bench".as_ref(), container.as_os_str(), "--spec".as_ref(), "2".as_ref()];
    assert_eq!(run("gantry-run", &args).status.code(), Some(2));
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
    let refused = |container: &Path, more: &[&str], code: i32, why: &str| {
        let mut args = vec![container.as_os_str()];
        args.extend(["-p", "a"].iter().chain(&options).chain(more).map(OsStr::new));
        let output = run("gantry-run", &args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(why) && said.contains(at) && output.stdout.is_empty(), "{why}: {said}");
        // What to do: take another file, other options, or none.
        assert!(["begin anew", "begin a new one"].iter().any(|what| said.contains(what)), "{said}");
    };
    refused(&other.container(), &[], 3, "no session of this container");
    refused(&made.container(), &["-c", "8"], 2, "longer than the context");
    refused(&made.container(), &["--kv", "f16"], 2, "another shape");
    assert!(std::fs::read(&file).expect("a session") == saved, "a refused session was changed");
    std::fs::write(&file, &saved[..saved.len() - 1]).expect("space");
    refused(&made.container(), &[], 4, "damaged");
    let mut flipped = saved.clone();
    flipped[saved.len() / 2] ^= 1;
    std::fs::write(&file, &flipped).expect("space");
    refused(&made.container(), &[], 4, "damaged");
    std::fs::write(&file, "").expect("space");
    refused(&made.container(), &[], 3, "no session");
    // Neither the container nor a folder is a session's file.
    for place in [made.container(), made.folder().to_path_buf()] {
        let args = ["-p".as_ref(), "a".as_ref(), "--session".as_ref(), place.as_os_str()];
        let output = run("gantry-run", &[&[made.container().as_os_str()], &args[..]].concat());
        assert_eq!(output.status.code(), Some(2));
    }
}

/// The counts would be written over the session that was just kept, or what is read.
#[test]
fn two_outputs_are_never_one_file_and_no_input_is_written_over() {
    let made = Made::new("llama-moe-tiny", &[]);
    let (container, folder) = (made.container(), made.folder().to_path_buf());
    let path = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
    let (file, spelt) = (path("s.session"), format!("{}/./s.session", folder.display()));
    std::os::unix::fs::symlink(&folder, folder.join("way")).expect("a link");
    let names = || {
        let list = std::fs::read_dir(&folder).expect("a folder");
        let mut names: Vec<_> = list.map(|e| e.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let refused = |command: &[&str], more: &[&str], why: &str| {
        let mut args: Vec<&OsStr> = command.iter().map(OsStr::new).collect();
        args.push(container.as_os_str());
        args.extend(more.iter().map(OsStr::new));
        let output = run("gantry-run", &args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{more:?}: {said}");
        assert!(said.contains(why) && !said.contains("load:"), "{more:?}: {said}");
    };
    let text = ["-p", "the", "-n", "2", "--greedy"];
    for other in [&file, &spelt, &path("way/s.session")] {
        let both = ["--session", &file, "--record-hotness", other];
        refused(&[], &[&text[..], &both].concat(), "are one file");
        assert_eq!(names(), before, "something ran");
    }
    // Now with a session that is there: it stays as it is.
    write(&container, "the", &["-n", "2", "--greedy", "--session", &file]);
    let kept = std::fs::read(&file).expect("a session");
    refused(&[], &[&text[..], &["--session", &file, "--record-hotness", &spelt]].concat(), "are one file");
    assert!(std::fs::read(&file).expect("a session") == kept);
    // Counts that are read are not replaced, nor is a card's file of the container.
    let hot = path("hot.json");
    write(&container, "the", &["-n", "2", "--greedy", "--record-hotness", &hot]);
    let counts = std::fs::read(&hot).expect("counts");
    let way = path("way/hot.json");
    for more in [&["--session", &hot][..], &["--record-hotness", &way]] {
        refused(&[], &[&text[..], &["--hotness", &hot], more].concat(), "is the input");
    }
    refused(&["logits"], &["--tokens", "1", "--force", "--hotness", &hot, "--out", &way], "is the input");
    let book = path("book.txt");
    std::fs::write(&book, "the ".repeat(50)).expect("space");
    refused(&["perplexity"], &["--text", &book, "--record-hotness", &path("way/book.txt")], "is the input");
    assert!(std::fs::read(&hot).expect("counts") == counts);
    made.pack_as(&["--recipe", "lossless", "--cards", "2", "--split-cards"]);
    let card = path("m.card1.gantry");
    for option in ["--session", "--record-hotness"] {
        refused(&[], &[&text[..], &[option, &card]].concat(), "is the input");
    }
}

#[test]
fn a_conversation_goes_on_from_its_session() {
    let template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]";
    let keys = HashMap::from([("tokenizer.chat_template", OwnedValue::from(template))]);
    for preset in ["llama-tiny", "qwen4exp-mtp-tiny"] {
        let made = Made::new(preset, &[]).with_keys(&keys);
        let (container, file) = (made.container(), made.folder().join("talk.session"));
        let at = file.to_str().expect("UTF-8");
        let options = ["--greedy", "--session", at];
        let (first, said) = chat(&container, "the time\n", &options);
        assert!(!said.contains("session:"), "{said}");
        assert_eq!(first, chat(&container, "the time\n", &["--greedy"]).0, "{preset}");
        let kept = made.folder().join("copy.session");
        std::fs::copy(&file, &kept).expect("a copy");
        let (second, said) = chat(&container, "what about them\n", &options);
        assert!(said.contains("session: ") && !said.contains("(0 kept)"), "{said}");
        // The same by hand: the template's end of the answer before, and then the turn.
        let copy = kept.to_str().expect("UTF-8");
        let turn = "\n[user] what about them\n[assistant]";
        let plain = write(&container, turn, &["-n", "20", "--greedy", "--session", copy]);
        assert_eq!(second, format!("{}\n", plain["text"].as_str().expect("a text")), "{preset}");
        assert!(std::fs::read(&file).expect("kept") == std::fs::read(&kept).expect("kept"), "{preset}");
        // And as one message of a run without a prompt line, which ends the answer before as a conversation does.
        let again = ["--chat", "-n", "20", "--greedy", "--ignore-eos", "--session"];
        let third = |session: &str| write(&container, "over", &[&again[..], &[session]].concat());
        let by_hand = ["-n", "20", "--greedy", "--ignore-eos", "--session", copy];
        let want = write(&container, "\n[user] over\n[assistant]", &by_hand);
        assert_eq!(third(at)["prompt_tokens"], want["prompt_tokens"], "{preset}");
        // Nothing is said: nothing changes.
        let saved = std::fs::read(&file).expect("kept");
        let (nothing, said) = chat(&container, "\n", &[&options[..], &["--system", "short"]].concat());
        assert!(nothing.is_empty() && said.contains("--system is not used"), "{said}");
        assert!(std::fs::read(&file).expect("kept") == saved);
    }
}
