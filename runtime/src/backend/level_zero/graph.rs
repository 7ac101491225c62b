//! Graphs: command lists that are recorded once and executed again and again, on the queue beside a stream's own list.

use super::context::Context;
use super::error::done;
use super::event::Moment;
use super::stream::Stream;
use crate::backend::device::driver::calls::{Done, Handle};
use level_zero_sys::ze_command_list_handle_t;
use std::sync::{Arc, Mutex, PoisonError};

/// What was recorded.
pub(super) struct Graph {
    context: Arc<Context>,
    list: Handle,
    /// Comes when the stream lets it begin; it takes that back itself.
    before: Arc<Moment>,
    /// Comes when it is done; the stream takes that back.
    after: Arc<Moment>,
    /// Comes when the stream is past the last time.
    past: Mutex<Option<Arc<Moment>>>,
}

impl Graph {
    /// Lets a stream record from now on.
    pub(super) fn begin(stream: &Stream) -> Done<Self> {
        let context = stream.context();
        let (before, after) = (Moment::new(context)?, Moment::new(context)?);
        let list = stream.new_list()?;
        // From here on the list is destroyed with it.
        let graph = Self { context: Arc::clone(context), list, before, after, past: Mutex::new(None) };
        stream.begin_recording(list)?;
        let begun = (|| {
            let mut giving = stream.give();
            giving.wait(&graph.before)?;
            // SAFETY: list and event live.
            giving.command(|ze, list| unsafe { ze.zeCommandListAppendEventReset(list, graph.before.raw()) })
        })();
        if begun.is_err() {
            stream.end_recording();
        }
        begun.map(|()| graph)
    }

    /// Ends it; the stream takes commands itself again whatever comes of that.
    pub(super) fn end(&self, stream: &Stream) -> Done {
        let signalled = stream.give().signal(&self.after);
        stream.end_recording();
        signalled?;
        // SAFETY: the list lives, and all that was given to it was kept apart by barriers.
        done(unsafe { self.context.ze.zeCommandListClose(self.list as ze_command_list_handle_t) })
    }

    /// Gives all of it to a stream.
    ///
    /// # Safety
    /// What was recorded may be done again: its addresses are still those of allocations.
    pub(super) unsafe fn launch(&self, stream: &Stream) -> Done {
        let mut giving = stream.give();
        let queue = stream.queue(&mut giving.state)?;
        let past = Moment::new(&self.context)?;
        giving.signal(&self.before)?;
        let mut list = self.list as ze_command_list_handle_t;
        // SAFETY: queue and list live; the caller vouches for what is in it.
        let given = done(unsafe {
            self.context.ze.zeCommandQueueExecuteCommandLists(queue, 1, &raw mut list, std::ptr::null_mut())
        });
        if given.is_err() {
            // Nothing takes it back now: when it has come, this does.
            let _ = self.before.wait().and_then(|()| self.before.reset());
            return given;
        }
        let joined = (|| {
            giving.wait(&self.after)?;
            // SAFETY: list and event live.
            giving.command(|ze, list| unsafe { ze.zeCommandListAppendEventReset(list, self.after.raw()) })?;
            giving.signal(&past)
        })();
        if joined.is_err() {
            // Nothing else tells when the list is done with.
            let _ = self.after.wait();
            return joined;
        }
        *self.past.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&past));
        giving.keep(past, true)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let past = self.past.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // After an error the card does no more.
        let _ = past.map(|past| past.wait());
        // SAFETY: made in `begin`, destroyed once; no stream works on it. What the driver says helps nobody.
        let _ = unsafe { self.context.ze.zeCommandListDestroy(self.list as ze_command_list_handle_t) };
    }
}
