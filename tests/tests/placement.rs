//! Experts over several cards, from the source and back, on a trained model and the counts that were measured on it.

use gantry_tests::{bard, convert, golden_tokens, json, logits, run, run_ok, same_bits};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

struct Room {
    dir: tempfile::TempDir,
    source: PathBuf,
    counts: String,
}

impl Room {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a scratch folder");
        let counts = bard().join("bard.imatrix.gguf").display().to_string();
        Self { dir, source: bard().join("bard-qwen4exp-BF16.gguf"), counts }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn convert(&self, name: &str, more: &[&str]) -> PathBuf {
        let out = self.path(name);
        convert(&self.source, &out, &[&["--recipe", "lossless"], more].concat());
        out
    }
}

fn words<'a>(head: &[&'a (dyn AsRef<OsStr> + 'a)], more: &'a [&'a str]) -> Vec<&'a OsStr> {
    head.iter().map(|w| (*w).as_ref()).chain(more.iter().map(|w| OsStr::new(*w))).collect()
}

fn same(a: &Path, b: &Path) -> bool {
    std::fs::read(a).expect("bytes") == std::fs::read(b).expect("bytes")
}

#[test]
fn convert_verify_replan_export_over_two_and_three_cards() {
    let room = Room::new();
    let one = room.convert("one.gantry", &[]);
    let tokens = golden_tokens(24, 2048);
    let alone = logits(&one, &tokens, &[]);
    for (i, way) in [
        &["--cards", "2", "--hotness", &room.counts][..],
        &["--cards", "3", "--placement", "balanced", "--hotness", &room.counts],
        &["--cards", "3", "--placement", "replicate:2", "--hotness", &room.counts],
        &["--cards", "64MiB,cpu:8MiB", "--context", "256", "--hotness", &room.counts],
    ]
    .into_iter()
    .enumerate()
    {
        let direct = room.convert(&format!("direct{i}.gantry"), way);
        run_ok("gantry", &words(&[&"verify", &direct, &"--against", &room.source], &[]));
        let moved = room.path(&format!("moved{i}.gantry"));
        run_ok("gantry", &words(&[&"replan", &one, &"-o", &moved], way));
        assert!(same(&direct, &moved), "{way:?}: replan gives other bytes than convert");
        let back = room.path(&format!("back{i}.gantry"));
        run_ok("gantry", &words(&[&"replan", &moved, &"-o", &back], &["--cards", "1"]));
        assert!(same(&one, &back), "{way:?}: back on one card it is another container");
        let gguf = room.path(&format!("back{i}.gguf"));
        run_ok("gantry", &words(&[&"export", &moved, &"-o", &gguf], &[]));
        assert!(same(&room.source, &gguf), "{way:?}: the source did not come back");
        run_ok("gantry", &words(&[&"diff", &moved, &one], &[]));
        assert!(same_bits(&alone, &logits(&moved, &tokens, &[])), "{way:?}: other logits than on one card");
    }
}

#[test]
fn what_was_measured_decides_and_shows() {
    let room = Room::new();
    let way = ["--cards", "2", "--hotness", &room.counts];
    let out = room.convert("m.gantry", &way);
    let plan = json("gantry", &words(&[&"plan", &room.source, &"--json"], &way));
    let [after, before] =
        ["report", "before"].map(|k| plan["placement"][k]["mean_balance_ppm"].as_u64().expect("a number"));
    assert!(after >= before, "placing by counts must not be worse than without: {after} {before}");
    let view = json(
        "gantry",
        &words(&[&"inspect", &out, &"--placement", &"--json", &"--hotness", &room.counts], &[]),
    );
    // The counts that decided, once more: what was expected is what they give.
    for card in view["cards"].as_array().expect("cards") {
        assert_eq!(card["predicted_ppm"], card["measured_ppm"]);
    }
    assert_eq!(view["recorded"]["hotness"]["tokens"], view["tokens"]);
    let page = room.path("placement.html");
    let args = [&"inspect" as &dyn AsRef<OsStr>, &out, &"--placement", &"--report", &page];
    let text = String::from_utf8(run_ok("gantry", &words(&args, &[]))).expect("UTF-8");
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(
        html.starts_with("<!doctype html>") && html.contains("<svg") && html.trim_end().ends_with("</html>")
    );
    assert!(!html.contains("<script") && !html.contains("http"), "it fetches nothing");
    assert_eq!(run("gantry", &words(&args, &[])).status.code(), Some(2), "an existing page was replaced");
    run_ok("gantry", &words(&args, &["--force"]));
}

#[test]
fn what_is_read_is_never_written_over() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    let gguf = bard().join("bard-qwen4exp-BF16.gguf");
    let gguf = gguf.to_str().expect("UTF-8");
    let counts = path("counts.gguf");
    std::fs::copy(bard().join("bard.imatrix.gguf"), &counts).expect("a copy");
    let recipe = path("own.toml");
    std::fs::write(&recipe, "[[rule]]\nlayout = \"keep\"\n").expect("space");
    let container = path("two.gantry");
    run_ok("gantry", &["convert", gguf, "--cards", "2", "--split-cards", "-o", &container]);
    let before = |path: &str| std::fs::read(path).expect("bytes");
    let card = path("two.card1.gantry");
    let cases: [(&str, Vec<&str>); 6] = [
        (&counts, vec!["convert", gguf, "--cards", "2", "--hotness", &counts, "-o", &counts]),
        (&recipe, vec!["convert", gguf, "--recipe", &recipe, "-o", &recipe]),
        (&counts, vec!["replan", &container, "--cards", "3", "--hotness", &counts, "-o", &counts]),
        (&container, vec!["inspect", &container, "--placement", "--report", &container]),
        (&card, vec!["inspect", &container, "--placement", "--report", &card]),
        (&counts, vec!["inspect", &container, "--placement", "--hotness", &counts, "--report", &counts]),
    ];
    for (target, mut args) in cases {
        let bytes = before(target);
        args.push("--force");
        let out = gantry_tests::run("gantry", &args);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains("itself"), "{args:?}: {text}");
        assert!(before(target) == bytes, "{args:?} changed its input");
    }
}

/// Both views of a container count the same keys and values, those that it was placed by where nothing else is asked for.
#[test]
fn there_is_one_size_of_keys_and_values() {
    let room = Room::new();
    let out = room.convert("kv.gantry", &["--cards", "2", "--context", "700", "--kv", "f16"]);
    for more in [&[][..], &["--context", "300"], &["--kv", "int8"], &["--context", "64", "--kv", "f32"]] {
        let of =
            |view: &[&str]| json("gantry", &words(&[&"inspect", &out, &"--json"], &[view, more].concat()));
        let bytes = |cards: &serde_json::Value| -> Vec<u64> {
            let cards = cards.as_array().expect("cards").iter();
            cards.map(|card| card["kv_bytes"].as_u64().expect("bytes")).collect()
        };
        let (summary, placement) = (of(&[]), of(&["--placement"]));
        assert_eq!(bytes(&summary["memory"]["cards"]), bytes(&placement["cards"]), "{more:?}");
        let (context, kv) = (&summary["memory"]["context"], &summary["memory"]["kv_type"]);
        match more.is_empty() {
            true => assert_eq!((context, kv), (&700.into(), &"f16".into())),
            false => assert!(bytes(&summary["memory"]["cards"]).iter().any(|b| *b > 0), "{more:?}"),
        }
    }
}

/// What a refusal says, and its exit code.
fn refused(args: &[&str]) -> (Option<i32>, String) {
    let output = run("gantry", args);
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" "),
    )
}

#[test]
fn compressed_entries_are_not_planned_as_int8() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let synth = |preset: &str| {
        let path = folder.path().join(format!("{preset}.gguf")).to_str().expect("UTF-8").to_string();
        run_ok("gantry", &["synth", preset, "-o", &path]);
        path
    };
    let (deepseek4, glm_dsa) = (synth("deepseek4-tiny"), synth("glm-dsa-tiny"));
    for command in ["plan", "convert"] {
        let out = folder.path().join("m.gantry").to_str().expect("UTF-8").to_string();
        let args = [command, &deepseek4, "-o", &out, "--kv", "int8"];
        let args = if command == "plan" { [&args[..2], &args[4..]].concat() } else { args.to_vec() };
        let (code, text) = refused(&args);
        assert_eq!(code, Some(5), "{command}: {text}");
        let words = "--kv int8: the model attends to compressed entries, which are kept as f32 or f16 alone; give --kv f16";
        assert!(text.contains(words), "{command}: {text}");
        assert!(!Path::new(&out).exists(), "{command}");
    }
    run_ok("gantry", &["plan", &deepseek4, "--kv", "f16"]);
    run_ok("gantry", &["plan", &glm_dsa, "--kv", "int8"]);
}

#[test]
fn names_that_are_nearly_right_are_offered() {
    let room = Room::new();
    let source = room.source.to_str().expect("UTF-8");
    let packed = room.convert("names.gantry", &[]);
    let packed = packed.to_str().expect("UTF-8");
    for (args, word) in [
        (&["plan", source, "--recipe", "balnced"][..], "did you mean balanced?"),
        (&["plan", source, "--target", "cuda:sm90"], "did you mean cuda:sm_90?"),
        (&["plan", source, "--set", "atn_q=q8_0.split"], "did you mean attn_q?"),
        (&["synth", "qwen4exp-1bg", "-o", "x.gguf"], "did you mean qwen4exp-1gb?"),
        (&["inspect", source, "--tensor", "token_emb.weight"], "did you mean token_embd.weight?"),
        (&["inspect", packed, "--tensor", "token_emb.weight", "--hex"], "did you mean token_embd.weight?"),
    ] {
        let (code, text) = refused(args);
        assert!(matches!(code, Some(2 | 5)) && text.contains(word), "{args:?}: {code:?} {text}");
    }
    let (_, text) = refused(&["plan", source, "--recipe", "nothing-like-it"]);
    assert!(!text.contains("did you mean"), "{text}");
}

/// Numbers that look random and are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len() as u64) as usize]
    }
}

/// What a plan says that each card holds, which must be within its budget; the sum of all cards.
fn held(plan: &serde_json::Value, reserve: u64, name: &str) -> u64 {
    let cards = plan["cards"].as_array().expect("cards").iter();
    let totals = cards.map(|card| {
        let total: u64 = ["segment_bytes", "kv_bytes", "scratch_bytes"]
            .iter()
            .map(|key| card[*key].as_u64().unwrap_or(0))
            .sum();
        let within = card["budget"].as_u64().is_none_or(|budget| total + reserve <= budget);
        assert!(within, "{name}: {card} with {reserve} of reserve");
        total
    });
    totals.sum()
}

/// Cards and context that a refusal offers, which must be in lines of 80 columns.
fn offered(text: &str) -> (String, Option<String>) {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let whole = lines.iter().find_map(|line| line.strip_prefix("--cards ")?.strip_suffix(" would fit"));
    let alone = lines.windows(3).find(|w| w[0] == "--cards" && w[2] == "would fit").map(|w| w[1]);
    let cards = whole.or(alone).unwrap_or_else(|| panic!("{text}"));
    let wide = |line: &&str| line.chars().count() > 80 && line.trim() != cards;
    assert!(!text.lines().any(|line| wide(&line)), "{text}");
    let context = lines.iter().find_map(|line| line.split_once("(--context ")?.1.strip_suffix(')'));
    (cards.to_string(), context.map(String::from))
}

#[test]
fn whatever_a_refusal_offers_fits() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let models = ["llama-tiny", "llama-moe-tiny", "qwen3next-tiny", "glm-dsa-tiny"].map(|preset| {
        let path = folder.path().join(format!("{preset}.gguf")).to_str().expect("UTF-8").to_string();
        run_ok("gantry", &["synth", preset, "-o", &path]);
        path
    });
    let mut random = Random(7);
    let (mut refused, mut contexts, mut taken) = (0, 0, 0);
    while refused < 80 {
        let model = random.below(4) as usize;
        let rule = if model == 0 {
            "layers"
        } else {
            random.of(&["layers", "layers", "paired", "balanced", "replicate:3"])
        };
        let count = 1 + random.below(4);
        let reserve = random.below(3) * random.below(400_000);
        let (context, reserved) = ((64 + random.below(400)).to_string(), reserve.to_string());
        let mut common = vec!["plan", &models[model], "--vram-reserve", &reserved, "--json"];
        common.extend(["--placement", rule, "--fill", random.of(&["share", "first"])]);
        common.extend(["--kv", random.of(&["f32", "f16"]), "--recipe", random.of(&["lossless", "balanced"])]);
        if random.below(3) > 0 {
            common.extend(["--align-segment", "4096", "--align-blob", "512", "--align-tensor", "64"]);
        }
        let with = |cards: &str, context: &str| {
            let args = [&common[..], &["--cards", cards, "--context", context]].concat();
            (run("gantry", &args), args.join(" "))
        };
        let (all, name) = with(&count.to_string(), &context);
        if all.status.code() == Some(2) {
            continue;
        }
        let plan = serde_json::from_slice(&all.stdout).unwrap_or_else(|e| panic!("{name}: {e}"));
        let all = held(&plan, 0, &name) + reserve * count;
        let cards = (0..count).map(|_| match random.below(6) {
            0 => "any".to_string(),
            _ => format!("{}B", 1 + all * random.below(1000) / 700 / count),
        });
        let cards = cards.collect::<Vec<_>>().join(",");
        let (output, name) = with(&cards, &context);
        let text = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            held(&serde_json::from_slice(&output.stdout).expect("a plan"), reserve, &name);
            taken += 1;
            continue;
        }
        assert_eq!(output.status.code(), Some(6), "{name}: {text}");
        refused += 1;
        let (enough, shorter) = offered(&text);
        contexts += usize::from(shorter.is_some());
        let offers = [Some((&enough, &context)), shorter.as_ref().map(|shorter| (&cards, shorter))];
        for (cards, context) in offers.into_iter().flatten() {
            let (output, again) = with(cards, context);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}\n{text}\nbut {again}\n{said}");
            held(&serde_json::from_slice(&output.stdout).expect("a plan"), reserve, &again);
        }
    }
    assert!(contexts > 3 && taken > 10, "{contexts} contexts were offered, {taken} plans were taken");
}
