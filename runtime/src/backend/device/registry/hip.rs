//! AMD's and Hygon's kernels with matrix instructions (`kernels/hip`), by layout, shape and number of tokens. They give the bits
//! of the portable ones, which take every other shape, and experts.

use super::Product;
use crate::backend::device::driver::CardInfo;
use gantry_formats::layout::{Layout, Order, Scales};

/// Columns of a turn of all waves of a group.
const COLUMNS: usize = 128;
/// Rows of a group.
const ROWS: usize = 16;
/// Tokens of a group.
const TOKENS: [usize; 2] = [16, 32];

/// Kernels of an order: for up to 16 tokens, and for more.
type Kernels = (Order, Scales, [&'static str; 2]);

const SLOT8: [Kernels; 2] = [
    (Order::Slot8, Scales::Channel, ["gantry_decode_slot8_channel_16", "gantry_decode_slot8_channel_32"]),
    (Order::Slot8, Scales::Block32, ["gantry_decode_slot8_block32_16", "gantry_decode_slot8_block32_32"]),
];

const CDNA3: [Kernels; 3] = [
    (Order::Slot16, Scales::Channel, ["gantry_decode_slot16_channel_16", "gantry_decode_slot16_channel_32"]),
    (Order::Slot16, Scales::Block32, ["gantry_decode_slot16_block32_16", "gantry_decode_slot16_block32_32"]),
    (Order::Ck16, Scales::Channel, ["gantry_decode_ck16_channel_16", "gantry_decode_ck16_channel_32"]),
];

const NMAJOR: [Kernels; 2] = [
    (Order::NMajor, Scales::Channel, ["gantry_decode_nmajor_channel_16", "gantry_decode_nmajor_channel_32"]),
    (Order::NMajor, Scales::Block32, ["gantry_decode_nmajor_block32_16", "gantry_decode_nmajor_block32_32"]),
];

const RDNA3: [Kernels; 2] = [
    (Order::Rdna3, Scales::Channel, ["gantry_decode_rdna3_channel_16", "gantry_decode_rdna3_channel_32"]),
    (Order::Rdna3, Scales::Block32, ["gantry_decode_rdna3_block32_16", "gantry_decode_rdna3_block32_32"]),
];

const RDNA4: [Kernels; 2] = [
    (Order::Rdna4, Scales::Channel, ["gantry_decode_rdna4_channel_16", "gantry_decode_rdna4_channel_32"]),
    (Order::Rdna4, Scales::Block32, ["gantry_decode_rdna4_block32_16", "gantry_decode_rdna4_block32_32"]),
];

/// Those that a card's instruction takes.
fn of(generation: &str) -> [&'static [Kernels]; 2] {
    match generation {
        "gfx90a" => [&SLOT8, &[]],
        "gfx942" | "gfx950" => [&SLOT8, &CDNA3],
        "gfx928" => [&SLOT8, &NMAJOR],
        "gfx1100" => [&RDNA3, &[]],
        "gfx1201" => [&RDNA4, &[]],
        _ => [&[], &[]],
    }
}

fn kernels(layout: Layout, cols: usize, card: &CardInfo) -> Option<&'static Kernels> {
    let Layout::I8 { order, scales, .. } = layout else { return None };
    let all = of(&card.generation.to_string()).into_iter().flatten();
    let found = all.into_iter().find(|(o, s, _)| (*o, *s) == (order, scales));
    found.filter(|_| cols > 0 && cols.is_multiple_of(COLUMNS))
}

/// The kernel that multiplies `n` tokens.
pub(super) fn gemm(layout: Layout, cols: usize, n: usize, card: &CardInfo) -> Option<Product> {
    let (_, _, [few, more]) = *kernels(layout, cols, card)?;
    let [most, tokens] = TOKENS;
    Some(if n <= most { Product::plain(few, ROWS, most) } else { Product::plain(more, ROWS, tokens) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::device::driver::{CardName, Family, Generation};
    use gantry_formats::target::TARGETS;

    fn card(generation: &str) -> CardInfo {
        let at = CardName { family: Family::Hip, card: 0 };
        CardInfo { at, generation: Generation::Named(generation.into()), ..CardInfo::sm(90) }
    }

    #[test]
    fn int8_of_every_target_has_matrix_instructions() {
        for target in TARGETS.iter().filter(|t| t.family() == "hip") {
            let card = card(target.name.split_once(':').expect("a generation").1);
            let taken = |l: &Layout| matches!(l, Layout::I8 { .. }) && target.takes(*l);
            let mut seen = 0;
            for layout in Layout::all().filter(taken) {
                // Fused projections of gfx928 stay with the portable kernel.
                let portable = matches!(layout, Layout::I8 { order: Order::KMajor, .. });
                assert_eq!(gemm(layout, 256, 1, &card).is_some(), !portable, "{layout}, {}", target.name);
                assert_eq!(gemm(layout, 96, 1, &card), None, "{layout}: 96 columns are no turn");
                seen += 1;
            }
            assert!(seen >= 2, "{}", target.name);
        }
    }

    #[test]
    fn tokens_beyond_sixteen_are_taken_two_tiles_at_a_time() {
        let layout = Layout::i8(Order::Slot16, Scales::Block32).expect("a layout");
        let chosen = |n| gemm(layout, 128, n, &card("gfx942")).map(|p| (p.kernel, p.tokens));
        assert_eq!(chosen(16), Some(("gantry_decode_slot16_block32_16", 16)));
        assert_eq!(chosen(17), Some(("gantry_decode_slot16_block32_32", 32)));
        assert_eq!(gemm(layout, 128, 1, &card("gfx90a")), None);
    }
}
