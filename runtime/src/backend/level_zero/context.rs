//! The context that all open cards of a driver share: events, clocks, and which memory of the host cards reach.

use super::error::done;
use crate::backend::device::driver::calls::{Done, Handle};
use level_zero_sys::{
    ZeLib, ze_context_desc_t, ze_context_handle_t, ze_driver_handle_t, ze_event_desc_t, ze_event_handle_t,
    ze_event_pool_desc_t, ze_event_pool_flag_t, ze_event_pool_handle_t, ze_event_scope_flag_t,
    ze_structure_type_t,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, RwLock};

/// Events of a pool.
const EVENTS: u32 = 64;

/// Bytes of a page of clocks, which have 8 each.
const CLOCKS: usize = 4096;

/// A context; its own handles are given back with it.
pub(super) struct Context {
    pub(super) ze: &'static ZeLib,
    context: Handle,
    events: Mutex<Events>,
    clocks: Mutex<Clocks>,
    /// Memory of the host that cards reach: ends by first address.
    pub(super) pinned: RwLock<BTreeMap<usize, usize>>,
}

#[derive(Default)]
struct Events {
    pools: Vec<Handle>,
    all: Vec<Handle>,
    free: Vec<Handle>,
}

#[derive(Default)]
struct Clocks {
    pages: Vec<usize>,
    free: Vec<usize>,
}

impl Context {
    pub(super) fn new(ze: &'static ZeLib, driver: Handle) -> Done<Self> {
        let stype = ze_structure_type_t::ZE_STRUCTURE_TYPE_CONTEXT_DESC;
        let desc = ze_context_desc_t { stype, pNext: std::ptr::null(), flags: 0 };
        let mut context: ze_context_handle_t = std::ptr::null_mut();
        // SAFETY: the driver is one that the loader gave; the context is destroyed when this is dropped.
        done(unsafe { ze.zeContextCreate(driver as ze_driver_handle_t, &raw const desc, &raw mut context) })?;
        let context = context as Handle;
        let (events, clocks, pinned) = (Mutex::default(), Mutex::default(), RwLock::default());
        Ok(Self { ze, context, events, clocks, pinned })
    }

    pub(super) fn raw(&self) -> ze_context_handle_t {
        self.context as ze_context_handle_t
    }

    /// An event that has not come. Host and cards see what was written before it.
    pub(super) fn take_event(&self) -> Done<Handle> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.free.is_empty() {
            self.more_events(&mut events)?;
        }
        let event = events.free.pop().unwrap_or_default();
        // SAFETY: it is free: nothing waits for it and nothing will signal it.
        let reset = done(unsafe { self.ze.zeEventHostReset(event as ze_event_handle_t) });
        if reset.is_err() {
            events.free.push(event);
        }
        reset.map(|()| event)
    }

    /// Gives one back which nothing waits for and nothing will signal.
    pub(super) fn free_event(&self, event: Handle) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).free.push(event);
    }

    fn more_events(&self, events: &mut Events) -> Done {
        let desc = ze_event_pool_desc_t {
            stype: ze_structure_type_t::ZE_STRUCTURE_TYPE_EVENT_POOL_DESC,
            pNext: std::ptr::null(),
            flags: ze_event_pool_flag_t::ZE_EVENT_POOL_FLAG_HOST_VISIBLE.0,
            count: EVENTS,
        };
        let mut pool: ze_event_pool_handle_t = std::ptr::null_mut();
        // SAFETY: the context lives, and the pool, which is for all its cards, is destroyed with it.
        done(unsafe {
            self.ze.zeEventPoolCreate(self.raw(), &raw const desc, 0, std::ptr::null_mut(), &raw mut pool)
        })?;
        events.pools.push(pool as Handle);
        for index in 0..EVENTS {
            let desc = ze_event_desc_t {
                stype: ze_structure_type_t::ZE_STRUCTURE_TYPE_EVENT_DESC,
                pNext: std::ptr::null(),
                index,
                signal: ze_event_scope_flag_t::ZE_EVENT_SCOPE_FLAG_HOST.0,
                wait: ze_event_scope_flag_t::ZE_EVENT_SCOPE_FLAG_HOST.0,
            };
            let mut event: ze_event_handle_t = std::ptr::null_mut();
            // SAFETY: the pool was just made, and has room for as many.
            let made = done(unsafe { self.ze.zeEventCreate(pool, &raw const desc, &raw mut event) });
            match made {
                Ok(()) => {
                    events.all.push(event as Handle);
                    events.free.push(event as Handle);
                }
                // Those that there are will do.
                Err(_) if !events.free.is_empty() => break,
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// 8 bytes of the host's memory, to which cards write the time.
    pub(super) fn take_clock(&self) -> Done<usize> {
        let mut clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        if clocks.free.is_empty() {
            let page = self.pin(CLOCKS)?;
            clocks.pages.push(page);
            clocks.free.extend((0..CLOCKS / 8).map(|i| page + 8 * i));
        }
        Ok(clocks.free.pop().unwrap_or_default())
    }

    pub(super) fn free_clock(&self, clock: usize) {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner).free.push(clock);
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let pages = std::mem::take(&mut self.clocks.get_mut().unwrap_or_else(PoisonError::into_inner).pages);
        for page in pages {
            // SAFETY: pinned in `take_clock`, given back once; all events are gone.
            unsafe { self.unpin(page) };
        }
        let Self { ze, events, .. } = self;
        let events = events.get_mut().unwrap_or_else(PoisonError::into_inner);
        // What the driver says at the end helps nobody.
        for event in events.all.drain(..) {
            // SAFETY: made in `more_events`, destroyed once; all that used it is gone.
            let _ = unsafe { ze.zeEventDestroy(event as ze_event_handle_t) };
        }
        for pool in events.pools.drain(..) {
            // SAFETY: as above.
            let _ = unsafe { ze.zeEventPoolDestroy(pool as ze_event_pool_handle_t) };
        }
        // SAFETY: made in `new`; all that was made of it is gone.
        let _ = unsafe { self.ze.zeContextDestroy(self.raw()) };
    }
}
