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
