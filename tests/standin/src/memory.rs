//! Memory: a card's, pinned memory of the host, and pages of mappings.

use crate::code::{ALREADY_REGISTERED, Code, INVALID_VALUE, NOT_REGISTERED, OUT_OF_MEMORY};
use crate::driver::{Allocation, Driver, call, call_to_free, give};
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_uchar, c_uint, c_void};

/// What begins on a card begins at multiples of this, as the driver says.
const ALIGN: usize = 256;

const PAGE: usize = 4096;

/// `CU_MEMHOSTALLOC_PORTABLE`, `…_DEVICEMAP`, `…_WRITECOMBINED`; `CU_MEMHOSTREGISTER_…` has one more.
const HOST_FLAGS: c_uint = 7;
const REGISTER_FLAGS: c_uint = 15;

impl Driver {
    /// Bytes of a card that are not taken.
    fn free(&self, card: usize) -> usize {
        let taken = self.allocations.values().filter(|a| a.card == card && !a.host).map(|a| a.bytes);
        let kept = if self.allocated.is_empty() { 0 } else { self.settings.keep };
        self.settings.memory.saturating_sub(taken.sum::<usize>() + kept)
    }

    fn allocate(&mut self, bytes: usize, host: bool) -> Result<usize, Code> {
        let card = self.current()?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        if !host && bytes > self.free(card) {
            return Err(OUT_OF_MEMORY);
        }
        let align = if host { PAGE } else { ALIGN };
        let layout = Layout::from_size_align(bytes, align).map_err(|_| OUT_OF_MEMORY)?;
        // SAFETY: the layout has a size that is not zero.
        let address = unsafe { alloc(layout) };
        if address.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        // A card's memory holds whatever it held before: nobody may take it for zeros.
        // SAFETY: as many bytes were just allocated.
        unsafe { address.write_bytes(0xa5, bytes) };
        if !host {
            self.allocated.push(bytes);
        }
        self.allocations.insert(address.addr(), Allocation { layout, bytes, card, host });
        Ok(address.expose_provenance())
    }

    fn release(&mut self, address: usize, host: bool) -> Result<(), Code> {
        self.current()?;
        let found = self.allocations.get(&address).filter(|a| a.host == host).ok_or(INVALID_VALUE)?;
        // SAFETY: it was allocated with this layout, and is in the table until now.
        unsafe { dealloc(std::ptr::with_exposed_provenance_mut(address), found.layout) };
        self.allocations.remove(&address);
        Ok(())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> i32 {
    call("cuMemGetInfo_v2", |driver| {
        let card = driver.current()?;
        // SAFETY: the caller's pointers, to a number each.
        unsafe { give(free, driver.free(card)).and_then(|()| give(total, driver.settings.memory)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut usize, bytes: usize) -> i32 {
    // SAFETY: the caller's pointer, to one address.
    call("cuMemAlloc_v2", |driver| unsafe { give(address, driver.allocate(bytes, false)?) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFree_v2(address: usize) -> i32 {
    call_to_free("cuMemFree_v2", |driver| driver.release(address, false))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(address: *mut usize, bytes: usize, flags: c_uint) -> i32 {
    call("cuMemHostAlloc", |driver| {
        if flags & !HOST_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's pointer, to one address.
        unsafe { give(address, driver.allocate(bytes, true)?) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> i32 {
    call_to_free("cuMemFreeHost", |driver| driver.release(address.addr(), true))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint) -> i32 {
    call("cuMemHostRegister_v2", |driver| {
        let card = driver.current()?;
        let start = address.addr();
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
unsafe extern "C" fn cuMemHostUnregister(address: *mut c_void) -> i32 {
    call_to_free("cuMemHostUnregister", |driver| {
        driver.current()?;
        driver.registered.remove(&address.addr()).map(|_| ()).ok_or(NOT_REGISTERED)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: usize,
    from: *const c_void,
    bytes: usize,
    stream: usize,
) -> i32 {
    call("cuMemcpyHtoDAsync_v2", |driver| {
        let card = driver.card_of_stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        if !driver.holds(card, to, bytes) {
            return Err(INVALID_VALUE);
        }
        if driver.records(stream) {
            return Ok(());
        }
        let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
        // SAFETY: the goal lies in an allocation, as was just seen, which the host does not know; the caller vouches for
        // the source.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to, bytes) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: usize, bytes: usize, stream: usize) -> i32 {
    call("cuMemcpyDtoHAsync_v2", |driver| {
        let card = driver.card_of_stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        if !driver.holds(card, from, bytes) {
            return Err(INVALID_VALUE);
        }
        if driver.records(stream) {
            return Ok(());
        }
        let from = std::ptr::with_exposed_provenance::<u8>(from);
        // SAFETY: the source lies in an allocation, as was just seen, which the host does not know; the caller vouches for
        // the goal.
        unsafe { std::ptr::copy_nonoverlapping(from, to.cast::<u8>(), bytes) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemsetD8Async(to: usize, value: c_uchar, bytes: usize, stream: usize) -> i32 {
    call("cuMemsetD8Async", |driver| {
        let card = driver.card_of_stream(stream)?;
        if bytes > 0 && !driver.holds(card, to, bytes) {
            return Err(INVALID_VALUE);
        }
        if driver.records(stream) {
            return Ok(());
        }
        let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
        // SAFETY: the bytes lie in an allocation, as was just seen.
        unsafe { to.write_bytes(value, bytes) };
        Ok(())
    })
}
