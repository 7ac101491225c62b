//! Memory: the current card's, and the host's that cards copy from.

use hip_sys::{Code, Hip, device_malloc, host_malloc, host_register};
use std::ffi::c_void;
use std::ptr::null_mut;

/// An address of a card, as HIP takes it.
pub(super) fn at(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}

pub(super) fn allocate(hip: &Hip, bytes: u64) -> Result<u64, Code> {
    let mut address = null_mut();
    // SAFETY: it writes an address that nothing else has; the caller frees it.
    unsafe { hip.malloc(&raw mut address, usize::try_from(bytes).unwrap_or(usize::MAX)) }?;
    Ok(address.addr() as u64)
}

/// Memory in which kernels see what another card's kernels write while both run: what `hipMalloc` gives may be kept in caches
/// until a kernel ends.
pub(super) fn allocate_fine_grained(hip: &Hip, bytes: u64) -> Result<u64, Code> {
    let mut address = null_mut();
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: as above.
    unsafe { hip.malloc_with_flags(&raw mut address, size, device_malloc::FINE_GRAINED) }?;
    Ok(address.addr() as u64)
}

/// At the same address for the host and all cards, which see what each other writes while kernels run.
pub(super) fn pin(hip: &Hip, bytes: usize) -> Result<usize, Code> {
    let flags = host_malloc::PORTABLE | host_malloc::MAPPED | host_malloc::COHERENT;
    let mut address = null_mut();
    // SAFETY: it writes the address of as many bytes; the caller frees them.
    unsafe { hip.host_malloc(&raw mut address, bytes, flags) }?;
    Ok(address.expose_provenance())
}

/// # Safety
/// The bytes stay mapped until they are unregistered.
pub(super) unsafe fn register(hip: &Hip, address: usize, bytes: usize) -> Result<(), Code> {
    let flags = host_register::PORTABLE | host_register::READ_ONLY;
    // SAFETY: the caller's promise; the card only reads them.
    unsafe { hip.host_register(std::ptr::with_exposed_provenance_mut(address), bytes, flags) }
}
