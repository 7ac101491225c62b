//! Memory: the current card's, and the host's that cards copy from.

use super::refusal;
use crate::backend::device::driver::calls::Done;
use cudarc::driver::{result, sys};

pub(super) fn allocate(bytes: u64) -> Done<u64> {
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: an address that nothing else has; the caller frees it.
    unsafe { result::malloc_sync(size) }.map_err(refusal)
}

pub(super) fn pin(bytes: usize) -> Done<usize> {
    // SAFETY: the driver gives as many bytes; the caller frees them.
    let pinned = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
    pinned.map(<*mut _>::expose_provenance).map_err(refusal)
}

/// # Safety
/// The bytes stay mapped until they are unregistered.
pub(super) unsafe fn register(address: usize, bytes: usize) -> Done {
    let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_READ_ONLY;
    let at = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the caller's promise; the card only reads them.
    unsafe { sys::cuMemHostRegister_v2(at, bytes, flags) }.result().map_err(refusal)
}
