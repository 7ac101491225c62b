//! Reading a message.

use super::delays::Point;
use super::epoch::Epoch;
use super::error::{Short, Unread};
use super::flag::State;
use super::mailbox::Mailbox;
use super::word::{self, Word};
use std::sync::atomic::AtomicU32;

/// Reads the words of one message in the order in which they were written. When it ends, by [`finish`](Self::finish)
/// or dropped, the message is taken and the writer may overwrite it.
pub struct Reader<'a, W: Word = AtomicU32> {
    mailbox: &'a Mailbox<W>,
    epoch: Epoch,
    written: usize,
    at: usize,
}

impl<'a, W: Word> Reader<'a, W> {
    pub(super) fn new(mailbox: &'a Mailbox<W>, epoch: Epoch) -> Self {
        let written = (mailbox.written.get() as usize).min(mailbox.words.len());
        Self { mailbox, epoch, written, at: 0 }
    }

    /// Words that the message has.
    pub fn written(&self) -> usize {
        self.written
    }

    /// Words not read yet.
    pub fn left(&self) -> usize {
        self.written - self.at
    }

    /// One word.
    ///
    /// # Errors
    /// Here and below: where fewer words are left. Nothing is read then.
    #[inline]
    pub fn word(&mut self) -> Result<u32, Short> {
        let mut value = [0];
        self.u32s(&mut value)?;
        Ok(value[0])
    }

    /// Fills `out` with words.
    #[inline]
    pub fn u32s(&mut self, out: &mut [u32]) -> Result<(), Short> {
        self.take(out.len(), out.iter_mut(), |place, word| *place = word)
    }

    /// Fills `out` with floats, bit for bit, one from each word.
    #[inline]
    pub fn f32s(&mut self, out: &mut [f32]) -> Result<(), Short> {
        self.take(out.len(), out.iter_mut(), |place, word| *place = f32::from_bits(word))
    }

    /// Fills `out` with bytes, four from each word as [`i8s`](super::Writer::i8s) of the writer packs them; the rest
    /// of the last word is skipped.
    #[inline]
    pub fn i8s(&mut self, out: &mut [i8]) -> Result<(), Short> {
        self.take(out.len().div_ceil(4), out.chunks_mut(4), |places, word| {
            let bytes = word.to_le_bytes();
            places.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte.cast_signed());
        })
    }

    /// Ends reading.
    ///
    /// # Errors
    /// Where words are left: writer and reader disagree. The message is taken nevertheless.
    pub fn finish(self) -> Result<(), Unread> {
        match self.left() {
            0 => Ok(()),
            left => Err(Unread { written: self.written, left }),
        }
    }

    #[inline]
    fn take<P>(
        &mut self,
        count: usize,
        places: impl Iterator<Item = P>,
        put: impl Fn(P, u32),
    ) -> Result<(), Short> {
        if count > self.left() {
            return Err(Short { written: self.written, read: self.at, wanted: count });
        }
        let end = self.at + count;
        word::read(&self.mailbox.words[self.at..end], places, put, self.mailbox.delays.as_deref());
        self.at = end;
        Ok(())
    }
}

impl<W: Word> Drop for Reader<'_, W> {
    fn drop(&mut self) {
        self.mailbox.at(Point::BeforeTaken);
        // A reader that has refused further messages must not take that back.
        if self.mailbox.taken.own() != State::Failed {
            self.mailbox.taken.raise(State::At(self.epoch));
        }
    }
}
