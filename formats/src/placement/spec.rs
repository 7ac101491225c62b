//! Cards as a command line gives them: how many, or the budget of each.

use crate::container::MAX_CARDS;
use std::fmt;

/// A card to place on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardSpec {
    /// Host memory, whose experts the CPU computes.
    pub host: bool,
    /// Budget for weights in bytes; `None` without a limit.
    pub bytes: Option<u64>,
}

/// Why a text names no cards, in lines that follow a list of cards on a line of its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardsError {
    /// None, or too many.
    #[error("{found} cards: expected 1 to {MAX_CARDS}")]
    Count {
        /// How many.
        found: String,
    },
    /// An element that is no card.
    #[error("card {card}: {found:?}\n  expected {EXPECTED}")]
    Card {
        /// Card, from 0.
        card: usize,
        /// What was given, at most 40 characters of it.
        found: String,
    },
    /// A number of bytes without a unit that is known.
    #[error("card {card}: unit {found:?}\n  expected one of B, kB, MB, GB, KiB, MiB, GiB, TiB, as in 24GiB")]
    Unit {
        /// Card, from 0.
        card: usize,
        /// What was given, at most 40 characters of it.
        found: String,
    },
    /// Nothing, or more than 64 bits count.
    #[error("card {card}: {found} is {what}")]
    Range {
        /// Card, from 0.
        card: usize,
        /// What was given, at most 40 characters of it.
        found: String,
        /// What is wrong.
        what: &'static str,
    },
}

const EXPECTED: &str = "a budget as in 24GiB, any (no limit), cpu:64GiB or cpu (host memory)";

/// Bytes by unit, in the order in which a canonical text prefers them among equally short ones.
const UNITS: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Reads `3` as three cards without a limit, and `24GiB,16GiB,cpu:64GiB` as a card for each budget.
///
/// A budget is a decimal number and a unit; what is less than a byte is dropped. `cpu:` makes it host memory; `cpu`
/// is host memory without a limit and `any` a card without one.
///
/// # Errors
/// At the first element that is no card, and where there are none or more than [`MAX_CARDS`].
pub fn parse_cards(text: &str) -> Result<Vec<CardSpec>, CardsError> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        let count = text.parse().ok().filter(|n| (1..=MAX_CARDS).contains(n));
        let count = count.ok_or_else(|| CardsError::Count { found: shown(text) })?;
        return Ok(vec![CardSpec { host: false, bytes: None }; count]);
    }
    let mut cards = Vec::new();
    for (card, element) in text.split(',').map(str::trim).enumerate() {
        if card == MAX_CARDS {
            return Err(CardsError::Count { found: text.split(',').count().to_string() });
        }
        cards.push(match (element, element.strip_prefix("cpu:")) {
            ("cpu", _) => CardSpec { host: true, bytes: None },
            ("any", _) => CardSpec { host: false, bytes: None },
            (_, Some(budget)) => CardSpec { host: true, bytes: Some(bytes(card, budget)?) },
            _ => CardSpec { host: false, bytes: Some(bytes(card, element)?) },
        });
    }
    Ok(cards)
}

/// The canonical text of cards: what [`parse_cards`] reads back as the same.
pub fn cards_text(cards: &[CardSpec]) -> String {
    if cards.iter().all(|card| !card.host && card.bytes.is_none()) {
        return cards.len().to_string();
    }
    cards.iter().map(CardSpec::to_string).collect::<Vec<_>>().join(",")
}

impl fmt::Display for CardSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.host, self.bytes) {
            (true, None) => f.write_str("cpu"),
            (false, None) => f.write_str("any"),
            (true, Some(bytes)) => write!(f, "cpu:{}", exact(bytes)),
            (false, Some(bytes)) => f.write_str(&exact(bytes)),
        }
    }
}

/// The shortest whole number with a unit that is exactly `bytes`.
fn exact(bytes: u64) -> String {
    let whole = UNITS.iter().filter(|(_, size)| bytes.is_multiple_of(*size));
    let texts = whole.map(|(unit, size)| format!("{}{unit}", bytes / size));
    texts.min_by_key(String::len).unwrap_or_default()
}

/// `1.5GiB` in bytes.
fn bytes(card: usize, text: &str) -> Result<u64, CardsError> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) {
        return Err(CardsError::Card { card, found: shown(text) });
    }
    let unit = unit.trim_start();
    let Some(&(_, size)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(CardsError::Unit { card, found: shown(unit) });
    };
    let range = |what| CardsError::Range { card, found: shown(text), what };
    let too_large = || range("more bytes than 64 bits count");
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    // From the last digit on, each with a tenth of what follows: exact for any number of digits.
    let tenth = |after: u128, digit: u8| (u128::from(digit - b'0') * u128::from(size) + after) / 10;
    let part = part.bytes().rev().fold(0, tenth);
    let sum = u128::from(whole) * u128::from(size) + part;
    match u64::try_from(sum) {
        Ok(0) => Err(range("no byte: leave the card out instead")),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(too_large()),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn gpu(bytes: u64) -> CardSpec {
        CardSpec { host: false, bytes: Some(bytes) }
    }

    #[test]
    fn a_number_is_so_many_cards_without_a_limit() {
        let any = CardSpec { host: false, bytes: None };
        assert_eq!(parse_cards("3"), Ok(vec![any; 3]));
        assert_eq!(parse_cards(&MAX_CARDS.to_string()).map(|c| c.len()), Ok(MAX_CARDS));
        for wrong in ["0", "1000", "99999999999999999999999999"] {
            assert!(matches!(parse_cards(wrong), Err(CardsError::Count { .. })), "{wrong}");
        }
        let many = vec!["1GiB"; MAX_CARDS + 1].join(",");
        let error = parse_cards(&many).unwrap_err().to_string();
        assert_eq!(error, format!("{} cards: expected 1 to {MAX_CARDS}", MAX_CARDS + 1));
    }

    #[test]
    fn budgets_are_read_with_their_units() {
        let host = |bytes| CardSpec { host: true, bytes };
        let cards = parse_cards("24GiB, 16GiB,cpu:64GiB,cpu").unwrap();
        assert_eq!(cards, [gpu(24 * GIB), gpu(16 * GIB), host(Some(64 * GIB)), host(None)]);
        let units = "7B,7kB,7MB,7GB,7KiB,7MiB,7GiB,7TiB";
        let bytes: Vec<_> = parse_cards(units).unwrap().iter().map(|c| c.bytes.unwrap() / 7).collect();
        assert_eq!(bytes, [1, 1000, 1_000_000, 1_000_000_000, 1 << 10, 1 << 20, 1 << 30, 1 << 40]);
        assert_eq!(parse_cards("1.5GiB"), Ok(vec![gpu(3 * GIB / 2)]));
        assert_eq!(parse_cards("0.1GiB"), Ok(vec![gpu(107_374_182)]));
        assert_eq!(parse_cards("1.99999999999999999999999999kB"), Ok(vec![gpu(1999)]));
        assert_eq!(parse_cards("16777215.9TiB").map(|c| c.len()), Ok(1));
    }

    #[test]
    fn what_is_no_card_is_named() {
        for (text, said) in [
            ("", "card 0: \"\"\n  expected a budget"),
            ("24GiB,", "card 1: \"\""),
            ("24GiB,16", "card 1: unit \"\"\n  expected one of B, kB"),
            ("24Gib", "card 0: unit \"Gib\""),
            ("24G", "unit \"G\""),
            ("-1GiB", "card 0: \"-1GiB\""),
            ("1.GiB", "\"1.GiB\""),
            (".5GiB", "\".5GiB\""),
            ("1.2.3GiB", "\"1.2.3GiB\""),
            ("1e3GiB", "unit \"e3GiB\""),
            ("cpu:", "card 0: \"\""),
            ("cuda:24GiB", "\"cuda:24GiB\"\n  expected a budget as in 24GiB"),
            ("0GiB", "0GiB is no byte"),
            ("0.1B", "0.1B is no byte"),
            ("16777216TiB", "more bytes than 64 bits count"),
            ("99999999999999999999TiB", "more bytes than 64 bits count"),
        ] {
            let error = parse_cards(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
            assert!(error.lines().all(|line| line.len() <= 80), "{error}");
        }
    }

    #[test]
    fn the_canonical_text_is_the_shortest() {
        for (bytes, text) in [
            (24 * GIB, "24GiB"),
            (24_000_000_000, "24GB"),
            (3 * GIB / 2, "1536MiB"),
            (1024 * GIB, "1TiB"),
            (1001, "1001B"),
        ] {
            assert_eq!(gpu(bytes).to_string(), text);
        }
        assert_eq!(cards_text(&parse_cards("3").unwrap()), "3");
        assert_eq!(
            cards_text(&parse_cards("24576MiB,cpu:0.5TiB,any,cpu").unwrap()),
            "24GiB,cpu:512GiB,any,cpu"
        );
    }

    proptest! {
        #[test]
        fn cards_read_back(cards in prop::collection::vec((any::<bool>(), prop::option::of(1u64..)), 1..=MAX_CARDS)) {
            let cards: Vec<_> = cards.into_iter().map(|(host, bytes)| CardSpec { host, bytes }).collect();
            prop_assert_eq!(parse_cards(&cards_text(&cards)), Ok(cards));
        }

        #[test]
        fn no_text_panics(text in "[0-9.,:a-zA-Z ]{0,30}") {
            let _ = parse_cards(&text);
        }
    }
}
