//! Which of the kernels for few tokens by `e8.planar` takes a product (`kernels/cuda/decode_e8.cu`), and how much of a
//! multiprocessor its groups have.

use super::{Product, processors};
use crate::backend::device::driver::CardInfo;
use crate::backend::device::kernels::Group;

/// Bytes of the tables that a group has in shared memory, for a warp of its own, and for each token of a warp.
const TABLES: usize = 256 * 256;
const WARP: usize = 32 * 16;
const WARP_TOKEN: usize = (8 * 36 + 2 * 8) * 4;
/// Fewest warps of a group: they fill the tables.
const FEWEST: usize = 8;

/// Kernels, tokens that they take at once, and the warps that there are registers for.
const GEMM: [(&str, usize, usize); 4] = [
    ("gantry_decode_e8_planar_1", 1, 20),
    ("gantry_decode_e8_planar_2", 2, 16),
    ("gantry_decode_e8_planar_4", 4, 12),
    ("gantry_decode_e8_planar_8", 8, 8),
];
/// For one token, and for more: pairs of a tile that are taken at once.
const EXPERTS: [(&str, usize, usize); 2] =
    [("gantry_decode_experts_e8_planar_1", 1, 16), ("gantry_decode_experts_e8_planar_4", 4, 12)];

/// Chunks of a row of `cols` columns: as `chunk_shift` of `kernels/cuda/decode_e8.cuh` cuts it.
fn chunks(cols: usize) -> usize {
    let units = cols / 256;
    let fits = |chunk: &usize| units.next_multiple_of(*chunk) * 8 <= units * 9;
    units.div_ceil([8, 4, 2].into_iter().find(fits).unwrap_or(1))
}

/// A group of at most `most` warps that take `tokens` at once, where the card has room for it. Each row keeps as many warps busy as
/// it has chunks.
fn group(cols: usize, (tokens, most): (usize, usize), card: &CardInfo) -> Option<Group> {
    let chunks = chunks(cols);
    let room = (card.shared as usize).checked_sub(TABLES)? / (WARP + WARP_TOKEN * tokens);
    let most = most.min(room);
    let warps = (most / chunks * chunks).max(FEWEST);
    let fits = chunks <= most && warps <= most;
    fits.then(|| Group { threads: Some(32 * warps), shared: TABLES + warps * (WARP + WARP_TOKEN * tokens) })
}

/// The kernel for `n` tokens, where the card has room for one.
pub(in crate::backend::device) fn gemm(cols: usize, n: usize, card: &CardInfo) -> Option<Product> {
    let wanted = GEMM.iter().position(|(_, tokens, _)| *tokens >= n).unwrap_or(GEMM.len() - 1);
    let chosen = GEMM[..=wanted].iter().rev();
    chosen.filter_map(|kernel| spread(cols, *kernel, card)).next()
}

/// The kernel for experts of `n` tokens, which takes tiles of up to 8 pairs.
pub(in crate::backend::device) fn experts(cols: usize, n: usize, card: &CardInfo) -> Option<Product> {
    // A card has room for both or takes neither.
    let both = EXPERTS.map(|kernel| spread(cols, kernel, card));
    let [Some(one), Some(several)] = both else { return None };
    Some(Product { tokens: 8, pairs: true, ..if n == 1 { one } else { several } })
}

fn spread(
    cols: usize,
    (kernel, tokens, warps): (&'static str, usize, usize),
    card: &CardInfo,
) -> Option<Product> {
    let group = group(cols, (tokens, warps), card)?;
    let spread = Some(processors(card));
    Some(Product { group, spread, ..Product::plain(kernel, 1, tokens) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn card(shared: u32) -> CardInfo {
        CardInfo { shared, ..CardInfo::sm(90) }
    }

    /// What is said here is what the kernels do.
    #[test]
    fn groups_are_as_the_kernels_need_them() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/cuda");
        let text = |file| std::fs::read_to_string(folder.join(file)).expect("a source");
        let (inner, outer) = (text("decode_e8.cuh"), text("decode_e8.cu"));
        for line in [
            "constexpr uint TABLE_BYTES = 256 * 256;",
            "constexpr uint TILE = 8;",
            "constexpr uint STRIDE = 36;",
            "constexpr uint LOOKED_UP = 32;",
            "PAIRS = TOKENS * TILE * STRIDE, SUMS = TOKENS * TILE;",
            "MATRICES = (PAIRS + 2 * SUMS) * 4, ROOM = MATRICES + LOOKED_UP * sizeof(matrix);",
            "((units + (1u << shift) - 1) >> shift << shift) * 8 > units * 9",
        ] {
            assert!(inner.contains(line), "{line}");
        }
        for (kernel, tokens, warps) in GEMM.into_iter().chain(EXPERTS) {
            assert!(outer.contains(&format!("({kernel}, {tokens}, {warps}, ")), "{kernel}");
        }
    }

    #[test]
    fn rows_are_cut_as_the_kernels_cut_them() {
        let cut = [256, 512, 768, 1536, 2048, 2304, 2560, 8192, 11008, 16384].map(chunks);
        assert_eq!(cut, [1, 1, 3, 3, 1, 5, 5, 4, 6, 8]);
    }

    #[test]
    fn cards_with_little_shared_memory_take_fewer_tokens_at_once() {
        let tokens = |shared, cols| [1, 2, 3, 8, 32].map(|n| gemm(cols, n, &card(shared)).map(|p| p.tokens));
        assert_eq!(tokens(232_448, 8192), [1, 2, 4, 8, 8].map(Some));
        assert_eq!(tokens(166_912, 8192), [1, 2, 4, 8, 8].map(Some));
        assert_eq!(tokens(101_376, 8192), [1, 2, 2, 2, 2].map(Some));
        // A row of more chunks than there are warps.
        assert_eq!(tokens(232_448, 1 << 17), [None; 5]);
        assert!(experts(2560, 1, &card(101_376)).is_none());
        for shared in [101_376, 166_912, 232_448] {
            for cols in (256..40_000).step_by(256) {
                for product in [1, 4, 8].into_iter().filter_map(|n| gemm(cols, n, &card(shared))) {
                    let warps = product.group.threads.unwrap_or(0) / 32;
                    assert!((FEWEST..=20).contains(&warps) && warps >= chunks(cols), "{cols}: {product:?}");
                    assert!(product.group.shared <= shared as usize, "{cols}: {product:?}");
                }
            }
        }
    }
}
