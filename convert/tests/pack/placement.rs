//! Experts over cards: what is packed, moved and refused.

use super::source::*;
use gantry_formats::block::GgmlType;
use gantry_formats::container::Container;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const SMALL: [&str; 6] = ["--align-segment", "4096", "--align-blob", "512", "--align-tensor", "64"];
const LAYERS: u32 = 3;
const EXPERTS: u32 = 7;

struct Room(tempfile::TempDir);

impl Room {
    /// A folder with `m.gguf` and counts of its experts, `hot.csv`: a few are hot, other ones in each layer.
    fn new() -> Self {
        let room = Self(tempfile::tempdir().expect("a folder"));
        llama(Path::new(&room.text("m.gguf")), LAYERS, EXPERTS, GgmlType::Q8_0);
        fs::write(room.text("hot.csv"), counts(LAYERS, EXPERTS)).expect("write");
        room
    }

    fn text(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.text(name)).expect("there")
    }

    fn convert(&self, output: &str, more: &[&str]) -> Container {
        let (input, output) = (self.text("m.gguf"), self.text(output));
        succeed(&[&["convert", &input, "-o", &output, "--force"], &SMALL[..], more].concat());
        check(Path::new(&output), Path::new(&input));
        Container::open(Path::new(&output)).expect("sound")
    }

    fn replan(&self, input: &str, output: &str, more: &[&str]) {
        let (input, output) = (self.text(input), self.text(output));
        succeed(&[&["replan", &input, "-o", &output, "--force"], more].concat());
    }
}

fn counts(layers: u32, experts: u32) -> String {
    let mut text = String::from("layer_id,expert_id,count\n");
    for layer in 0..layers {
        for expert in 0..experts {
            let heat = (expert + layer) % experts;
            text += &format!("{layer},{expert},{}\n", 100_000 / (1 + heat * heat));
        }
    }
    text
}

/// By layer and expert, the cards.
fn holders(c: &Container) -> BTreeMap<(u32, u32), Vec<u32>> {
    let mut out: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for b in &c.manifest().banks {
        b.experts.iter().for_each(|&e| out.entry((b.layer, e)).or_default().push(b.card));
    }
    out
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&succeed(args)).expect("one JSON document")
}

#[test]
fn experts_are_dealt_over_cards_and_the_rest_lies_on_card_0() {
    let room = Room::new();
    let hot = room.text("hot.csv");
    for cards in ["2", "3"] {
        for (rule, copied) in [("paired", false), ("balanced", false), ("replicate:2", true)] {
            let more = ["--cards", cards, "--placement", rule, "--hotness", &hot];
            let c = room.convert("m.gantry", &more);
            let m = c.manifest();
            assert!(m.tensors.iter().all(|t| t.card == 0));
            let holders = holders(&c);
            assert_eq!(holders.len(), (LAYERS * EXPERTS) as usize, "every expert is somewhere");
            assert_eq!(holders.values().any(|cards| cards.len() > 1), copied, "{rule}");
            let section = m.placement.as_ref().expect("recorded");
            assert_eq!((section.strategy.as_str(), m.options["placement"].as_str()), (rule, rule));
            assert!(section.shares_ppm.iter().sum::<u32>().abs_diff(1_000_000) <= 3);
            for (i, b) in m.banks.iter().enumerate() {
                assert!(b.stride.is_multiple_of(512) && b.offset.is_multiple_of(512));
                // A card's banks are contiguous, behind its tensors.
                if let Some(before) = i.checked_sub(1).map(|i| &m.banks[i]).filter(|x| x.card == b.card) {
                    assert_eq!(before.offset + before.stride * before.experts.len() as u64, b.offset);
                }
                assert!(m.tensors.iter().all(|t| t.card != b.card || t.offset + t.bytes <= b.offset));
            }
        }
    }
    // Hottest first, in pairs that alternate: ranks 0, 3, 4 on card 0 and 1, 2, 5 on card 1 of each layer.
    let c = room.convert("m.gantry", &["--cards", "2", "--hotness", &hot]);
    let map = holders(&c);
    let hottest_first = |layer: u32, rank: u32| (EXPERTS + rank - layer) % EXPERTS;
    for layer in 0..LAYERS {
        let cards: Vec<u32> = (0..6).map(|rank| map[&(layer, hottest_first(layer, rank))][0]).collect();
        assert_eq!(cards, [0, 1, 1, 0, 0, 1], "layer {layer}");
    }
}

#[test]
fn more_cards_than_experts_leave_some_without_a_bank() {
    let room = Room::new();
    let c = room.convert("m.gantry", &["--cards", "9"]);
    assert_eq!(c.header().cards.len(), 9);
    assert_eq!(holders(&c).len(), (LAYERS * EXPERTS) as usize);
    let empty = c.header().cards.iter().filter(|card| card.blobs == 0).count();
    assert!(empty >= 2 && c.manifest().banks.iter().all(|b| !b.experts.is_empty()));
    succeed(&["verify", &room.text("m.gantry")]);
}

#[test]
fn budgets_and_the_host_share_by_what_they_have() {
    let room = Room::new();
    let all = room.convert("one.gantry", &["--recipe", "lossless"]);
    let dense: u64 = all.manifest().tensors.iter().map(|t| t.bytes).sum();
    let experts: u64 = all.manifest().banks.iter().map(|b| b.stride * b.experts.len() as u64).sum();
    let kv = 2 * 2 * 16 * 4 * 64 * u64::from(LAYERS);
    let input = room.text("m.gguf");
    let plan = json(&["plan", &input, "--cards", "2", "--context", "64", "--json"]);
    let scratch = |card: usize| plan["cards"][card]["scratch_bytes"].as_u64().expect("known");
    let (zero, one) = (dense + kv + experts / 2 + 16384 + scratch(0), experts * 3 / 4 + 8192 + scratch(1));
    let cards = format!("{zero}B,cpu:{one}B");
    let more = ["--recipe", "lossless", "--cards", &cards, "--context", "64", "--vram-reserve", "4096"];
    let c = room.convert("m.gantry", &more);
    let section = c.manifest().placement.as_ref().expect("recorded");
    assert_eq!(section.cards.iter().map(|c| c.bytes).collect::<Vec<_>>(), [Some(zero), Some(one)]);
    assert_eq!(section.cards.iter().map(|c| c.host).collect::<Vec<_>>(), [false, true]);
    assert_eq!((section.cards[0].kv_bytes, section.cards[1].kv_bytes), (kv, 0));
    assert_eq!((section.reserve, section.context, section.kv.as_str()), (4096, Some(64), "f32"));
    for (entry, card) in c.header().cards.iter().zip(&section.cards) {
        assert!(entry.bytes + card.kv_bytes + section.reserve <= card.bytes.expect("a budget"));
    }
    // The view says what was counted, and estimates anew what is asked for.
    let out = room.text("m.gantry");
    let seen = |more: &[&str]| json(&[&["inspect", &out, "--placement", "--json"], more].concat());
    assert_eq!(seen(&[])["cards"][0]["kv_bytes"], kv);
    assert_eq!(seen(&["--kv", "f16"])["cards"][0]["kv_bytes"], kv / 2);
    assert_eq!(seen(&["--context", "128"])["cards"][0]["kv_bytes"], kv * 2);
    // A quarter, and a scale for each row of a head.
    let int8 = seen(&["--kv", "int8"])["cards"][0]["kv_bytes"].as_u64().expect("bytes");
    assert!(int8 > kv / 4 && int8 < kv / 2, "{int8} of {kv}");
    // Half the type, half the memory.
    let f16 = room.convert("f16.gantry", &[&more[..], &["--kv", "f16"]].concat());
    assert_eq!(f16.manifest().placement.as_ref().expect("recorded").cards[0].kv_bytes, kv / 2);
    // Every card is full before the next begins.
    let first = room.convert("first.gantry", &[&more[..], &["--fill", "first"]].concat());
    let on = |c: &Container, card| {
        c.manifest().banks.iter().filter(|b| b.card == card).map(|b| b.experts.len()).sum::<usize>()
    };
    assert!(on(&first, 0) >= on(&c, 0), "{} {}", on(&first, 0), on(&c, 0));
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let room = Room::new();
    let (input, out) = (room.text("m.gguf"), room.text("m.gantry"));
    let convert = |more: &[&'static str], code, words: &[&str]| {
        let args: Vec<&str> = ["convert", &input, "-o", &out]
            .iter()
            .copied()
            .chain(SMALL)
            .chain(more.iter().copied())
            .collect();
        refuse(&args, code, words);
        assert!(!Path::new(&out).exists() && !Path::new(&format!("{out}.partial")).exists());
    };
    convert(&["--cards", "70KiB,70KiB"], 6, &["MiB", "short", "card 1", "would fit"]);
    convert(&["--cards", "40KiB,10GiB"], 6, &["card 0", "KV cache", "scratch", "would fit"]);
    let long = ["--cards", "4MiB,10GiB", "--context", "1000000"];
    convert(&long, 6, &["for a context of 1000000", "--context ", "would fit"]);
    convert(&["--cards", "200KiB"], 6, &["card 0 ", "would fit"]);
    convert(&["--cards", "60KiB,60KiB,60KiB", "--placement", "layers"], 6, &["layers ", "to go where"]);
    convert(
        &["--cards", "2GiB,1MiB", "--vram-reserve", "2MiB"],
        6,
        &["reserve", "--cards 2GiB,3MiB would fit"],
    );
    // What is said to fit does.
    for cards in ["100KiB,300KiB", "400KiB,100KiB,cpu:60KiB", "60KiB,60KiB,60KiB"] {
        for rule in ["paired", "layers"] {
            let args = [&["plan", &input, "--cards", cards, "--placement", rule][..], &SMALL].concat();
            let out = gantry(&args);
            let text = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(6), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            let enough =
                text.lines().find_map(|l| l.trim().strip_prefix("--cards ")?.strip_suffix(" would fit"));
            let enough = enough.unwrap_or_else(|| panic!("{text}"));
            succeed(&[&["plan", &input, "--cards", enough, "--placement", rule][..], &SMALL].concat());
        }
    }
    convert(&["--cards", "0"], 2, &["--cards 0", "expected 1 to"]);
    convert(&["--cards", "24Gib"], 2, &["--cards 24Gib", "unit"]);
    convert(&["--cards", "4", "--placement", "layers"], 2, &["4 cards for 3 layers"]);
    convert(&["--placement", "spread"], 2, &["spread", "replicate:N"]);
    convert(&["--fill", "last"], 2, &["last"]);
    convert(&["--kv", "int4"], 2, &["int4", "f32, f16 and int8"]);
    convert(&["--vram-reserve", "lots"], 2, &["lots"]);
    // A dense model has nothing to spread.
    llama(Path::new(&input), 2, 0, GgmlType::Q8_0);
    convert(&["--cards", "2", "--placement", "balanced"], 2, &["balanced", "no experts"]);
}

#[test]
fn counts_of_another_model_are_refused_and_few_are_told() {
    let room = Room::new();
    let (input, out, hot) = (room.text("m.gguf"), room.text("m.gantry"), room.text("other.csv"));
    for (text, word) in [
        (counts(LAYERS + 1, EXPERTS), "layer 3"),
        (counts(LAYERS, EXPERTS + 1), "expert 7"),
        ("layer_id,expert_id,count\n0,0,-1\n".into(), "line 2"),
    ] {
        fs::write(&hot, text).expect("write");
        refuse(&["convert", &input, "-o", &out, "--cards", "2", "--hotness", &hot], 3, &["other.csv", word]);
    }
    fs::write(&hot, "layer_id,expert_id,count\n0,0,5\n0,1,3\n").expect("write");
    let text = succeed(&["plan", &input, "--cards", "2", "--hotness", &hot]);
    for word in ["few tokens", "never chosen", "no token was seen in layers 1-2"] {
        assert!(text.replace("\n          ", " ").contains(word), "{word:?} not in {text}");
    }
    llama(Path::new(&input), 2, 0, GgmlType::Q8_0);
    refuse(&["plan", &input, "--hotness", &hot], 3, &["no experts"]);
}

#[test]
fn the_plan_says_it_in_80_columns_and_in_json() {
    let room = Room::new();
    let (input, hot) = (room.text("m.gguf"), room.text("hot.csv"));
    let args =
        ["plan", &input, "--cards", "1GiB,512MiB,cpu:64GiB", "--placement", "replicate:2", "--hotness", &hot];
    let text = succeed(&args);
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    for word in [
        "2 (host)",
        "1.0 GiB",
        "64.0 GiB",
        "placement replicate:2",
        "shares ",
        "worst ",
        "mean ",
        "before ",
        "copies ",
        "extra     2 of 2 copies in each layer",
        "scratch",
    ] {
        assert!(text.contains(word), "{word:?} not in {text}");
    }
    let layers = succeed(&["plan", &input, "--cards", "2", "--placement", "layers", "--hotness", &hot]);
    assert!(layers.contains("counts of tokens do not"), "{layers}");
    let doc = json(&[&args[..], &["--json"]].concat());
    let p = &doc["placement"];
    assert_eq!((&doc["schema"], &p["strategy"]), (&1.into(), &"replicate:2".into()));
    assert_eq!(
        p["recorded"]["cards"][2],
        serde_json::json!({ "host": true, "bytes": 64u64 << 30, "kv_bytes": 0 })
    );
    assert_eq!(p["report"]["layers"].as_array().map(Vec::len), Some(LAYERS as usize));
    let (after, before) = (&p["report"]["worst_balance_ppm"], &p["before"]["worst_balance_ppm"]);
    assert!(after.as_u64() >= before.as_u64(), "{after} {before}");
    assert_eq!(doc["cards"][0]["budget"], 1u64 << 30);
    assert!(doc["cards"].as_array().expect("cards").iter().all(|c| c["scratch_bytes"].as_u64() > Some(0)));
    let all = serde_json::json!({ "layer": 0, "wanted": 2, "made": 2, "why": null });
    assert_eq!(p["extra_copies"][0], all);
    assert!(!p["report"]["copies"].as_array().expect("a list").is_empty());
}

#[test]
fn replan_gives_what_convert_gives_there_and_back() {
    let room = Room::new();
    let hot = room.text("hot.csv");
    let one = room.convert("one.gantry", &[]);
    assert_eq!(one.manifest().placement, None);
    let ways: [&[&str]; 7] = [
        &["--cards", "2"],
        &["--cards", "3", "--hotness", &hot],
        &["--cards", "2", "--placement", "balanced", "--hotness", &hot],
        &["--cards", "3", "--placement", "replicate:3", "--hotness", &hot],
        &["--cards", "2GiB,1GiB", "--fill", "first", "--vram-reserve", "1MiB", "--kv", "f16"],
        &["--cards", "3", "--placement", "layers"],
        &["--cards", "8"],
    ];
    let mut before = "one.gantry".to_string();
    for (i, way) in ways.iter().enumerate() {
        room.convert("direct.gantry", way);
        for from in ["one.gantry", &before] {
            // What an earlier placement leaves behind is inherited, so say all that differs from the default.
            let rest: &[(&str, &str)] =
                &[("--fill", "share"), ("--vram-reserve", "0"), ("--kv", "f32"), ("--placement", "paired")];
            let rest = rest.iter().filter(|(flag, _)| !way.contains(flag)).flat_map(|(a, b)| [*a, *b]);
            let all: Vec<&str> = way.iter().copied().chain(rest).collect();
            room.replan(from, "moved.gantry", &all);
            assert!(room.bytes("direct.gantry") == room.bytes("moved.gantry"), "{from} → {way:?}");
        }
        before = format!("step{i}.gantry");
        fs::copy(room.text("moved.gantry"), room.text(&before)).expect("a copy");
        for more in [&["--threads", "1"][..], &["--threads", "5"]] {
            room.replan(
                &before,
                "back.gantry",
                &[&["--cards", "1", "--vram-reserve", "0"][..], more].concat(),
            );
            assert!(room.bytes("back.gantry") == room.bytes("one.gantry"), "{way:?} → one card");
        }
    }
}

#[test]
fn replan_changes_files_and_target_and_keeps_the_map() {
    let room = Room::new();
    let hot = room.text("hot.csv");
    let way = ["--recipe", "balanced", "--cards", "3", "--placement", "replicate:1", "--hotness", &hot];
    room.convert("m.gantry", &way);
    room.convert("own.gantry", &[&way[..], &["--split-cards"]].concat());
    room.replan("m.gantry", "moved.gantry", &["--split-cards"]);
    for card in ["", ".card0", ".card1", ".card2"] {
        let bytes = |name: &str| room.bytes(&format!("{name}{card}.gantry"));
        assert!(bytes("own") == bytes("moved"), "{card}");
    }
    room.replan("own.gantry", "joined.gantry", &["--split-cards=false"]);
    assert!(room.bytes("joined.gantry") == room.bytes("m.gantry"));
    room.convert("sm90.gantry", &[&way[..], &["--target", "cuda:sm_90"]].concat());
    room.replan("m.gantry", "there.gantry", &["--target", "cuda:sm_90"]);
    assert!(room.bytes("there.gantry") == room.bytes("sm90.gantry"));
    room.replan("there.gantry", "back.gantry", &["--target", "cpu"]);
    assert!(room.bytes("back.gantry") == room.bytes("m.gantry"));
    refuse(
        &["replan", &room.text("m.gantry"), "-o", &room.text("x.gantry")],
        2,
        &["nothing is to be changed"],
    );
}

#[test]
fn replan_refuses_damage_in_passing_and_leaves_nothing() {
    let room = Room::new();
    let c = room.convert("m.gantry", &["--cards", "2"]);
    let bank = &c.manifest().banks[1];
    let at = c.header().cards[bank.card as usize].offset + bank.offset + bank.stride + 5;
    let mut bytes = room.bytes("m.gantry");
    bytes[at as usize] ^= 1;
    fs::write(room.text("m.gantry"), &bytes).expect("write");
    let (input, out) = (room.text("m.gantry"), room.text("x.gantry"));
    let expert = format!("layer {} expert {}", bank.layer, bank.experts[1]);
    refuse(&["replan", &input, "-o", &out, "--cards", "3"], 4, &["not intact", &expert]);
    refuse(&["replan", &input, "-o", &out, "--target", "cuda:sm_90"], 4, &["not intact", &expert]);
    assert!(!Path::new(&out).exists() && !Path::new(&format!("{out}.partial")).exists());
    refuse(&["replan", &input, "-o", &out, "--cards", "20KiB,20KiB"], 6, &["short"]);
}

#[test]
fn export_verify_and_diff_read_copies_and_cards() {
    let room = Room::new();
    let (input, hot, out) = (room.text("m.gguf"), room.text("hot.csv"), room.text("m.gantry"));
    for more in [&["--cards", "3"][..], &["--cards", "3", "--placement", "replicate:4", "--split-cards"]] {
        room.convert("m.gantry", &[&["--recipe", "lossless", "--hotness", &hot], more].concat());
        succeed(&["verify", &out, "--against", &input]);
        succeed(&["export", &out, "-o", &room.text("back.gguf"), "--force"]);
        assert!(room.bytes("back.gguf") == room.bytes("m.gguf"), "{more:?}");
        assert_eq!(gantry(&["diff", &out, &input]).status.code(), Some(0));
    }
}
