//! Placement: which card holds which layer, and which expert of it.
//!
//! Decided ahead of time, from the cards' budgets and, where it is known, the experts' hotness; written into the
//! manifest, checked there, and decided anew when a container is loaded on other cards than it was packed for. It
//! lies here and not among the packers because the runtime places too.

mod layers;

pub use layers::layers;

/// Experts of one layer, as far as placing them goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerExperts {
    /// Layer: N of `blk.N`.
    pub layer: u32,
    /// How many.
    pub experts: u32,
    /// Bytes that each takes on its card: the stride of its bank.
    pub bytes: u64,
    /// Tokens by expert; empty where nothing is known, which is as if all were alike.
    pub counts: Vec<u64>,
}

/// A total map: every expert of every layer on a card, or on several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// In the order of the layers that were asked for.
    pub layers: Vec<LayerPlacement>,
}

/// Where the experts of one layer lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPlacement {
    /// Layer: N of `blk.N`.
    pub layer: u32,
    /// By card, its experts in ascending order: the slots of its bank. Empty for a card without any.
    pub cards: Vec<Vec<u32>>,
}

impl LayerPlacement {
    /// The cards that hold `expert`, ascending. Of several, a token at position p of its sequence uses number p modulo
    /// their count: a fixed rule, so that runs repeat bit for bit.
    pub fn holders(&self, expert: u32) -> impl Iterator<Item = usize> + '_ {
        let holds = move |(_, experts): &(usize, &Vec<u32>)| experts.binary_search(&expert).is_ok();
        self.cards.iter().enumerate().filter(holds).map(|(card, _)| card)
    }
}
