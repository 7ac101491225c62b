//! Kernels by step and layout.

use crate::model::program::StepKind;
use gantry_formats::block::GgmlType;
use gantry_formats::layout::{Layout, Order, Scales};

/// A kernel that multiplies, and how many rows of weights and tokens (of experts: pairs) a group of it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Product {
    pub(super) kernel: &'static str,
    pub(super) rows: usize,
    pub(super) tokens: usize,
    /// Threads of a group, where they are fewer than all.
    pub(super) threads: Option<usize>,
    /// Whether a launch takes two products of one input.
    pub(super) pairs: bool,
    /// Whether groups share all rows, one on each multiprocessor.
    pub(super) spread: bool,
}

/// Most chunks that kernels with matrix instructions cut a row into, a warp for each: `CHUNKS` of `kernels/cuda/mma.cuh`.
const CHUNKS: usize = 16;

/// Threads for the chunks of a row of `cols` columns, as `chunk_blocks` there cuts it.
fn chunk_threads(cols: usize) -> usize {
    let blocks = cols.div_ceil(32);
    let chunk = blocks.div_ceil(4 * CHUNKS) * 4;
    32 * blocks.div_ceil(chunk.max(1)).max(1)
}

/// Threads of experts in BF16: a warp for each chunk of a row, cut as `kernels/cuda/experts_bf16.cu` cuts it.
fn bf16_threads(cols: usize) -> usize {
    let groups = cols.div_ceil(64).max(1);
    32 * groups.div_ceil(groups.div_ceil(CHUNKS))
}

/// Most tokens for which weights go straight into registers; for more of them they are shared by a tile of tokens.
const DECODED: usize = 128;
/// Most tokens for which weights in BF16 do so: they are read once for every 16 of them.
const DECODED_BF16: usize = super::plan::FEW;
/// From how many weights on such kernels were seen to do better than portable ones: what they cost at least, whatever the size, is
/// the start of a group on each multiprocessor with all of its shared memory.
const LARGE: usize = 2560 * 4096;
/// From how many rows on groups of fewer warps, or of more rows, do better.
const MANY: usize = 4224;
/// Most tokens of which experts are multiplied in small tiles: there are few of each expert then.
const UNGROUPED: usize = super::plan::FEW;
/// The same of experts in BF16.
const UNGROUPED_BF16: usize = 64;

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

/// The layouts that there are matrix instructions for, by what their kernels are called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tiled {
    Q8,
    Block32,
    ChannelA32,
    ChannelA64,
    E8,
    Bf16,
}

/// What takes a matrix of `cols` columns to matrix instructions; other orders, and columns that do not fill an instruction,
/// have none.
fn tiled(layout: Layout, cols: usize) -> Option<Tiled> {
    match layout {
        Layout::Q8_0Split { .. } => Some(Tiled::Q8),
        Layout::E8Planar { .. } => Some(Tiled::E8),
        Layout::Raw(GgmlType::BF16) if cols.is_multiple_of(8) => Some(Tiled::Bf16),
        Layout::I8 { order: Order::NvA32, scales: Scales::Block32, .. } => Some(Tiled::Block32),
        Layout::I8 { order: Order::NvA32, scales: Scales::Channel, .. } if cols.is_multiple_of(32) => {
            Some(Tiled::ChannelA32)
        }
        Layout::I8 { order: Order::NvA64, scales: Scales::Channel, .. } if cols.is_multiple_of(64) => {
            Some(Tiled::ChannelA64)
        }
        _ => None,
    }
}

/// The kernel that multiplies `n` tokens by `rows` rows of a matrix. Those of int8 in NVIDIA's orders give the same bits, whichever
/// it is; with `q8_0.split` and E8 more than [`DECODED`] tokens are added in another order than fewer, with BF16 more than
/// [`DECODED_BF16`].
pub(super) fn gemm(layout: Layout, [rows, cols]: [usize; 2], n: usize) -> Option<Product> {
    let [portable, _] = product(layout)?;
    let many = rows > MANY;
    let (kernel, rows, tokens) = match tiled(layout, cols) {
        Some(Tiled::Block32) if n <= 8 && many => ("gantry_decode_i8_block32_8_many", 16, 8),
        Some(Tiled::Block32) if n <= 8 => ("gantry_decode_i8_block32_8", 16, 8),
        Some(Tiled::Block32) if n <= 16 && many => ("gantry_decode_i8_block32_16_many", 32, 16),
        Some(Tiled::Block32) if n <= 16 => ("gantry_decode_i8_block32_16", 16, 16),
        Some(Tiled::Block32) if n <= DECODED => ("gantry_decode_i8_block32_32", 16, 32),
        Some(Tiled::Block32) => ("gantry_tiles_i8_block32", 128, 64),
        Some(Tiled::ChannelA32 | Tiled::ChannelA64) if n <= 8 && many => {
            ("gantry_decode_i8_channel_8_many", 16, 8)
        }
        Some(Tiled::ChannelA32 | Tiled::ChannelA64) if n <= 8 => ("gantry_decode_i8_channel_8", 16, 8),
        Some(Tiled::ChannelA32 | Tiled::ChannelA64) if n <= 16 => ("gantry_decode_i8_channel_16", 16, 16),
        Some(Tiled::ChannelA32 | Tiled::ChannelA64) if n <= DECODED && many => {
            ("gantry_decode_i8_channel_32_many", 32, 32)
        }
        Some(Tiled::ChannelA32 | Tiled::ChannelA64) if n <= DECODED => {
            ("gantry_decode_i8_channel_32", 16, 32)
        }
        Some(Tiled::ChannelA32) => ("gantry_tiles_i8_channel_a32", 128, 128),
        Some(Tiled::ChannelA64) => ("gantry_tiles_i8_channel_a64", 128, 128),
        Some(Tiled::Q8) if n > DECODED => ("gantry_tiles_q8_0_split", 128, 64),
        Some(Tiled::E8) if n > DECODED => ("gantry_tiles_e8_planar", 128, 64),
        Some(Tiled::Bf16) if n > DECODED_BF16 => ("gantry_tiles_bf16", 128, 64),
        Some(Tiled::Bf16) if rows * cols < LARGE => (portable, 16, 8),
        Some(Tiled::Bf16) if n <= 4 => ("gantry_decode_bf16_4", 16, 8),
        Some(Tiled::Bf16) if n <= 8 => ("gantry_decode_bf16_8", 16, 8),
        Some(Tiled::Bf16) => ("gantry_decode_bf16_16", 16, 16),
        _ => (portable, 16, 8),
    };
    let spread = tiled(layout, cols) == Some(Tiled::Bf16) && n <= DECODED_BF16 && kernel != portable;
    Some(Product { kernel, rows, tokens, threads: None, pairs: false, spread })
}

/// The kernel that multiplies `n` tokens by matrices of experts; `tokens` are the pairs of a tile.
pub(super) fn experts(layout: Layout, cols: usize, n: usize) -> Option<Product> {
    let [_, portable] = product(layout)?;
    let tiled = tiled(layout, cols);
    let few = match tiled {
        Some(Tiled::Block32) => Some("gantry_decode_experts_i8_block32"),
        Some(Tiled::ChannelA32) => Some("gantry_decode_experts_i8_channel_a32"),
        Some(Tiled::ChannelA64) => Some("gantry_decode_experts_i8_channel_a64"),
        Some(Tiled::Bf16) => Some("gantry_decode_experts_bf16"),
        Some(Tiled::Q8 | Tiled::E8) | None => None,
    };
    let spread = false;
    let many = tiled.map(|tiled| match tiled {
        Tiled::Q8 => "gantry_tiles_experts_q8_0_split",
        Tiled::Block32 => "gantry_tiles_experts_i8_block32",
        Tiled::ChannelA32 => "gantry_tiles_experts_i8_channel_a32",
        Tiled::ChannelA64 => "gantry_tiles_experts_i8_channel_a64",
        Tiled::E8 => "gantry_tiles_experts_e8_planar",
        Tiled::Bf16 => "gantry_tiles_experts_bf16",
    });
    let ungrouped = if tiled == Some(Tiled::Bf16) { UNGROUPED_BF16 } else { UNGROUPED };
    Some(match (few, many) {
        (_, Some(kernel)) if n > ungrouped => {
            Product { kernel, rows: 128, tokens: 64, threads: None, pairs: false, spread }
        }
        (Some(kernel), _) => {
            let bf16 = tiled == Some(Tiled::Bf16);
            let threads = Some(if bf16 { bf16_threads(cols) } else { chunk_threads(cols) });
            Product { kernel, rows: 16, tokens: 8, threads, pairs: true, spread }
        }
        _ => Product { kernel: portable, rows: 16, tokens: 8, threads: None, pairs: false, spread },
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
    fn rows_are_cut_as_the_kernels_cut_them() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/cuda/mma.cuh");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(&format!("constexpr uint CHUNKS = {CHUNKS};")));
        assert!(text.contains("return (blocks + 4 * CHUNKS - 1) / (4 * CHUNKS) * 4;"));
        let threads = [32, 640, 2560, 6144, 16384].map(chunk_threads);
        assert_eq!(threads, [32, 160, 320, 512, 512]);
        let text = std::fs::read_to_string(file.with_file_name("experts_bf16.cu")).unwrap();
        assert!(text.contains("chunk = (groups + CHUNKS - 1) / CHUNKS;"));
        let threads = [8, 64, 72, 640, 1024, 1088, 2560, 16384].map(bf16_threads);
        assert_eq!(threads, [32, 32, 64, 320, 512, 288, 448, 512]);
    }

    #[test]
    fn what_is_promised_at_packing_is_registered() {
        for layout in Layout::all() {
            let promised = TARGETS.iter().filter(|t| t.family() == "cuda").any(|t| t.takes(layout));
            let taken = takes(StepKind::Gemm, layout) && takes(StepKind::Experts, layout);
            assert!(!promised || taken, "{layout}");
        }
    }

    #[test]
    fn what_fills_no_instruction_stays_with_portable_kernels() {
        for layout in Layout::all() {
            let Some([portable, portable_experts]) = product(layout) else { continue };
            for n in [1, 8, 9, 32, 33, DECODED, DECODED + 1, 4096] {
                let instructed = match layout {
                    Layout::I8 { order: Order::NvA32, .. } => true,
                    Layout::Q8_0Split { .. } | Layout::E8Planar { .. } => n > DECODED,
                    Layout::Raw(GgmlType::BF16) => n > DECODED_BF16,
                    _ => false,
                };
                // 96 columns do not fill a step of `nv_a64`.
                let chosen = gemm(layout, [100, 96], n).expect("a product");
                assert_eq!(chosen.kernel != portable, instructed, "{layout}, {n} tokens: {chosen:?}");
                assert!(chosen.tokens >= 8 && chosen.rows >= 16);
                let chosen = experts(layout, 96, n).expect("a product");
                let few = matches!(layout, Layout::I8 { .. } | Layout::Raw(GgmlType::BF16));
                let instructed = tiled(layout, 96).is_some() && (n > UNGROUPED || few);
                assert_eq!(chosen.kernel != portable_experts, instructed, "{layout}, {n} tokens: {chosen:?}");
            }
        }
        let bf16 = |shape, n| gemm(Layout::Raw(GgmlType::BF16), shape, n).map(|p| (p.kernel, p.spread));
        for n in [1, 4, 5, 8, 9, 32, 33, 4096] {
            // Rows that are not whole pieces of 16 bytes.
            assert_eq!(bf16([5000, 1001], n), Some(("gantry_gemm_bf16", false)));
            let large = bf16([12_000, 1000], n).expect("a product");
            assert_eq!(large.1, n <= 32, "{n} tokens: {large:?}");
            assert_ne!(large.0, "gantry_gemm_bf16", "{n} tokens");
        }
    }
}
