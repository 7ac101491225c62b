//! From every card to the one that routes.

use super::delays::{Delays, Point};
use super::epoch::Epoch;
use super::error::{Awaited, BadRow, ExchangeError, Late};
use super::flag::{Flag, State};
use super::patience::{Patience, Who};
use super::word::{self, Word};
use crate::{Result, RuntimeError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Rows of the card that routes, into which the other cards write their own rows straight: one for each slot of each token.
///
/// Cards write disjoint rows; which row is whose follows from the request. What keeps a card from overwriting rows
/// that it still reads is the next request, see the [module](super). One thread of each card posts at a time.
pub struct Board<W: Word = AtomicU32> {
    /// `[row][value]`.
    pub(super) words: Box<[W]>,
    pub(super) flags: Box<[Flag<W>]>,
    rows: usize,
    width: usize,
    pub(super) delays: Option<Arc<Delays>>,
}

impl<W: Word> Board<W> {
    /// A board for `cards` cards, the one that reads it among them, with `rows` rows of `width` floats.
    ///
    /// # Errors
    /// Where the system does not give the memory.
    pub fn new(cards: usize, rows: usize, width: usize) -> Result<Self> {
        let what = "the rows that cards write for the one that routes";
        let Some(words) = rows.checked_mul(width) else {
            let source = io::ErrorKind::OutOfMemory.into();
            return Err(RuntimeError::Allocation { what, bytes: u64::MAX, source });
        };
        let words = word::zeroed(words, what)?;
        let flags = (0..cards).map(|_| Flag::new()).collect();
        Ok(Self { words, flags, rows, width, delays: None })
    }

    /// The same with delays at every step, where there are any, for tests.
    #[must_use]
    pub fn with_delays(mut self, delays: Option<&Arc<Delays>>) -> Self {
        self.delays = delays.cloned();
        self
    }

    /// Rows that it has.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Floats of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Writes what `fill` puts, then lets `card`'s flag say `epoch`. Threads of the card may put rows in parallel, if
    /// `fill` returns only after all of them. Where `fill` fails the flag stays as it was.
    ///
    /// # Errors
    /// [`ExchangeError::Row`] from `fill`, [`ExchangeError::Closed`] after [`fail`](Self::fail),
    /// [`ExchangeError::NoCard`].
    pub fn post(
        &self,
        card: usize,
        epoch: Epoch,
        fill: impl FnOnce(&Rows<'_, W>) -> Result<(), BadRow>,
    ) -> Result<(), ExchangeError> {
        let flag = self.flags.get(card).ok_or(ExchangeError::NoCard { card, cards: self.flags.len() })?;
        if flag.own() == State::Failed {
            return Err(ExchangeError::Closed { card });
        }
        self.at(Point::BeforeWords);
        fill(&Rows { board: self })?;
        self.at(Point::BeforeFlag);
        flag.raise(State::At(epoch));
        self.at(Point::AfterFlag);
        Ok(())
    }

    /// Card 0 waits for the rows of `card` for `epoch`, which it computes in `layer`.
    ///
    /// # Errors
    /// Where they do not come in time, the card has [failed](Self::fail), or there is no such card.
    pub fn wait(&self, epoch: Epoch, patience: &Patience, who: Who) -> Result<(), Late> {
        self.at(Point::BeforeWait);
        let (awaited, expected) = (Awaited::Words, State::At(epoch));
        let Some(flag) = self.flags.get(who.for_card) else {
            return Err(Late { who, awaited, found: State::Absent, expected, after: Duration::ZERO });
        };
        flag.wait(expected, patience, who, awaited)?;
        self.at(Point::AfterWait);
        Ok(())
    }

    /// Reads a row, whose card was waited for.
    ///
    /// # Errors
    /// Where there is no such row, or `out` is not as wide.
    #[inline]
    pub fn read(&self, row: usize, out: &mut [f32]) -> Result<(), BadRow> {
        let words = self.row(row, out.len())?;
        word::read(
            words,
            out.iter_mut(),
            |place, word| *place = f32::from_bits(word),
            self.delays.as_deref(),
        );
        Ok(())
    }

    /// `card` has failed: card 0 stops at once. Nothing where there is no such card.
    pub fn fail(&self, card: usize) {
        if let Some(flag) = self.flags.get(card) {
            flag.raise(State::Failed);
        }
    }

    /// Takes back all that was posted, failures too. All sides begin again at any epoch.
    pub fn reset(&mut self) {
        self.flags.iter_mut().for_each(|flag| *flag = Flag::new());
    }

    fn row(&self, row: usize, found: usize) -> Result<&[W], BadRow> {
        if row >= self.rows || found != self.width {
            return Err(BadRow { row, found, rows: self.rows, width: self.width });
        }
        // `new` has computed rows * width.
        Ok(&self.words[row * self.width..][..found])
    }

    fn at(&self, point: Point) {
        if let Some(delays) = &self.delays {
            delays.at(point);
        }
    }
}

/// Where a card puts its rows.
pub struct Rows<'a, W: Word = AtomicU32> {
    board: &'a Board<W>,
}

impl<W: Word> Rows<'_, W> {
    /// Writes a row of the card's own.
    ///
    /// # Errors
    /// Where there is no such row, or `values` is not as wide.
    #[inline]
    pub fn put(&self, row: usize, values: &[f32]) -> Result<(), BadRow> {
        let words = self.board.row(row, values.len())?;
        word::write(words, values.iter().map(|value| value.to_bits()), self.board.delays.as_deref());
        Ok(())
    }
}
