//! From one card to one other.

use super::delays::{Delays, Point};
use super::epoch::Epoch;
use super::error::{Awaited, ExchangeError, Full, Late};
use super::flag::{Flag, State};
use super::patience::{Patience, Who};
use super::reader::Reader;
use super::word::{self, Word};
use super::writer::Writer;
use crate::{Result, RuntimeError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Words that one card sends one other: a request, or the buffers that it hands over.
///
/// It holds one message. The writer waits, before it writes the next, until the reader has taken the last; so it may
/// be used in any order. One thread at a time writes, one at a time reads, and a reader has one [`Reader`] at a time.
pub struct Mailbox<W: Word = AtomicU32> {
    pub(super) words: Box<[W]>,
    /// Words of the message.
    pub(super) written: W,
    /// The writer's: the epoch of the message.
    pub(super) flag: Flag<W>,
    /// The reader's: the epoch that it has taken.
    pub(super) taken: Flag<W>,
    pub(super) delays: Option<Arc<Delays>>,
}

impl<W: Word> Mailbox<W> {
    /// An empty mailbox for messages of up to `capacity` words.
    ///
    /// # Errors
    /// Where the system does not give the memory.
    pub fn new(capacity: usize) -> Result<Self> {
        let what = "a mailbox between cards";
        if u32::try_from(capacity).is_err() {
            let bytes = (capacity as u64).saturating_mul(4);
            return Err(RuntimeError::Allocation { what, bytes, source: io::ErrorKind::OutOfMemory.into() });
        }
        Ok(Self {
            words: word::zeroed(capacity, what)?,
            written: W::new(0),
            flag: Flag::new(),
            taken: Flag::new(),
            delays: None,
        })
    }

    /// The same with delays at every step, where there are any, for tests.
    #[must_use]
    pub fn with_delays(mut self, delays: Option<&Arc<Delays>>) -> Self {
        self.delays = delays.cloned();
        self
    }

    /// Words that a message may have.
    pub fn capacity(&self) -> usize {
        self.words.len()
    }

    /// Sends what `fill` writes as the message of `epoch`, once the one before has been taken. `who` is the writer,
    /// who waits for the reader. Where `fill` fails nothing was sent, and the same epoch can be tried again.
    ///
    /// # Errors
    /// [`ExchangeError::Late`] where the last message is not taken in time or the reader [refuses](Self::refuse),
    /// [`ExchangeError::Full`] from `fill`, [`ExchangeError::Closed`] after [`abort`](Self::abort).
    pub fn publish(
        &self,
        epoch: Epoch,
        patience: &Patience,
        who: Who,
        fill: impl FnOnce(&mut Writer<'_, W>) -> Result<(), Full>,
    ) -> Result<(), ExchangeError> {
        let last = self.flag.own();
        if last == State::Failed {
            return Err(ExchangeError::Closed { card: who.waiting });
        }
        self.taken.wait(last, patience, who, Awaited::Taken)?;
        self.at(Point::BeforeWords);
        let mut writer = Writer::new(&self.words, self.delays.as_deref());
        fill(&mut writer)?;
        // `new` allows no capacity beyond u32.
        self.written.set(writer.written() as u32);
        self.at(Point::BeforeFlag);
        self.flag.raise(State::At(epoch));
        self.at(Point::AfterFlag);
        Ok(())
    }

    /// Waits for the message of `epoch`. `who` is the reader, who waits for the writer. The message is taken when
    /// the [`Reader`] ends.
    ///
    /// # Errors
    /// Where it does not come in time, the writer has [aborted](Self::abort), or it was taken before.
    pub fn wait(&self, epoch: Epoch, patience: &Patience, who: Who) -> Result<Reader<'_, W>, Late> {
        self.at(Point::BeforeWait);
        let (awaited, expected) = (Awaited::Words, State::At(epoch));
        // The writer may be about to overwrite what was taken, although the flag still names it.
        if self.taken.own() == expected {
            return Err(Late { who, awaited, found: expected, expected, after: std::time::Duration::ZERO });
        }
        self.flag.wait(expected, patience, who, awaited)?;
        self.at(Point::AfterWait);
        Ok(Reader::new(self, epoch))
    }

    /// The writer has failed: readers stop at once. A message that is being read stays as it is.
    pub fn abort(&self) {
        self.flag.raise(State::Failed);
    }

    /// The reader has failed: the writer stops at once, where it waits for the reader.
    pub fn refuse(&self) {
        self.taken.raise(State::Failed);
    }

    /// Empties it, also after a failure. Both sides begin again at any epoch.
    pub fn reset(&mut self) {
        self.flag = Flag::new();
        self.taken = Flag::new();
    }

    pub(super) fn at(&self, point: Point) {
        if let Some(delays) = &self.delays {
            delays.at(point);
        }
    }
}
