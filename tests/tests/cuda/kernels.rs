//! Measuring kernels: all that the host does for it, with kernels that do nothing.

use super::card::Machine;
use super::models::{kernels, small, split};
use gantry_tests::standin::Seen;
use serde_json::Value;
use std::path::Path;

fn measure(machine: &Machine, more: &[&str]) -> Seen {
    let head = ["bench", "--measure", "kernels", "--device", "cuda:0"];
    machine.run(&[&head, more].concat())
}

/// A card whose kernels do nothing, with little memory: what is measured makes no sense, and is measured fast.
fn idle() -> Machine {
    Machine::new().set("SKIP", 1).set("MEMORY", 128 << 20)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn every_step_of_a_model_has_its_lines() {
    if !kernels() {
        return;
    }
    let seen = measure(&idle(), &[text(small()), "-c", "600"]);
    let words = [
        "cuda:0, Stand-in, sm_90",
        ": the roof",
        "copied from pinned memory",
        "i8.frag.nv_a32:block32  ",
        "decode_i8_block32_8",
        "raw.bf16  ",
        "(to compare)",
        "Attention  ",
        "attend_f16_64_4",
        "SiluMul  ",
        "RmsNorm  ",
        "Quantize Q8  ",
    ];
    seen.shows(&words);
    assert!(seen.out.lines().all(|line| line.chars().count() <= 80), "{}", seen.out);
    // As many launches as replays were recorded from, not one for each replay.
    assert!(seen.log.called["cuGraphLaunch"] > 50 * seen.log.called["cuStreamBeginCapture_v2"] / 2);
}

#[test]
fn products_of_usual_shapes_need_no_container() {
    if !kernels() {
        return;
    }
    let machine = idle().set("MEMORY", 1 << 30);
    let svg = machine.file("kernels.svg");
    let only = ["--only", "2560 n=8", "--json", "--svg", text(&svg)];
    let seen = measure(&machine, &only);
    seen.shows(&[]);
    let document: Value = serde_json::from_str(&seen.out).expect("one JSON document");
    assert_eq!((&document["schema"], &document["measured"]), (&1.into(), &"kernels".into()));
    assert!(document["roof_bytes_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{document}");
    let cases = document["cases"].as_array().expect("cases");
    let of = |what: &str| {
        let found = cases.iter().find(|c| c["what"] == what);
        found.unwrap_or_else(|| panic!("no {what} in {document}"))
    };
    let expected =
        ["i8.frag.nv_a32:block32", "i8.frag.nv_a64:channel", "q8_0.split", "e8.planar", "raw.bf16"];
    for what in expected.into_iter().chain(["i8.nmajor:channel"]) {
        let case = of(what);
        assert_eq!((&case["tokens"], &case["shape"]), (&8.into(), &"2560 x 4096".into()));
        assert_eq!(case["baseline"], ["raw.bf16", "i8.nmajor:channel"].contains(&what));
        assert!(case["copies"].as_u64().is_some_and(|n| n >= 8), "{case}");
        assert_eq!(case["error"], Value::Null);
    }
    assert_eq!(of("q8_0.split")["bytes"], 2560 * 4096 * 34 / 32);
    assert_eq!(of("q8_0.split")["operations"], 2 * 8 * 2560 * 4096u64);
    if document["cublaslt"].is_null() {
        assert!(
            document["cublaslt_error"].as_str().is_some_and(|why| why.contains("libcublasLt")),
            "{document}"
        );
    }
    let svg = std::fs::read_to_string(svg).expect("a plot");
    assert_eq!(svg.matches("<title>").count(), cases.iter().filter(|c| c["error"].is_null()).count());
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let machine = Machine::new();
    machine.run(&["bench", "--measure", "kernels"]).fails(2, &["needs a card: give --device cuda:0"]);
    machine
        .run(&["bench", "--measure", "load", "--device", "cuda:0"])
        .fails(2, &["give the container as FILE"]);
    machine
        .run(&["bench", text(small()), "--only", "i8"])
        .fails(2, &["--only means nothing for --measure text"]);
    machine
        .run(&["bench", "--measure", "kernels", "--device", "cuda:0,1"])
        .fails(2, &["on one card: give --device cuda:N"]);
    if !kernels() {
        return;
    }
    measure(&idle(), &["--only", "no such layout"]).fails(2, &["nothing is called \"no such layout\""]);
    measure(&idle(), &[text(split())]).fails(5, &["one card"]);
    // Kernels that are not computed fail where they are not skipped, and are named.
    measure(&Machine::new(), &[text(small())])
        .fails(1, &["launching gantry_noise: CUDA_ERROR_NOT_SUPPORTED"]);
}

#[test]
fn a_plot_takes_the_place_of_nothing_but_a_plot() {
    if !kernels() {
        return;
    }
    let machine = idle();
    let model = machine.file("model.gantry");
    std::fs::copy(small(), &model).expect("a copy");
    let before = std::fs::read(&model).expect("the container");
    measure(&machine, &[text(&model), "--only", "n=1 Rope", "--svg", text(&model)])
        .fails(2, &["--svg", "itself"]);
    assert_eq!(std::fs::read(&model).expect("the container"), before);
    let pipe = machine.file("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    measure(&machine, &["--only", "2560 n=8", "--svg", text(&pipe)]).fails(2, &["no regular file", "--svg"]);
    assert!(!pipe.is_file() && pipe.exists());
    let nowhere = machine.file("none").join("plot.svg");
    measure(&machine, &["--only", "2560 n=8", "--svg", text(&nowhere)])
        .fails(2, &["cannot write to the folder"]);
    measure(&machine, &["--only", "2560 n=8", "-r", "18446744073709551615"]).fails(2, &["-r"]);
}

#[test]
fn a_profile_shows_kernels() {
    if !kernels() {
        return;
    }
    let bench = [text(small()), "-p", "8", "-n", "3", "-r", "1", "--profile", "--device", "cuda:0"];
    let seen = idle().run(&[&["bench"], bench.as_slice()].concat());
    let words = [
        "prompt by part",
        "decode by part",
        "prompt by kernel",
        "decode by kernel",
        "a kernel that does nothing takes",
        "decode_i8_block32_8",
        " %",
    ];
    seen.shows(&words);
    let seen = idle().run(&[&["bench"], bench.as_slice(), &["--json"]].concat());
    seen.shows(&[]);
    let document: Value = serde_json::from_str(&seen.out).expect("one JSON document");
    let kernels = document["kernels"]["decode"].as_array().expect("kernels");
    let embed = kernels.iter().find(|k| k["kernel"].as_str().is_some_and(|k| k.starts_with("gantry_embed")));
    assert_eq!(embed.expect("tokens are looked up")["calls"], 3, "{document}");
}
