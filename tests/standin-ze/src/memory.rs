//! Memory: a card's, and the host's that cards reach.

use crate::driver::{Code, DONE, Driver, alive, call, expect_type, give, lock, read, status};
use level_zero_sys::*;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::sync::PoisonError;

const PAGE: usize = 4096;

const MAX_SIZE: u32 =
    ze_relaxed_allocation_limits_exp_flag_t::ZE_RELAXED_ALLOCATION_LIMITS_EXP_FLAG_MAX_SIZE.0;

const BLOCKING: u32 =
    ze_driver_memory_free_policy_ext_flag_t::ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_BLOCKING_FREE.0;

#[derive(Clone, Copy)]
pub(crate) struct Allocation {
    layout: Layout,
    pub(crate) bytes: usize,
    /// None: of the host.
    pub(crate) card: Option<usize>,
    /// Which of all that there ever were.
    pub(crate) id: usize,
    /// Work that was given and is not done, which uses it.
    pub(crate) uses: usize,
}

/// An allocation that work uses: its first address and which it is.
pub(crate) type Use = (usize, usize);

impl Driver {
    fn free(&self, card: usize) -> usize {
        let taken = self.allocations.values().filter(|a| a.card == Some(card)).map(|a| a.bytes);
        self.settings.memory.saturating_sub(taken.sum())
    }

    fn allocate(&mut self, bytes: usize, align: usize, card: Option<usize>) -> Result<usize, Code> {
        if bytes == 0 {
            return Err(Code::ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
        }
        if card.is_some_and(|card| bytes > self.free(card)) {
            return Err(Code::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
        }
        let short = Code::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
        let layout = Layout::from_size_align(bytes, align.max(PAGE)).map_err(|_| short)?;
        // SAFETY: the layout has a size that is not zero.
        let address = unsafe { alloc(layout) };
        if address.is_null() {
            return Err(short);
        }
        // It holds whatever it held before: nobody may take it for zeros.
        // SAFETY: as many bytes were just allocated.
        unsafe { address.write_bytes(0xa5, bytes) };
        if card.is_some() {
            self.allocated.push(bytes);
        }
        let id = self.handle();
        self.allocations.insert(address.addr(), Allocation { layout, bytes, card, id, uses: 0 });
        Ok(address.expose_provenance())
    }

    /// The allocation in which `len` bytes from `address` on lie, which `card` reaches.
    pub(crate) fn reached(&self, card: usize, address: usize, len: usize) -> Result<Use, Code> {
        let found = self.allocations.range(..=address).next_back();
        let found = found.filter(|(start, of)| {
            let own = of.card.is_none_or(|of| of == card || self.settings.peers);
            own && address.checked_add(len).is_some_and(|end| end <= **start + of.bytes)
        });
        let (start, of) = found.ok_or(Code::ZE_RESULT_ERROR_INVALID_ARGUMENT)?;
        Ok((*start, of.id))
    }

    /// Work that uses these is given to a card; or none of it, where one is gone.
    pub(crate) fn take(&mut self, uses: &[Use]) -> Result<(), Code> {
        let gone = |(start, id): &Use| self.allocations.get(start).is_none_or(|of| of.id != *id);
        if uses.iter().any(gone) {
            self.wrong.push("work with memory that was freed".into());
            return Err(Code::ZE_RESULT_ERROR_INVALID_ARGUMENT);
        }
        for (start, _) in uses {
            if let Some(of) = self.allocations.get_mut(start) {
                of.uses += 1;
            }
        }
        Ok(())
    }

    /// That work is done.
    pub(crate) fn untake(&mut self, uses: &[Use]) {
        for (start, _) in uses {
            if let Some(of) = self.allocations.get_mut(start) {
                of.uses -= 1;
            }
        }
    }
}

pub(crate) unsafe extern "C" fn zeMemAllocDevice(
    context: usize,
    desc: *const ze_device_mem_alloc_desc_t,
    bytes: usize,
    align: usize,
    device: usize,
    to: *mut usize,
) -> ze_result_t {
    call("zeMemAllocDevice", |driver| {
        driver.context(context)?;
        let card = driver.card(device)?;
        alive(card)?;
        // SAFETY: the caller's pointer, to one structure.
        let desc = unsafe { read(desc) }?;
        expect_type(desc.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC)?;
        let mut most = driver.settings.most;
        // SAFETY: what is linked to a descriptor begins with its type, as this one's does.
        if let Some(more) = unsafe { desc.pNext.cast::<ze_relaxed_allocation_limits_exp_desc_t>().as_ref() } {
            let stype = ze_structure_type_t::ZE_STRUCTURE_TYPE_RELAXED_ALLOCATION_LIMITS_EXP_DESC;
            expect_type(more.stype, stype)?;
            if more.flags == MAX_SIZE && driver.settings.relaxed {
                most = usize::MAX;
            }
        }
        if bytes > most {
            return Err(Code::ZE_RESULT_ERROR_UNSUPPORTED_SIZE);
        }
        if align != 0 && !align.is_power_of_two() || desc.ordinal != 0 {
            return Err(Code::ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT);
        }
        // SAFETY: the caller's pointer, to one address.
        unsafe { give(to, driver.allocate(bytes, align, Some(card))?) }
    })
}

pub(crate) unsafe extern "C" fn zeMemAllocHost(
    context: usize,
    desc: *const ze_host_mem_alloc_desc_t,
    bytes: usize,
    align: usize,
    to: *mut usize,
) -> ze_result_t {
    call("zeMemAllocHost", |driver| {
        driver.context(context)?;
        // SAFETY: the caller's pointer, to one structure.
        let desc = unsafe { read(desc) }?;
        expect_type(desc.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC)?;
        if align != 0 && !align.is_power_of_two() {
            return Err(Code::ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT);
        }
        // SAFETY: the caller's pointer, to one address.
        unsafe { give(to, driver.allocate(bytes, align, None)?) }
    })
}

/// Frees when all work that uses it is done, where that is asked for; else work that uses it is a mistake.
pub(crate) unsafe extern "C" fn zeMemFreeExt(
    context: usize,
    desc: *const ze_memory_free_ext_desc_t,
    address: *mut c_void,
) -> ze_result_t {
    let mut driver = lock();
    let asked = driver.count("zeMemFreeExt");
    // SAFETY: the caller's pointer, to one structure.
    let policy = unsafe { read(desc) }.and_then(|desc| {
        expect_type(desc.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_MEMORY_FREE_EXT_DESC)?;
        driver.context(context).map(|()| desc.freePolicy)
    });
    let is_used = |driver: &Driver| driver.allocations.get(&address.addr()).is_some_and(|of| of.uses > 0);
    while policy == Ok(BLOCKING) && is_used(&driver) {
        driver = DONE.wait(driver).unwrap_or_else(PoisonError::into_inner);
    }
    let done = policy.and_then(|_| match is_used(&driver) {
        true => Err(Code::ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE),
        false => driver.allocations.remove(&address.addr()).ok_or(Code::ZE_RESULT_ERROR_INVALID_ARGUMENT),
    });
    match done {
        // SAFETY: it was allocated with this layout, and was in the table until now.
        Ok(found) => unsafe { dealloc(address.cast(), found.layout) },
        Err(code) => driver.wrong.push(format!("zeMemFreeExt: {:#x}", code.0)),
    }
    status(done.map(|_| ()).and(asked))
}
