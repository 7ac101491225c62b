//! Every recipe, on every target, through both programs: the CPU reads what was packed as the definitions say.

use gantry_tests::{fixtures, golden, golden_tokens, nmse, read_f32, run_ok};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

struct Room {
    folder: tempfile::TempDir,
    tokens: String,
}

impl Room {
    fn new() -> Self {
        let tokens: Vec<String> = golden_tokens().iter().map(u32::to_string).collect();
        Self { folder: tempfile::tempdir().expect("a scratch folder"), tokens: tokens.join(",") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn convert(&self, source: &Path, name: &str, options: &[&str]) -> PathBuf {
        let out = self.path(name);
        let mut args = vec!["convert".as_ref(), source.as_os_str(), "-o".as_ref(), out.as_os_str()];
        args.extend(options.iter().map(OsStr::new));
        args.push("--force".as_ref());
        run_ok("gantry", &args);
        out
    }

    fn logits(&self, container: &Path, batch: &str) -> Vec<f32> {
        let out = self.path("logits.f32");
        let options = ["--force", "--tokens", &self.tokens, "--batch", batch, "--out"].map(OsStr::new);
        let head: [&OsStr; 2] = ["logits".as_ref(), container.as_os_str()];
        let args: Vec<&OsStr> = head.into_iter().chain(options).chain([out.as_os_str()]).collect();
        run_ok("gantry-run", &args);
        read_f32(&out)
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

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.iter().map(|v| v.to_bits()).eq(b.iter().map(|v| v.to_bits()))
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
