//! Kernels by step and layout: portable ones for every family of cards, and what a family has beside them.

mod cuda;
mod cuda_e8;
mod hip;
mod level_zero;

use super::driver::{CardInfo, Family};
use super::kernels::Group;
use crate::backend::KvType;
use crate::model::program::StepKind;
use gantry_formats::block::GgmlType;
use gantry_formats::layout::{Layout, Scales};

pub(super) use cuda::{share, takes_layer};

/// A kernel that multiplies, and how many rows of weights and tokens (of experts: pairs) a group of it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Product {
    pub(super) kernel: &'static str,
    pub(super) rows: usize,
    pub(super) tokens: usize,
    /// What a group has, where it is not as the kernel was compiled.
    pub(super) group: Group,
    /// Groups that share all rows, where a group has no rows of its own.
    pub(super) spread: Option<usize>,
    /// Whether a launch takes two products of one input.
    pub(super) pairs: bool,
    /// Whether groups of experts share rows as [`share`] says, which depends on how many are launched.
    pub(super) shares: bool,
    /// Whether groups stay on their multiprocessors, one on each, and are told by maps what they copy by tiles.
    pub(super) resident: bool,
}

impl Product {
    /// One whose groups have rows and tokens of their own, and are as the kernel was compiled.
    pub(super) fn plain(kernel: &'static str, rows: usize, tokens: usize) -> Self {
        let (group, spread) = (Group::default(), None);
        Self { kernel, rows, tokens, group, spread, pairs: false, shares: false, resident: false }
    }
}

/// Multiprocessors of a card.
pub(super) fn processors(card: &CardInfo) -> usize {
    (card.processors as usize).max(1)
}

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

/// A portable one, whose groups have 16 rows of weights and 8 tokens.
fn portable_product(kernel: &'static str) -> Product {
    Product::plain(kernel, 16, 8)
}

/// The kernel that multiplies `n` tokens by `rows` rows of a matrix; of NVIDIA's see [`cuda::gemm`]. Those of other
/// families give a token the same bits for any number of them.
pub(super) fn gemm(layout: Layout, shape: [usize; 2], n: usize, card: &CardInfo) -> Option<Product> {
    let [portable, _] = product(layout)?;
    match card.at.family {
        Family::Cuda => cuda::gemm(layout, shape, n, card),
        Family::Hip => hip::gemm(layout, shape[1], n, card).or_else(|| Some(portable_product(portable))),
        Family::LevelZero => {
            level_zero::gemm(layout, shape[1], n, card).or_else(|| Some(portable_product(portable)))
        }
    }
}

/// The kernel that multiplies `n` tokens by matrices of experts; `tokens` are the pairs of a tile.
pub(super) fn experts(layout: Layout, cols: usize, n: usize, card: &CardInfo) -> Option<Product> {
    let [_, portable] = product(layout)?;
    match card.at.family {
        Family::Cuda => cuda::experts(layout, cols, n, card),
        Family::Hip | Family::LevelZero => Some(portable_product(portable)),
    }
}

/// Kernels of attention with matrix instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attend {
    /// For tokens by themselves, and query heads of a group of it.
    pub(super) few: &'static str,
    pub(super) heads: usize,
    /// For many tokens of a sequence, and groups that share a head's values.
    pub(super) tiles: &'static str,
    pub(super) parts: usize,
}

/// Those for keys and values of `len` each, kept as `kind`, where `grouped` query heads share them; `None` where portable ones
/// take them.
pub(super) fn attend(family: Family, kind: KvType, len: usize, grouped: usize) -> Option<Attend> {
    match family {
        Family::Cuda => cuda::attend(kind, len, grouped),
        Family::Hip | Family::LevelZero => None,
    }
}

/// The kernel that reads hyper-connections' gates from `q8_0.split`, and tokens of a group of it.
pub(super) fn hyper_up(family: Family) -> (&'static str, usize) {
    match family {
        Family::Cuda => ("gantry_mma_hyper_up", 8),
        Family::Hip | Family::LevelZero => ("gantry_hyper_up_q8_0_split", 4),
    }
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
        let mut launched = words("src/backend/device", &["rs"]);
        for folder in ["measure", "registry"] {
            launched.extend(words(&format!("src/backend/device/{folder}"), &["rs"]));
        }
        let launched = launched.iter().filter(|w| !crates.contains(&w.as_str()));
        let mut written = words("../kernels/device", &["c", "h"]);
        written.extend(words("../kernels/cuda", &["cu"]));
        written.extend(words("../kernels/hip", &["c"]));
        written.extend(words("../kernels/opencl", &["cl"]));
        let missing: Vec<_> = launched.clone().filter(|name| !written.contains(*name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(launched.count() > 30);
    }

    #[test]
    fn what_is_promised_at_packing_is_registered() {
        for layout in Layout::all() {
            let promised = TARGETS.iter().filter(|t| t.family() != "cpu").any(|t| t.takes(layout));
            let taken = takes(StepKind::Gemm, layout) && takes(StepKind::Experts, layout);
            assert!(!promised || taken, "{layout}");
        }
    }
}
