//! How experts are spread over cards, as a command line says it.

use std::fmt;
use std::str::FromStr;

/// How the experts of each layer are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Hottest first, dealt to and fro over the cards: the default.
    #[default]
    Paired,
    /// Whole layers, a run of them to each card.
    Layers,
    /// Each layer's largest card load as small as it gets.
    Balanced,
    /// As `Balanced`, with so many extra copies in each layer.
    Replicate(u32),
}

/// How many experts each card is given, where there is a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// In proportion to the budgets, so that equal cards get equal shares: the default.
    #[default]
    Share,
    /// Card 0 as full as it gets, then card 1, and so on.
    First,
}

/// A word that names nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {found:?}\n  expected {known}")]
pub struct ChoiceError {
    /// What was to be chosen.
    pub what: &'static str,
    /// What was given, at most 40 characters of it.
    pub found: String,
    /// What there is.
    pub known: &'static str,
}

impl ChoiceError {
    fn new(what: &'static str, found: &str, known: &'static str) -> Self {
        Self { what, found: found.chars().take(40).collect(), known }
    }
}

impl FromStr for Strategy {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        let known = "paired, layers, balanced or replicate:N, N copies more in a layer";
        let copies = |n: &str| n.bytes().all(|b| b.is_ascii_digit()).then(|| n.parse().ok()).flatten();
        match (text, text.strip_prefix("replicate:")) {
            ("paired", _) => Some(Self::Paired),
            ("layers", _) => Some(Self::Layers),
            ("balanced", _) => Some(Self::Balanced),
            (_, Some(n)) => copies(n).filter(|n| *n > 0).map(Self::Replicate),
            _ => None,
        }
        .ok_or_else(|| ChoiceError::new("placement", text, known))
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paired => f.write_str("paired"),
            Self::Layers => f.write_str("layers"),
            Self::Balanced => f.write_str("balanced"),
            Self::Replicate(n) => write!(f, "replicate:{n}"),
        }
    }
}

impl FromStr for Fill {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        match text {
            "share" => Ok(Self::Share),
            "first" => Ok(Self::First),
            _ => Err(ChoiceError::new("fill", text, "share or first")),
        }
    }
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Share => "share",
            Self::First => "first",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_reads_back() {
        let all = [Strategy::Paired, Strategy::Layers, Strategy::Balanced, Strategy::Replicate(64)];
        for strategy in all {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
        for fill in [Fill::Share, Fill::First] {
            assert_eq!(fill.to_string().parse(), Ok(fill));
        }
    }

    #[test]
    fn other_words_are_named_with_what_is_known() {
        let wrong =
            ["", "Paired", "pair", "replicate", "replicate:", "replicate:0", "replicate:+1", "replicate:-1"];
        for text in wrong.into_iter().chain(["replicate:4294967296", "replicate:1.5", "balanced "]) {
            let error = text.parse::<Strategy>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("replicate:N"), "{error}");
        }
        let error = "last".parse::<Fill>().unwrap_err().to_string();
        assert_eq!(error, "fill \"last\"\n  expected share or first");
    }
}
