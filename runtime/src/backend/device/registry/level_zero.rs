//! Intel's kernels with matrix instructions (`kernels/opencl`), by layout and number of tokens. They give the bits of the portable
//! ones, which take more tokens, experts, and cards without such instructions.

use super::Product;
use crate::backend::device::driver::CardInfo;
use gantry_formats::layout::{Layout, Order, Scales};

/// Tokens of a group, for few and for more of them, and most that such kernels take.
const TOKENS: [usize; 2] = [8, 32];
const MOST: usize = 32;

/// Kernels of an order, which has the lanes of a sub-group as rows of a tile: for up to 8 tokens, and for more.
fn kernels(order: Order, scales: Scales) -> Option<(u32, [&'static str; 2])> {
    Some(match (order, scales) {
        (Order::Vnni16, Scales::Channel) => {
            (16, ["gantry_vnni16_i8_channel_by8", "gantry_vnni16_i8_channel_by32"])
        }
        (Order::Vnni16, Scales::Block32) => {
            (16, ["gantry_vnni16_i8_block32_by8", "gantry_vnni16_i8_block32_by32"])
        }
        (Order::Vnni8, Scales::Channel) => {
            (8, ["gantry_vnni8_i8_channel_by8", "gantry_vnni8_i8_channel_by32"])
        }
        (Order::Vnni8, Scales::Block32) => {
            (8, ["gantry_vnni8_i8_block32_by8", "gantry_vnni8_i8_block32_by32"])
        }
        _ => return None,
    })
}

/// The kernel that multiplies `n` tokens.
pub(super) fn gemm(layout: Layout, cols: usize, n: usize, card: &CardInfo) -> Option<Product> {
    let Layout::I8 { order, scales, .. } = layout else { return None };
    let (lanes, kernels) = kernels(order, scales)?;
    let fits = lanes == card.lanes && n <= MOST && cols.is_multiple_of(32);
    let which = usize::from(n > TOKENS[0]);
    fits.then(|| Product::plain(kernels[which], lanes as usize, TOKENS[which]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_groups_of_a_card_take_the_order_that_is_for_them() {
        let card = |lanes| CardInfo { lanes, ..CardInfo::sm(90) };
        for (order, own, other) in [(Order::Vnni16, 16, 8), (Order::Vnni8, 8, 16)] {
            for scales in [Scales::Channel, Scales::Block32] {
                let layout = Layout::i8(order, scales).expect("a layout");
                let chosen = |n, lanes| gemm(layout, 64, n, &card(lanes)).map(|p| (p.rows, p.tokens));
                assert_eq!(chosen(8, own), Some((own as usize, 8)));
                assert_eq!(chosen(9, own), Some((own as usize, 32)));
                assert_eq!([chosen(33, own), chosen(1, other), chosen(1, 0)], [None; 3]);
                assert_eq!(gemm(layout, 48, 1, &card(own)), None);
            }
        }
    }
}
