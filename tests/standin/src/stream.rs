//! Streams and events. What a stream is given is done at once, so that nothing ever waits.

use crate::code::{CAPTURE_UNSUPPORTED, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::driver::{Event, call, call_to_free, give};
use std::ffi::c_uint;
use std::time::Instant;

/// `CU_STREAM_NON_BLOCKING`.
const STREAM_FLAGS: c_uint = 1;

/// `CU_EVENT_BLOCKING_SYNC`, `CU_EVENT_DISABLE_TIMING`.
const EVENT_FLAGS: c_uint = 3;
const NOT_TIMED: c_uint = 2;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut usize, flags: c_uint) -> i32 {
    call("cuStreamCreate", |driver| {
        let card = driver.current()?;
        if flags & !STREAM_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(stream, handle) }?;
        driver.streams.insert(handle, card);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamDestroy_v2(stream: usize) -> i32 {
    call_to_free("cuStreamDestroy_v2", |driver| {
        driver.current()?;
        driver.recorded.remove(&stream);
        driver.streams.remove(&stream).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamSynchronize(stream: usize) -> i32 {
    call("cuStreamSynchronize", |driver| {
        driver.card_of_stream(stream)?;
        // What is recorded is never done, so that waiting for it is a mistake.
        if driver.recorded.contains_key(&stream) { Err(CAPTURE_UNSUPPORTED) } else { Ok(()) }
    })
}

/// What is recorded is never done.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamQuery(stream: usize) -> i32 {
    call("cuStreamQuery", |driver| {
        driver.card_of_stream(stream)?;
        if driver.recorded.contains_key(&stream) { Err(CAPTURE_UNSUPPORTED) } else { Ok(()) }
    })
}

/// The event may be another card's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) -> i32 {
    call("cuStreamWaitEvent", |driver| {
        driver.card_of_stream(stream)?;
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        driver.events.get(&event).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut usize, flags: c_uint) -> i32 {
    call("cuEventCreate", |driver| {
        let card = driver.current()?;
        if flags & !EVENT_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(event, handle) }?;
        let timed = flags & NOT_TIMED == 0;
        driver.events.insert(handle, Event { card, timed, recorded: None });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventDestroy_v2(event: usize) -> i32 {
    call_to_free("cuEventDestroy_v2", |driver| {
        driver.current()?;
        driver.events.remove(&event).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(event: usize, stream: usize) -> i32 {
    call("cuEventRecord", |driver| {
        let card = driver.card_of_stream(stream)?;
        let event = driver.events.get_mut(&event).filter(|event| event.card == card);
        event.ok_or(INVALID_HANDLE)?.recorded = Some(Instant::now());
        Ok(())
    })
}

/// One that was never recorded has nothing to wait for.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventSynchronize(event: usize) -> i32 {
    call("cuEventSynchronize", |driver| {
        driver.current()?;
        driver.events.get(&event).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: usize, end: usize) -> i32 {
    call("cuEventElapsedTime_v2", |driver| {
        let at = |event| {
            let event = driver.events.get(&event).filter(|event| event.timed).ok_or(INVALID_HANDLE)?;
            event.recorded.ok_or(NOT_READY)
        };
        let time = at(end)?.saturating_duration_since(at(start)?);
        // SAFETY: the caller's pointer, to one number.
        unsafe { give(milliseconds, time.as_secs_f32() * 1e3) }
    })
}
