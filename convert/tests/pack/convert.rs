//! What `gantry convert` writes, checked against the source in scalar code.

use super::source::*;
use gantry_formats::block::GgmlType;
use gantry_formats::container::Container;
use gantry_formats::gguf::{Gguf, GgufWriter, Value};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

struct Room {
    dir: TempDir,
}

impl Room {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// File names, sorted.
    fn names(&self) -> Vec<String> {
        let list = fs::read_dir(self.dir.path()).expect("a folder");
        let mut names: Vec<String> =
            list.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

fn convert(room: &Room, input: &str, output: &str, more: &[&str]) -> Container {
    let (input, output) = (room.text(input), room.text(output));
    succeed(&[&["convert", &input, "-o", &output], more].concat());
    check(Path::new(&output), Path::new(&input));
    Container::open(Path::new(&output)).expect("a sound container")
}

const SMALL: [&str; 6] = ["--align-segment", "256", "--align-blob", "64", "--align-tensor", "16"];

#[test]
fn every_source_type_and_recipe() {
    let room = Room::new();
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16, GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q4_1] {
        llama(&room.path("m.gguf"), 2, 0, ty);
        for recipe in ["q8", "lossless"] {
            let c = convert(&room, "m.gguf", "m.gantry", &["--recipe", recipe, "--force"]);
            assert!(c.manifest().model.complete);
            let exact = recipe == "lossless" || ty == GgmlType::Q8_0;
            assert_eq!(c.manifest().source_tensors.iter().all(|t| t.exact), exact);
            let fused: Vec<&str> =
                c.manifest().tensors.iter().filter(|t| t.parts.len() > 1).map(|t| t.role.as_str()).collect();
            assert_eq!(fused, ["attn_qkv", "ffn_gate_up", "attn_qkv", "ffn_gate_up"]);
            assert_eq!(c.manifest().aliases[0].name, "output.weight");
        }
    }
}

#[test]
fn experts_lie_in_banks() {
    let room = Room::new();
    for ty in [GgmlType::BF16, GgmlType::Q8_0] {
        llama(&room.path("m.gguf"), 2, 5, ty);
        for more in [&[][..], &SMALL] {
            let c = convert(&room, "m.gguf", "m.gantry", &[more, &["--force"]].concat());
            let banks = &c.manifest().banks;
            assert_eq!(banks.len(), 2);
            let roles: Vec<&str> = banks[1].matrices.iter().map(|m| m.role.as_str()).collect();
            assert_eq!(roles, ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]);
            assert_eq!(banks[1].experts, [0, 1, 2, 3, 4]);
        }
    }
}

#[test]
fn chunks_larger_than_one_window_and_experts_of_odd_sizes() {
    let room = Room::new();
    let tensors = [
        tensor("token_embd.weight", &[1056, 9001], GgmlType::BF16),
        tensor("blk.0.attn_q.weight", &[1056, 333], GgmlType::Q8_0),
        tensor("blk.0.attn_k.weight", &[1056, 31], GgmlType::F16),
        tensor("blk.0.attn_v.weight", &[1056, 1031], GgmlType::F32),
        tensor("blk.0.ffn_gate_exps.weight", &[96, 7, 300], GgmlType::BF16),
        tensor("blk.0.ffn_up_exps.weight", &[96, 7, 300], GgmlType::Q8_0),
        tensor("blk.0.ffn_down_exps.weight", &[32, 40_001, 2], GgmlType::F32),
        tensor("odd.weight", &[48, 30_001], GgmlType::F32),
        tensor("k.weight", &[256, 5000], GgmlType::Q4_K),
    ];
    let keys = |w: &mut GgufWriter| {
        w.set("general.architecture", Value::Str(b"llama"));
    };
    write(&room.path("m.gguf"), keys, &tensors, 3);
    let mut files = Vec::new();
    for (threads, recipe) in [("1", "q8"), ("7", "q8"), ("2", "lossless"), ("40", "lossless")] {
        let more = ["--allow-incomplete", "--recipe", recipe, "--threads", threads, "--force"];
        convert(&room, "m.gguf", "m.gantry", &more);
        files.push(fs::read(room.path("m.gantry")).expect("written"));
    }
    assert!(files[0] == files[1], "threads must not show");
    assert!(files[2] == files[3], "threads must not show");
    assert_eq!(room.names(), ["m.gantry", "m.gguf"]);
}

#[test]
fn cards_in_one_file_and_in_files_of_their_own() {
    let room = Room::new();
    llama(&room.path("m.gguf"), 6, 0, GgmlType::BF16);
    let one = convert(&room, "m.gguf", "one.gantry", &["--cards", "3"]);
    let own = convert(&room, "m.gguf", "own.gantry", &["--cards", "3", "--split-cards"]);
    assert_eq!(one.manifest().tensors, own.manifest().tensors);
    assert_eq!(
        room.names(),
        ["m.gguf", "one.gantry", "own.card0.gantry", "own.card1.gantry", "own.card2.gantry", "own.gantry"]
    );
    let card = |name: &str| one.manifest().tensors.iter().find(|t| t.name == name).map(|t| t.card);
    assert_eq!((card("token_embd.weight"), card("output_norm.weight")), (Some(0), Some(2)));
    let m = room.text("m.gguf");
    refuse(&["convert", &m, "-o", &room.text("x.gantry"), "--cards", "7"], 2, &["6 layers"]);
}

#[test]
fn overrides_change_what_they_name_or_are_refused() {
    let room = Room::new();
    llama(&room.path("m.gguf"), 2, 0, GgmlType::BF16);
    let c =
        convert(&room, "m.gguf", "m.gantry", &["--set", "ffn_down=raw.bf16", "--set", "blk.1.attn_k.*=keep"]);
    let kept: Vec<&str> = c
        .manifest()
        .source_tensors
        .iter()
        .filter(|t| t.exact && t.dims.len() > 1)
        .map(|t| t.name.as_str())
        .collect();
    assert_eq!(kept, ["blk.0.ffn_down.weight", "blk.1.attn_k.weight", "blk.1.ffn_down.weight"]);
    // A part with another layout cannot be fused.
    assert_eq!(c.manifest().tensors.iter().filter(|t| t.role == "attn_qkv").count(), 1);
    let (m, out) = (room.text("m.gguf"), room.text("x.gantry"));
    for (set, code, words) in [
        ("ffn_dwn=keep", 2, &["ffn_dwn", "no tensor"][..]),
        ("ffn_down=raw.f16", 2, &["blk.0.ffn_down.weight", "BF16"]),
        ("attn_norm=q8_0.split", 2, &["blk.0.attn_norm.weight", "stays exact"]),
        ("ffn_down=q9", 2, &["q9"]),
    ] {
        refuse(&["convert", &m, "-o", &out, "--set", set], code, words);
    }
    convert(&room, "m.gguf", "n.gantry", &["--no-fuse"]);
    assert_eq!(room.names(), ["m.gantry", "m.gguf", "n.gantry"]);
}

#[test]
fn rows_that_are_no_multiple_of_a_block_are_kept() {
    let room = Room::new();
    let keys = |w: &mut GgufWriter| {
        w.set("general.architecture", Value::Str(b"other"));
    };
    write(&room.path("m.gguf"), keys, &[tensor("a.weight", &[48, 3], GgmlType::BF16)], 1);
    let c = convert(&room, "m.gguf", "m.gantry", &["--allow-incomplete"]);
    assert_eq!(c.manifest().warnings, ["a.weight: kept BF16 instead of i8.block32: row of 48, 48 % 32 != 0"]);
    assert!(!c.manifest().model.complete);
    let (m, out) = (room.text("m.gguf"), room.text("x.gantry"));
    refuse(&["convert", &m, "-o", &out], 5, &["other", "llama", "--allow-incomplete"]);
    refuse(&["convert", &m, "-o", &out, "--allow-incomplete", "--set", "a=q8_0.split"], 2, &["48 % 32"]);
    refuse(&["plan", &m, "--target", "cuda:sm_9"], 5, &["cpu", "cuda:sm_90"]);
}

#[test]
fn incomplete_models_are_named() {
    let room = Room::new();
    let mut tensors = llama_tensors(1, 0, GgmlType::F32);
    tensors.retain(|t| t.name != b"blk.0.attn_k.weight");
    write(&room.path("m.gguf"), |w| llama_keys(w, 1, 0), &tensors, 1);
    let (m, out) = (room.text("m.gguf"), room.text("x.gantry"));
    refuse(&["convert", &m, "-o", &out], 3, &["blk.0.attn_k.weight", "--allow-incomplete"]);
    let mut tensors = llama_tensors(1, 0, GgmlType::F32);
    tensors[4].dims = vec![32, 64];
    write(&room.path("m.gguf"), |w| llama_keys(w, 1, 0), &tensors, 1);
    refuse(&["convert", &m, "-o", &out, "--allow-incomplete"], 3, &["blk.0.attn_v.weight", "transposed"]);
    assert_eq!(room.names(), ["m.gguf"]);
}

#[test]
fn outputs_that_must_not_be_written() {
    let room = Room::new();
    llama(&room.path("m.gguf"), 1, 0, GgmlType::F32);
    let before = fs::read(room.path("m.gguf")).expect("readable");
    let m = room.text("m.gguf");
    std::os::unix::fs::symlink(&m, room.path("soft")).expect("link");
    fs::hard_link(&m, room.path("hard")).expect("link");
    let dotted = format!("{}/./m.gguf", room.dir.path().display());
    for out in [m.clone(), room.text("soft"), room.text("hard"), dotted] {
        refuse(&["convert", &m, "-o", &out, "--force"], 2, &["source"]);
    }
    fs::write(room.path("kept"), "precious").expect("written");
    refuse(&["convert", &m, "-o", &room.text("kept")], 2, &["exists", "--force"]);
    refuse(&["convert", &m, "-o", &room.text("none/x.gantry")], 2, &["none", "does not exist"]);
    refuse(&["convert", &m, "-o", &room.dir.path().display().to_string()], 2, &["folder"]);
    refuse(&["convert", &m, &m, "-o", &room.text("x.gantry")], 2, &["2 inputs"]);
    assert_eq!(fs::read(room.path("kept")).expect("readable"), b"precious");
    assert_eq!(fs::read(&m).expect("readable"), before);
    assert_eq!(room.names(), ["hard", "kept", "m.gguf", "soft"]);
}

#[test]
fn plan_writes_nothing_and_speaks_json() {
    let room = Room::new();
    llama(&room.path("m.gguf"), 2, 4, GgmlType::BF16);
    let m = room.text("m.gguf");
    let text = succeed(&["plan", &m]);
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    for word in ["ffn_gate_exps", "q8_0.split", "KV cache", "attn_q + attn_k + attn_v"] {
        assert!(text.contains(word), "no {word} in {text}");
    }
    let json: serde_json::Value = serde_json::from_str(&succeed(&["plan", &m, "--json"])).expect("JSON");
    assert_eq!((&json["schema"], &json["command"]), (&1.into(), &"plan".into()));
    // 2 layers × 2 heads × (16 + 16) × 4 bytes × 128 positions.
    assert_eq!(json["cards"][0]["kv_bytes"], 2 * 2 * 32 * 4 * 128);
    assert_eq!(room.names(), ["m.gguf"]);
}

#[test]
fn split_sets_from_any_shard() {
    let room = Room::new();
    let all = llama_tensors(2, 0, GgmlType::BF16);
    let (head, tail) = all.split_at(9);
    let total = all.len() as i32;
    let split = |w: &mut GgufWriter, number| {
        w.set("split.no", Value::U16(number)).set("split.count", Value::U16(2));
        w.set("split.tensors.count", Value::I32(total));
    };
    let keys = |w: &mut GgufWriter| {
        llama_keys(w, 2, 0);
        split(w, 0);
    };
    write(&room.path("m-00001-of-00002.gguf"), keys, head, 1);
    write(&room.path("m-00002-of-00002.gguf"), |w| split(w, 1), tail, 2);
    let one = convert(&room, "m-00001-of-00002.gguf", "a.gantry", &[]);
    convert(&room, "m-00002-of-00002.gguf", "b.gantry", &[]);
    assert!(
        fs::read(room.path("a.gantry")).expect("written")
            == fs::read(room.path("b.gantry")).expect("written")
    );
    assert_eq!(one.manifest().sources.len(), 2);
    assert_eq!(one.metadata().shards.len(), 2);
    let shard = room.text("m-00002-of-00002.gguf");
    refuse(&["convert", &room.text("m-00001-of-00002.gguf"), "-o", &shard, "--force"], 2, &["source"]);
}

#[test]
fn odd_names_and_bytes_between_tensors_travel() {
    let room = Room::new();
    let keys = |w: &mut GgufWriter| {
        w.set("general.architecture", Value::Str(b"llama")).set("general.name", Value::Str(b"caf\xe9"));
        w.set("general.alignment", Value::U32(256));
    };
    let odd = b"blk.0.caf\xe9.weight".to_vec();
    let list = [tensor(odd, &[32, 2], GgmlType::BF16), tensor("empty", &[0], GgmlType::F32)];
    write(&room.path("m.gguf"), keys, &list, 1);
    let source = Gguf::open(&room.path("m.gguf")).expect("sound");
    let gaps = source.shards()[0].gaps();
    let file = fs::File::options().write(true).open(room.path("m.gguf")).expect("open");
    for gap in &gaps {
        std::os::unix::fs::FileExt::write_all_at(&file, &[0xab, 0xcd], gap.start + 3).expect("written");
    }
    let c = convert(&room, "m.gguf", "m.gantry", &["--allow-incomplete"]);
    let shard = &c.metadata().shards[0];
    let want: Vec<(u64, Vec<u8>)> = gaps.iter().map(|g| (g.start + 3, vec![0xab, 0xcd])).collect();
    assert_eq!((&shard.residues, &shard.header), (&want, &source.header().raw().to_vec()));
    assert_eq!(c.manifest().source_tensors[0].name, "blk.0.caf\\xe9.weight");
    assert!(c.manifest().warnings[0].contains("general.name"));
}
