//! Events: moments in streams.

use super::context::Context;
use super::error::done;
use crate::backend::device::driver::calls::{Done, Handle};
use level_zero_sys::{ze_event_handle_t, ze_result_t};
use std::sync::{Arc, Mutex, PoisonError};

/// A driver's event, which comes once. It is used again when nobody has it any more: whoever waits for it and the stream that
/// signals it keep it until they are past it.
pub(super) struct Moment {
    context: Arc<Context>,
    event: Handle,
}

impl Moment {
    pub(super) fn new(context: &Arc<Context>) -> Done<Arc<Self>> {
        Ok(Arc::new(Self { event: context.take_event()?, context: Arc::clone(context) }))
    }

    pub(super) fn raw(&self) -> ze_event_handle_t {
        self.event as ze_event_handle_t
    }

    /// Waits for it.
    pub(super) fn wait(&self) -> Done {
        // SAFETY: the event lives as long as the context.
        done(unsafe { self.context.ze.zeEventHostSynchronize(self.raw(), u64::MAX) })
    }

    /// Whether it came.
    pub(super) fn has_come(&self) -> Done<bool> {
        // SAFETY: as above.
        match unsafe { self.context.ze.zeEventQueryStatus(self.raw()) } {
            ze_result_t::ZE_RESULT_NOT_READY => Ok(false),
            code => done(code).map(|()| true),
        }
    }

    /// Takes back that it came, where nothing waits for it and nothing will signal it.
    pub(super) fn reset(&self) -> Done {
        // SAFETY: as above.
        done(unsafe { self.context.ze.zeEventHostReset(self.raw()) })
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        self.context.free_event(self.event);
    }
}

/// An event as it is recorded again and again.
pub(super) struct Event {
    context: Arc<Context>,
    /// As it was recorded last.
    last: Mutex<Option<Arc<Moment>>>,
    /// Where the card writes the time.
    pub(super) clock: Option<usize>,
}

impl Event {
    pub(super) fn new(context: &Arc<Context>, timed: bool) -> Done<Self> {
        let clock = timed.then(|| context.take_clock()).transpose()?;
        Ok(Self { context: Arc::clone(context), last: Mutex::new(None), clock })
    }

    pub(super) fn last(&self) -> Option<Arc<Moment>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, moment: Arc<Moment>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(moment);
    }

    /// Ticks of the card's clock, as of the last time that came.
    pub(super) fn time(&self) -> Option<u64> {
        let clock = std::ptr::with_exposed_provenance::<u64>(self.clock?);
        // SAFETY: 8 aligned bytes of this event's, which the card has written.
        Some(unsafe { clock.read_volatile() })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(clock) = self.clock {
            // The card may still write to it. After an error it does no more.
            let _ = self.last().map(|moment| moment.wait());
            self.context.free_clock(clock);
        }
    }
}
