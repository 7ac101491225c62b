//! Containers that these tests load, made once.

use super::card::Machine;
use gantry_formats::container::Container;
use gantry_tests::synthesised;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Whether `gantry-run` has CUDA kernels; else says that it has none.
pub(crate) fn kernels() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = *FOUND.get_or_init(|| {
        let seen = Machine::new().load(dense(), "cuda:0", &[]);
        !seen.err.contains("built without CUDA kernels")
    });
    assert!(found || std::env::var_os("GANTRY_REQUIRE_NVCC").is_none(), "built without CUDA kernels");
    if !found {
        println!("not tested: gantry-run was built without CUDA kernels, for which nvcc is needed");
    }
    found
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn packed(name: &str, preset: &[&str], options: &[&str]) -> PathBuf {
    synthesised(folder(), name, preset, options)
}

/// A dense model with blobs of several MiB, for the card of the stand-in.
pub(crate) fn dense() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let wide = ["llama-tiny", "--set", "vocab_size=12288"];
    MADE.get_or_init(|| packed("cuda-dense", &wide, &["--target", "cuda:sm_90"]))
}

/// A smaller one, for many runs.
pub(crate) fn small() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| packed("cuda-small", &["llama-tiny"], &["--target", "cuda:sm_90"]))
}

/// Experts on two cards, each with a file of its own.
pub(crate) fn split() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let two = ["--target", "cuda:sm_90", "--cards", "2", "--split-cards"];
    MADE.get_or_init(|| packed("cuda-split", &["qwen3moe-tiny"], &two))
}

/// One with an n-gram table in its second layer and a block that drafts, in which nothing is selected or compressed.
pub(crate) fn drafting() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let preset = [
        "qwen4exp-mtp-tiny",
        "--set",
        "ple.layers=[1]",
        "--set",
        "attention.compress_ratios=[0, 0, 0, 0, 0, 0]",
    ];
    MADE.get_or_init(|| packed("cuda-drafting", &preset, &["--target", "cuda:sm_90"]))
}

/// Experts on one card.
pub(crate) fn experts() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| packed("cuda-experts", &["qwen3moe-tiny"], &["--target", "cuda:sm_90"]))
}

/// The small one for another target.
pub(crate) fn other(target: &str) -> PathBuf {
    packed(&format!("cuda-other-{}", target.replace(':', "-")), &["llama-tiny"], &["--target", target])
}

/// A place in a container.
pub(crate) struct Spot {
    /// The blob, as errors name it, or words for what else it is.
    pub(crate) name: String,
    /// Which byte of its card's segment.
    pub(crate) at: u64,
    /// Which byte of the container's file.
    pub(crate) in_file: u64,
}

/// The second byte of the second MiB of the largest blob.
pub(crate) fn in_large_blob(container: &Container) -> Spot {
    let found = (0..container.table().blobs().len()).max_by_key(|&i| container.table().blobs()[i].bytes);
    let blob = found.expect("blobs");
    assert!(container.table().blobs()[blob].bytes > 2 << 20, "no blob is of three MiB");
    in_blob(container, blob, (1 << 20) + 1)
}

/// The last byte of the smallest blob.
pub(crate) fn in_small_blob(container: &Container) -> Spot {
    let found = (0..container.table().blobs().len()).min_by_key(|&i| container.table().blobs()[i].bytes);
    let blob = found.expect("blobs");
    in_blob(container, blob, container.table().blobs()[blob].bytes - 1)
}

fn in_blob(container: &Container, blob: usize, byte: u64) -> Spot {
    let at = container.table().blobs()[blob].offset + byte;
    spot(container, container.blob_name(blob), at)
}

/// Between two blobs.
pub(crate) fn in_padding(container: &Container) -> Spot {
    let gaps = container.segment_padding(0);
    let gap: &Range<u64> = gaps.iter().find(|gap| !gap.is_empty()).expect("some padding");
    spot(container, "padding bytes".into(), gap.start)
}

fn spot(container: &Container, name: String, at: u64) -> Spot {
    let in_file = container.card(0).expect("the card's file").offset + at;
    Spot { name, at, in_file }
}
