//! A flag: the word that says for which exchange the others are ready.

use super::epoch::Epoch;
use super::error::{Awaited, Late};
use super::patience::{Patience, Who};
use super::word::Word;
use std::time::Duration;

/// What a flag says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing yet.
    Nothing,
    /// All of this exchange is there.
    At(Epoch),
    /// The card that sets this flag has failed. It stays so.
    Failed,
    /// There is no such flag.
    Absent,
}

impl State {
    fn of(value: u32) -> Self {
        match Epoch::new(value) {
            Some(epoch) => Self::At(epoch),
            None if value == 0 => Self::Nothing,
            None => Self::Failed,
        }
    }

    fn value(self) -> u32 {
        match self {
            Self::Nothing | Self::Absent => 0,
            Self::At(epoch) => epoch.get(),
            Self::Failed => u32::MAX,
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::At(epoch) => write!(f, "epoch {epoch}"),
            Self::Failed => f.write_str("failure"),
            Self::Absent => f.write_str("no flag"),
        }
    }
}

/// One card writes it, one other waits for it. Alone in two cache lines, since processors fetch pairs: who waits for
/// one flag must not slow down who writes the next.
#[repr(align(128))]
pub(super) struct Flag<W>(pub(super) W);

impl<W: Word> Flag<W> {
    /// A flag that says nothing yet.
    pub(super) fn new() -> Self {
        Self(W::new(0))
    }

    /// What it says, to the one card that writes it.
    pub(super) fn own(&self) -> State {
        State::of(self.0.get())
    }

    /// Lets it say `state`, after all that its card wrote and read before.
    pub(super) fn raise(&self, state: State) {
        self.0.release(state.value());
    }

    /// Waits until it says `expected`. All that its card wrote before is then seen, all that it read before is read.
    pub(super) fn wait(
        &self,
        expected: State,
        patience: &Patience,
        who: Who,
        awaited: Awaited,
    ) -> Result<(), Late> {
        let mut found = State::Nothing;
        let ended = patience.until::<W, bool>(|| {
            found = State::of(self.0.acquire());
            (found == expected || found == State::Failed).then_some(found == expected)
        });
        match ended {
            Ok(true) => Ok(()),
            Ok(false) => Err(Late { who, awaited, found, expected, after: Duration::ZERO }),
            Err(after) => Err(Late { who, awaited, found, expected, after }),
        }
    }
}
