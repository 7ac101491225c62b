//! Placement: which card holds which layer, and which expert of it.
//!
//! Decided ahead of time, from the cards' budgets and, where it is known, the experts' hotness; written into the
//! manifest, checked there, and decided anew when a container is loaded on other cards than it was packed for. It
//! lies here and not among the packers because the runtime places too.
//!
//! ```text
//! parse_cards("24GiB,16GiB")  →  budgets by card
//!   → Demand::fit()           →  the card of every tensor, layer and expert, within its budget
//!       → place(Request)      →  Placement of the experts, checked
//!   → Demand::enough()        →  where it does not fit, budgets that would do
//!   → report(..)              →  loads, shares, bytes, copies
//! ```

mod balanced;
mod check;
mod copies;
mod enough;
mod error;
mod fit;
mod load;
mod packing;
mod paired;
mod quota;
mod replicate;
mod report;
mod runs;
mod shortage;
mod spec;
mod strategy;

pub use copies::{CopyLimit, ExtraCopies, extra_copies};
pub use enough::{Enough, longest_context};
pub use error::PlacementError;
pub use fit::{Demand, Fit, Held, Misfit, Resident};
pub use report::{Copied, LayerReport, Report, report};
pub use runs::layer_runs;
pub use shortage::{CardNeed, CardShortage};
pub use spec::{CardSpec, CardsError, cards_text, parse_cards};
pub use strategy::{ChoiceError, Fill, Strategy};

use crate::container::MAX_CARDS;

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

/// What is to be placed, and how.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Layers with experts.
    pub layers: &'a [LayerExperts],
    /// Bytes for experts by card: the budget less what else lies there. `None` without a limit.
    pub usable: &'a [Option<u64>],
    /// How the experts of a layer are spread.
    pub strategy: Strategy,
    /// How many each card gets, where there is a choice. `layers` does not ask for it.
    pub fill: Fill,
}

/// Places the experts. Shares are in proportion to the usable bytes; see [`place_by_budget`].
///
/// # Errors
/// Where they do not fit ([`PlacementError::Short`]), there is no card, or the layers cannot be computed with.
pub fn place(request: &Request<'_>) -> Result<Placement, PlacementError> {
    place_by_budget(request, request.usable)
}

/// As [`place`], with shares in proportion to `budgets`: so that equal cards get equal shares of every layer though one
/// of them has less room for experts, since other tensors lie there too.
///
/// * `paired` deals so many experts to each card that their bytes are in proportion, and no card gets more than it
///   has.
/// * `balanced` and `replicate:N` begin with that deal and may give a card more or fewer experts than its quota, as
///   far as its bytes go. No layer's largest load is larger than the deal's. N copies are N in each layer, where there
///   is room, on distinct cards; a layer has none where they would not help.
/// * `layers` gives each card whole layers by [`layer_runs`], with no other bytes than the experts'.
///
/// # Errors
/// As [`place`], and where the budgets are those of another number of cards.
pub fn place_by_budget(request: &Request<'_>, budgets: &[Option<u64>]) -> Result<Placement, PlacementError> {
    let &Request { layers, usable, strategy, fill } = request;
    load::check(layers)?;
    let n = usable.len();
    let cards = match strategy {
        Strategy::Layers => {
            let bytes: Vec<u64> = layers.iter().map(|layer| u64::from(layer.experts) * layer.bytes).collect();
            let map = layer_runs(&bytes, 0, 0, usable)?;
            let whole = |(layer, own): (&LayerExperts, usize)| -> Vec<Vec<u32>> {
                let all = |card| if card == own { (0..layer.experts).collect() } else { Vec::new() };
                (0..n).map(all).collect()
            };
            layers.iter().zip(map).map(whole).collect()
        }
        _ => experts(layers, usable, strategy, &quota::quotas(layers, usable, budgets, fill)?),
    };
    let own = |(layer, cards): (&LayerExperts, Vec<Vec<u32>>)| LayerPlacement { layer: layer.layer, cards };
    let placement = Placement { layers: layers.iter().zip(cards).map(own).collect() };
    placement.check(layers, n, usable)?;
    Ok(placement)
}

/// By layer and card, its experts.
fn experts(
    layers: &[LayerExperts],
    usable: &[Option<u64>],
    strategy: Strategy,
    quotas: &[Vec<u32>],
) -> Vec<Vec<Vec<u32>>> {
    let rooms = quota::ceilings(layers, usable, quotas);
    let spread = |((layer, quotas), rooms): ((&LayerExperts, &Vec<u32>), &Vec<u32>)| {
        let tokens = load::tokens(layer);
        let dealt = paired::deal(&load::hottest_first(&tokens), quotas);
        match strategy {
            Strategy::Paired | Strategy::Layers => dealt,
            Strategy::Balanced => balanced::spread(&tokens, rooms, &dealt),
            Strategy::Replicate(extra) => {
                let without = balanced::spread(&tokens, rooms, &dealt);
                replicate::spread(&tokens, rooms, extra, &without)
            }
        }
    };
    layers.iter().zip(quotas).zip(&rooms).map(spread).collect()
}

fn check_cards(found: usize) -> Result<(), PlacementError> {
    if (1..=MAX_CARDS).contains(&found) { Ok(()) } else { Err(PlacementError::Cards { found }) }
}
