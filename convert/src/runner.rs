//! `gantry run …`: hands over to `gantry-run`, which lies beside this program.

use crate::failure::Refusal;
use anyhow::Context;
use gantry_formats::exit::Exit;
use serde_json::Value;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Path of `gantry-run` beside this program.
pub(crate) fn gantry_run() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("where is this program?")?;
    Ok(own.with_file_name("gantry-run"))
}

/// The target of this machine's first card that takes any, the newest that it takes; `cpu` where there is none.
pub(crate) fn target_here() -> anyhow::Result<String> {
    let path = gantry_run()?;
    let done = Command::new(&path).args(["devices", "--json"]).output();
    let done =
        done.with_context(|| format!("--target auto asks {}, which does not start", path.display()))?;
    let document: Value = serde_json::from_slice(&done.stdout)
        .with_context(|| format!("{} devices --json is no JSON document", path.display()))?;
    Ok(first_target(&document).unwrap_or("cpu").into())
}

/// The last target of the first device that lists some.
fn first_target(document: &Value) -> Option<&str> {
    let devices = document["devices"].as_array()?;
    devices.iter().find_map(|device| device["targets"].as_array()?.last()?.as_str())
}

/// Replaces this process by `gantry-run` with `args`.
pub(crate) fn run(args: &[OsString]) -> anyhow::Result<()> {
    let path = gantry_run()?;
    if !path.exists() {
        let message =
            format!("{} is missing; build it with `cargo build --release --bin gantry-run`", path.display());
        return Err(Refusal::new(Exit::Other, message));
    }
    let error = Command::new(&path).args(args).exec();
    Err(error).with_context(|| format!("cannot start {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_newest_target_of_the_first_card_is_taken() {
        let cpu = json!({ "device": "cpu" });
        let old = json!({ "device": "cuda:0", "targets": [] });
        let card = json!({ "device": "cuda:1", "targets": ["cuda:sm_80", "cuda:sm_90"] });
        let other = json!({ "device": "hip:0", "targets": ["hip:gfx942"] });
        let of = |devices: &[&Value]| json!({ "devices": devices });
        assert_eq!(first_target(&of(&[&cpu])), None);
        assert_eq!(first_target(&of(&[&cpu, &old, &card, &other])), Some("cuda:sm_90"));
        assert_eq!(first_target(&of(&[&cpu, &other])), Some("hip:gfx942"));
        assert_eq!(first_target(&json!({})), None);
    }
}
