//! Streams, events and recordings, of the card that is current.

use crate::backend::device::driver::calls::Handle;
use hip_sys::{Code, Hip, event, stream};
use std::ptr::null_mut;

pub(super) fn new_stream(hip: &Hip) -> Result<Handle, Code> {
    let mut made = null_mut();
    // SAFETY: it writes one handle; the caller gives it back.
    unsafe { hip.stream_create(&raw mut made, stream::NON_BLOCKING) }?;
    Ok(made as Handle)
}

/// # Safety
/// The stream lives.
pub(super) unsafe fn is_idle(hip: &Hip, stream: Handle) -> Result<bool, Code> {
    // SAFETY: the caller's promise.
    match unsafe { hip.stream_query(stream as hip_sys::Stream) } {
        Err(Code::NOT_READY) => Ok(false),
        done => done.map(|()| true),
    }
}

pub(super) fn new_event(hip: &Hip, timed: bool) -> Result<Handle, Code> {
    // One that only tells that it came costs less.
    let flags = if timed { event::DEFAULT } else { event::DISABLE_TIMING };
    let mut made = null_mut();
    // SAFETY: it writes one handle; the caller gives it back.
    unsafe { hip.event_create(&raw mut made, flags) }?;
    Ok(made as Handle)
}

/// # Safety
/// The stream is being recorded.
pub(super) unsafe fn end_recording(hip: &Hip, stream: Handle) -> Result<Handle, Code> {
    let mut graph = null_mut();
    // SAFETY: the caller's promise.
    unsafe { hip.capture_end(stream as hip_sys::Stream, &raw mut graph) }?;
    let recorded = Recorded { hip, graph };
    let mut executable = null_mut();
    // SAFETY: the graph was just recorded; where it does not become executable, nothing more is asked.
    unsafe { hip.graph_instantiate(&raw mut executable, recorded.graph, null_mut(), null_mut(), 0) }?;
    Ok(executable as Handle)
}

/// What was recorded, until an executable graph was made of it or it turned out that none will be.
struct Recorded<'a> {
    hip: &'a Hip,
    graph: hip_sys::Graph,
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        // SAFETY: HIP gave it, and an executable graph does not need it.
        let _ = unsafe { self.hip.graph_destroy(self.graph) };
    }
}
