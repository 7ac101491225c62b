//! The rules that every placement keeps, after it was solved and whenever it is read.

use super::{LayerExperts, Placement, PlacementError, check_cards, load};

impl Placement {
    /// Checks the placement of `layers` on `cards` cards with `usable` bytes each: the same layers, every expert on a
    /// card, none twice on the same one, slots ascending, no card beyond its bytes.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(
        &self,
        layers: &[LayerExperts],
        cards: usize,
        usable: &[Option<u64>],
    ) -> Result<(), PlacementError> {
        check_cards(cards)?;
        if usable.len() != cards {
            return Err(PlacementError::Budgets { found: usable.len(), expected: cards });
        }
        load::check(layers)?;
        for at in 0..self.layers.len().max(layers.len()) {
            let found = self.layers.get(at).map(|own| own.layer);
            let expected = layers.get(at).map(|layer| layer.layer);
            if found != expected {
                return Err(PlacementError::OtherLayers { at, found, expected });
            }
        }
        let mut bytes = vec![0u64; cards];
        for (own, model) in self.layers.iter().zip(layers) {
            let (layer, experts) = (own.layer, model.experts);
            if own.cards.len() != cards {
                return Err(PlacementError::CardCount { layer, found: own.cards.len(), expected: cards });
            }
            let mut placed = vec![false; experts as usize];
            for (card, list) in own.cards.iter().enumerate() {
                let mut before = None;
                for &expert in list {
                    let Some(placed) = placed.get_mut(expert as usize) else {
                        return Err(PlacementError::UnknownExpert { layer, card, expert, experts });
                    };
                    match before {
                        Some(before) if before == expert => {
                            return Err(PlacementError::Twice { layer, card, expert });
                        }
                        Some(before) if before > expert => {
                            return Err(PlacementError::Order { layer, card, expert });
                        }
                        _ => {}
                    }
                    *placed = true;
                    before = Some(expert);
                }
                // In ascending order a card lists an expert once, so that this is at most the layer's bytes.
                let sum = bytes[card].checked_add(list.len() as u64 * model.bytes);
                let overflow = || PlacementError::Overflow { what: format!("card {card}: bytes") };
                bytes[card] = sum.ok_or_else(overflow)?;
            }
            if let Some(expert) = placed.iter().position(|placed| !placed) {
                return Err(PlacementError::Missing { layer, expert: expert as u32 });
            }
        }
        for (card, (bytes, usable)) in bytes.into_iter().zip(usable).enumerate() {
            if let Some(usable) = usable.filter(|usable| bytes > *usable) {
                return Err(PlacementError::OverBudget { card, bytes, usable });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::LayerPlacement;

    fn check(cards: &[&[u32]], usable: &[Option<u64>]) -> Result<(), PlacementError> {
        let model = [LayerExperts { layer: 7, experts: 4, bytes: 10, counts: vec![] }];
        let cards: Vec<Vec<u32>> = cards.iter().map(|list| list.to_vec()).collect();
        Placement { layers: vec![LayerPlacement { layer: 7, cards }] }.check(&model, usable.len(), usable)
    }

    #[test]
    fn each_rule_has_its_error() {
        let two = [None, None];
        assert_eq!(check(&[&[0, 1], &[2, 3]], &[Some(20), Some(20)]), Ok(()));
        assert_eq!(check(&[&[0, 1, 3], &[0, 2, 3]], &two), Ok(()));
        let missing = PlacementError::Missing { layer: 7, expert: 2 };
        assert_eq!(check(&[&[0, 1], &[3]], &two), Err(missing));
        let twice = PlacementError::Twice { layer: 7, card: 1, expert: 2 };
        assert_eq!(check(&[&[0, 1], &[2, 2, 3]], &two), Err(twice));
        let order = PlacementError::Order { layer: 7, card: 1, expert: 2 };
        assert_eq!(check(&[&[0, 1], &[3, 2]], &two), Err(order));
        let unknown = PlacementError::UnknownExpert { layer: 7, card: 0, expert: 4, experts: 4 };
        assert_eq!(check(&[&[0, 1, 4], &[2, 3]], &two), Err(unknown));
        let over = PlacementError::OverBudget { card: 1, bytes: 30, usable: 29 };
        assert_eq!(check(&[&[0], &[1, 2, 3]], &[Some(20), Some(29)]), Err(over));
        let count = PlacementError::CardCount { layer: 7, found: 1, expected: 2 };
        assert_eq!(check(&[&[0, 1, 2, 3]], &two), Err(count));
        assert_eq!(check(&[], &[]), Err(PlacementError::Cards { found: 0 }));
    }

    #[test]
    fn a_placement_of_another_model_is_refused() {
        let model = |layer| LayerExperts { layer, experts: 1, bytes: 1, counts: vec![] };
        let own = |layer| LayerPlacement { layer, cards: vec![vec![0]] };
        let placement = Placement { layers: vec![own(0), own(1)] };
        assert_eq!(placement.check(&[model(0), model(1)], 1, &[None]), Ok(()));
        let other = |at, found, expected| Err(PlacementError::OtherLayers { at, found, expected });
        assert_eq!(placement.check(&[model(0)], 1, &[None]), other(1, Some(1), None));
        assert_eq!(placement.check(&[model(0), model(2)], 1, &[None]), other(1, Some(1), Some(2)));
        let error = placement.check(&[model(0), model(1), model(2)], 1, &[None]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "placement 2: no layer more, the model has layer 2; it is of another model"
        );
        let budgets = PlacementError::Budgets { found: 2, expected: 1 };
        assert_eq!(placement.check(&[model(0), model(1)], 1, &[None, None]), Err(budgets));
    }
}
