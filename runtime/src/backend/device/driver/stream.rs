//! Streams, which do one thing after another, and events, which tell how far they are.
#![allow(unsafe_code, reason = "calls of the driver, each with its reason")]

use super::calls::Handle;
use super::{CardError, Context};
use std::sync::Arc;

/// A queue of work for a card.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    stream: Handle,
}

impl Stream {
    /// A new one.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CardError> {
        let stream = context.card().stream().map_err(|e| context.failed("making a stream", e))?;
        Ok(Self { context: Arc::clone(context), stream })
    }

    pub(in crate::backend) fn raw(&self) -> Handle {
        self.stream
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Waits until all that it was given is done.
    ///
    /// # Errors
    /// What went wrong meanwhile.
    pub(crate) fn synchronize(&self) -> Result<(), CardError> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.context.card().synchronize(self.stream) }
            .map_err(|e| self.context.failed("computing", e))
    }

    /// Whether all that it was given is done.
    ///
    /// # Errors
    /// What went wrong meanwhile.
    pub(crate) fn is_idle(&self) -> Result<bool, CardError> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.context.card().is_idle(self.stream) }.map_err(|e| self.context.failed("computing", e))
    }

    /// A new event of the same card.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn event(&self, timed: bool) -> Result<Event, CardError> {
        Event::new(&self.context, timed)
    }

    /// What it is given from now on begins after `event`.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn wait(&self, event: &Event) -> Result<(), CardError> {
        // SAFETY: both live.
        unsafe { self.context.card().wait(self.stream, event.event) }
            .map_err(|e| self.context.failed("waiting for an event", e))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made in `new`, given back once, after all that it was given.
        let _ = unsafe { self.context.card().synchronize(self.stream) };
        // SAFETY: as above.
        unsafe { self.context.card().free_stream(self.stream) };
    }
}

/// A moment in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    event: Handle,
}

impl Event {
    /// One that measures time, or one that only tells that it came, which costs less.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn new(context: &Arc<Context>, timed: bool) -> Result<Self, CardError> {
        let event = context.card().event(timed).map_err(|e| context.failed("making an event", e))?;
        Ok(Self { context: Arc::clone(context), event })
    }

    /// Comes when `stream` has done what it was given so far.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), CardError> {
        // SAFETY: both live.
        unsafe { self.context.card().record(self.event, stream.raw()) }
            .map_err(|e| self.context.failed("recording an event", e))
    }

    /// Waits for it.
    ///
    /// # Errors
    /// What went wrong before it.
    pub(crate) fn synchronize(&self) -> Result<(), CardError> {
        // SAFETY: it lives.
        unsafe { self.context.card().wait_for(self.event) }.map_err(|e| self.context.failed("computing", e))
    }

    /// Milliseconds from this one to `later`; both were waited for.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn until(&self, later: &Self) -> Result<f32, CardError> {
        // SAFETY: both live.
        unsafe { self.context.card().between(self.event, later.event) }
            .map_err(|e| self.context.failed("measuring time", e))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `new`, given back once.
        unsafe { self.context.card().free_event(self.event) };
    }
}
