//! Streams: what each is given is done by a thread of its own, in order.

use crate::code::{CAPTURE_UNSUPPORTED, Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::driver::{Driver, call, call_then, call_to_free, give};
use crate::settings::settings;
use crate::work::Work;
use std::collections::VecDeque;
use std::ffi::c_uint;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// `hipStreamNonBlocking`
const STREAM_FLAGS: c_uint = 1;

pub(crate) struct Stream {
    pub(crate) card: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    /// Whether something is being done.
    busy: bool,
    /// No more will come.
    ended: bool,
    /// What went wrong; from then on nothing is done.
    failed: Option<Code>,
}

impl Stream {
    fn new(card: usize) -> Arc<Self> {
        let stream = Arc::new(Self { card, state: Mutex::default(), changed: Condvar::new() });
        let own = Arc::clone(&stream);
        std::thread::spawn(move || own.serve());
        stream
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut state = self.state();
        loop {
            let Some(work) = state.waiting.pop_front() else {
                if state.ended {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.busy = true;
            let failed = state.failed.is_some();
            drop(state);
            let done = work.run(self.card, failed);
            state = self.state();
            state.busy = false;
            state.failed = state.failed.or(done.err());
            if state.waiting.is_empty() {
                self.changed.notify_all();
            }
        }
    }

    /// Gives it something to do. Where kernels do nothing there is nothing that would be worth a thread's waking.
    pub(crate) fn give(&self, driver: &mut Driver, work: Work) {
        if settings().skip > 0 && settings().lost.is_none() && work.is_quick() && self.is_idle() {
            return work.run_quickly(driver);
        }
        let mut state = self.state();
        state.waiting.push_back(work);
        self.changed.notify_all();
    }

    fn is_idle(&self) -> bool {
        let state = self.state();
        state.waiting.is_empty() && !state.busy
    }

    /// Waits until there is nothing to do.
    pub(crate) fn rest(&self) {
        let mut state = self.state();
        while !state.waiting.is_empty() || state.busy {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The same; what went wrong.
    pub(crate) fn synchronize(&self) -> Result<(), Code> {
        self.rest();
        self.state().failed.map_or(Ok(()), Err)
    }

    fn end(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamCreateWithFlags(stream: *mut usize, flags: c_uint) -> i32 {
    call("hipStreamCreateWithFlags", |driver| {
        let card = driver.current()?;
        if flags & !STREAM_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(stream, handle) }?;
        driver.streams.insert(handle, Stream::new(card));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamDestroy(stream: usize) -> i32 {
    let idle = |driver: &Driver| driver.streams.get(&stream).cloned().into_iter().collect();
    call_to_free("hipStreamDestroy", idle, |driver| {
        driver.current()?;
        driver.recorded.remove(&stream);
        driver.streams.remove(&stream).map(|stream| stream.end()).ok_or(INVALID_HANDLE)
    })
}

/// A stream that is not recorded: what is recorded is never done, so that waiting for it is a mistake.
fn to_wait_for(driver: &mut Driver, stream: usize) -> Result<Arc<Stream>, Code> {
    let found = driver.stream(stream)?;
    if driver.recorded.contains_key(&stream) { Err(CAPTURE_UNSUPPORTED) } else { Ok(found) }
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamSynchronize(stream: usize) -> i32 {
    call_then("hipStreamSynchronize", |driver| to_wait_for(driver, stream), |stream| stream.synchronize())
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamQuery(stream: usize) -> i32 {
    call("hipStreamQuery", |driver| {
        let stream = to_wait_for(driver, stream)?;
        if stream.is_idle() { stream.synchronize() } else { Err(NOT_READY) }
    })
}

/// The event may be another card's.
#[unsafe(no_mangle)]
extern "C" fn hipStreamWaitEvent(stream: usize, event: usize, flags: c_uint) -> i32 {
    call("hipStreamWaitEvent", |driver| {
        let of = to_wait_for(driver, stream)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let event = driver.events.get(&event).cloned().ok_or(INVALID_HANDLE)?;
        let turn = event.given();
        of.give(driver, Work::Wait { event, turn });
        Ok(())
    })
}
