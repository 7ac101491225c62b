//! Memory: a card's, pinned memory of the host, and pages of mappings; copies.

use crate::code::{
    ALREADY_REGISTERED, CAPTURE_UNSUPPORTED, Code, INVALID_VALUE, NOT_REGISTERED, OUT_OF_MEMORY,
};
use crate::driver::{CURRENT, Driver, call, call_then, call_to_free, give};
use crate::settings::settings;
use crate::stream::Stream;
use crate::work::Work;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_uchar, c_uint};
use std::sync::Arc;

/// What begins on a card, or pinned, begins at multiples of this.
const PAGE: usize = 4096;

/// Bytes behind each allocation that nobody may change.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0x5a;

/// `hipHostMallocPortable`, `…Mapped`, `…WriteCombined`, `…Coherent`.
const HOST_FLAGS: c_uint = 7 | 0x4000_0000;
/// `hipHostRegisterPortable`, `…Mapped`, `…ReadOnly`.
const REGISTER_FLAGS: c_uint = 1 | 2 | 8;
/// `hipDeviceMallocFinegrained`, `…Uncached`.
const FINE_GRAINED: c_uint = 1;
const UNCACHED: c_uint = 3;

pub(crate) struct Allocation {
    layout: Layout,
    pub(crate) bytes: usize,
    pub(crate) card: usize,
    /// Whether it is pinned memory of the host.
    pub(crate) host: bool,
    /// Whether others see what is written there while kernels run.
    pub(crate) fine: bool,
}

impl Driver {
    /// Bytes of a card that are not taken.
    fn free(&self, card: usize) -> usize {
        let taken = self.allocations.values().filter(|a| a.card == card && !a.host).map(|a| a.bytes);
        let kept = if self.allocated.is_empty() { 0 } else { settings().keep };
        settings().memory.saturating_sub(taken.sum::<usize>() + kept)
    }

    fn allocate(&mut self, bytes: usize, host: bool, fine: bool) -> Result<usize, Code> {
        let card = self.current()?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        if !host && bytes > self.free(card) {
            return Err(OUT_OF_MEMORY);
        }
        let whole = bytes.checked_add(GUARD).ok_or(OUT_OF_MEMORY)?;
        let layout = Layout::from_size_align(whole, PAGE).map_err(|_| OUT_OF_MEMORY)?;
        // SAFETY: the layout has a size that is not zero.
        let address = unsafe { alloc(layout) };
        if address.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        // Memory holds whatever it held before: nobody may take it for zeros.
        // SAFETY: as many bytes were just allocated, with the guard behind them.
        unsafe {
            address.write_bytes(0xa5, bytes);
            address.add(bytes).write_bytes(GUARD_BYTE, GUARD);
        }
        if !host {
            self.allocated.push(bytes);
        }
        self.allocations.insert(address.addr(), Allocation { layout, bytes, card, host, fine });
        Ok(address.expose_provenance())
    }

    fn release(&mut self, address: usize, host: bool) -> Result<(), Code> {
        self.current()?;
        self.allocations.get(&address).filter(|a| a.host == host).ok_or(INVALID_VALUE)?;
        let Some(found) = self.allocations.remove(&address) else { return Err(INVALID_VALUE) };
        let start = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: it was allocated with the guard behind it, and was in the table until now.
        let guard = unsafe { std::slice::from_raw_parts(start.add(found.bytes), GUARD) };
        if guard.iter().any(|byte| *byte != GUARD_BYTE) {
            self.wrong.push(format!("something wrote past {} bytes of card {}", found.bytes, found.card));
        }
        // SAFETY: it was allocated with this layout.
        unsafe { dealloc(start, found.layout) };
        Ok(())
    }

    /// The allocation that holds `len` bytes from `address` on.
    fn holding(&self, address: usize, len: usize) -> Option<&Allocation> {
        let (start, of) = self.allocations.range(..=address).next_back()?;
        address.checked_add(len).filter(|end| *end <= start + of.bytes).map(|_| of)
    }

    /// Whether `len` bytes from `address` on lie in one allocation of a card.
    pub(crate) fn holds(&self, card: usize, address: usize, len: usize) -> bool {
        self.holding(address, len).is_some_and(|of| !of.host && of.card == card)
    }

    /// Whether `len` bytes from `address` on are pinned memory of the host.
    fn is_pinned(&self, address: usize, len: usize) -> bool {
        let registered = self.registered.range(..=address).next_back();
        let registered =
            registered.is_some_and(|(_, (end, _))| address.checked_add(len).is_some_and(|e| e <= *end));
        registered || self.holding(address, len).is_some_and(|of| of.host)
    }

    /// Why a kernel of `card` may not reach for `address`, if it may not. Words of other cards that are written meanwhile must
    /// be in memory that is made for that (`live`).
    pub(crate) fn out_of_reach(&self, card: usize, address: usize, live: bool) -> Option<String> {
        if self.is_pinned(address, 1) {
            return None;
        }
        match self.holding(address, 1) {
            None => Some("is no memory of a card, nor pinned".into()),
            Some(of) if of.card == card => None,
            Some(of) if !self.peers.contains(&(card, of.card)) => {
                Some(format!("is memory of card {}, which card {card} does not reach", of.card))
            }
            Some(of) if live && !of.fine => Some(format!(
                "is memory of card {} that others see only when its kernels have ended",
                of.card
            )),
            Some(_) => None,
        }
    }

    /// All streams: memory is given back when nothing runs any more.
    fn all_streams(&self) -> Vec<Arc<Stream>> {
        let card = CURRENT.get();
        self.streams.values().filter(|stream| Some(stream.card) == card).cloned().collect()
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemGetInfo(free: *mut usize, all: *mut usize) -> i32 {
    call("hipMemGetInfo", |driver| {
        let card = driver.current()?;
        // SAFETY: the caller's pointers, to a number each.
        unsafe { give(free, driver.free(card)).and_then(|()| give(all, settings().memory)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMalloc(address: *mut usize, bytes: usize) -> i32 {
    // SAFETY: the caller's pointer, to one address.
    call("hipMalloc", |driver| unsafe { give(address, driver.allocate(bytes, false, false)?) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipExtMallocWithFlags(address: *mut usize, bytes: usize, flags: c_uint) -> i32 {
    call("hipExtMallocWithFlags", |driver| {
        if ![0, FINE_GRAINED, UNCACHED].contains(&flags) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's pointer, to one address.
        unsafe { give(address, driver.allocate(bytes, false, flags != 0)?) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipFree(address: usize) -> i32 {
    call_to_free("hipFree", Driver::all_streams, |driver| driver.release(address, false))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipHostMalloc(address: *mut usize, bytes: usize, flags: c_uint) -> i32 {
    call("hipHostMalloc", |driver| {
        if flags & !HOST_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's pointer, to one address.
        unsafe { give(address, driver.allocate(bytes, true, true)?) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipHostFree(address: usize) -> i32 {
    call_to_free("hipHostFree", Driver::all_streams, |driver| driver.release(address, true))
}

#[unsafe(no_mangle)]
extern "C" fn hipHostRegister(start: usize, bytes: usize, flags: c_uint) -> i32 {
    call("hipHostRegister", |driver| {
        let card = driver.current()?;
        let end = start.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(PAGE));
        let end = end.filter(|_| bytes > 0 && start.is_multiple_of(PAGE) && flags & !REGISTER_FLAGS == 0);
        let end = end.ok_or(INVALID_VALUE)?;
        // Those before its end that do not end before its start.
        if driver.registered.range(..end).next_back().is_some_and(|(_, (other, _))| *other > start) {
            return Err(ALREADY_REGISTERED);
        }
        driver.registered.insert(start, (end, card));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipHostUnregister(address: usize) -> i32 {
    call_to_free("hipHostUnregister", Driver::all_streams, |driver| {
        driver.current()?;
        driver.registered.remove(&address).map(|_| ()).ok_or(NOT_REGISTERED)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpyHtoDAsync(to: usize, from: usize, bytes: usize, stream: usize) -> i32 {
    call("hipMemcpyHtoDAsync", |driver| {
        let card = driver.stream(stream)?.card;
        if bytes == 0 {
            return Ok(());
        }
        if !driver.holds(card, to, bytes) || from == 0 {
            return Err(INVALID_VALUE);
        }
        if driver.is_pinned(from, bytes) {
            return driver.give_work(stream, Work::Copy { to, from, bytes });
        }
        if driver.recorded.contains_key(&stream) {
            return Err(CAPTURE_UNSUPPORTED);
        }
        // What is not pinned may be gone when the call has returned.
        let from = std::ptr::with_exposed_provenance::<u8>(from);
        // SAFETY: the caller vouches for the source.
        let from = unsafe { std::slice::from_raw_parts(from, bytes) };
        driver.give_work(stream, Work::Write { to, from: from.into() })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpyDtoHAsync(to: usize, from: usize, bytes: usize, stream: usize) -> i32 {
    let give = |driver: &mut Driver| {
        let of = driver.stream(stream)?;
        if bytes == 0 {
            return Ok(None);
        }
        if !driver.holds(of.card, from, bytes) || to == 0 {
            return Err(INVALID_VALUE);
        }
        let pinned = driver.is_pinned(to, bytes);
        if !pinned && driver.recorded.contains_key(&stream) {
            return Err(CAPTURE_UNSUPPORTED);
        }
        driver.give_work(stream, Work::Copy { to, from, bytes })?;
        Ok(Some(of).filter(|_| !pinned))
    };
    // To what is not pinned, the call waits.
    call_then("hipMemcpyDtoHAsync", give, |stream| stream.map_or(Ok(()), |stream| stream.synchronize()))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemsetD8Async(to: usize, value: c_uchar, bytes: usize, stream: usize) -> i32 {
    call("hipMemsetD8Async", |driver| {
        let card = driver.stream(stream)?.card;
        if bytes == 0 {
            return Ok(());
        }
        if !driver.holds(card, to, bytes) {
            return Err(INVALID_VALUE);
        }
        driver.give_work(stream, Work::Fill { to, value, bytes })
    })
}
