//! Streams: an immediate command list each, with a barrier after every command.
//!
//! Commands of a list may run at once unless something keeps them apart; a barrier without events waits for all before it,
//! and lets nothing after it begin. One with events waits for those alone, and lets nothing after it begin either. So the list is
//! one thing after another. What was recorded runs on a queue beside it (`graph`): the list tells it to begin by an event,
//! and waits for another. Whatever waits was always given after what it waits for, so that nothing waits for ever where list
//! and queue share an engine.

use super::context::Context;
use super::error::{done, said};
use super::event::{Event, Moment};
use crate::backend::device::driver::calls::{Done, Handle};
use level_zero_sys::{
    ZeLib, ze_command_list_desc_t, ze_command_list_handle_t, ze_command_queue_desc_t,
    ze_command_queue_handle_t, ze_command_queue_mode_t, ze_command_queue_priority_t, ze_device_handle_t,
    ze_event_handle_t, ze_result_t, ze_structure_type_t,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Moments that are kept before it is asked which are past.
const KEPT: usize = 64;

/// Bytes that are copied at once from memory that is not pinned.
const STAGED: usize = 256 << 10;

/// A stream.
pub(super) struct Stream {
    context: Arc<Context>,
    device: Handle,
    ordinal: u32,
    state: Mutex<State>,
}

/// What one thread at a time changes.
pub(super) struct State {
    /// The immediate list.
    pub(super) list: Handle,
    /// Where graphs are executed, once there is one.
    queue: Option<Handle>,
    /// What takes commands in the list's place.
    recorded: Option<Handle>,
    /// Moments that this stream signals (true) or waits for, in order, until it is known to be past them.
    kept: Vec<(Arc<Moment>, bool)>,
    /// Comes when all that was given is done; none where more was given since.
    end: Option<Arc<Moment>>,
    /// Pinned memory for copies of memory that is not.
    staging: Option<usize>,
}

/// What a command needs to be given: the list that takes it.
pub(super) struct Giving<'a> {
    pub(super) ze: &'static ZeLib,
    pub(super) state: MutexGuard<'a, State>,
    context: &'a Arc<Context>,
}

fn queue_desc(ordinal: u32) -> ze_command_queue_desc_t {
    ze_command_queue_desc_t {
        stype: ze_structure_type_t::ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
        pNext: std::ptr::null(),
        ordinal,
        index: 0,
        flags: 0,
        mode: ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS,
        priority: ze_command_queue_priority_t::ZE_COMMAND_QUEUE_PRIORITY_NORMAL,
    }
}

impl Stream {
    pub(super) fn new(context: &Arc<Context>, device: Handle, ordinal: u32) -> Done<Self> {
        let desc = queue_desc(ordinal);
        let mut list: ze_command_list_handle_t = std::ptr::null_mut();
        let of = device as ze_device_handle_t;
        // SAFETY: context and device live; the list is destroyed when this is dropped.
        done(unsafe {
            context.ze.zeCommandListCreateImmediate(context.raw(), of, &raw const desc, &raw mut list)
        })?;
        let (list, kept) = (list as Handle, Vec::new());
        let state = State { list, queue: None, recorded: None, kept, end: None, staging: None };
        Ok(Self { context: Arc::clone(context), device, ordinal, state: Mutex::new(state) })
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// To give it something.
    pub(super) fn give(&self) -> Giving<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Giving { ze: self.context.ze, state, context: &self.context }
    }

    /// The queue beside the list.
    pub(super) fn queue(&self, state: &mut State) -> Done<ze_command_queue_handle_t> {
        if let Some(queue) = state.queue {
            return Ok(queue as ze_command_queue_handle_t);
        }
        let desc = queue_desc(self.ordinal);
        let mut queue: ze_command_queue_handle_t = std::ptr::null_mut();
        let device = self.device as ze_device_handle_t;
        // SAFETY: context and device live; the queue is destroyed with the stream.
        done(unsafe {
            self.context.ze.zeCommandQueueCreate(self.context.raw(), device, &raw const desc, &raw mut queue)
        })?;
        state.queue = Some(queue as Handle);
        Ok(queue)
    }

    /// A list to be recorded.
    pub(super) fn new_list(&self) -> Done<Handle> {
        let desc = ze_command_list_desc_t {
            stype: ze_structure_type_t::ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC,
            pNext: std::ptr::null(),
            commandQueueGroupOrdinal: self.ordinal,
            flags: 0,
        };
        let mut list: ze_command_list_handle_t = std::ptr::null_mut();
        let device = self.device as ze_device_handle_t;
        // SAFETY: context and device live; who has it destroys it.
        done(unsafe {
            self.context.ze.zeCommandListCreate(self.context.raw(), device, &raw const desc, &raw mut list)
        })?;
        Ok(list as Handle)
    }

    /// Waits until all is done.
    pub(super) fn synchronize(&self) -> Done {
        let mut giving = self.give();
        let end = giving.end()?;
        end.wait()?;
        giving.state.kept.clear();
        Ok(())
    }

    pub(super) fn is_idle(&self) -> Done<bool> {
        let mut giving = self.give();
        let idle = giving.end()?.has_come()?;
        if idle {
            giving.state.kept.clear();
        }
        Ok(idle)
    }

    pub(super) fn wait(&self, event: &Event) -> Done {
        let Some(moment) = event.last() else { return Ok(()) };
        let mut giving = self.give();
        giving.not_recorded("waiting for an event")?;
        giving.wait(&moment)?;
        giving.keep(moment, false)
    }

    pub(super) fn record(&self, event: &Event) -> Done {
        let mut giving = self.give();
        giving.not_recorded("an event")?;
        let moment = Moment::new(&self.context)?;
        if let Some(clock) = event.clock {
            let clock = std::ptr::with_exposed_provenance_mut::<u64>(clock);
            giving.command(|ze, list| {
                // SAFETY: list and event live; the event waits for it before the bytes are another's.
                unsafe {
                    ze.zeCommandListAppendWriteGlobalTimestamp(
                        list,
                        clock,
                        std::ptr::null_mut(),
                        0,
                        std::ptr::null_mut(),
                    )
                }
            })?;
        }
        giving.signal(&moment)?;
        event.set(Arc::clone(&moment));
        giving.keep(moment, true)
    }

    /// # Safety
    /// The bytes are memory of a card.
    pub(super) unsafe fn fill(&self, address: u64, value: u8, bytes: usize) -> Done {
        if bytes == 0 {
            return Ok(());
        }
        let at = std::ptr::with_exposed_provenance_mut(address as usize);
        self.give().command(|ze, list| {
            // SAFETY: the list lives and copies the pattern; the caller vouches for the bytes.
            unsafe {
                let (none, pattern) = (std::ptr::null_mut(), (&raw const value).cast());
                ze.zeCommandListAppendMemoryFill(list, at, pattern, 1, bytes, none, 0, std::ptr::null_mut())
            }
        })
    }

    /// # Safety
    /// Both are memory of cards or pinned, and stay it until the stream is past this.
    unsafe fn copy(giving: &mut Giving<'_>, to: usize, from: usize, bytes: usize) -> Done {
        let to = std::ptr::with_exposed_provenance_mut(to);
        let from = std::ptr::with_exposed_provenance(from);
        giving.command(|ze, list| {
            // SAFETY: the list lives; the caller vouches for the bytes.
            unsafe {
                let none: ze_event_handle_t = std::ptr::null_mut();
                ze.zeCommandListAppendMemoryCopy(list, to, from, bytes, none, 0, std::ptr::null_mut())
            }
        })
    }

    /// # Safety
    /// The bytes at `to` are memory of a card; those at `from` stay as they are until the stream is past this.
    pub(super) unsafe fn copy_to(&self, to: u64, from: *const u8, bytes: usize) -> Done {
        let (to, mut giving) = (to as usize, self.give());
        if bytes == 0 {
            return Ok(());
        }
        if self.context.is_pinned(from.addr(), bytes) {
            // SAFETY: the caller's promise.
            return unsafe { Self::copy(&mut giving, to, from.expose_provenance(), bytes) };
        }
        giving.not_recorded("a copy of memory that is not pinned")?;
        for at in (0..bytes).step_by(STAGED) {
            let len = STAGED.min(bytes - at);
            // Until the copy before is done, its bytes are in use.
            giving.end()?.wait()?;
            let staging = giving.staging()?;
            // SAFETY: as many bytes of the caller's, and room for them that nobody uses.
            unsafe {
                let room = std::ptr::with_exposed_provenance_mut::<u8>(staging);
                std::ptr::copy_nonoverlapping(from.add(at), room, len);
                Self::copy(&mut giving, to + at, staging, len)?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// The bytes at `from` are memory of a card; those at `to` are the caller's until the stream is past this.
    pub(super) unsafe fn copy_from(&self, to: *mut u8, from: u64, bytes: usize) -> Done {
        let (from, mut giving) = (from as usize, self.give());
        if bytes == 0 {
            return Ok(());
        }
        if self.context.is_pinned(to.addr(), bytes) {
            // SAFETY: the caller's promise.
            return unsafe { Self::copy(&mut giving, to.expose_provenance(), from, bytes) };
        }
        giving.not_recorded("a copy to memory that is not pinned")?;
        giving.end()?.wait()?;
        for at in (0..bytes).step_by(STAGED) {
            let len = STAGED.min(bytes - at);
            let staging = giving.staging()?;
            // SAFETY: as many bytes of the caller's, copied when they are there.
            unsafe {
                Self::copy(&mut giving, staging, from + at, len)?;
                giving.end()?.wait()?;
                let room = std::ptr::with_exposed_provenance::<u8>(staging);
                std::ptr::copy_nonoverlapping(room, to.add(at), len);
            }
        }
        Ok(())
    }

    pub(super) fn begin_recording(&self, list: Handle) -> Done {
        let mut giving = self.give();
        giving.not_recorded("another recording")?;
        giving.state.recorded = Some(list);
        Ok(())
    }

    /// The list that was recorded.
    pub(super) fn end_recording(&self) -> Option<Handle> {
        self.give().state.recorded.take()
    }
}

impl Giving<'_> {
    /// The list that takes commands now.
    fn list(&self) -> ze_command_list_handle_t {
        self.state.recorded.unwrap_or(self.state.list) as ze_command_list_handle_t
    }

    /// Refuses what has no meaning in a recording.
    fn not_recorded(&self, what: &str) -> Done {
        let words = || format!("{what} cannot be recorded");
        let code = ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
        if self.state.recorded.is_none() { Ok(()) } else { Err(said(code, words())) }
    }

    /// Gives a command, and the barrier after it.
    pub(super) fn command(
        &mut self,
        append: impl FnOnce(&ZeLib, ze_command_list_handle_t) -> ze_result_t,
    ) -> Done {
        let list = self.list();
        if self.state.recorded.is_none() {
            self.state.end = None;
        }
        done(append(self.ze, list))?;
        let none: ze_event_handle_t = std::ptr::null_mut();
        // SAFETY: the list lives.
        done(unsafe { self.ze.zeCommandListAppendBarrier(list, none, 0, std::ptr::null_mut()) })
    }

    /// Signals a moment when all before is done.
    pub(super) fn signal(&mut self, moment: &Moment) -> Done {
        let list = self.list();
        // SAFETY: list and event live; the caller keeps the event until the list is past it.
        done(unsafe { self.ze.zeCommandListAppendBarrier(list, moment.raw(), 0, std::ptr::null_mut()) })
    }

    /// Lets nothing after it begin before a moment.
    pub(super) fn wait(&mut self, moment: &Moment) -> Done {
        let (list, mut event) = (self.list(), moment.raw());
        if self.state.recorded.is_none() {
            self.state.end = None;
        }
        // SAFETY: as above.
        done(unsafe { self.ze.zeCommandListAppendBarrier(list, std::ptr::null_mut(), 1, &raw mut event) })
    }

    /// Comes when all that was given is done.
    fn end(&mut self) -> Done<Arc<Moment>> {
        self.not_recorded("waiting for the stream")?;
        if let Some(end) = &self.state.end {
            return Ok(Arc::clone(end));
        }
        let end = Moment::new(self.context)?;
        self.signal(&end)?;
        // It is kept too: the next end takes its place before the list is past it.
        self.state.kept.push((Arc::clone(&end), true));
        self.state.end = Some(Arc::clone(&end));
        Ok(end)
    }

    /// Keeps a moment until the stream is past it.
    pub(super) fn keep(&mut self, moment: Arc<Moment>, signalled_here: bool) -> Done {
        let kept = &mut self.state.kept;
        kept.push((moment, signalled_here));
        if kept.len().is_multiple_of(KEPT) {
            // The stream is past all before the last that it has signalled.
            let mut past = 0;
            for (i, (moment, here)) in kept.iter().enumerate() {
                if *here && !moment.has_come()? {
                    break;
                }
                past = if *here { i + 1 } else { past };
            }
            kept.drain(..past);
        }
        Ok(())
    }

    fn staging(&mut self) -> Done<usize> {
        let staging = match self.state.staging {
            Some(staging) => staging,
            None => self.context.pin(STAGED)?,
        };
        self.state.staging = Some(staging);
        Ok(staging)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Self { context, state, .. } = self;
        let state = state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: made here, destroyed once; the stream is idle, as its owner says. What the driver says helps nobody.
        unsafe {
            if let Some(queue) = state.queue {
                let _ = context.ze.zeCommandQueueDestroy(queue as ze_command_queue_handle_t);
            }
            let _ = context.ze.zeCommandListDestroy(state.list as ze_command_list_handle_t);
            if let Some(staging) = state.staging {
                context.unpin(staging);
            }
        }
    }
}
