//! NVIDIA's kernels with matrix instructions, by layout, shape and number of tokens.

use super::cuda_e8;
use super::{Attend, Product, processors, product};
use crate::backend::KvType;
use crate::backend::device::driver::{CardInfo, Generation};
use crate::backend::device::kernels::Group;
use crate::backend::device::plan;
use gantry_formats::block::GgmlType;
use gantry_formats::layout::{Layout, Order, Scales};

/// Whether kernels whose groups stay have code for a card.
fn has_resident(card: &CardInfo) -> bool {
    card.generation == Generation::Sm(90) && gantry_kernels::cuda::compiled_for(90)
}

/// Most chunks that kernels with matrix instructions cut a row into, and most warps of a group: `CHUNKS` of `kernels/cuda/mma.cuh`.
const CHUNKS: usize = 16;
/// Warps of the kernels for few tokens that a multiprocessor has registers for: of a Hopper card. Others have about as many; no
/// result depends on it.
const FEW_WARPS: usize = 32;

/// How groups of the kernels for few tokens share `all` matrices of a shape: a group's rows, and its threads. A tile
/// of 16 rows has as many warps as let all groups run at once; long rows have eight, for the groups after the first are
/// started while others still read.
pub(in crate::backend::device) fn share(
    [rows, cols]: [usize; 2],
    all: usize,
    card: &CardInfo,
) -> (usize, usize) {
    let blocks = cols.div_ceil(32).max(1);
    let chunk = blocks.div_ceil(4 * CHUNKS) * 4;
    let chunks = blocks.div_ceil(chunk);
    let tiles = CHUNKS / chunks;
    let groups = rows.div_ceil(16 * tiles) * all;
    let most = chunks.min(CHUNKS / tiles);
    let fit = (2..=most).rev().find(|each| processors(card) * (FEW_WARPS / (tiles * each)) >= groups);
    let long = if chunk >= 12 { 8 } else { 2 };
    let each = fit.unwrap_or(2).max(long).min(most);
    (16 * tiles, 32 * tiles * each)
}

/// Threads of experts in BF16: a warp for each chunk of a row, cut as `kernels/cuda/experts_bf16.cu` cuts it.
fn bf16_threads(cols: usize) -> usize {
    let groups = cols.div_ceil(64).max(1);
    32 * groups.div_ceil(groups.div_ceil(CHUNKS))
}

/// Most tokens of an instruction.
const FEW: usize = 8;
/// Most tokens for which weights go straight into registers; for more of them they are shared by a tile of tokens.
const DECODED: usize = 128;
/// Most tokens for which weights in BF16 do so: they are read once for every 16 of them.
const DECODED_BF16: usize = plan::FEW;
/// From how many weights on such kernels were seen to do better than portable ones: what they cost at least, whatever the size, is
/// the start of a group on each multiprocessor with all of its shared memory.
const LARGE: usize = 2560 * 4096;
/// From how many rows on groups of fewer warps, or of more rows, do better.
const MANY: usize = 4224;
/// Most tokens of which experts are multiplied in small tiles: there are few of each expert then.
const UNGROUPED: usize = plan::FEW;
/// The same of experts in BF16.
const UNGROUPED_BF16: usize = 64;

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

/// Rows of a tile of resident kernels.
const RESIDENT_ROWS: usize = 128;

/// A tile of those: tokens, how long it takes beside others, and the kernels, of `nv_a32` and `nv_a64`.
const WARPGROUP_TILES: [(usize, usize, [&str; 2]); 3] = [
    (256, 10, ["gantry_warpgroups_i8_channel_a32_256", "gantry_warpgroups_i8_channel_a64_256"]),
    (128, 7, ["gantry_warpgroups_i8_channel_a32_128", "gantry_warpgroups_i8_channel_a64_128"]),
    (64, 6, ["gantry_warpgroups_i8_channel_a32_64", "gantry_warpgroups_i8_channel_a64_64"]),
];

/// The resident kernel and its tokens, where there is one: with the tiles that take the least time, all multiprocessors taking one
/// after the other.
fn resident(tiled: Tiled, rows: usize, n: usize, card: &CardInfo) -> Option<(&'static str, usize)> {
    let order = match tiled {
        Tiled::ChannelA32 => 0,
        Tiled::ChannelA64 => 1,
        Tiled::Block32 | Tiled::Q8 | Tiled::E8 | Tiled::Bf16 => return None,
    };
    let time = |(tokens, each, _): &(usize, usize, [&str; 2])| {
        (rows.div_ceil(RESIDENT_ROWS) * n.div_ceil(*tokens)).div_ceil(processors(card)) * each
    };
    WARPGROUP_TILES.iter().min_by_key(|tile| time(tile)).map(|(tokens, _, kernels)| (kernels[order], *tokens))
}

/// The kernel that multiplies `n` tokens by `rows` rows of a matrix. Those of int8 in NVIDIA's orders give the same bits, whichever
/// it is; with `q8_0.split` more than [`DECODED`] tokens, with `e8.planar` more than [`UNGROUPED`], with BF16 more than
/// [`DECODED_BF16`], are added in another order than fewer.
pub(in crate::backend::device) fn gemm(
    layout: Layout,
    [rows, cols]: [usize; 2],
    n: usize,
    card: &CardInfo,
) -> Option<Product> {
    let [portable, _] = product(layout)?;
    let many = rows > MANY;
    let tiled = tiled(layout, cols);
    if tiled == Some(Tiled::E8)
        && n <= UNGROUPED
        && let Some(few) = cuda_e8::gemm(cols, n, card)
    {
        return Some(few);
    }
    let many_tokens = tiled.filter(|_| n > DECODED && has_resident(card));
    if let Some((kernel, tokens)) = many_tokens.and_then(|tiled| resident(tiled, rows, n, card)) {
        return Some(Product { resident: true, ..Product::plain(kernel, RESIDENT_ROWS, tokens) });
    }
    let (own, threads) = share([rows, cols], 1, card);
    let few =
        |kernel| Some(Product { pairs: true, group: Group::of(threads), ..Product::plain(kernel, own, FEW) });
    let spread = |kernel, tokens| {
        let groups = rows.div_ceil(16).min(processors(card));
        Some(Product { spread: Some(groups), ..Product::plain(kernel, 16, tokens) })
    };
    let (kernel, rows, tokens) = match tiled {
        Some(Tiled::Block32) if n <= FEW => return few("gantry_decode_i8_block32_8"),
        Some(Tiled::Block32) if n <= 16 && many => ("gantry_decode_i8_block32_16_many", 32, 16),
        Some(Tiled::Block32) if n <= 16 => ("gantry_decode_i8_block32_16", 16, 16),
        Some(Tiled::Block32) if n <= DECODED => ("gantry_decode_i8_block32_32", 16, 32),
        Some(Tiled::Block32) => ("gantry_tiles_i8_block32", 128, 64),
        Some(Tiled::ChannelA32 | Tiled::ChannelA64) if n <= FEW => return few("gantry_decode_i8_channel_8"),
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
        Some(Tiled::E8) if n > UNGROUPED => ("gantry_tiles_e8_planar", 128, 64),
        Some(Tiled::Bf16) if n > DECODED_BF16 => ("gantry_tiles_bf16", 128, 64),
        Some(Tiled::Bf16) if rows * cols < LARGE => (portable, 16, 8),
        Some(Tiled::Bf16) if n <= 4 => return spread("gantry_decode_bf16_4", 8),
        Some(Tiled::Bf16) if n <= 8 => return spread("gantry_decode_bf16_8", 8),
        Some(Tiled::Bf16) => return spread("gantry_decode_bf16_16", 16),
        _ => (portable, 16, 8),
    };
    Some(Product::plain(kernel, rows, tokens))
}

/// Whether the kernels for few tokens that take a whole layer of experts read such weights (`kernels/cuda/decode_layer.cu`).
pub(in crate::backend::device) fn takes_layer(layout: Layout) -> bool {
    matches!(layout, Layout::I8 { order: Order::NvA32, scales: Scales::Block32, .. })
}

/// The kernel that multiplies `n` tokens by matrices of experts; `tokens` are the pairs of a tile.
pub(in crate::backend::device) fn experts(
    layout: Layout,
    cols: usize,
    n: usize,
    card: &CardInfo,
) -> Option<Product> {
    let [_, portable] = product(layout)?;
    let tiled = tiled(layout, cols);
    if tiled == Some(Tiled::E8)
        && n <= UNGROUPED
        && let Some(few) = cuda_e8::experts(cols, n, card)
    {
        return Some(few);
    }
    let few = match tiled {
        Some(Tiled::Block32) => Some("gantry_decode_experts_i8_block32"),
        Some(Tiled::ChannelA32) => Some("gantry_decode_experts_i8_channel_a32"),
        Some(Tiled::ChannelA64) => Some("gantry_decode_experts_i8_channel_a64"),
        Some(Tiled::Bf16) => Some("gantry_decode_experts_bf16"),
        Some(Tiled::Q8 | Tiled::E8) | None => None,
    };
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
        (_, Some(kernel)) if n > ungrouped => Product::plain(kernel, 128, 64),
        (Some(kernel), _) if tiled == Some(Tiled::Bf16) => {
            Product { pairs: true, group: Group::of(bf16_threads(cols)), ..Product::plain(kernel, 16, FEW) }
        }
        (Some(kernel), _) => Product { pairs: true, shares: true, ..Product::plain(kernel, 16, FEW) },
        _ => Product::plain(portable, 16, 8),
    })
}

/// The kernels for keys and values of `len` each, kept as `kind`, where `grouped` query heads share them. f32 has none: halves
/// would not be what was kept.
pub(in crate::backend::device) fn attend(kind: KvType, len: usize, grouped: usize) -> Option<Attend> {
    let (few, heads) = match (kind, len, grouped) {
        (KvType::F16, 64, ..=4) => ("gantry_attend_f16_64_4", 4),
        (KvType::F16, 64, ..=8) => ("gantry_attend_f16_64_8", 8),
        (KvType::F16, 64, _) => ("gantry_attend_f16_64_16", 16),
        (KvType::F16, 128, ..=4) => ("gantry_attend_f16_128_4", 4),
        (KvType::F16, 128, ..=8) => ("gantry_attend_f16_128_8", 8),
        (KvType::F16, 128, _) => ("gantry_attend_f16_128_16", 16),
        (KvType::F16, 256, _) => ("gantry_attend_f16_256_8", 8),
        (KvType::Int8, 64, ..=4) => ("gantry_attend_i8_64_4", 4),
        (KvType::Int8, 64, ..=8) => ("gantry_attend_i8_64_8", 8),
        (KvType::Int8, 64, _) => ("gantry_attend_i8_64_16", 16),
        (KvType::Int8, 128, ..=4) => ("gantry_attend_i8_128_4", 4),
        (KvType::Int8, 128, ..=8) => ("gantry_attend_i8_128_8", 8),
        (KvType::Int8, 128, _) => ("gantry_attend_i8_128_16", 16),
        (KvType::Int8, 256, _) => ("gantry_attend_i8_256_8", 8),
        _ => return None,
    };
    let (tiles, parts) = match (kind, len) {
        (KvType::F16, 64) => ("gantry_attend_tiles_f16_64", 1),
        (KvType::F16, 128) => ("gantry_attend_tiles_f16_128", 1),
        (KvType::F16, _) => ("gantry_attend_tiles_f16_256", 2),
        (_, 64) => ("gantry_attend_tiles_i8_64", 1),
        (_, 128) => ("gantry_attend_tiles_i8_128", 1),
        (_, _) => ("gantry_attend_tiles_i8_256", 2),
    };
    Some(Attend { few, heads, tiles, parts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn card(generation: u32) -> CardInfo {
        CardInfo::sm(generation)
    }

    #[test]
    fn rows_are_cut_as_the_kernels_cut_them() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/cuda/mma.cuh");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(&format!("constexpr uint CHUNKS = {CHUNKS};")));
        assert!(text.contains("return (blocks + 4 * CHUNKS - 1) / (4 * CHUNKS) * 4;"));
        // Rows of a group: one tile of 16 for 9 chunks and more, 16 of rows that are one chunk.
        let rows = [32, 128, 640, 2560, 6144].map(|cols| share([10_000, cols], 1, &card(90)).0);
        assert_eq!(rows, [256, 256, 48, 16, 16]);
        let text = std::fs::read_to_string(file.with_file_name("experts_bf16.cu")).unwrap();
        assert!(text.contains("chunk = (groups + CHUNKS - 1) / CHUNKS;"));
        let threads = [8, 64, 72, 640, 1024, 1088, 2560, 16384].map(bf16_threads);
        assert_eq!(threads, [32, 32, 64, 320, 512, 288, 448, 512]);
    }

    #[test]
    fn warps_are_shared_so_that_all_groups_run_at_once() {
        let warps = |rows, cols, others| {
            let (own, threads) = share([rows, cols], others, &card(90));
            threads / 32 / (own / 16)
        };
        // Few groups: a warp for each chunk.
        assert_eq!(warps(640, 2560, 1), 10);
        assert_eq!(warps(2560, 6144, 1), 16);
        assert_eq!(warps(2560, 640, 1), 5);
        // 640 groups: 6 on a multiprocessor.
        assert_eq!(warps(10_240, 2560, 1), 6);
        assert_eq!(warps(16_384, 2560, 1), 4);
        assert_eq!(warps(640, 2560, 20), 4);
        assert_eq!(warps(2560, 640, 10), 2);
        // More than run at once.
        assert_eq!(warps(16_384, 8192, 1), 8);
        assert_eq!(warps(640, 2560, 1000), 2);
        assert_eq!(warps(100_000, 32, 1), 1);
    }

    #[test]
    fn tiles_of_warpgroups_fill_the_multiprocessors() {
        let layout = Layout::i8(Order::NvA64, Scales::Channel).expect("a layout");
        for ([rows, n], tokens) in [
            ([16384, 2048], 256),
            ([8192, 512], 256),
            ([8192, 256], 128),
            ([4096, 2048], 256),
            ([4096, 512], 128),
            ([4096, 256], 64),
            ([640, 129], 64),
        ] {
            let chosen = gemm(layout, [rows, 4096], n, &card(90)).expect("a product");
            if !gantry_kernels::cuda::compiled_for(90) {
                assert!(!chosen.resident);
                continue;
            }
            assert!(chosen.resident);
            assert_eq!(chosen.tokens, tokens, "{rows} rows by {n} tokens");
            assert!(chosen.kernel.ends_with(&format!("a64_{tokens}")), "{chosen:?}");
        }
    }

    #[test]
    fn attention_has_kernels_for_any_number_of_heads() {
        for kind in [KvType::F16, KvType::Int8] {
            for (len, grouped) in
                [(64, 1), (64, 5), (128, 4), (128, 16), (128, 40), (256, 1), (256, 8), (256, 16)]
            {
                let by = attend(kind, len, grouped).expect("kernels");
                assert!(
                    by.few.ends_with(&format!("_{len}_{}", by.heads))
                        && by.tiles.ends_with(&format!("_{len}"))
                );
                assert!(grouped.div_ceil(by.heads) <= grouped.div_ceil(16).max(1) * 2, "{by:?}");
                assert_eq!(by.parts, len.div_ceil(128));
            }
            assert_eq!(attend(kind, 96, 4), None);
        }
        assert_eq!(attend(KvType::F32, 128, 4), None);
    }

    #[test]
    fn what_fills_no_instruction_stays_with_portable_kernels() {
        for layout in Layout::all() {
            let Some([portable, portable_experts]) = product(layout) else { continue };
            for n in [1, 8, 9, 32, 33, DECODED, DECODED + 1, 4096] {
                let instructed = match layout {
                    Layout::I8 { order: Order::NvA32, .. } | Layout::E8Planar { .. } => true,
                    Layout::Q8_0Split { .. } => n > DECODED,
                    Layout::Raw(GgmlType::BF16) => n > DECODED_BF16,
                    _ => false,
                };
                // 96 columns do not fill a step of `nv_a64`.
                let cols = if layout.is_e8() { 256 } else { 96 };
                for card in [80, 90, 100, 120].map(card) {
                    let chosen = gemm(layout, [100, cols], n, &card).expect("a product");
                    assert_eq!(chosen.kernel != portable, instructed, "{layout}, {n} tokens: {chosen:?}");
                    assert!(chosen.spread.is_some() || chosen.tokens >= 8 && chosen.rows >= 16);
                    let generation = card.generation.sm();
                    assert!(!chosen.resident || generation == 90, "{layout}, sm_{generation}: {chosen:?}");
                }
                let chosen = experts(layout, cols, n, &card(90)).expect("a product");
                let few = matches!(
                    layout,
                    Layout::I8 { .. } | Layout::E8Planar { .. } | Layout::Raw(GgmlType::BF16)
                );
                let instructed = tiled(layout, cols).is_some() && (n > UNGROUPED || few);
                assert_eq!(chosen.kernel != portable_experts, instructed, "{layout}, {n} tokens: {chosen:?}");
            }
        }
        let bf16 = |shape, n| {
            let product = gemm(Layout::Raw(GgmlType::BF16), shape, n, &card(90)).expect("a product");
            (product.kernel, product.spread.is_some())
        };
        for n in [1, 4, 5, 8, 9, 32, 33, 4096] {
            // Rows that are not whole pieces of 16 bytes.
            assert_eq!(bf16([5000, 1001], n), ("gantry_gemm_bf16", false));
            let large = bf16([12_000, 1000], n);
            assert_eq!(large.1, n <= 32, "{n} tokens: {large:?}");
            assert_ne!(large.0, "gantry_gemm_bf16", "{n} tokens");
        }
    }
}
