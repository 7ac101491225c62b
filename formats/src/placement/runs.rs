//! The strategy `layers` on cards with budgets.

use super::{PlacementError, check_cards};
use std::ops::Range;

/// The card of each layer: runs of consecutive layers, one at least for each card, never cutting a layer, so that the
/// card that is fullest in proportion to its usable bytes is as little full as such runs allow.
///
/// Card 0 also holds `first` bytes (embeddings) and the last card `last` bytes (the head). Cards without a limit count
/// alike, each as much as the largest limit; where the others have no room for their parts then, they hold more. Among
/// equals, the early cards have the long runs.
///
/// # Errors
/// [`PlacementError::Short`] where no such runs are within the limits; it names the card that lacks most in the best
/// runs there are. Where there are more cards than layers, or no card.
pub fn layer_runs(
    bytes_per_layer: &[u64],
    first: u64,
    last: u64,
    usable: &[Option<u64>],
) -> Result<Vec<usize>, PlacementError> {
    let (n, count) = (usable.len(), bytes_per_layer.len());
    check_cards(n)?;
    if n > 1 && n > count {
        return Err(PlacementError::FewLayers { cards: n, layers: count });
    }
    let mut all = bytes_per_layer.iter().chain([&first, &last]);
    let sum = all.try_fold(0u64, |sum, bytes| sum.checked_add(*bytes));
    sum.ok_or_else(|| PlacementError::Overflow { what: "bytes of all layers".into() })?;
    let mut before: Vec<u64> = vec![0];
    before.extend(bytes_per_layer.iter().scan(0, |sum, bytes| {
        *sum += bytes;
        Some(*sum)
    }));
    let cost = |card: usize, run: Range<usize>| {
        let ends = if card == 0 { first } else { 0 } + if card + 1 == n { last } else { 0 };
        before[run.end] - before[run.start] + ends
    };
    best_runs(count, usable, &cost)
}

/// As [`layer_runs`], where `cost` says what a card takes for a run of layers: no less for more of them.
pub(super) fn best_runs(
    layers: usize,
    usable: &[Option<u64>],
    cost: &dyn Fn(usize, Range<usize>) -> u64,
) -> Result<Vec<usize>, PlacementError> {
    let n = usable.len();
    check_cards(n)?;
    if n > 1 && n > layers {
        return Err(PlacementError::FewLayers { cards: n, layers });
    }
    let largest = usable.iter().flatten().max().copied().unwrap_or(1);
    let weights: Vec<u64> = usable.iter().map(|usable| usable.unwrap_or(largest).max(1)).collect();
    let runs = Runs { layers, cards: n, cost };
    let map = runs.least_full(&weights);
    let loads = runs.loads(&map);
    let over = |card: usize| usable[card].map_or(0, |usable| loads[card].saturating_sub(usable));
    let worst = (0..n).min_by_key(|card| (std::cmp::Reverse(over(*card)), *card)).unwrap_or(0);
    if over(worst) == 0 {
        return Ok(map);
    }
    // A card without a limit may hold more than its part.
    let limits: Vec<u64> = usable.iter().map(|usable| usable.unwrap_or(u64::MAX)).collect();
    if let Some(map) = runs.within(&limits) {
        return Ok(map);
    }
    let enough = (0..n).map(|card| loads[card].max(usable[card].unwrap_or(0))).collect();
    Err(PlacementError::Short {
        card: Some(worst),
        needs: loads[worst],
        has: usable[worst].unwrap_or(0),
        short: over(worst),
        enough,
    })
}

struct Runs<'a> {
    layers: usize,
    cards: usize,
    cost: &'a dyn Fn(usize, Range<usize>) -> u64,
}

impl Runs<'_> {
    /// Bytes by card.
    fn loads(&self, map: &[usize]) -> Vec<u64> {
        let start = |card: usize| map.partition_point(|own| *own < card);
        (0..self.cards).map(|card| (self.cost)(card, start(card)..start(card + 1))).collect()
    }

    /// The runs whose largest load by weight is smallest.
    fn least_full(&self, weights: &[u64]) -> Vec<usize> {
        let limits = |part: u128| -> Vec<u64> {
            let limit =
                |w: &u64| u64::try_from(u128::from(*w).saturating_mul(part) >> GRAIN).unwrap_or(u64::MAX);
            weights.iter().map(limit).collect()
        };
        // No card holds more than all, so that a limit of that for the smallest weight is enough.
        let all = (0..self.cards).map(|card| (self.cost)(card, 0..self.layers)).max().unwrap_or(0);
        let (mut low, mut high) = (0u128, u128::from(all.max(1)) << GRAIN);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.within(&limits(middle)).is_some() { high = middle } else { low = middle + 1 }
        }
        let mut best = self.within(&limits(high)).unwrap_or_default();
        // A step of the search is a part of 2^-GRAIN: what is still better than its result is found one by one.
        loop {
            let loads = self.loads(&best);
            let fuller = |a: usize, b: usize| {
                let of = |x: usize, y: usize| u128::from(loads[x]) * u128::from(weights[y]);
                if of(a, b) > of(b, a) { a } else { b }
            };
            let top = (0..self.cards).rev().reduce(fuller).unwrap_or(0);
            let (load, weight) = (u128::from(loads[top]), u128::from(weights[top]));
            // The largest loads that are less than load ÷ weight of each card's weight.
            let below = |w: &u64| (load * u128::from(*w)).div_ceil(weight).checked_sub(1);
            let limits: Option<Vec<u64>> =
                weights.iter().map(|w| below(w).map(|n| u64::try_from(n).unwrap_or(u64::MAX))).collect();
            match limits.and_then(|limits| self.within(&limits)) {
                Some(better) => best = better,
                None => return best,
            }
        }
    }

    /// Runs that keep each card within its limit, the early ones as long as they can be; `None` where there are none.
    fn within(&self, limits: &[u64]) -> Option<Vec<usize>> {
        let (count, n) = (self.layers, self.cards);
        if count == 0 {
            return (limits[0] >= (self.cost)(0, 0..0)).then(Vec::new);
        }
        // By card and first layer, where its run ends at the latest so that the later cards can hold the rest.
        let mut ends = vec![vec![None; count + 1]; n];
        let mut can: Vec<bool> = (0..=count).map(|at| at == count).collect();
        for card in (0..n).rev() {
            let mut latest = None;
            let latest: Vec<Option<usize>> = (0..=count)
                .map(|at| {
                    latest = if can[at] { Some(at) } else { latest };
                    latest
                })
                .collect();
            let mut end = 0;
            for (start, out) in ends[card].iter_mut().enumerate().take(count) {
                end = end.max(start);
                while end < count && (self.cost)(card, start..end + 1) <= limits[card] {
                    end += 1;
                }
                *out = latest[end].filter(|at| *at > start);
            }
            can = ends[card].iter().map(Option::is_some).collect();
        }
        let mut map = Vec::with_capacity(count);
        for (card, ends) in ends.iter().enumerate() {
            let end = ends[map.len()]?;
            map.resize(end, card);
        }
        Some(map)
    }
}

/// Binary digits of the search's steps.
const GRAIN: u32 = 40;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every way to cut `n` layers into `cards` runs.
    fn cuts(n: usize, cards: usize) -> Vec<Vec<usize>> {
        if cards == 1 {
            return vec![vec![0; n]];
        }
        let mut out = Vec::new();
        for head in 1..=n - (cards - 1) {
            for tail in cuts(n - head, cards - 1) {
                out.push([vec![0; head], tail.iter().map(|c| c + 1).collect()].concat());
            }
        }
        out
    }

    fn loads(cut: &[usize], bytes: &[u64], (first, last): (u64, u64), cards: usize) -> Vec<u64> {
        let mut loads = vec![0; cards];
        loads[0] += first;
        loads[cards - 1] += last;
        cut.iter().zip(bytes).for_each(|(card, bytes)| loads[*card] += bytes);
        loads
    }

    /// The fullest card's load by usable bytes, to compare as a fraction.
    fn fullest(loads: &[u64], usable: &[u64]) -> (u64, u64) {
        let parts = loads.iter().copied().zip(usable.iter().copied());
        parts.reduce(|a, b| if a.0 * b.1 >= b.0 * a.1 { a } else { b }).unwrap()
    }

    #[test]
    fn unequal_cards_hold_in_proportion() {
        assert_eq!(layer_runs(&[10; 6], 0, 0, &[Some(48), Some(24)]), Ok(vec![0, 0, 0, 0, 1, 1]));
        assert_eq!(layer_runs(&[10; 6], 20, 0, &[Some(60), Some(60)]), Ok(vec![0, 0, 1, 1, 1, 1]));
        // The second card is too small for the large layer, so that the first stops before it could hold no more.
        assert_eq!(layer_runs(&[5, 5, 90, 5], 0, 0, &[Some(11), Some(8), Some(99)]).map(|m| m[1]), Ok(1));
        assert_eq!(layer_runs(&[5, 5], 1, 1, &[Some(12)]), Ok(vec![0, 0]));
        assert_eq!(layer_runs(&[], 1, 1, &[Some(2)]), Ok(vec![]));
    }

    #[test]
    fn what_is_short_names_the_card() {
        let mib = 1u64 << 20;
        let error = layer_runs(&[10 * mib; 6], 0, 4 * mib, &[Some(40 * mib), Some(23 * mib)]).unwrap_err();
        let said = "card 1: 24.0 MiB to hold, 23.0 MiB usable, 1.0 MiB short; with 40.0 MiB, 24.0 MiB usable it would fit";
        assert_eq!(error.to_string(), said);
        assert!(matches!(layer_runs(&[], 2, 1, &[Some(2)]), Err(PlacementError::Short { short: 1, .. })));
        // What a card without a limit can take makes room on the others.
        assert_eq!(layer_runs(&[5; 8], 0, 0, &[Some(10), None, Some(5)]), Ok(vec![0, 0, 1, 1, 1, 1, 1, 2]));
        let few = PlacementError::FewLayers { cards: 3, layers: 2 };
        assert_eq!(layer_runs(&[1, 1], 0, 0, &[None; 3]), Err(few));
        assert!(matches!(layer_runs(&[u64::MAX, 1], 0, 0, &[None]), Err(PlacementError::Overflow { .. })));
        assert!(layer_runs(&[u64::MAX / 2, u64::MAX / 2], 1, 0, &[Some(1), Some(u64::MAX)]).is_err());
    }

    proptest! {
        #[test]
        fn without_limits_cards_are_alike_and_the_early_runs_are_long(
            bytes in prop::collection::vec(0u64..50, 1..10), first in 0u64..80, last in 0u64..80, cards in 1usize..6,
        ) {
            prop_assume!(cards <= bytes.len());
            let all = cuts(bytes.len(), cards).into_iter();
            let best = all.min_by_key(|cut| (loads(cut, &bytes, (first, last), cards).into_iter().max(), cut.clone()));
            prop_assert_eq!(layer_runs(&bytes, first, last, &vec![None; cards]).ok(), best);
        }

        #[test]
        fn no_other_cut_has_a_less_full_card(
            bytes in prop::collection::vec(0u64..50, 1..9),
            first in 0u64..80,
            last in 0u64..80,
            usable in prop::collection::vec(1u64..300, 1..5),
        ) {
            prop_assume!(usable.len() <= bytes.len());
            let loads = |cut: &[usize]| loads(cut, &bytes, (first, last), usable.len());
            let all = cuts(bytes.len(), usable.len()).into_iter().map(|cut| fullest(&loads(&cut), &usable));
            let best = all.reduce(|a, b| if a.0 * b.1 <= b.0 * a.1 { a } else { b }).unwrap();
            let limits: Vec<_> = usable.iter().map(|bytes| Some(*bytes)).collect();
            match layer_runs(&bytes, first, last, &limits) {
                Ok(map) => {
                    prop_assert!(map.windows(2).all(|w| w[1] == w[0] || w[1] == w[0] + 1));
                    prop_assert_eq!((map[0], map[map.len() - 1]), (0, usable.len() - 1));
                    let own = fullest(&loads(&map), &usable);
                    prop_assert_eq!(own.0 * best.1, best.0 * own.1);
                }
                Err(PlacementError::Short { card: Some(card), needs, has, short, enough }) => {
                    prop_assert!(best.0 > best.1);
                    prop_assert_eq!((has, needs), (usable[card], has + short));
                    let enough: Vec<_> = enough.iter().map(|bytes| Some(*bytes)).collect();
                    prop_assert!(layer_runs(&bytes, first, last, &enough).is_ok());
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}
