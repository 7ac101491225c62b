//! Output into a pipe that closes early.

use crate::source::*;
use gantry_formats::block::GgmlType;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_closed_pipe_is_a_quiet_end() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("m.gguf").display().to_string();
    // Far more than a pipe holds.
    let names: Vec<String> = (0..5000).map(|i| format!("blk.{i}.{}.weight", "x".repeat(40))).collect();
    let tensors: Vec<Tensor> = names.iter().map(|n| tensor(n.as_str(), &[4], GgmlType::F32)).collect();
    write(Path::new(&file), |w| llama_keys(w, 1, 0), &tensors, 1);
    for more in [&["--tensors"][..], &["--tensors", "--json"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gantry"))
            .args([&["inspect", &file][..], more].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("gantry starts");
        let mut first = [0; 10];
        child.stdout.take().expect("piped").read_exact(&mut first).expect("some output");
        let out = child.wait_with_output().expect("ends");
        assert_eq!(out.status.code(), Some(0));
        assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}
