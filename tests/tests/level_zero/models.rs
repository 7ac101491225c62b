//! Containers that these tests load, made once.

use gantry_tests::{bard_converted, synthesised};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const TARGET: &str = "level-zero:bmg";

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn packed(name: &str, preset: &[&str], options: &[&str]) -> PathBuf {
    synthesised(folder(), name, preset, options)
}

/// A small dense model, for many runs.
pub(crate) fn small() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| packed("ze-small", &["llama-tiny"], &["--target", TARGET]))
}

/// Experts on two cards, each with a file of its own.
pub(crate) fn split() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let two = ["--target", TARGET, "--cards", "2", "--split-cards"];
    MADE.get_or_init(|| packed("ze-split", &["qwen3moe-tiny"], &two))
}

/// The same on one card.
pub(crate) fn experts() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| packed("ze-experts", &["qwen3moe-tiny"], &["--target", TARGET]))
}

/// The small one for another target.
pub(crate) fn other(target: &str) -> PathBuf {
    packed(&format!("ze-other-{}", target.replace(':', "-")), &["llama-tiny"], &["--target", target])
}

/// Bard with its weights as they are, and as the target's recipe has them.
pub(crate) fn exact() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| of_bard("ze-bard-exact", &["--recipe", "lossless", "--target", TARGET]))
}

pub(crate) fn quantized() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| of_bard("ze-bard", &["--target", TARGET]))
}

fn of_bard(name: &str, options: &[&str]) -> PathBuf {
    bard_converted(folder(), name, options)
}
