//! A container with 30,000 tensors.

use crate::source::*;
use gantry_formats::block::GgmlType;
use gantry_formats::gguf::{GgufWriter, Value};
use std::path::Path;
use std::time::{Duration, Instant};

/// Opening and inspecting takes less than 100 ms in an optimised build; this build may be slower, and the machine
/// busy, so that the test only holds the kind of growth: nothing may grow with the square of the tensors.
const LIMIT: Duration = Duration::from_secs(2);

#[test]
fn thirty_thousand_tensors_open_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (gguf, container) = (at("m.gguf"), at("m.gantry"));
    let roles = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let mut tensors = Vec::new();
    for layer in 0..3000 {
        let mut add = |role: &str, dims: &[u64], ty| {
            tensors.push(tensor(format!("blk.{layer}.{role}.weight"), dims, ty));
        };
        roles.iter().for_each(|role| add(role, &[32, 2], GgmlType::BF16));
        ["attn_norm", "ffn_norm", "x_norm"].iter().for_each(|role| add(role, &[32], GgmlType::F32));
    }
    let architecture = |w: &mut GgufWriter| {
        w.set("general.architecture", Value::Str(b"many"));
    };
    write(Path::new(&gguf), architecture, &tensors, 3);
    succeed(&["convert", &gguf, "-o", &container, "--allow-incomplete", "--no-fuse"]);
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let start = Instant::now();
        let text = succeed(&["inspect", &container]);
        best = best.min(start.elapsed());
        assert!(text.contains("0-2999 (3000 of"), "{text}");
    }
    assert!(best < LIMIT, "{best:?}");
    succeed(&["verify", &container, "--against", &gguf]);
}
