//! Convert, verify, compare, and back.

use crate::source::*;
use gantry_formats::block::GgmlType;
use serde_json::Value;
use std::fs;
use std::path::Path;

const SMALL: [&str; 6] = ["--align-segment", "256", "--align-blob", "64", "--align-tensor", "16"];

struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn text(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.text(name)).expect("there")
    }
}

fn json(args: &[&str]) -> Value {
    let out = gantry(args);
    serde_json::from_slice(&out.stdout).expect("one JSON document")
}

#[test]
fn every_type_comes_back() {
    let room = Room::new();
    let (gguf, gantry_file, back) = (room.text("m.gguf"), room.text("m.gantry"), room.text("back.gguf"));
    for (ty, experts) in [(GgmlType::F32, 0), (GgmlType::BF16, 5), (GgmlType::Q8_0, 4), (GgmlType::Q4_0, 3)] {
        llama(Path::new(&gguf), 2, experts, ty);
        for more in [&[][..], &["--cards", "2"], &["--cards", "2", "--split-cards"], &["--no-fuse"]] {
            for recipe in ["lossless", "q8"] {
                let convert = ["convert", &gguf, "-o", &gantry_file, "--recipe", recipe, "--force"];
                succeed(&[&convert[..], &SMALL, more].concat());
                succeed(&["verify", &gantry_file, "--against", &gguf]);
                succeed(&["export", &gantry_file, "-o", &back, "--force"]);
                let same = recipe == "lossless" || ty == GgmlType::Q8_0;
                assert_eq!(room.bytes("m.gguf") == room.bytes("back.gguf"), same, "{ty} {recipe}");
                assert_eq!(gantry(&["diff", &gguf, &gantry_file]).status.code(), Some(i32::from(!same)));
                let report = json(&["diff", &gantry_file, &back, "--json"]);
                assert_eq!(report["tensors"].as_array().map(Vec::len), Some(0), "{report}");
                for name in ["m.card0.gantry", "m.card1.gantry"] {
                    let _ = fs::remove_file(room.text(name));
                }
            }
        }
    }
}

#[test]
fn documents_have_a_version_and_the_command() {
    let room = Room::new();
    let (gguf, container) = (room.text("m.gguf"), room.text("m.gantry"));
    llama(Path::new(&gguf), 1, 2, GgmlType::BF16);
    succeed(&[&["convert", &gguf, "-o", &container][..], &SMALL].concat());
    for file in [&gguf, &container] {
        for (more, command) in [
            (&[][..], "inspect"),
            (&["--tensors", "--sort", "bytes"], "inspect tensors"),
            (&["--metadata", "--full"], "inspect metadata"),
            (&["--tensor", "blk.0.ffn_up_exps.weight"], "inspect tensor"),
        ] {
            let args = [&["inspect", file][..], more].concat();
            let document = json(&[&args[..], &["--json"]].concat());
            assert_eq!((&document["schema"], &document["command"]), (&1.into(), &command.into()));
            let text = succeed(&args);
            let full = more.contains(&"--full");
            assert!(full || text.lines().all(|l| l.chars().count() <= 80), "{text}");
            assert!(!text.contains('\u{1b}'), "no colour");
        }
    }
    assert_eq!(json(&["verify", &container, "--json"])["ok"], true);
    assert_eq!(json(&["verify", &container, "--against", &gguf, "--json"])["against"]["exact"], true);
}

#[test]
fn damage_ends_with_its_exit_code_and_keeps_the_file() {
    let room = Room::new();
    let (gguf, container) = (room.text("m.gguf"), room.text("m.gantry"));
    llama(Path::new(&gguf), 1, 0, GgmlType::BF16);
    succeed(&["convert", &gguf, "-o", &container]);
    let mut bytes = room.bytes("m.gantry");
    bytes[(2 << 20) + 7] ^= 4;
    fs::write(&container, &bytes).expect("write");
    let out = gantry(&["verify", &container]);
    assert_eq!(out.status.code(), Some(4));
    let text = String::from_utf8_lossy(&out.stdout).replace('\n', " ");
    assert!(text.contains("FAILED card 0 token_embd.weight block 0: bytes 2097152.."), "{text}");
    assert_eq!(room.bytes("m.gantry"), bytes);
    refuse(&["export", &container, "-o", &room.text("x.gguf")], 4, &["token_embd.weight"]);
    assert!(!Path::new(&room.text("x.gguf")).exists() && !Path::new(&room.text("x.gguf.partial")).exists());
    bytes.pop();
    fs::write(&container, &bytes).expect("write");
    for args in [&["inspect", &container][..], &["verify", &container], &["verify", &container, "--quick"]] {
        refuse(args, 4, &[]);
    }
}

#[test]
fn what_is_no_model_is_refused() {
    let room = Room::new();
    let file = room.text("page.gguf");
    fs::write(&file, "<!doctype html>").expect("write");
    for verb in ["inspect", "verify"] {
        refuse(&[verb, &file], 3, &[]);
        refuse(&[verb, &room.text("absent.gantry")], 3, &["absent.gantry"]);
    }
    refuse(&["inspect", &file, "--tensor", "a", "--metadata"], 2, &[]);
}
