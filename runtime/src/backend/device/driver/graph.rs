//! Graphs: launches that were recorded once, to be given to a stream again as one.
#![allow(unsafe_code, reason = "calls of the driver, each with its reason")]

use super::calls::Handle;
use super::{CardError, Context, Stream};
use std::sync::Arc;

/// What a stream was given while it was recorded.
#[derive(Debug)]
pub(crate) struct Graph {
    context: Arc<Context>,
    graph: Handle,
}

impl Graph {
    /// Records what `work` gives to `stream`; none of it runs yet. Nothing else may give work to the stream meanwhile, and
    /// `work` must not wait for it.
    ///
    /// # Errors
    /// Those of `work`, and what the driver says.
    pub(crate) fn record<E: From<CardError>>(
        stream: &Stream,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Self, E> {
        let context = stream.context();
        // SAFETY: the stream lives.
        unsafe { context.card().begin_recording(stream.raw()) }
            .map_err(|e| context.failed("recording a graph", e))?;
        let done = work();
        // SAFETY: recording was begun, and has to end whatever came of the work.
        let graph = unsafe { context.card().end_recording(stream.raw()) };
        // What was recorded is given back even where the work failed.
        let graph = graph.map(|graph| Self { context: Arc::clone(context), graph });
        done?;
        Ok(graph.map_err(|e| context.failed("recording a graph", e))?)
    }

    /// Gives all of it to `stream`. What the recorded launches read and write must still be there.
    ///
    /// # Safety
    /// The addresses in the recorded launches stay within allocations that live until the stream is past them.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) unsafe fn launch(&mut self, stream: &Stream) -> Result<(), CardError> {
        // SAFETY: both live; the caller vouches for the addresses.
        unsafe { self.context.card().launch_graph(stream.raw(), self.graph) }
            .map_err(|e| self.context.failed("launching a graph", e))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made in `record`, given back once.
        unsafe { self.context.card().free_graph(self.graph) };
    }
}
