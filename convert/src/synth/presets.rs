//! Built-in specifications.

use super::spec::Spec;
use crate::failure::Refusal;
use gantry_formats::exit::Exit;
use gantry_formats::message::did_you_mean;

/// Name and text, small ones first.
pub(super) const PRESETS: [(&str, &str); 16] = [
    ("llama-tiny", include_str!("presets/llama-tiny.toml")),
    ("llama-moe-tiny", include_str!("presets/llama-moe-tiny.toml")),
    ("qwen2-tiny", include_str!("presets/qwen2-tiny.toml")),
    ("qwen3-tiny", include_str!("presets/qwen3-tiny.toml")),
    ("qwen3moe-tiny", include_str!("presets/qwen3moe-tiny.toml")),
    ("olmoe-tiny", include_str!("presets/olmoe-tiny.toml")),
    ("qwen3next-tiny", include_str!("presets/qwen3next-tiny.toml")),
    ("qwen4exp-tiny", include_str!("presets/qwen4exp-tiny.toml")),
    ("qwen4exp-mtp-tiny", include_str!("presets/qwen4exp-mtp-tiny.toml")),
    ("deepseek4-tiny", include_str!("presets/deepseek4-tiny.toml")),
    ("glm-dsa-tiny", include_str!("presets/glm-dsa-tiny.toml")),
    ("qwen4exp-100m", include_str!("presets/qwen4exp-100m.toml")),
    ("qwen4exp-1gb", include_str!("presets/qwen4exp-1gb.toml")),
    ("qwen3moe-1b", include_str!("presets/qwen3moe-1b.toml")),
    ("qwen4exp-2b", include_str!("presets/qwen4exp-2b.toml")),
    ("qwen4exp-real-4l", include_str!("presets/qwen4exp-real-4l.toml")),
];

/// The text of a preset.
pub(super) fn text(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// The error for a name that is none.
pub(super) fn unknown(name: &str) -> anyhow::Error {
    let hint = did_you_mean(name, PRESETS.iter().map(|(name, _)| *name));
    let text =
        format!("{name}: there is no such preset; gantry synth --list shows them; files end in .toml{hint}");
    Refusal::new(Exit::Usage, text)
}

/// All of them, for people.
pub(super) fn list() -> String {
    let about = |name, text| Spec::parse(name, text).map_or_else(|e| e, |spec| spec.about);
    PRESETS.iter().map(|(name, text)| format!("{name:18} {}\n", about(name, text))).collect()
}
