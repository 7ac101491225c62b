//! Every recipe, on every target, through both programs: the CPU reads what was packed as the definitions say.

use gantry_tests::{
    convert, fixtures, golden, golden_tokens, json, logits, nmse, read_f32, run_ok, same_bits,
};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

struct Room {
    folder: tempfile::TempDir,
    tokens: Vec<u32>,
}

impl Room {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a scratch folder"), tokens: golden_tokens(64, 512) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn convert(&self, source: &Path, name: &str, options: &[&str]) -> PathBuf {
        let out = self.path(name);
        convert(source, &out, options);
        out
    }

    fn logits(&self, container: &Path, batch: &str) -> Vec<f32> {
        logits(container, &self.tokens, &["--batch", batch])
    }

    /// The same weights as plain GGUF blocks or floats, and those split or carried as they are.
    fn unpacked(&self, container: &Path, options: &[&str]) -> PathBuf {
        let gguf = self.path("back.gguf");
        let args =
            ["export".as_ref(), container.as_os_str(), "-o".as_ref(), gguf.as_os_str(), "--force".as_ref()];
        run_ok("gantry", &args);
        self.convert(&gguf, "unpacked.gantry", options)
    }
}

fn source(arch: &str) -> PathBuf {
    fixtures("tiny").join(format!("tiny-{arch}-F32.gguf"))
}

#[test]
fn a_container_for_any_target_gives_the_bits_of_the_cpus_own() {
    let room = Room::new();
    for recipe in ["balanced", "w8a8", "compact"] {
        let own = room.convert(&source("llama-moe"), "own.gantry", &["--recipe", recipe]);
        let want = room.logits(&own, "64");
        assert!(want.iter().all(|v| v.is_finite()));
        assert!(same_bits(&want, &room.logits(&own, "1")), "{recipe}: batch split");
        // One for each order that there is.
        for target in
            ["cuda:sm_90", "hip:gfx928", "hip:gfx942", "hip:gfx1100", "hip:gfx1201", "level-zero:dg2"]
        {
            let options = ["--recipe", recipe, "--target", target];
            let other = room.convert(&source("llama-moe"), "other.gantry", &options);
            assert!(same_bits(&want, &room.logits(&other, "64")), "{recipe} for {target}");
        }
    }
}

#[test]
fn int8_per_32_gives_the_bits_of_its_q8_0_blocks() {
    // Where the arithmetic is integer, the unpacked reference and the packed kernels agree bit for bit.
    let room = Room::new();
    for arch in ["llama", "llama-moe"] {
        let packed = room.convert(&source(arch), "packed.gantry", &["--recipe", "balanced"]);
        let split = room.unpacked(&packed, &["--recipe", "q8"]);
        assert!(same_bits(&room.logits(&packed, "64"), &room.logits(&split, "64")), "{arch}");
    }
}

#[test]
fn what_kernels_compute_is_what_the_decoder_says() {
    // The decoder's values as f32 weights, against kernels that round activations to 8 bits.
    let room = Room::new();
    // A recipe without a rule carries everything as it is.
    let keep = room.path("keep.toml");
    std::fs::write(&keep, "").expect("space");
    let keep = keep.to_str().expect("UTF-8");
    for (what, options) in [
        ("w8a8", &["--recipe", "w8a8"][..]),
        ("rotated E8", &["--recipe", "compact"]),
        ("E8 as blocks", &["--set", "ffn_*_exps=e8.block98", "--set", "attn_q=e8.block98:rotated"]),
    ] {
        let packed = room.convert(&source("llama-moe"), "packed.gantry", options);
        let got = room.logits(&packed, "64");
        // IQ3_XXS is carried as GGUF blocks, read by a decoder of its own.
        let plain = room.unpacked(&packed, &["--recipe", keep]);
        let want = room.logits(&plain, "64");
        let error = nmse(&got, &want);
        println!("{what}: NMSE {error:.2e} against its own decoded weights");
        assert!(error < 5e-3, "{what}: {error}");
    }
}

#[test]
fn recipes_cost_what_they_should() {
    let room = Room::new();
    let exact = read_f32(&golden().join("llama-moe-F32-prefill.f32"));
    let mut before = 0.0;
    // In order of bits per weight; random weights are the worst case for three bits.
    for (recipe, bound) in [("q8", 4e-3), ("w8a8", 8e-3), ("compact", 0.15)] {
        let container = room.convert(&source("llama-moe"), "r.gantry", &["--recipe", recipe]);
        let error = nmse(&room.logits(&container, "64"), &exact);
        println!("{recipe}: NMSE {error:.2e} against llama.cpp's F32");
        assert!(error > before && error < bound, "{recipe}: {error}");
        before = error;
    }
}

#[test]
fn hyper_connections_run_from_q8_0_planes() {
    let room = Room::new();
    let source = fixtures("tiny").join("tiny-qwen4exp-BF16.gguf");
    let exact = room.logits(&room.convert(&source, "exact.gantry", &["--recipe", "lossless"]), "64");
    let balanced = room.convert(&source, "balanced.gantry", &[]);
    let view = ["--tensors", "--filter", "*hc_*", "--json"].map(OsStr::new);
    let found = json("gantry", &[&["inspect".as_ref(), balanced.as_os_str()], &view[..]].concat());
    let narrow = |t: &&serde_json::Value| {
        let name = t["name"].as_str().expect("a name");
        name.ends_with("_down.weight") || name.ends_with("_up.weight")
    };
    let hyper: Vec<_> = found["tensors"].as_array().expect("tensors").iter().filter(narrow).collect();
    // Before attention and feed-forward of 4 layers, and before the head.
    assert_eq!(hyper.len(), 2 * (2 * 4 + 1), "{hyper:?}");
    assert!(hyper.iter().all(|t| t["layout"] == "q8_0.split"), "{hyper:?}");

    let got = room.logits(&balanced, "64");
    assert!(same_bits(&got, &room.logits(&balanced, "1")), "batch split");
    let error = nmse(&got, &exact);
    let golden = |name: &str| read_f32(&golden().join(format!("qwen4exp-{name}-prefill.f32")));
    let bound = 3.0 * nmse(&golden("Q8_0"), &golden("F32"));
    println!("balanced tiny-qwen4exp: NMSE {error:.2e} against BF16, bound {bound:.2e}");
    assert!(error > 0.0 && error < bound, "{error:e} is not below {bound:e}");
}
