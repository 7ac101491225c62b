//! Architectures that no program knows.

use gantry_formats::gguf::{GgufWriter, Header, OwnedValue};
use gantry_tests::{fixtures, json, run_ok};
use std::ffi::OsStr;

#[test]
fn what_cannot_run_is_said_when_it_is_planned_inspected_and_run() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    // A tiny llama under a name that no program knows.
    let source = std::fs::read(fixtures("tiny").join("tiny-llama-Q8_0.gguf")).expect("a model");
    let header = Header::read(&source, "a model").expect("a GGUF header");
    let name = OwnedValue::from("unheard-of");
    let renamed = GgufWriter::from_header(&header).set("general.architecture", name.view()).finish();
    let renamed = renamed.expect("a GGUF header");
    let gguf = scratch.path().join("renamed.gguf");
    let mut bytes = renamed.raw().to_vec();
    bytes.resize(renamed.data_offset() as usize, 0);
    bytes.extend(&source[header.data_offset() as usize..]);
    std::fs::write(&gguf, bytes).expect("a file");

    let container = scratch.path().join("renamed.gantry");
    let way = ["--recipe", "lossless", "--allow-incomplete"].map(OsStr::new);
    let with = |command: &'static str, more: &[&OsStr]| {
        let args = [&[command.as_ref(), gguf.as_os_str()], &way[..], more].concat();
        run_ok("gantry", &args)
    };
    assert!(String::from_utf8_lossy(&with("plan", &[])).contains("unheard-of"));
    with("convert", &["-o".as_ref(), container.as_os_str()]);
    let json = json("gantry", &["inspect".as_ref(), container.as_os_str(), "--json".as_ref()]);
    assert_eq!(json["runnable"], false, "{json}");
    assert!(json["not_runnable_because"].to_string().contains("unheard-of"), "{json}");
    let refused = gantry_tests::run("gantry-run", &[container.as_os_str(), "-p".as_ref(), "a".as_ref()]);
    assert_eq!(refused.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("unheard-of"));
}
