//! The strategy `paired`.

/// Deals `order`, the experts of a layer hottest first, to and fro over the cards: 0..n−1, n−1..0 and again, so that
/// for two cards rank i goes to card (i odd) XOR (i/2 odd). A card whose quota is full is skipped. Gives by card its
/// experts in ascending order.
///
/// The quotas sum to at least as many as there are experts; what is beyond their sum would be on no card.
pub(super) fn deal(order: &[u32], quotas: &[u32]) -> Vec<Vec<u32>> {
    let n = quotas.len();
    let mut cards: Vec<Vec<u32>> = quotas.iter().map(|quota| Vec::with_capacity(*quota as usize)).collect();
    let mut experts = order.iter();
    let mut left = quotas.to_vec();
    while left.iter().any(|left| *left > 0) {
        for card in (0..n).chain((0..n).rev()) {
            if left[card] == 0 {
                continue;
            }
            let Some(expert) = experts.next() else {
                cards.iter_mut().for_each(|card| card.sort_unstable());
                return cards;
            };
            cards[card].push(*expert);
            left[card] -= 1;
        }
    }
    cards.iter_mut().for_each(|card| card.sort_unstable());
    cards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cards_follow_the_formula() {
        for experts in 0..70u32 {
            let order: Vec<u32> = (0..experts).collect();
            // The quotas that equal cards have.
            let odd = |i: &u32| (i % 2 == 1) ^ (i / 2 % 2 == 1);
            let (ones, zeros): (Vec<u32>, Vec<u32>) = order.iter().partition(|i| odd(i));
            let budgets = [None, None];
            let layer = crate::placement::LayerExperts { layer: 0, experts, bytes: 1, counts: vec![] };
            let quotas =
                crate::placement::quota::quotas(&[layer], &budgets, &budgets, Default::default()).unwrap();
            assert_eq!(deal(&order, &quotas[0]), [zeros, ones], "{experts} experts");
        }
    }

    #[test]
    fn more_cards_are_dealt_to_and_fro() {
        let order = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0];
        assert_eq!(deal(&order, &[3, 3, 4]), [vec![3, 4, 9], vec![2, 5, 8], vec![0, 1, 6, 7]]);
    }

    #[test]
    fn a_full_card_is_skipped() {
        let order = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(deal(&order, &[6, 2]), [vec![0, 3, 4, 5, 6, 7], vec![1, 2]]);
        assert_eq!(deal(&order, &[0, 4, 4]), [vec![], vec![0, 3, 4, 7], vec![1, 2, 5, 6]]);
        assert_eq!(deal(&order[..4], &[1, 1, 1, 1, 0, 0, 0, 0])[..4], [[0], [1], [2], [3]]);
    }
}
