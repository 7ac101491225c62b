//! A model that does not fit the cards that were asked for, as a table.

use super::{CardSpec, Demand, Enough, Held, PlacementError, cards_text};
use crate::size::mib;
use std::fmt;

/// Longest list of cards that leaves its line within 80 columns.
const LISTED: usize = 80 - "  --cards  would fit".len();

/// What a card must hold whatever else goes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardNeed {
    /// Its budget in bytes; `None` without a limit.
    pub budget: Option<u64>,
    /// What it must hold, its segment unaligned.
    pub held: Held,
    /// Bytes that its budget lacks for that and for its part of what goes where there is room.
    pub short: u64,
}

/// Cards with too little room: what each must hold and may, what it is short by, and what would fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardShortage {
    /// What the number of a card follows: `card `, or `cpu:` of `cpu:0`.
    pub called: String,
    /// By card.
    pub cards: Vec<CardNeed>,
    /// Whether whole layers are what goes where there is room; else it is experts.
    pub whole_layers: bool,
    /// Bytes of them.
    pub movable: u64,
    /// The context that was asked for, in positions, where one is known.
    pub context: Option<u64>,
    /// The longest context that fits, where one does.
    pub fitting_context: Option<u64>,
    /// Cards that it fits on.
    pub fitting_cards: Vec<CardSpec>,
}

impl CardShortage {
    /// What `demand` is short by. `fitting_context` is that of [`longest_context`](super::longest_context).
    ///
    /// # Errors
    /// Where no budget is enough.
    pub fn of(
        demand: &Demand<'_>,
        called: &str,
        context: Option<u64>,
        fitting_context: Option<u64>,
    ) -> Result<Self, PlacementError> {
        let Enough { short, cards } = demand.enough()?;
        let each = demand.cards.iter().zip(demand.settled()).zip(short);
        Ok(Self {
            called: called.into(),
            cards: each.map(|((card, held), short)| CardNeed { budget: card.bytes, held, short }).collect(),
            whole_layers: demand.whole_layers(),
            movable: demand.movable(),
            context,
            fitting_context,
            fitting_cards: cards,
        })
    }
}

impl fmt::Display for CardShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.context {
            Some(context) => writeln!(f, "not enough room on these cards for a context of {context}:")?,
            None => writeln!(f, "not enough room on these cards:")?,
        }
        let reserves = self.cards.iter().any(|card| card.held.reserve > 0);
        let row = |f: &mut fmt::Formatter<'_>, name: &str, cells: [String; 6]| {
            let [weights, states, scratch, reserve, budget, short] = cells;
            let reserve = reserves.then_some(reserve);
            let cells = [weights, states, scratch].into_iter().chain(reserve).chain([budget, short]);
            let cells: String = cells.map(|cell| format!("{cell:>11}")).collect();
            writeln!(f, "  {name:<9}{cells}")
        };
        let titles = ["weights", "KV cache", "scratch", "reserve", "budget", "short"];
        row(f, "MiB", titles.map(String::from))?;
        for (card, CardNeed { budget, held, short }) in self.cards.iter().enumerate() {
            let [weights, states, scratch, reserve, short] =
                [held.segment, held.states, held.scratch, held.reserve, *short].map(mib);
            let budget = budget.map_or("any".into(), mib);
            let cells = [weights, states, scratch, reserve, budget, short];
            row(f, &format!("{}{card}", self.called), cells)?;
        }
        let what = if self.whole_layers { "layers" } else { "experts" };
        writeln!(f, "  {what:<9}{:>11}  to go where there is room", mib(self.movable))?;
        if let Some(n) = self.fitting_context {
            writeln!(f, "  a context of {n} would fit (--context {n})")?;
        }
        let cards = cards_text(&self.fitting_cards);
        // The list is one argument, to be copied whole: where it is long it has a line of its own.
        let gap = if cards.len() > LISTED { "\n  " } else { " " };
        write!(f, "  --cards{gap}{cards}{gap}would fit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortage() -> CardShortage {
        let must = |budget, weights: u64, states: u64, scratch: u64, short| CardNeed {
            budget,
            held: Held { segment: weights << 20, states: states << 20, scratch: scratch << 20, reserve: 0 },
            short,
        };
        CardShortage {
            called: "cpu:".into(),
            cards: vec![
                must(Some(24 << 20), 7, 12, 1, 0),
                must(Some(16 << 20), 0, 0, 0, (3 << 20) + 1),
                must(None, 0, 0, 0, 0),
            ],
            whole_layers: false,
            movable: 40 << 20,
            context: Some(4096),
            fitting_context: Some(300),
            fitting_cards: [Some(24 << 20), Some(20 << 20), None]
                .map(|bytes| CardSpec { host: bytes.is_none(), bytes })
                .to_vec(),
        }
    }

    #[test]
    fn it_says_which_card_is_short_by_how_much_and_what_would_fit() {
        let said = "\
not enough room on these cards for a context of 4096:
  MiB          weights   KV cache    scratch     budget      short
  cpu:0            7.0       12.0        1.0       24.0        0.0
  cpu:1            0.0        0.0        0.0       16.0        3.1
  cpu:2            0.0        0.0        0.0        any        0.0
  experts         40.0  to go where there is room
  a context of 300 would fit (--context 300)
  --cards 24MiB,20MiB,cpu would fit";
        assert_eq!(shortage().to_string(), said);
        let mut kept = shortage();
        (kept.context, kept.fitting_context, kept.whole_layers) = (None, None, true);
        kept.cards.iter_mut().for_each(|card| card.held.reserve = 1 << 40);
        let said = "\
not enough room on these cards:
  MiB          weights   KV cache    scratch    reserve     budget      short
  cpu:0            7.0       12.0        1.0  1048576.0       24.0        0.0
  cpu:1            0.0        0.0        0.0  1048576.0       16.0        3.1
  cpu:2            0.0        0.0        0.0  1048576.0        any        0.0
  layers          40.0  to go where there is room
  --cards 24MiB,20MiB,cpu would fit";
        assert_eq!(kept.to_string(), said);
    }

    #[test]
    fn a_long_list_of_cards_stays_whole_on_a_line_of_its_own() {
        for n in [7, 8, 59] {
            let fitting_cards = vec![CardSpec { host: false, bytes: Some(24_577 << 20) }; n];
            let list = vec!["24577MiB"; n].join(",");
            let text = CardShortage { fitting_cards, ..shortage() }.to_string();
            assert!(
                text.lines().any(|line| line.trim().trim_start_matches("--cards ").starts_with(&list)),
                "{text}"
            );
            // Only the list itself may be wider, as it must not be broken.
            assert!(text.lines().all(|line| line.len() <= 80 || line.trim() == list), "{text}");
        }
    }
}
