//! Kernels by step and layout.

use crate::model::program::StepKind;
use gantry_formats::block::GgmlType;
use gantry_formats::layout::{Layout, Scales};

/// Whether there is a kernel for a step that reads such weights.
pub(super) fn takes(step: StepKind, layout: Layout) -> bool {
    match step {
        StepKind::Embed => embed(layout).is_some(),
        StepKind::Gemm | StepKind::Experts => product(layout).is_some(),
        // Read by the host, once or by row.
        StepKind::Vector | StepKind::Rows => {
            matches!(
                layout,
                Layout::Raw(GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
                    | Layout::Block(_)
                    | Layout::Q8_0Split { .. }
            )
        }
        StepKind::Ids => layout == Layout::Raw(GgmlType::I32),
    }
}

/// Kernels that look rows up.
pub(super) fn embed(layout: Layout) -> Option<&'static str> {
    Some(match layout {
        Layout::Raw(GgmlType::F32) => "gantry_embed_f32",
        Layout::Raw(GgmlType::F16) => "gantry_embed_f16",
        Layout::Raw(GgmlType::BF16) => "gantry_embed_bf16",
        Layout::Block(GgmlType::Q8_0) => "gantry_embed_q8_0",
        Layout::Q8_0Split { .. } => "gantry_embed_q8_0_split",
        _ => return None,
    })
}

/// Kernels that multiply: by one matrix, and by those of experts.
pub(super) fn product(layout: Layout) -> Option<[&'static str; 2]> {
    Some(match layout {
        Layout::Raw(GgmlType::F32) => ["gantry_gemm_f32", "gantry_experts_f32"],
        Layout::Raw(GgmlType::F16) => ["gantry_gemm_f16", "gantry_experts_f16"],
        Layout::Raw(GgmlType::BF16) => ["gantry_gemm_bf16", "gantry_experts_bf16"],
        Layout::Block(GgmlType::Q8_0) => ["gantry_gemm_q8_0", "gantry_experts_q8_0"],
        Layout::Block(GgmlType::Q4_0) => ["gantry_gemm_q4_0", "gantry_experts_q4_0"],
        Layout::Q8_0Split { .. } => ["gantry_gemm_q8_0_split", "gantry_experts_q8_0_split"],
        Layout::I8 { scales: Scales::Block32, .. } => ["gantry_gemm_i8_block32", "gantry_experts_i8_block32"],
        Layout::I8 { scales: Scales::Channel, .. } => ["gantry_gemm_i8_channel", "gantry_experts_i8_channel"],
        Layout::E8Planar { .. } => ["gantry_gemm_e8_planar", "gantry_experts_e8_planar"],
        Layout::E8Block98 { .. } => ["gantry_gemm_e8_block98", "gantry_experts_e8_block98"],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_formats::target::TARGETS;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// All words of the files of a folder that begin like kernels.
    fn words(folder: &str, ends: &[&str]) -> BTreeSet<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let mut words = BTreeSet::new();
        for file in std::fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            if ends.iter().any(|end| path.extension().is_some_and(|e| e == *end)) {
                let text = std::fs::read_to_string(&path).unwrap();
                let all = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                words.extend(all.filter(|w| w.starts_with("gantry_")).map(String::from));
            }
        }
        words
    }

    #[test]
    fn every_kernel_that_is_launched_has_a_source() {
        let crates = ["gantry_formats", "gantry_kernels", "gantry_"];
        let mut launched = words("src/backend/cuda", &["rs"]);
        launched.extend(words("src/backend/cuda/measure", &["rs"]));
        let launched = launched.iter().filter(|w| !crates.contains(&w.as_str()));
        let mut written = words("../kernels/device", &["c", "h"]);
        written.extend(words("../kernels/cuda", &["cu"]));
        let missing: Vec<_> = launched.clone().filter(|name| !written.contains(*name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(launched.count() > 30);
    }

    #[test]
    fn what_is_promised_at_packing_is_registered() {
        for layout in Layout::all() {
            let promised = TARGETS.iter().filter(|t| t.family() == "cuda").any(|t| t.takes(layout));
            let taken = takes(StepKind::Gemm, layout) && takes(StepKind::Experts, layout);
            assert!(!promised || taken, "{layout}");
        }
    }
}
