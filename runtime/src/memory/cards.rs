//! A model that does not fit the cards that were asked for.

use super::{Need, mib};
use gantry_formats::placement::CardSpec;
use std::fmt;

/// What a card must hold whatever else goes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardNeed {
    /// What it may hold in bytes; `None` without a limit.
    pub budget: Option<u64>,
    /// What it must.
    pub need: Need,
}

/// Cards with too little room, as a table: what each must hold and may, which is short by how much, what would fit.
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
    /// The card that is short; `None` where all of them together are.
    pub card: Option<usize>,
    /// By how many bytes.
    pub short: u64,
    /// The context that was asked for, in positions.
    pub context: usize,
    /// The longest context that fits; 0 where none does.
    pub fitting_context: usize,
    /// Cards that it fits on.
    pub fitting_cards: Vec<CardSpec>,
}

impl fmt::Display for CardShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "not enough room on these cards for this model with a context of {}:", self.context)?;
        writeln!(
            f,
            "  {:<8}{:>13}{:>14}{:>14}{:>14}",
            "card", "weights MiB", "KV cache MiB", "scratch MiB", "budget MiB"
        )?;
        for (card, CardNeed { budget, need }) in self.cards.iter().enumerate() {
            let name = format!("{}:{card}", self.family);
            let [w, c, s] = [need.weights, need.cache, need.scratch].map(mib);
            let budget = budget.map_or("any".into(), mib);
            writeln!(f, "  {name:<8}{w:>13}{c:>14}{s:>14}{budget:>14}")?;
        }
        let what = if self.whole_layers { "layers" } else { "experts" };
        writeln!(f, "  {what:<8}{:>13}  to go where there is room", mib(self.movable))?;
        let who = match self.card {
            Some(card) => format!("{}:{card}", self.family),
            None => "all cards together".into(),
        };
        writeln!(f, "  short by {} MiB on {who}", mib_up(self.short))?;
        if self.fitting_context > 0 {
            let n = self.fitting_context;
            writeln!(f, "  a context of {n} would fit (--context {n})")?;
        }
        write!(f, "  --cards {} would fit", self.fitting())
    }
}

impl CardShortage {
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
            card: Some(1),
            short: (3 << 20) + 1,
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
            "cpu:0             7.0          12.0           1.0          24.0",
            "cpu:2             0.0           0.0           0.0           any",
            "experts          40.0  to go",
            "short by 3.1 MiB on cpu:1",
            "(--context 300)",
            "--cards 24MiB,20MiB,cpu would fit",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn no_context_is_named_where_none_fits() {
        let text =
            CardShortage { fitting_context: 0, card: None, whole_layers: true, ..shortage() }.to_string();
        assert!(!text.contains("--context") && text.contains("on all cards together"), "{text}");
        assert!(text.contains("layers           40.0"), "{text}");
    }
}
