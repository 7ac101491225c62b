//! What an exchange refuses.

use super::flag::State;
use super::patience::Who;
use gantry_formats::exit::{Exit, ExitCode};
use std::fmt;
use std::time::Duration;

/// What a card waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Words of the other card.
    Words,
    /// That the other card has taken what it was sent before.
    Taken,
}

/// A card did not do in time what another waited for, or has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// Who waited for whom, in which layer.
    pub who: Who,
    /// What for.
    pub awaited: Awaited,
    /// What the flag said at last.
    pub found: State,
    /// What it should have said.
    pub expected: State,
    /// How long it was waited for; zero where there was nothing to wait for.
    pub after: Duration,
}

impl std::error::Error for Late {}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { who: Who { waiting, for_card, layer }, awaited, found, expected, after } = self;
        let layer = layer.map_or(String::new(), |layer| format!(" in layer {layer}"));
        if *found == State::Failed {
            return write!(
                f,
                "card {for_card} failed, card {waiting} waited for it{layer} ({expected}): see the error of card \
                 {for_card}"
            );
        }
        if *found == State::Absent {
            return write!(
                f,
                "card {waiting} waits for card {for_card}{layer}, which has no place in this exchange"
            );
        }
        if found == expected {
            return write!(
                f,
                "card {waiting} has taken {expected} of card {for_card}{layer} before: a sender must count one further"
            );
        }
        let seconds = after.as_secs_f64();
        let (what, says) = match awaited {
            Awaited::Words => ("", "its flag says"),
            Awaited::Taken => (" to take what it was sent", "it has taken"),
        };
        write!(
            f,
            "card {waiting} waited {seconds:.1} s for card {for_card}{what}{layer}: {says} {found}, expected \
             {expected}; it hangs or gets no time to run: look for other load on the host, or use fewer threads or \
             cards"
        )
    }
}

/// More words than a mailbox holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{wanted} words after {used} do not fit in a mailbox of {capacity} words: make it larger, or send less"
)]
pub struct Full {
    /// Words that the mailbox holds.
    pub capacity: usize,
    /// Words written before.
    pub used: usize,
    /// Words that were to follow.
    pub wanted: usize,
}

/// More words wanted than were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{wanted} words wanted after {read} of the {written} that were sent: writer and reader disagree on what is sent"
)]
pub struct Short {
    /// Words that were sent.
    pub written: usize,
    /// Words read before.
    pub read: usize,
    /// Words that should follow.
    pub wanted: usize,
}

/// Words that nobody read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{left} of {written} words sent were not read: writer and reader disagree on what is sent")]
pub struct Unread {
    /// Words that were sent.
    pub written: usize,
    /// Words left.
    pub left: usize,
}

/// A row that a board does not have, or not of that width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {row} of {found} values: the board has rows 0 to below {rows}, of {width} values each")]
pub struct BadRow {
    /// The row.
    pub row: usize,
    /// Its values.
    pub found: usize,
    /// Rows of the board.
    pub rows: usize,
    /// Values of each.
    pub width: usize,
}

/// Why an exchange does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// A card was late, or has failed.
    #[error(transparent)]
    Late(#[from] Late),
    /// A mailbox is too small.
    #[error(transparent)]
    Full(#[from] Full),
    /// A mailbox holds less than is read.
    #[error(transparent)]
    Short(#[from] Short),
    /// A mailbox holds more than is read.
    #[error(transparent)]
    Unread(#[from] Unread),
    /// A board has no such row.
    #[error(transparent)]
    Row(#[from] BadRow),
    /// A card that has said that it failed sends more.
    #[error("card {card} has failed before and can send nothing more: set the exchange up anew")]
    Closed {
        /// The card.
        card: usize,
    },
    /// A card that the board does not know.
    #[error("card {card} posts on a board for {cards} cards: cards count from 0")]
    NoCard {
        /// The card.
        card: usize,
        /// Cards of the board.
        cards: usize,
    },
}

impl ExitCode for ExchangeError {
    fn exit(&self) -> Exit {
        Exit::Other
    }
}
