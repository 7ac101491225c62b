//! Words of the host's memory that threads and cards read and write at the same time.
#![allow(unsafe_code, reason = "pinned memory seen as words, with the reason")]

use super::{CardError, Context, Pinned};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Pinned memory that is never seen but as words which others may change.
#[derive(Debug)]
pub(crate) struct SharedWords {
    memory: Pinned,
    count: usize,
}

impl SharedWords {
    /// `count` words of zero for `what`.
    ///
    /// # Errors
    /// As [`Pinned::new`].
    pub(crate) fn new(context: &Arc<Context>, count: usize, what: &'static str) -> Result<Self, CardError> {
        let bytes = count.saturating_mul(size_of::<u32>());
        Ok(Self { memory: Pinned::new(context, bytes, what)?, count })
    }

    /// Where they are, for kernels too.
    pub(crate) fn address(&self) -> u64 {
        self.memory.address()
    }

    /// All of them.
    pub(crate) fn words(&self) -> &[AtomicU32] {
        let first = std::ptr::with_exposed_provenance::<AtomicU32>(self.memory.expose());
        // SAFETY: the driver gave this many words, aligned to pages, which were written once, live as long as `self`, and are
        // seen in no other way. Cards that change them meanwhile write whole words.
        unsafe { std::slice::from_raw_parts(first, self.count) }
    }

    /// Sets all of them.
    pub(crate) fn fill(&self, value: u32) {
        self.words().iter().for_each(|word| word.store(value, Ordering::Release));
    }
}
