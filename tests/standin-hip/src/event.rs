//! Events.

use crate::code::{CAPTURE_UNSUPPORTED, Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::driver::{Driver, call, call_then, call_to_free, give};
use crate::work::Work;
use std::ffi::c_uint;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// `hipEventBlockingSync`, `hipEventDisableTiming`.
const EVENT_FLAGS: c_uint = 3;
const NOT_TIMED: c_uint = 2;

pub(crate) struct Event {
    pub(crate) card: usize,
    timed: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How often it was recorded, and which of these came last.
    given: u64,
    come: u64,
    at: Option<Instant>,
}

impl Event {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often it was recorded.
    pub(crate) fn given(&self) -> u64 {
        self.state().given
    }

    /// The stream is where it was recorded for the `turn`th time.
    pub(crate) fn come(&self, turn: u64) {
        let mut state = self.state();
        state.come = state.come.max(turn);
        state.at = Some(Instant::now());
        self.changed.notify_all();
    }

    /// Waits for that.
    pub(crate) fn wait(&self, turn: u64) {
        let mut state = self.state();
        while state.come < turn {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipEventCreateWithFlags(event: *mut usize, flags: c_uint) -> i32 {
    call("hipEventCreateWithFlags", |driver| {
        let card = driver.current()?;
        if flags & !EVENT_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(event, handle) }?;
        let timed = flags & NOT_TIMED == 0;
        let made = Event { card, timed, state: Mutex::default(), changed: Condvar::new() };
        driver.events.insert(handle, Arc::new(made));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipEventDestroy(event: usize) -> i32 {
    call_to_free(
        "hipEventDestroy",
        |_| Vec::new(),
        |driver| {
            driver.current()?;
            driver.events.remove(&event).map(|_| ()).ok_or(INVALID_HANDLE)
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn hipEventRecord(event: usize, stream: usize) -> i32 {
    call("hipEventRecord", |driver| {
        let of = driver.stream(stream)?;
        let event = driver.events.get(&event).filter(|event| event.card == of.card).cloned();
        let event = event.ok_or(INVALID_HANDLE)?;
        if driver.recorded.contains_key(&stream) {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let turn = {
            let mut state = event.state();
            state.given += 1;
            state.given
        };
        of.give(driver, Work::Record { event, turn });
        Ok(())
    })
}

/// One that was never recorded has nothing to wait for.
#[unsafe(no_mangle)]
extern "C" fn hipEventSynchronize(event: usize) -> i32 {
    let find = |driver: &mut Driver| -> Result<Arc<Event>, Code> {
        driver.current()?;
        driver.events.get(&event).cloned().ok_or(INVALID_HANDLE)
    };
    call_then("hipEventSynchronize", find, |event| {
        event.wait(event.given());
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipEventElapsedTime(milliseconds: *mut f32, first: usize, second: usize) -> i32 {
    call("hipEventElapsedTime", |driver| {
        let at = |event| {
            let event = driver.events.get(&event).filter(|event| event.timed).ok_or(INVALID_HANDLE)?;
            let state = event.state();
            match state.at {
                None => Err(INVALID_HANDLE),
                Some(_) if state.come < state.given => Err(NOT_READY),
                Some(at) => Ok(at),
            }
        };
        let time = at(second)?.saturating_duration_since(at(first)?);
        // SAFETY: the caller's pointer, to one number.
        unsafe { give(milliseconds, time.as_secs_f32() * 1e3) }
    })
}
