//! Events and their pools.

use crate::driver::{Code, Placed, Pool, call, call_to_free, expect_type, give, is_lost, lock, read, status};
use level_zero_sys::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often who waits looks whether a card was lost meanwhile.
const LOOK: Duration = Duration::from_millis(5);

/// Something that comes once, until it is reset.
pub(crate) struct Event {
    signaled: Mutex<bool>,
    changed: Condvar,
    /// The card that was last told to signal it.
    by: AtomicUsize,
}

impl Event {
    fn new() -> Self {
        Self { signaled: Mutex::new(false), changed: Condvar::new(), by: AtomicUsize::new(usize::MAX) }
    }

    /// A command of this card's will signal it.
    pub(crate) fn expect_from(&self, card: usize) {
        self.by.store(card, Ordering::SeqCst);
    }

    /// Whether what would signal it never will.
    fn is_hopeless(&self) -> bool {
        let by = self.by.load(Ordering::SeqCst);
        by != usize::MAX && is_lost(by)
    }

    pub(crate) fn set(&self, signaled: bool) {
        *self.signaled.lock().unwrap_or_else(PoisonError::into_inner) = signaled;
        self.changed.notify_all();
    }

    pub(crate) fn is_signaled(&self) -> bool {
        *self.signaled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for it until `end`; gives up where the card that would signal it is lost. Whether it came.
    pub(crate) fn wait(&self, end: Option<Instant>) -> bool {
        let mut signaled = self.signaled.lock().unwrap_or_else(PoisonError::into_inner);
        while !*signaled {
            let now = Instant::now();
            if self.is_hopeless() || end.is_some_and(|end| now >= end) {
                return false;
            }
            let most = end.map_or(LOOK, |end| LOOK.min(end - now));
            let woken = self.changed.wait_timeout(signaled, most);
            signaled = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

pub(crate) unsafe extern "C" fn zeEventPoolCreate(
    context: usize,
    desc: *const ze_event_pool_desc_t,
    devices: u32,
    _: *const usize,
    to: *mut usize,
) -> ze_result_t {
    call("zeEventPoolCreate", |driver| {
        driver.context(context)?;
        // SAFETY: the caller's pointer, to one structure.
        let desc = unsafe { read(desc) }?;
        expect_type(desc.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_EVENT_POOL_DESC)?;
        // The host waits for and resets these, and all devices of the context may use them.
        if desc.count == 0
            || desc.flags != ze_event_pool_flag_t::ZE_EVENT_POOL_FLAG_HOST_VISIBLE.0
            || devices != 0
        {
            return Err(Code::ZE_RESULT_ERROR_INVALID_SIZE);
        }
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(to, handle) }?;
        driver.pools.insert(handle, Pool { count: desc.count, taken: BTreeSet::new() });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn zeEventPoolDestroy(pool: usize) -> ze_result_t {
    call_to_free("zeEventPoolDestroy", |driver| {
        let gone = driver.pools.remove(&pool).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)?;
        if gone.taken.is_empty() { Ok(()) } else { Err(Code::ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE) }
    })
}

pub(crate) unsafe extern "C" fn zeEventCreate(
    pool: usize,
    desc: *const ze_event_desc_t,
    to: *mut usize,
) -> ze_result_t {
    call("zeEventCreate", |driver| {
        // SAFETY: the caller's pointer, to one structure.
        let desc = unsafe { read(desc) }?;
        expect_type(desc.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_EVENT_DESC)?;
        let handle = driver.handle();
        let of = driver.pools.get_mut(&pool).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)?;
        if desc.index >= of.count || !of.taken.insert(desc.index) {
            return Err(Code::ZE_RESULT_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(to, handle) }?;
        driver.events.insert(handle, Placed { event: Arc::new(Event::new()), pool, index: desc.index });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn zeEventDestroy(event: usize) -> ze_result_t {
    call_to_free("zeEventDestroy", |driver| {
        let gone = driver.events.remove(&event).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)?;
        driver.pools.get_mut(&gone.pool).map(|pool| pool.taken.remove(&gone.index));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn zeEventHostReset(event: usize) -> ze_result_t {
    call("zeEventHostReset", |driver| {
        driver.event(event)?.set(false);
        Ok(())
    })
}

fn found(function: &'static str, event: usize) -> Result<Arc<Event>, Code> {
    let mut driver = lock();
    driver.count(function)?;
    driver.event(event).cloned()
}

/// Whether it came; where it did not and the card is lost, that.
fn came(event: &Event, came: bool) -> Result<(), Code> {
    match (came, event.is_hopeless()) {
        (true, _) => Ok(()),
        (_, true) => Err(Code::ZE_RESULT_ERROR_DEVICE_LOST),
        _ => Err(Code::ZE_RESULT_NOT_READY),
    }
}

pub(crate) unsafe extern "C" fn zeEventQueryStatus(event: usize) -> ze_result_t {
    status(found("zeEventQueryStatus", event).and_then(|event| came(&event, event.is_signaled())))
}

pub(crate) unsafe extern "C" fn zeEventHostSynchronize(event: usize, nanoseconds: u64) -> ze_result_t {
    status(found("zeEventHostSynchronize", event).and_then(|event| {
        let end = (nanoseconds < u64::MAX).then(|| Instant::now() + Duration::from_nanos(nanoseconds));
        came(&event, event.wait(end))
    }))
}
