//! Writing a message.

use super::delays::Delays;
use super::error::Full;
use super::word::{self, Word};
use std::sync::atomic::AtomicU32;

/// Writes the words of one message, in order, into a mailbox.
pub struct Writer<'a, W: Word = AtomicU32> {
    words: &'a [W],
    at: usize,
    delays: Option<&'a Delays>,
}

impl<'a, W: Word> Writer<'a, W> {
    pub(super) fn new(words: &'a [W], delays: Option<&'a Delays>) -> Self {
        Self { words, at: 0, delays }
    }

    /// Words written so far.
    pub fn written(&self) -> usize {
        self.at
    }

    /// One word.
    ///
    /// # Errors
    /// Here and below: where the mailbox is too small. Nothing, or for [`words`](Self::words) a part, is written.
    #[inline]
    pub fn word(&mut self, value: u32) -> Result<(), Full> {
        self.put(1, std::iter::once(value))
    }

    /// Some words, how many is not known beforehand.
    pub fn words(&mut self, values: impl IntoIterator<Item = u32>) -> Result<(), Full> {
        values.into_iter().try_for_each(|value| self.word(value))
    }

    /// Words.
    #[inline]
    pub fn u32s(&mut self, values: &[u32]) -> Result<(), Full> {
        self.put(values.len(), values.iter().copied())
    }

    /// Floats, bit for bit, one a word.
    #[inline]
    pub fn f32s(&mut self, values: &[f32]) -> Result<(), Full> {
        self.put(values.len(), values.iter().map(|value| value.to_bits()))
    }

    /// Bytes, four a word with the first in the lowest bits; the last word is filled up with zeros.
    #[inline]
    pub fn i8s(&mut self, values: &[i8]) -> Result<(), Full> {
        let (whole, rest) = values.as_chunks::<4>();
        let place = self.place(values.len().div_ceil(4))?;
        word::write(place, whole.iter().copied().map(packed), self.delays);
        word::write(&place[whole.len()..], padded(rest).map(packed).into_iter(), self.delays);
        Ok(())
    }

    #[inline]
    fn put(&mut self, count: usize, values: impl Iterator<Item = u32>) -> Result<(), Full> {
        word::write(self.place(count)?, values, self.delays);
        Ok(())
    }

    /// The next `count` words.
    #[inline]
    fn place(&mut self, count: usize) -> Result<&'a [W], Full> {
        let full = Full { capacity: self.words.len(), used: self.at, wanted: count };
        let place = self.words[self.at..].get(..count).ok_or(full)?;
        self.at += count;
        Ok(place)
    }
}

fn packed(values: [i8; 4]) -> u32 {
    u32::from_le_bytes(values.map(i8::cast_unsigned))
}

/// The bytes after the last whole word, if there are any, filled up with zeros.
fn padded(rest: &[i8]) -> Option<[i8; 4]> {
    let byte = |i| rest.get(i).copied().unwrap_or(0);
    (!rest.is_empty()).then(|| [byte(0), byte(1), byte(2), byte(3)])
}
