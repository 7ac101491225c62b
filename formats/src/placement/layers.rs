//! Which card holds which layer.

/// The strategy `layers`: each card holds a run of consecutive layers, so that a token visits the cards in order.
///
/// Gives the card of each layer. Every card has at least one layer, and the fullest card is as small as such runs
/// allow, where card 0 also holds `first` bytes (embeddings) and the last card `last` bytes (the head). Among
/// equals, the early cards are the full ones. `None` where there are more cards than layers, or no card.
pub fn layers(bytes: &[u64], first: u64, last: u64, cards: usize) -> Option<Vec<usize>> {
    if cards == 0 || cards > 1 && cards > bytes.len() {
        return None;
    }
    let weigh = |n: u128, b: &u64| n + u128::from(*b);
    let whole: u128 = bytes.iter().fold(u128::from(first) + u128::from(last), weigh);
    let (mut low, mut high) = (0u128, whole);
    while low < high {
        let middle = low + (high - low) / 2;
        if fill(bytes, first, last, cards, middle).is_some() {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    fill(bytes, first, last, cards, high)
}

/// Runs that keep every card within `limit`, each as long as it can be; `None` where there are none.
fn fill(bytes: &[u64], first: u64, last: u64, cards: usize, limit: u128) -> Option<Vec<usize>> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    for card in 0..cards {
        let is_last = card + 1 == cards;
        let mut load = if card == 0 { u128::from(first) } else { 0 };
        load += if is_last { u128::from(last) } else { 0 };
        if load > limit {
            return None;
        }
        // Every later card still needs a layer of its own.
        let end = bytes.len().saturating_sub(cards - 1 - card);
        let begin = at;
        while at < end && load + u128::from(bytes[at]) <= limit {
            load += u128::from(bytes[at]);
            out.push(card);
            at += 1;
        }
        if at == begin && !bytes.is_empty() {
            return None;
        }
    }
    (at == bytes.len()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fullest(map: &[usize], bytes: &[u64], first: u64, last: u64, cards: usize) -> u64 {
        let mut loads = vec![0; cards];
        loads[0] += first;
        loads[cards - 1] += last;
        map.iter().zip(bytes).for_each(|(&card, b)| loads[card] += b);
        loads.into_iter().max().unwrap_or(0)
    }

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

    #[test]
    fn one_card_holds_all_and_too_many_are_refused() {
        assert_eq!(layers(&[5, 5], 1, 1, 1), Some(vec![0, 0]));
        assert_eq!(layers(&[], 1, 1, 1), Some(vec![]));
        assert_eq!(layers(&[5, 5], 1, 1, 3), None);
        assert_eq!(layers(&[5], 0, 0, 0), None);
        assert_eq!(layers(&[u64::MAX; 3], u64::MAX, u64::MAX, 3), Some(vec![0, 1, 2]));
    }

    #[test]
    fn the_head_and_the_embeddings_weigh() {
        assert_eq!(layers(&[10; 6], 20, 20, 2), Some(vec![0, 0, 0, 1, 1, 1]));
        assert_eq!(layers(&[10; 6], 40, 0, 2), Some(vec![0, 1, 1, 1, 1, 1]));
    }

    proptest! {
        #[test]
        fn no_other_cut_has_a_smaller_fullest_card(
            bytes in prop::collection::vec(0u64..50, 1..9), first in 0u64..80, last in 0u64..80, cards in 1usize..5,
        ) {
            prop_assume!(cards <= bytes.len());
            let map = layers(&bytes, first, last, cards).unwrap();
            prop_assert!(map.windows(2).all(|w| w[1] == w[0] || w[1] == w[0] + 1));
            prop_assert_eq!((map[0], map[map.len() - 1]), (0, cards - 1));
            let best = cuts(bytes.len(), cards).iter().map(|c| fullest(c, &bytes, first, last, cards)).min();
            prop_assert_eq!(Some(fullest(&map, &bytes, first, last, cards)), best);
        }
    }
}
