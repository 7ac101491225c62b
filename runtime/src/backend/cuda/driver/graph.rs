//! Graphs: launches that were recorded once, to be given to a stream again as one.
#![allow(unsafe_code, reason = "calls of the driver, each with its reason")]

use super::{Context, CudaError, Stream};
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// What a stream was given while it was recorded.
#[derive(Debug)]
pub(crate) struct Graph {
    context: Arc<Context>,
    graph: sys::CUgraphExec,
}

// SAFETY: the driver lets any thread launch a graph, one at a time; `launch` takes it alone.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `work` gives to `stream`; none of it runs yet. Nothing else may give work to the stream meanwhile, and
    /// `work` must not wait for it.
    ///
    /// # Errors
    /// Those of `work`, and what the driver says.
    pub(crate) fn record<E: From<CudaError>>(
        stream: &Stream,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Self, E> {
        let context = stream.context();
        context.current()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        unsafe { result::stream::begin_capture(stream.raw(), mode) }
            .map_err(|e| context.failed("recording a graph", e))?;
        let done = work();
        // SAFETY: recording was begun, and has to end whatever came of the work.
        let graph = unsafe { result::stream::end_capture(stream.raw()) }.map(Recorded);
        done?;
        let graph = graph.map_err(|e| context.failed("recording a graph", e))?;
        // SAFETY: the graph was just recorded.
        let executable = unsafe { result::graph::instantiate(graph.0, sys::CUgraphInstantiate_flags(0)) };
        let graph = executable.map_err(|e| context.failed("making a graph", e))?;
        Ok(Self { context: Arc::clone(context), graph })
    }

    /// Gives all of it to `stream`. What the recorded launches read and write must still be there.
    ///
    /// # Safety
    /// The addresses in the recorded launches stay within allocations that live until the stream is past them.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) unsafe fn launch(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.context.current()?;
        // SAFETY: both live; the caller vouches for the addresses.
        unsafe { result::graph::launch(self.graph, stream.raw()) }
            .map_err(|e| self.context.failed("launching a graph", e))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.context.current();
        // SAFETY: made in `record`, destroyed once.
        let _ = unsafe { result::graph::exec_destroy(self.graph) };
    }
}

/// What was recorded, until an executable graph was made of it or it turned out that none will be.
struct Recorded(sys::CUgraph);

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: the driver gave it in `record`, and an executable graph does not need it.
        let _ = unsafe { result::graph::destroy(self.0) };
    }
}
