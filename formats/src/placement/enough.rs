//! Budgets and contexts that are enough, where those that were given are not.

use super::fit::overflow;
use super::{CardSpec, Demand, Held, Misfit, PlacementError, Request, place_by_budget};
use crate::size;

/// Budgets that are enough, none of them less than its card's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enough {
    /// By card, bytes that it lacks; nothing for one without a limit.
    pub short: Vec<u64>,
    /// The cards with such budgets: those that grew in whole MiB. [`Demand::fit`] takes them.
    pub cards: Vec<CardSpec>,
}

/// Doublings of what is added to budgets: after so many they hold whatever fits 64 bits.
const STEPS: u32 = 48;

impl Demand<'_> {
    /// Budgets that are enough. They were tried: given instead of the cards' own, everything fits.
    ///
    /// # Errors
    /// Where no budget is enough.
    pub fn enough(&self) -> Result<Enough, PlacementError> {
        let mut needs = match self.fit() {
            Ok(_) => vec![0; self.cards.len()],
            Err(Misfit::Short) => self.needs()?,
            Err(Misfit::Never(error)) => return Err(error),
        };
        // Experts of several sizes, and what alignment takes, may leave gaps in what should be enough.
        let largest = self.experts.iter().map(|l| l.bytes).max().unwrap_or(0);
        let gap = largest.max(self.alignment.segment.into()).max(1);
        for step in 0..=STEPS {
            let cards: Vec<CardSpec> = self.cards.iter().zip(&needs).map(grown).collect();
            match (Demand { cards: &cards, ..*self }).fit() {
                Ok(_) => {
                    let short = |(card, needs): (&CardSpec, &u64)| {
                        card.bytes.map_or(0, |budget| needs.saturating_sub(budget))
                    };
                    return Ok(Enough { short: self.cards.iter().zip(&needs).map(short).collect(), cards });
                }
                Err(Misfit::Never(error)) => return Err(error),
                Err(Misfit::Short) => {
                    let more = gap.saturating_mul(1 << step);
                    needs.iter_mut().for_each(|needs| *needs = needs.saturating_add(more));
                }
            }
        }
        Err(overflow())
    }

    /// Budgets that should be enough, in the proportion of those that are not.
    fn needs(&self) -> Result<Vec<u64>, PlacementError> {
        if self.whole_layers() {
            return match self.runs() {
                Ok(fit) => Ok(fit.held.iter().map(Held::total).collect()),
                Err(PlacementError::Short { enough, .. }) => {
                    let budget = |(card, bytes): (usize, &u64)| bytes.saturating_add(self.aside(card));
                    Ok(enough.iter().enumerate().map(budget).collect())
                }
                Err(other) => Err(other),
            };
        }
        let (usable, _) = self.usable()?;
        let budgets: Vec<Option<u64>> = self.cards.iter().map(|card| card.bytes).collect();
        let request =
            Request { layers: self.experts, usable: &usable, strategy: self.rule(), fill: self.fill };
        let experts = match place_by_budget(&request, &budgets) {
            Ok(_) => vec![0; self.cards.len()],
            Err(PlacementError::Short { enough, .. }) => enough,
            Err(other) => return Err(other),
        };
        Ok(experts.iter().enumerate().map(|(card, bytes)| self.budget_for(card, *bytes)).collect())
    }
}

/// A card with a budget of at least `needs`.
fn grown((card, needs): (&CardSpec, &u64)) -> CardSpec {
    let grow = |budget: u64| match *needs > budget {
        true => size::align_up(*needs, 1 << 20).unwrap_or(u64::MAX),
        false => budget,
    };
    CardSpec { bytes: card.bytes.map(grow), ..*card }
}

/// The longest context, at least `least` and less than `context`, of which `fits` says that it fits; `None` where
/// `least` does not.
pub fn longest_context(least: u64, context: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    if least >= context || !fits(least) {
        return None;
    }
    let (mut longest, mut beyond) = (least, context);
    while beyond - longest > 1 {
        let middle = longest + (beyond - longest) / 2;
        if fits(middle) { longest = middle } else { beyond = middle }
    }
    Some(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_context_that_fits_is_found() {
        for most in 0..40 {
            let found = longest_context(4, 33, |n| n <= most);
            assert_eq!(found, (most >= 4).then_some(most.min(32)), "{most}");
        }
        assert_eq!(longest_context(16, 16, |_| true), None);
    }
}
