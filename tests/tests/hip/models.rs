//! Containers that these tests load, made once.

use gantry_tests::{bard_converted, synthesised};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const TARGET: &str = "hip:gfx942";

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn packed(name: &str, preset: &[&str], options: &[&str]) -> PathBuf {
    synthesised(folder(), name, preset, options)
}

/// A small dense model, for many runs.
pub(crate) fn small() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| packed("hip-small", &["llama-tiny"], &["--target", TARGET]))
}

/// Experts on two cards, each with a file of its own.
pub(crate) fn split() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let two = ["--target", TARGET, "--cards", "2", "--split-cards"];
    MADE.get_or_init(|| packed("hip-split", &["qwen3moe-tiny"], &two))
}

/// The same on one card.
pub(crate) fn experts() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| packed("hip-experts", &["qwen3moe-tiny"], &["--target", TARGET]))
}

/// The small one for another target.
pub(crate) fn other(target: &str) -> PathBuf {
    packed(&format!("hip-other-{}", target.replace(':', "-")), &["llama-tiny"], &["--target", target])
}

/// Bard with its weights as they are.
pub(crate) fn exact() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| of_bard("hip-bard-exact", &["--recipe", "lossless", "--target", TARGET]))
}

/// Bard as a recipe has it for a generation of cards.
pub(crate) fn quantized(recipe: &str, generation: &str) -> PathBuf {
    let target = format!("hip:{generation}");
    let name = format!("hip-bard-{recipe}-{generation}");
    of_bard(&name, &["--recipe", recipe, "--target", &target])
}

fn of_bard(name: &str, options: &[&str]) -> PathBuf {
    bard_converted(folder(), name, options)
}
