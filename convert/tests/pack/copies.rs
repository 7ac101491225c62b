//! Copies of the source, kept beside what is packed where `LAYOUT+source` asks for them.

use super::layouts::{Room, keys, layouts};
use super::source::*;
use gantry_formats::block::GgmlType;
use gantry_formats::container::Container;
use gantry_formats::gguf::Gguf;
use gantry_formats::source::ReadAt;
use std::fs;

/// The segment bytes of a stored tensor.
fn stored(c: &Container, name: &str) -> Vec<u8> {
    let t = c.manifest().tensors.iter().find(|t| t.name == name).expect("stored");
    let card = c.card(t.card as usize).expect("there");
    let mut bytes = vec![0; t.bytes as usize];
    card.file.read_exact_at(card.offset + t.offset, &mut bytes).expect("readable");
    bytes
}

/// The weights' bytes as the plan has them.
fn weights(input: &str, more: &[&str]) -> u64 {
    let plan = succeed(&[&["plan", input, "--json", "--allow-incomplete"], more].concat());
    let plan: serde_json::Value = serde_json::from_str(&plan).expect("JSON");
    plan["cards"][0]["weight_bytes"].as_u64().expect("a number")
}

#[test]
fn a_copy_of_the_source_is_kept_where_asked_for() {
    let room = Room::new();
    let list = [
        tensor("blk.0.hc_attn_down_inject.weight", &[128, 36], GgmlType::BF16),
        tensor("blk.0.hc_attn_up.weight", &[32, 128], GgmlType::BF16),
        tensor("blk.0.hc_ffn_down.weight", &[128, 33], GgmlType::BF16),
        tensor("blk.1.ffn_up_exps.weight", &[64, 16, 3], GgmlType::BF16),
        tensor("blk.1.hc_ffn_down.weight", &[128, 8300], GgmlType::BF16),
        tensor("blk.1.attn_q.weight", &[64, 32], GgmlType::BF16),
        tensor("blk.1.attn_k.weight", &[64, 16], GgmlType::BF16),
        tensor("blk.1.attn_v.weight", &[64, 16], GgmlType::BF16),
    ];
    write(&room.path("m.gguf"), keys, &list, 21);
    let (input, out, back) = (room.text("m.gguf"), room.text("m.gantry"), room.text("back.gguf"));
    let sets = |end: &str| {
        [("hc_*_down", "q8_0.split"), ("ffn_up_exps", "i8.block32"), ("attn_?", "i8.channel")]
            .map(|(role, layout)| format!("{role}={layout}{end}"))
    };
    let args =
        |end: &str| sets(end).into_iter().flat_map(|set| ["--set".to_string(), set]).collect::<Vec<_>>();
    let (plain, kept) = (args(""), args("+source"));
    let plain: Vec<&str> =
        ["--recipe", "lossless"].into_iter().chain(plain.iter().map(String::as_str)).collect();
    let kept: Vec<&str> =
        ["--recipe", "lossless"].into_iter().chain(kept.iter().map(String::as_str)).collect();
    let source = Gguf::open(&room.path("m.gguf")).expect("sound");
    let bytes = |name: &str, len: usize| {
        let t = source.tensors().find(|t| t.display_name() == name).expect("a tensor");
        fs::read(&input).expect("there")[t.start as usize..][..len].to_vec()
    };
    let copies = [
        ("blk.0.hc_attn_down.weight", "blk.0.hc_attn_down_inject.weight", 128 * 32 * 2),
        ("blk.0.hc_ffn_down.weight", "blk.0.hc_ffn_down.weight", 128 * 33 * 2),
        ("blk.1.ffn_up_exps.weight", "blk.1.ffn_up_exps.weight", 64 * 16 * 3 * 2),
        ("blk.1.hc_ffn_down.weight", "blk.1.hc_ffn_down.weight", 128 * 8300 * 2),
        ("blk.1.attn_q.weight", "blk.1.attn_q.weight", 64 * 32 * 2),
        ("blk.1.attn_k.weight", "blk.1.attn_k.weight", 64 * 16 * 2),
        ("blk.1.attn_v.weight", "blk.1.attn_v.weight", 64 * 16 * 2),
    ];
    let grown = weights(&input, &kept) - weights(&input, &plain);
    assert_eq!(grown, copies.iter().map(|c| c.2 as u64).sum::<u64>());

    let without = room.convert("m.gantry", &plain);
    assert!(without.manifest().tensors.iter().all(|t| !t.name.ends_with(".source")));
    assert!(without.manifest().source_tensors.iter().any(|t| !t.exact));
    for threads in ["1", "2"] {
        let c = room.convert("m.gantry", &[&kept[..], &["--threads", threads]].concat());
        for (name, of, len) in copies {
            assert_eq!(stored(&c, &format!("{name}.source")), bytes(of, len), "{name}");
        }
        let found = layouts(&c);
        assert_eq!(found["blk.0.hc_attn_down.weight"], "q8_0.split");
        assert_eq!(found["blk.1.attn_q.weight"], "i8.frag.vnni16:channel");
        // A runtime takes the first that holds a tensor.
        let names: Vec<&str> = c.manifest().tensors.iter().map(|t| t.name.as_str()).collect();
        let first_copy = names.iter().position(|n| n.ends_with(".source")).expect("copies");
        assert!(names[first_copy..].iter().all(|n| n.ends_with(".source")), "{names:?}");
        for t in &c.manifest().source_tensors {
            assert!(t.exact && t.max_error.is_some_and(|e| e > 0.0) == (t.name != "blk.0.hc_attn_up.weight"));
        }
        succeed(&["export", &out, "-o", &back, "--force"]);
        assert!(
            fs::read(&back).expect("there") == fs::read(&input).expect("there"),
            "the exact copy is used"
        );
    }
    let shown = succeed(&["inspect", &out, "--tensors", "--json"]);
    assert!(shown.contains("blk.0.hc_ffn_down.weight.source") && shown.contains("raw.bf16"), "{shown}");
    let plan = succeed(&[&["plan", &input, "--allow-incomplete"], &kept[..]].concat());
    assert!(plan.contains("copies: the source of 7 tensors") && plan.contains(" copy"), "{plan}");

    let (there, direct) = (room.text("there.gantry"), room.text("direct.gantry"));
    let target = ["--target", "cuda:sm_90"];
    succeed(&[&["replan", &out, "-o", &there, "--force"], &target[..]].concat());
    room.convert("direct.gantry", &[&kept[..], &target].concat());
    assert!(fs::read(there).expect("there") == fs::read(direct).expect("there"), "replan keeps the copies");

    // The same from a recipe, and an override takes it back.
    let recipe = "[[rule]]\nkind = 'hyper-connection'\nlayout = 'q8_0.split+source'\n";
    fs::write(room.path("r.toml"), recipe).expect("written");
    let file = room.text("r.toml");
    let c = room.convert("m.gantry", &["--recipe", &file, "--set", "hc_ffn_down=q8_0.split"]);
    let copied: Vec<&str> = c.manifest().tensors.iter().map(|t| t.name.as_str()).collect();
    let copied: Vec<&str> = copied.into_iter().filter_map(|n| n.strip_suffix(".source")).collect();
    assert_eq!(copied, ["blk.0.hc_attn_down.weight", "blk.0.hc_attn_up.weight"]);

    // A copy that changed is found.
    let t = c.manifest().tensors.iter().find(|t| t.name == "blk.0.hc_attn_up.weight.source").expect("stored");
    let at = c.card(0).expect("there").offset + t.offset;
    let mut file = fs::read(&out).expect("there");
    file[at as usize] ^= 1;
    fs::write(&out, file).expect("written");
    refuse(&["verify", &out], 4, &["blk.0.hc_attn_up.weight.source"]);

    // What is fused is copied part by part.
    llama(&room.path("m.gguf"), 1, 0, GgmlType::BF16);
    let c = room.convert("m.gantry", &["--recipe", "lossless", "--set", "attn_?=q8_0.split+source"]);
    let found = layouts(&c);
    assert_eq!(found["blk.0.attn_qkv.weight"], "q8_0.split");
    assert!(
        ["q", "k", "v"].iter().all(|p| found[format!("blk.0.attn_{p}.weight.source").as_str()] == "raw.bf16")
    );
    succeed(&["export", &out, "-o", &back, "--force"]);
    assert!(fs::read(&back).expect("there") == fs::read(&input).expect("there"));
}
