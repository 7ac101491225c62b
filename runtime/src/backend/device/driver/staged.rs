//! Copies to a card that the host does not wait for.
#![allow(unsafe_code, reason = "a copy whose bytes are kept")]

use super::{CardError, Context, DeviceMemory, Event, Pinned, Stream};
use std::sync::Arc;

/// Bytes that there is room for at first.
const FIRST: usize = 4096;

/// Pinned memory from which bytes go to a card while the host goes on.
#[derive(Debug)]
pub(crate) struct Staged {
    memory: Pinned,
    /// Comes when what is in `memory` was copied.
    copied: Event,
    what: &'static str,
}

impl Staged {
    /// Room that grows with what is written; `what` names it in errors.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn new(context: &Arc<Context>, what: &'static str) -> Result<Self, CardError> {
        Ok(Self { memory: Pinned::new(context, FIRST, what)?, copied: Event::new(context, false)?, what })
    }

    /// Copies `from` to `at` of `to`, after all that `stream` was given before; waits for the copy before, no longer.
    ///
    /// # Errors
    /// [`CardError::NoPinned`]; what the driver says.
    ///
    /// # Panics
    /// Where it does not fit.
    pub(crate) fn write(
        &mut self,
        to: &DeviceMemory,
        at: u64,
        from: &[u8],
        stream: &Stream,
    ) -> Result<(), CardError> {
        self.copied.synchronize()?;
        if from.len() > self.memory.len() {
            self.memory = Pinned::new(to.context(), from.len().next_power_of_two(), self.what)?;
        }
        let bytes = &mut self.memory[..from.len()];
        bytes.copy_from_slice(from);
        // SAFETY: nobody else writes to these bytes, and they are freed or written again only after `copied`.
        unsafe { to.write_async(at, bytes, stream) }?;
        let recorded = self.copied.record(stream);
        if recorded.is_err() {
            // Without the event, the end of the copy is only known from the stream's.
            let _ = stream.synchronize();
        }
        recorded
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // The card may still read what is freed next. After an error it does no more.
        let _ = self.copied.synchronize();
    }
}
