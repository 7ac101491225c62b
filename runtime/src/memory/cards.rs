//! A model that does not fit the cards that were asked for.

use super::{Need, mib};
use gantry_formats::placement::CardSpec;
use std::fmt;

/// Longest list of cards that leaves its line within 80 columns.
const LISTED: usize = 80 - "  --cards  would fit".len();

/// What a card must hold whatever else goes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardNeed {
    /// What it may hold in bytes; `None` without a limit.
    pub budget: Option<u64>,
    /// What it must.
    pub need: Need,
}

/// Cards with too little room, as a table: what each must hold and may, and is short by, what would fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardShortage {
    /// What cards are called: `cpu` of `cpu:0`.
    pub family: String,
    /// By card.
    pub cards: Vec<CardNeed>,
    /// Whether whole layers are what goes where there is room; else it is experts.
    pub whole_layers: bool,
    /// Bytes of them.
    pub movable: u64,
    /// The context that was asked for, in positions.
    pub context: usize,
    /// The longest context that fits; 0 where none does.
    pub fitting_context: usize,
    /// Cards that it fits on: what each of those asked for has, and what it is short by.
    pub fitting_cards: Vec<CardSpec>,
}

impl fmt::Display for CardShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "not enough room on these cards for this model with a context of {}:", self.context)?;
        let head = ["weights MiB", "KV cache MiB", "scratch MiB", "budget MiB", "short MiB"];
        writeln!(f, "  {:<8}{}", "card", head.map(|h| format!("{h:>14}")).concat())?;
        for (card, CardNeed { budget, need }) in self.cards.iter().enumerate() {
            let name = format!("{}:{card}", self.family);
            let [w, c, s] = [need.weights, need.cache, need.scratch].map(mib);
            let budget = budget.map_or("any".into(), mib);
            let row = [w, c, s, budget, mib_up(self.short(card))];
            writeln!(f, "  {name:<8}{}", row.map(|cell| format!("{cell:>14}")).concat())?;
        }
        let what = if self.whole_layers { "layers" } else { "experts" };
        writeln!(f, "  {what:<8}{:>14}  to go where there is room", mib(self.movable))?;
        if self.fitting_context > 0 {
            let n = self.fitting_context;
            writeln!(f, "  a context of {n} would fit (--context {n})")?;
        }
        let cards = self.fitting();
        // The list is one argument, to be copied whole: where it is long it has a line of its own.
        let gap = if cards.len() > LISTED { "\n  " } else { " " };
        write!(f, "  --cards{gap}{cards}{gap}would fit")
    }
}

impl CardShortage {
    /// Bytes that `card` lacks.
    pub fn short(&self, card: usize) -> u64 {
        let budget = self.cards.get(card).and_then(|c| c.budget);
        let fits = self.fitting_cards.get(card).and_then(|c| c.bytes);
        fits.unwrap_or(0).saturating_sub(budget.unwrap_or(u64::MAX))
    }

    /// Cards that it fits on, in whole MiB.
    fn fitting(&self) -> String {
        let text = |card: &CardSpec| {
            let host = if card.host { "cpu" } else { "any" };
            match card.bytes {
                None => host.to_string(),
                Some(bytes) => {
                    let kind = if card.host { "cpu:" } else { "" };
                    format!("{kind}{}MiB", bytes.div_ceil(1 << 20))
                }
            }
        };
        self.fitting_cards.iter().map(text).collect::<Vec<_>>().join(",")
    }
}

/// MiB with one digit, rounded up: what is asked for must do.
fn mib_up(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10).div_ceil(1 << 20);
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortage() -> CardShortage {
        let must = |budget, weights: u64, cache: u64, scratch: u64| CardNeed {
            budget,
            need: Need { weights: weights << 20, cache: cache << 20, scratch: scratch << 20 },
        };
        CardShortage {
            family: "cpu".into(),
            cards: vec![must(Some(24 << 20), 7, 12, 1), must(Some(16 << 20), 0, 0, 0), must(None, 0, 0, 0)],
            whole_layers: false,
            movable: 40 << 20,
            context: 4096,
            fitting_context: 300,
            fitting_cards: [Some(24 << 20), Some((19 << 20) + 1), None]
                .map(|bytes| CardSpec { host: bytes.is_none(), bytes })
                .to_vec(),
        }
    }

    #[test]
    fn it_says_which_card_is_short_by_how_much_and_what_would_fit() {
        let text = shortage().to_string();
        for part in [
            "context of 4096",
            "cpu:0              7.0          12.0           1.0          24.0           0.0",
            "cpu:1              0.0           0.0           0.0          16.0           3.1",
            "cpu:2              0.0           0.0           0.0           any           0.0",
            "experts           40.0  to go",
            "(--context 300)",
            "--cards 24MiB,20MiB,cpu would fit",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn a_long_list_of_cards_stays_whole_on_a_line_of_its_own() {
        for n in [7, 8, 59] {
            let fitting_cards = vec![CardSpec { host: false, bytes: Some(24 << 30) }; n];
            let list = vec!["24576MiB"; n].join(",");
            let text = CardShortage { fitting_cards, ..shortage() }.to_string();
            assert!(
                text.lines().any(|line| line.trim().trim_start_matches("--cards ").starts_with(&list)),
                "{text}"
            );
            // Only the list itself may be wider, as it must not be broken.
            assert!(text.lines().all(|line| line.len() <= 80 || line.trim() == list), "{text}");
        }
    }

    #[test]
    fn no_context_is_named_where_none_fits() {
        let text = CardShortage { fitting_context: 0, whole_layers: true, ..shortage() }.to_string();
        assert!(!text.contains("--context") && text.contains("layers            40.0"), "{text}");
    }
}
