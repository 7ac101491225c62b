//! How many of the copies that `replicate:N` asks for there are, and why there are no more.

use super::{Placement, PlacementError, Request, Strategy, quota};
use std::fmt;

/// The copies of one layer's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtraCopies {
    /// Layer: N of `blk.N`.
    pub layer: u32,
    /// How many were asked for.
    pub wanted: u32,
    /// How many there are.
    pub made: u32,
    /// Why there are no more, where more were asked for.
    pub why: Option<CopyLimit>,
}

/// Why a layer has no more copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyLimit {
    /// Cards that have room have every expert.
    Everywhere,
    /// No card has room for more.
    Room,
    /// Copies would make the largest load of a card larger.
    Load,
}

impl fmt::Display for CopyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Everywhere => "every card has every expert already",
            Self::Room => "the cards have no room for more",
            Self::Load => "copies would make the largest load of a card larger",
        })
    }
}

/// The copies in `placement`, which [`place_by_budget`](super::place_by_budget) made of `request` and `budgets`, by
/// layer; none where the strategy asks for none.
///
/// # Errors
/// As there.
pub fn extra_copies(
    placement: &Placement,
    request: &Request<'_>,
    budgets: &[Option<u64>],
) -> Result<Vec<ExtraCopies>, PlacementError> {
    let &Request { layers, usable, strategy, fill } = request;
    let Strategy::Replicate(wanted) = strategy else { return Ok(Vec::new()) };
    let quotas = quota::quotas(layers, usable, budgets, fill)?;
    let rooms = quota::ceilings(layers, usable, &quotas);
    let lines = placement.layers.iter().zip(layers).zip(rooms).map(|((own, model), rooms)| {
        let held: u64 = own.cards.iter().map(|card| card.len() as u64).sum();
        let made = u32::try_from(held).unwrap_or(u32::MAX).saturating_sub(model.experts);
        let room: u64 = rooms.iter().map(|room| u64::from(*room)).sum();
        let lacks = own.cards.iter().zip(&rooms).any(|(card, room)| card.len() < *room as usize);
        let all = rooms.iter().all(|room| *room >= model.experts);
        let why = match () {
            () if made >= wanted => None,
            () if made == 0 && room > u64::from(model.experts) => Some(CopyLimit::Load),
            // Where rooms are left, they are on cards that have what could be copied.
            () if all || lacks => Some(CopyLimit::Everywhere),
            () => Some(CopyLimit::Room),
        };
        ExtraCopies { layer: own.layer, wanted, made, why }
    });
    Ok(lines.collect())
}

#[cfg(test)]
mod tests {
    use super::super::{Fill, LayerExperts, place_by_budget};
    use super::*;

    fn of(counts: &[u64], usable: &[Option<u64>], wanted: u32) -> ExtraCopies {
        let layers =
            [LayerExperts { layer: 3, experts: counts.len() as u32, bytes: 10, counts: counts.to_vec() }];
        let strategy = Strategy::Replicate(wanted);
        let request = Request { layers: &layers, usable, strategy, fill: Fill::Share };
        let placement = place_by_budget(&request, usable).unwrap();
        extra_copies(&placement, &request, usable).unwrap()[0]
    }

    #[test]
    fn each_reason_is_told() {
        let [wanted, made] = [2, 2];
        let all = ExtraCopies { layer: 3, wanted, made, why: None };
        assert_eq!(of(&[90, 80, 10, 10], &[None, None], 2), all);
        let few = of(&[90, 80, 10, 10], &[None, None], 9);
        assert_eq!((few.made, few.why), (4, Some(CopyLimit::Everywhere)));
        let tight = of(&[90, 80, 10, 10], &[Some(30), Some(30)], 9);
        assert_eq!((tight.made, tight.why), (2, Some(CopyLimit::Room)));
        let none = of(&[90, 80, 10, 10], &[Some(20), Some(20)], 1);
        assert_eq!((none.made, none.why), (0, Some(CopyLimit::Room)));
        // Each card has a half; with a copy of one, the card that has the other alone does three quarters.
        let even = of(&[50, 50], &[Some(20), Some(20)], 1);
        assert_eq!((even.made, even.why), (0, Some(CopyLimit::Load)));
        let alone = of(&[7, 7], &[None], 1);
        assert_eq!((alone.made, alone.why), (0, Some(CopyLimit::Everywhere)));
    }
}
