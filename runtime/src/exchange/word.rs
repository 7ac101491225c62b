//! The word that everything shared is made of.

use super::delays::{Delays, Point};
use super::patience::Pause;
use crate::{Result, RuntimeError};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// Words between two delays within a bulk copy.
const PIECE: usize = 8;

/// Four bytes that several cards see, with the orders of access that the exchange needs.
pub trait Word: Send + Sync {
    /// A word that holds `value`.
    fn new(value: u32) -> Self;
    /// Reads it, in no order with other words.
    fn get(&self) -> u32;
    /// Writes it, in no order with other words.
    fn set(&self, value: u32);
    /// Reads a flag: what its writer wrote before [`release`](Self::release) is seen by all that follows.
    fn acquire(&self) -> u32;
    /// Writes a flag: whoever reads this value with [`acquire`](Self::acquire) sees all that came before.
    fn release(&self, value: u32);
    /// What a waiter does between two looks at a flag of such words.
    fn pause(pause: Pause) {
        pause.take();
    }
}

impl Word for AtomicU32 {
    fn new(value: u32) -> Self {
        Self::new(value)
    }

    #[inline]
    fn get(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&self, value: u32) {
        self.store(value, Ordering::Relaxed);
    }

    #[inline]
    fn acquire(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn release(&self, value: u32) {
        self.store(value, Ordering::Release);
    }
}

/// `count` words of zero.
pub(super) fn zeroed<W: Word>(count: usize, what: &'static str) -> Result<Box<[W]>> {
    let refused = || RuntimeError::Allocation {
        what,
        bytes: (count as u64).saturating_mul(size_of::<u32>() as u64),
        source: io::ErrorKind::OutOfMemory.into(),
    };
    let mut words = Vec::new();
    words.try_reserve_exact(count).map_err(|_| refused())?;
    words.extend((0..count).map(|_| W::new(0)));
    Ok(words.into_boxed_slice())
}

/// Writes `values` to `words`, as far as both go.
#[inline]
pub(super) fn write<W: Word>(words: &[W], values: impl Iterator<Item = u32>, delays: Option<&Delays>) {
    match delays {
        None => words.iter().zip(values).for_each(|(word, value)| word.set(value)),
        Some(delays) => {
            for (i, (word, value)) in words.iter().zip(values).enumerate() {
                if i % PIECE == 0 {
                    delays.at(Point::WithinWords);
                }
                word.set(value);
            }
        }
    }
}

/// Reads `words` into `places` with `put`, as far as both go.
#[inline]
pub(super) fn read<W: Word, P>(
    words: &[W],
    places: impl Iterator<Item = P>,
    put: impl Fn(P, u32),
    delays: Option<&Delays>,
) {
    match delays {
        None => places.zip(words).for_each(|(place, word)| put(place, word.get())),
        Some(delays) => {
            for (i, (place, word)) in places.zip(words).enumerate() {
                if i % PIECE == 0 {
                    delays.at(Point::WithinReads);
                }
                put(place, word.get());
            }
        }
    }
}
