//! Memory: a card's, and the host's that cards copy from.

use super::context::Context;
use super::error::{done, said};
use crate::backend::device::driver::calls::{Done, Handle, Refusal};
use level_zero_sys::{
    ze_device_handle_t, ze_device_mem_alloc_desc_t, ze_driver_memory_free_policy_ext_flag_t,
    ze_host_mem_alloc_desc_t, ze_memory_free_ext_desc_t, ze_relaxed_allocation_limits_exp_desc_t,
    ze_relaxed_allocation_limits_exp_flag_t, ze_result_t, ze_structure_type_t,
};
use std::ffi::c_void;
use std::sync::PoisonError;

/// To what memory of a card is aligned, and that of the host.
const ALIGN: usize = 256;
const PAGE: usize = 4096;

impl Context {
    /// Memory of a card, where an allocation has `limit` bytes at most unless more are asked for in a special way.
    pub(super) fn allocate(&self, device: Handle, bytes: u64, limit: u64) -> Done<u64> {
        let relaxed = ze_relaxed_allocation_limits_exp_desc_t {
            stype: ze_structure_type_t::ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC,
            pNext: std::ptr::null(),
            flags: ze_relaxed_allocation_limits_exp_flag_t::ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE.0,
        };
        let more = if bytes > limit { (&raw const relaxed).cast() } else { std::ptr::null() };
        let desc = ze_device_mem_alloc_desc_t {
            stype: ze_structure_type_t::ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC,
            pNext: more,
            flags: 0,
            ordinal: 0,
        };
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let device = device as ze_device_handle_t;
        let mut address: *mut c_void = std::ptr::null_mut();
        // SAFETY: context and device live; the caller frees what it is given.
        let code = unsafe {
            self.ze.zeMemAllocDevice(self.raw(), &raw const desc, size, ALIGN, device, &raw mut address)
        };
        match done(code) {
            Ok(()) => Ok(address.expose_provenance() as u64),
            Err(Refusal { is_short: false, code, .. }) if bytes > limit => Err(said(
                ze_result_t(code),
                format!(
                    "the driver gives {limit} bytes in one allocation, not {bytes}, and no more where that is asked for"
                ),
            )),
            Err(refusal) => Err(refusal),
        }
    }

    /// Memory of the host that kernels of all cards reach.
    pub(super) fn pin(&self, bytes: usize) -> Done<usize> {
        let stype = ze_structure_type_t::ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC;
        let desc = ze_host_mem_alloc_desc_t { stype, pNext: std::ptr::null(), flags: 0 };
        let mut address: *mut c_void = std::ptr::null_mut();
        // SAFETY: the context lives; the caller gives back what it is given.
        done(unsafe { self.ze.zeMemAllocHost(self.raw(), &raw const desc, bytes, PAGE, &raw mut address) })?;
        let address = address.expose_provenance();
        self.pinned.write().unwrap_or_else(PoisonError::into_inner).insert(address, address + bytes);
        Ok(address)
    }

    /// # Safety
    /// It was pinned here, and nobody but work that was given to cards uses it any more.
    pub(super) unsafe fn unpin(&self, address: usize) {
        self.pinned.write().unwrap_or_else(PoisonError::into_inner).remove(&address);
        // SAFETY: the caller's promise.
        unsafe { self.free(address) };
    }

    /// Whether cards reach these bytes of the host.
    pub(super) fn is_pinned(&self, address: usize, bytes: usize) -> bool {
        let pinned = self.pinned.read().unwrap_or_else(PoisonError::into_inner);
        let found = pinned.range(..=address).next_back();
        found.is_some_and(|(_, end)| address.checked_add(bytes).is_some_and(|last| last <= *end))
    }

    /// Frees memory when all work that uses it is done.
    ///
    /// # Safety
    /// It was allocated here, and nobody but work that was given to cards uses it any more.
    pub(super) unsafe fn free(&self, address: usize) {
        let desc = ze_memory_free_ext_desc_t {
            stype: ze_structure_type_t::ZE_STRUCTURE_TYPE_MEMORY_FREE_EXT_DESC,
            pNext: std::ptr::null(),
            freePolicy:
                ze_driver_memory_free_policy_ext_flag_t::ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_BLOCKING_FREE.0,
        };
        let address = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: the caller's promise. What the driver says then helps nobody.
        let _ = unsafe { self.ze.zeMemFreeExt(self.raw(), &raw const desc, address) };
    }
}
