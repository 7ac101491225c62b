//! Streams, which do one thing after another, and events, which tell how far they are.
#![allow(unsafe_code, reason = "calls of the driver, each with its reason")]

use super::{Context, CudaError};
use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// A queue of work for a card.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    stream: sys::CUstream,
}

// SAFETY: the driver lets any thread use a stream.
unsafe impl Send for Stream {}
// SAFETY: as above; what several threads give it is done in some order.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new one.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        context.current()?;
        let stream = result::stream::create(StreamKind::NonBlocking);
        let stream = stream.map_err(|e| context.failed("making a stream", e))?;
        Ok(Self { context: Arc::clone(context), stream })
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.stream
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Waits until all that it was given is done.
    ///
    /// # Errors
    /// What went wrong meanwhile.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        self.context.current()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.stream) }.map_err(|e| self.context.failed("computing", e))
    }

    /// Whether all that it was given is done.
    ///
    /// # Errors
    /// What went wrong meanwhile.
    pub(crate) fn is_idle(&self) -> Result<bool, CudaError> {
        self.context.current()?;
        // SAFETY: the stream lives as long as `self`.
        match unsafe { sys::cuStreamQuery(self.stream) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => code.result().map(|()| true).map_err(|e| self.context.failed("computing", e)),
        }
    }

    /// A new event of the same card.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn event(&self, timed: bool) -> Result<Event, CudaError> {
        Event::new(&self.context, timed)
    }

    /// What it is given from now on begins after `event`.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn wait(&self, event: &Event) -> Result<(), CudaError> {
        self.context.current()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live.
        unsafe { result::stream::wait_event(self.stream, event.event, flags) }
            .map_err(|e| self.context.failed("waiting for an event", e))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.current();
        // SAFETY: made in `new`, destroyed once, after all that it was given.
        let _ = unsafe { result::stream::synchronize(self.stream) };
        // SAFETY: as above.
        let _ = unsafe { result::stream::destroy(self.stream) };
    }
}

/// A moment in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    event: sys::CUevent,
}

// SAFETY: the driver lets any thread use an event.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// One that measures time, or one that only tells that it came, which costs less.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn new(context: &Arc<Context>, timed: bool) -> Result<Self, CudaError> {
        context.current()?;
        let flags = match timed {
            true => sys::CUevent_flags::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        let event = result::event::create(flags).map_err(|e| context.failed("making an event", e))?;
        Ok(Self { context: Arc::clone(context), event })
    }

    /// Comes when `stream` has done what it was given so far.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.current()?;
        // SAFETY: both live.
        unsafe { result::event::record(self.event, stream.raw()) }
            .map_err(|e| self.context.failed("recording an event", e))
    }

    /// Waits for it.
    ///
    /// # Errors
    /// What went wrong before it.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        self.context.current()?;
        // SAFETY: it lives.
        unsafe { result::event::synchronize(self.event) }.map_err(|e| self.context.failed("computing", e))
    }

    /// Milliseconds from this one to `later`; both were waited for.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn until(&self, later: &Self) -> Result<f32, CudaError> {
        self.context.current()?;
        // SAFETY: both live.
        unsafe { result::event::elapsed(self.event, later.event) }
            .map_err(|e| self.context.failed("measuring time", e))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.context.current();
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}
