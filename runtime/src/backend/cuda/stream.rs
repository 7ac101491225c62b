//! Streams, events and recordings, of the card that is current.

use super::refusal;
use crate::backend::device::driver::calls::{Done, Handle};
use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::{result, sys};

pub(super) fn new_stream() -> Done<Handle> {
    result::stream::create(StreamKind::NonBlocking).map(|stream| stream as Handle).map_err(refusal)
}

/// # Safety
/// The stream lives.
pub(super) unsafe fn is_idle(stream: Handle) -> Done<bool> {
    // SAFETY: the caller's promise.
    match unsafe { sys::cuStreamQuery(stream as sys::CUstream) } {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        code => code.result().map(|()| true).map_err(refusal),
    }
}

/// # Safety
/// Both live.
pub(super) unsafe fn wait(stream: Handle, event: Handle) -> Done {
    let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: the caller's promise.
    unsafe { result::stream::wait_event(stream as sys::CUstream, event as sys::CUevent, flags) }
        .map_err(refusal)
}

pub(super) fn new_event(timed: bool) -> Done<Handle> {
    // One that only tells that it came costs less.
    let flags = match timed {
        true => sys::CUevent_flags::CU_EVENT_DEFAULT,
        false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
    };
    result::event::create(flags).map(|event| event as Handle).map_err(refusal)
}

/// # Safety
/// The stream is being recorded.
pub(super) unsafe fn end_recording(stream: Handle) -> Done<Handle> {
    // SAFETY: the caller's promise.
    let recorded = unsafe { result::stream::end_capture(stream as sys::CUstream) };
    let recorded = Recorded(recorded.map_err(refusal)?);
    // SAFETY: the graph was just recorded.
    let graph = unsafe { result::graph::instantiate(recorded.0, sys::CUgraphInstantiate_flags(0)) };
    graph.map(|graph| graph as Handle).map_err(refusal)
}

/// What was recorded, until an executable graph was made of it or it turned out that none will be.
struct Recorded(sys::CUgraph);

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: the driver gave it, and an executable graph does not need it.
        let _ = unsafe { result::graph::destroy(self.0) };
    }
}
