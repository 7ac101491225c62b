//! Containers of `gantry convert` on other cards than they were packed for, through the library and `gantry-run`.

use super::models::Made;
use gantry_formats::placement::{CardSpec, Strategy};
use gantry_runtime::load::{LoadOptions, Places, load};
use gantry_runtime::{Container, Device, LoadMode, Model, ModelOptions, Verify};
use gantry_tests::{bard, convert, json, run};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;

const STRATEGIES: [Strategy; 4] =
    [Strategy::Paired, Strategy::Layers, Strategy::Balanced, Strategy::Replicate(3)];

fn any(cards: usize) -> Vec<CardSpec> {
    vec![CardSpec { host: false, bytes: None }; cards]
}

/// Every tensor and every expert of `path` on 1 to 4 cards, by each strategy, beside the file's own bytes.
fn same_bytes(path: &Path) {
    let container = Container::open(path).expect("a container");
    let file = std::fs::read(path).expect("its bytes");
    let options = LoadOptions {
        mode: LoadMode::Read,
        verify: Verify::Full,
        threads: 2,
        progress: None,
        left: Vec::new(),
    };
    let stored = |blob: usize| {
        let blob = container.table().blobs()[blob];
        let start = (container.header().cards[blob.card as usize].offset + blob.offset) as usize;
        &file[start..start + blob.bytes as usize]
    };
    for cards in 1..=4 {
        for strategy in STRATEGIES {
            let places = Places::anew(&container, &any(cards), strategy, None).expect("places");
            let (weights, report) = load(&container, &places, &options).expect("weights");
            assert_eq!(report.cards.len(), cards);
            let check = |card: usize, offset: u64, blob: usize| {
                let want = stored(blob);
                let got = &weights.arenas()[card].bytes()[offset as usize..][..want.len()];
                assert!(
                    got == want,
                    "{cards} cards, {strategy}: {} on card {card}",
                    container.blob_name(blob)
                );
            };
            for (place, tensor) in places.tensors.iter().zip(&container.manifest().tensors) {
                check(place.card, place.offset, tensor.blob as usize);
            }
            for bank in &places.banks {
                for (number, slot) in (0..).zip(&bank.slots) {
                    check(bank.card, bank.offset + number * bank.stride, slot.blob);
                }
            }
        }
    }
}

#[test]
fn everything_keeps_its_bytes_wherever_it_goes() {
    let made = Made::new("qwen4exp-mtp-tiny", &["expert_count=7"]);
    for options in [&[][..], &["--cards", "2"], &["--cards", "3", "--placement", "replicate:2"]] {
        made.pack_as(&[&["--recipe", "balanced"], options].concat());
        same_bytes(&made.container());
    }
}

/// Logits of bard, whose n-gram table is read by row, from its file, wherever the rest lies.
#[test]
fn bard_says_the_same_on_any_cards() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("bard.gantry");
    let tokens = [5, 70, 8, 200, 31, 6, 7, 8, 9, 300];
    let mut seen: Option<Vec<u32>> = None;
    for packed_for in ["1", "2"] {
        convert(&bard().join("bard-qwen4exp-BF16.gguf"), &path, &["--cards", packed_for]);
        let container = Container::open(&path).expect("a container");
        let device = Device::cpu(Some(2)).expect("a processor");
        let cases = (1..=4).flat_map(|cards| STRATEGIES.map(|s| (Some(cards), Some(s))));
        for (cards, placement) in cases.chain([(None, None), (Some(3), None)]) {
            let options = ModelOptions { cards: cards.map(any), placement, ..ModelOptions::default() };
            let model = Model::load(&container, &device, &options).expect("a model");
            let mut logits = Vec::new();
            let mut session = model.session().expect("a session");
            session.prefill_all(&tokens, &mut |rows| logits.extend_from_slice(rows)).expect("logits");
            let bits: Vec<u32> = logits.iter().map(|v| v.to_bits()).collect();
            let same = *seen.get_or_insert_with(|| bits.clone()) == bits;
            assert!(same, "packed for {packed_for}, on {cards:?}, {placement:?}");
        }
    }
}

/// What `gantry-run` says on stderr, and how it ends.
fn said(made: &Made, options: &[&str]) -> (String, Option<i32>) {
    let container = made.container();
    let mut args: Vec<&OsStr> = vec![container.as_os_str()];
    args.extend(["-p", "what would", "-n", "2", "--greedy"].iter().chain(options).map(OsStr::new));
    let output = run("gantry-run", &args);
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
}

#[test]
fn gantry_run_says_that_it_places_anew_and_what_each_card_took() {
    let made = Made::new("llama-moe-tiny", &[]);
    let (text, code) = said(&made, &["--cards", "3", "--placement", "balanced"]);
    assert_eq!(code, Some(0), "{text}");
    let note = "note: packed for 1 card; placed on cpu:0 to cpu:2 while loading (balanced)";
    assert_eq!(text.lines().filter(|line| line.contains("while loading")).collect::<Vec<_>>(), [note]);
    for card in 0..3 {
        assert!(text.contains(&format!("card {card}: ")), "{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // As it was packed there is nothing to tell.
    for options in [&[][..], &["--cards", "1"], &["--cards", "1GiB"], &["--placement", "paired"]] {
        let (text, code) = said(&made, options);
        assert!(code == Some(0) && !text.contains("while loading") && !text.contains("card 0"), "{text}");
    }
}

#[test]
fn every_command_that_loads_takes_cards() {
    let made = Made::new("llama-moe-tiny", &[]);
    let container = made.container();
    let text = made.folder().join("text.txt");
    std::fs::write(&text, "what would there be when the others were not here ".repeat(20)).expect("a text");
    let hot = made.folder().join("hot.json");
    let out = made.folder().join("logits.f32");
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let file = path(&container);
    let at = |more: &[&str]| -> Vec<String> {
        let cards = ["--cards", "64MiB,32MiB", "--hotness", hot.to_str().expect("UTF-8")];
        more.iter().chain(&cards).map(|s| (*s).to_owned()).collect()
    };
    let perplexity = ["perplexity", &file, "--text", &path(&text), "--context", "16", "--json"];
    let plain: Vec<String> = perplexity.iter().map(|s| (*s).to_owned()).collect();
    let record = [plain.clone(), vec!["--record-hotness".into(), path(&hot)]].concat();
    let want = json("gantry-run", &record);
    // Counts decide, and change nothing of what is computed.
    assert_eq!(json("gantry-run", &at(&perplexity))["perplexity"], want["perplexity"]);
    let found = json("gantry-run", &at(&["bench", &file, "-p", "4", "-n", "2", "-r", "1", "--json"]));
    let cards = found["load"]["cards"].as_array().expect("cards");
    let bytes = |v: &Value| v["bytes"].as_u64().expect("bytes");
    assert_eq!(cards.len(), 2, "{found}");
    assert_eq!(cards.iter().map(bytes).sum::<u64>(), bytes(&found["load"]), "{found}");
    assert!(
        cards.iter().all(|c| c["seconds"].as_f64() > Some(0.0) && c["gb_per_second"].as_f64() > Some(0.0))
    );
    let found = json("gantry-run", &at(&[&file, "-p", "what", "-n", "2", "--json"]));
    assert_eq!(found["load"]["cards"].as_array().map(Vec::len), Some(2), "{found}");
    for more in [&["logits", &file, "--tokens", "1,2", "--out", &path(&out)][..], &["chat", &file, "-n", "1"]]
    {
        let output = run("gantry-run", &at(more));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        // Chat needs a template, which this model has not; all it does is to say so.
        assert!(output.status.success() || text.contains("chat template"), "{more:?}: {text}");
    }
}

#[test]
fn cards_that_are_too_small_or_no_cards_are_refused() {
    let made = Made::new("llama-moe-tiny", &[]);
    let (text, code) = said(&made, &["--cards", "1MiB,1MiB"]);
    assert_eq!(code, Some(6), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(text.contains("  short") && text.contains(" would fit"), "{text}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
    let fit = lines.iter().find_map(|l| l.trim().strip_prefix("--cards ")?.strip_suffix(" would fit"));
    let (text, code) = said(&made, &["--cards", fit.expect("cards that fit")]);
    assert_eq!(code, Some(0), "{text}");
    for (options, said_of_it) in [
        (&["--cards", "0"][..], "expected 1 to"),
        (&["--cards", "24", "--placement", "layers"], "24 cards for 4 layers"),
        (&["--cards", "24Gib"], "unit"),
        (&["--cards", "2", "--placement", "pairs"], "paired, layers, balanced or replicate:N"),
        (&["--cards", "2", "--load", "map"], "--load read"),
    ] {
        let options =
            if options[1] == "24" { &["--cards", "24", "--placement", "layers"][..] } else { options };
        let (text, code) = said(&made, options);
        assert!(code == Some(2) && text.contains(said_of_it), "{options:?}: {code:?} {text}");
    }
}

#[test]
fn counts_of_another_model_are_refused() {
    let made = Made::new("llama-moe-tiny", &[]);
    let file = made.folder().join("hot.csv");
    std::fs::write(&file, "layer_id,expert_id,count\n0,99,5\n").expect("counts");
    let (text, code) = said(&made, &["--cards", "2", "--hotness", file.to_str().expect("UTF-8")]);
    assert!(code == Some(3) && text.contains("another model"), "{code:?} {text}");
}

#[test]
fn what_was_packed_by_the_same_rule_and_counts_stays() {
    let made = Made::new("llama-moe-tiny", &[]);
    let hot = made.folder().join("hot.json");
    let hot = hot.to_str().expect("UTF-8");
    assert_eq!(said(&made, &["--record-hotness", hot]).1, Some(0));
    let by = ["--cards", "2", "--placement", "balanced", "--hotness", hot];
    made.pack_as(&[&["--recipe", "lossless"][..], &by].concat());
    let moved = |options: &[&str]| {
        let (text, code) = said(&made, options);
        assert_eq!(code, Some(0), "{options:?}: {text}");
        (text.contains("while loading"), text.contains("give --hotness"), text)
    };
    for options in [&[][..], &["--cards", "2"], &["--cards", "64MiB,64MiB", "--placement", "balanced"], &by] {
        let (anew, _, text) = moved(options);
        assert!(!anew && text.contains("card 1: "), "{options:?}: {text}");
    }
    // Other cards keep the rule, and the counts must be given again.
    let (anew, asks, text) = moved(&["--cards", "3"]);
    assert!(anew && asks && text.contains("packed for 2 cards") && text.contains("(balanced)"), "{text}");
    let (anew, asks, text) = moved(&["--cards", "3", "--hotness", hot]);
    assert!(anew && !asks, "{text}");
    let (anew, asks, text) = moved(&["--placement", "layers"]);
    assert!(anew && !asks && text.contains("(layers)"), "{text}");
    let (anew, asks, text) = moved(&["--cards", "1"]);
    assert!(anew && !asks && text.contains("placed on cpu:0 while loading"), "{text}");
}

/// As `gantry convert` has it: a container remembers how its cards were filled, and `--fill` says otherwise.
#[test]
fn cards_are_filled_as_asked_for_or_as_packed() {
    let made = Made::new("llama-moe-tiny", &[]);
    let experts = |options: &[&str]| -> Vec<u64> {
        let container = made.container();
        let mut args: Vec<&OsStr> = vec![container.as_os_str()];
        args.extend(["-p", "the", "-n", "1", "--greedy", "--json"].iter().chain(options).map(OsStr::new));
        let found = json("gantry-run", &args);
        let cards = found["load"]["cards"].as_array().expect("cards");
        cards.iter().map(|card| card["bytes"].as_u64().expect("bytes")).collect()
    };
    let cards = ["--cards", "64MiB,64MiB"];
    let [share, first] = ["share", "first"].map(|fill| experts(&[&cards[..], &["--fill", fill]].concat()));
    assert_eq!(experts(&cards), share);
    assert!(first[0] > share[0] && first[1] < share[1], "{first:?}, {share:?}");
    let (text, code) = said(&made, &[&cards[..], &["--fill", "first"]].concat());
    assert!(code == Some(0) && text.contains("while loading (paired, fill first)"), "{text}");
    let (text, code) = said(&made, &["--fill", "most"]);
    assert!(code == Some(2) && text.contains("share, first"), "{text}");
    // Packed so, it stays so, also on other cards; the other fill moves experts.
    made.pack_as(&[&["--recipe", "lossless", "--fill", "first"][..], &cards].concat());
    for options in [&[][..], &["--fill", "first"], &cards] {
        let (text, code) = said(&made, options);
        assert!(code == Some(0) && !text.contains("while loading"), "{options:?}: {text}");
    }
    let (text, code) = said(&made, &["--cards", "64MiB,64MiB,64MiB"]);
    assert!(code == Some(0) && text.contains("fill first"), "{text}");
    let (text, code) = said(&made, &["--fill", "share"]);
    assert!(code == Some(0) && text.contains("while loading (paired)"), "{text}");
    assert_eq!(experts(&[&cards[..], &["--fill", "share"]].concat()), share);
}
