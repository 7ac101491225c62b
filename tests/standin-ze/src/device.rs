//! Starting, drivers, cards and contexts.

use crate::driver::{Code, DRIVER, Driver, call, call_to_free, expect_type, give, read};
use level_zero_sys::*;
use std::ffi::c_char;

const NAME: &[u8] = b"Stand-in\0";
const INTEL: u32 = 0x8086;

/// Queues of the group that computes.
const QUEUES: u32 = 4;

impl Driver {
    /// The card that a device's handle stands for.
    pub(crate) fn card(&self, device: usize) -> Result<usize, Code> {
        if !self.started {
            return Err(Code::ZE_RESULT_ERROR_UNINITIALIZED);
        }
        let card =
            (device >> 8).checked_sub(1).filter(|card| device & 0xff == 0 && *card < self.settings.cards);
        card.ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)
    }
}

pub(crate) unsafe extern "C" fn zeInit(flags: u32) -> ze_result_t {
    call("zeInit", |driver| {
        if flags > 3 {
            return Err(Code::ZE_RESULT_ERROR_INVALID_ENUMERATION);
        }
        driver.started = true;
        Ok(())
    })
}

/// Lists `all` as the specification says: with room for none it counts.
unsafe fn list(all: &[usize], count: *mut u32, to: *mut usize) -> Result<(), Code> {
    if count.is_null() {
        return Err(Code::ZE_RESULT_ERROR_INVALID_NULL_POINTER);
    }
    // SAFETY: the caller's pointer, to one number.
    let room = unsafe { count.read() } as usize;
    let given = if room == 0 { all.len() } else { room.min(all.len()) };
    // SAFETY: as above.
    unsafe { count.write(given as u32) };
    if room > 0 && !to.is_null() {
        for (i, handle) in all[..given].iter().enumerate() {
            // SAFETY: the caller has room for `room`.
            unsafe { to.add(i).write(*handle) };
        }
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn zeDriverGet(count: *mut u32, drivers: *mut usize) -> ze_result_t {
    call("zeDriverGet", |driver| {
        if !driver.started {
            return Err(Code::ZE_RESULT_ERROR_UNINITIALIZED);
        }
        // SAFETY: the caller's pointers.
        unsafe { list(&[DRIVER], count, drivers) }
    })
}

pub(crate) unsafe extern "C" fn zeDriverGetApiVersion(of: usize, version: *mut u32) -> ze_result_t {
    call("zeDriverGetApiVersion", |driver| {
        if of != DRIVER {
            return Err(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
        }
        // SAFETY: the caller's pointer, to one number.
        unsafe { give(version, driver.settings.api) }
    })
}

pub(crate) unsafe extern "C" fn zeDeviceGet(of: usize, count: *mut u32, devices: *mut usize) -> ze_result_t {
    call("zeDeviceGet", |driver| {
        if of != DRIVER {
            return Err(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
        }
        let all: Vec<usize> = (1..=driver.settings.cards).map(|card| card << 8).collect();
        // SAFETY: the caller's pointers.
        unsafe { list(&all, count, devices) }
    })
}

fn put_name(to: &mut [c_char]) {
    to.iter_mut().zip(NAME).for_each(|(to, from)| *to = *from as c_char);
}

pub(crate) unsafe extern "C" fn zeDeviceGetProperties(
    device: usize,
    to: *mut ze_device_properties_t,
) -> ze_result_t {
    call("zeDeviceGetProperties", |driver| {
        let card = driver.card(device)?;
        // SAFETY: the caller's pointer, to one structure.
        let to = unsafe { to.as_mut() }.ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_POINTER)?;
        // In the newer form the clock is told in Hz; in the older one in ns, which is the same number of this clock's.
        if to.stype == ze_structure_type_t::ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2 {
            to.timerResolution = 1_000_000_000;
        } else {
            expect_type(to.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES)?;
            to.timerResolution = 1;
        }
        to.type_ = ze_device_type_t::ZE_DEVICE_TYPE_GPU;
        (to.vendorId, to.deviceId) = (INTEL, driver.settings.device);
        (to.flags, to.subdeviceId, to.coreClockRate) = (0, 0, 2000);
        to.maxMemAllocSize = driver.settings.most as u64;
        (to.maxHardwareContexts, to.maxCommandQueuePriority) = (64, 0);
        (to.numThreadsPerEU, to.physicalEUSimdWidth, to.numEUsPerSubslice) = (8, 16, 8);
        (to.numSubslicesPerSlice, to.numSlices) = (2, 1);
        (to.timestampValidBits, to.kernelTimestampValidBits) = (36, 32);
        to.uuid.id = [card as u8; 16];
        put_name(&mut to.name);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn zeDeviceGetComputeProperties(
    device: usize,
    to: *mut ze_device_compute_properties_t,
) -> ze_result_t {
    call("zeDeviceGetComputeProperties", |driver| {
        driver.card(device)?;
        // SAFETY: the caller's pointer, to one structure.
        let to = unsafe { to.as_mut() }.ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_POINTER)?;
        expect_type(to.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_DEVICE_COMPUTE_PROPERTIES)?;
        let most = driver.settings.group;
        to.maxTotalGroupSize = most;
        (to.maxGroupSizeX, to.maxGroupSizeY, to.maxGroupSizeZ) = (most, most, most);
        (to.maxGroupCountX, to.maxGroupCountY, to.maxGroupCountZ) = (u32::MAX, u32::MAX, u32::MAX);
        to.maxSharedLocalMemory = driver.settings.local;
        to.numSubGroupSizes = driver.settings.sub_groups.len() as u32;
        to.subGroupSizes.iter_mut().zip(&driver.settings.sub_groups).for_each(|(to, from)| *to = *from);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn zeDeviceGetModuleProperties(
    device: usize,
    to: *mut ze_device_module_properties_t,
) -> ze_result_t {
    call("zeDeviceGetModuleProperties", |driver| {
        driver.card(device)?;
        // SAFETY: the caller's pointer, to one structure.
        let to = unsafe { to.as_mut() }.ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_POINTER)?;
        expect_type(to.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES)?;
        (to.spirvVersionSupported, to.flags, to.maxArgumentsSize) = (0x1_0002, 0, 2048);
        Ok(())
    })
}

/// One group of queues, which can do everything.
pub(crate) unsafe extern "C" fn zeDeviceGetCommandQueueGroupProperties(
    device: usize,
    count: *mut u32,
    to: *mut ze_command_queue_group_properties_t,
) -> ze_result_t {
    call("zeDeviceGetCommandQueueGroupProperties", |driver| {
        driver.card(device)?;
        // SAFETY: the caller's pointers: a number, and a structure where there is room for one.
        unsafe {
            let room = read(count)?;
            if *room > 0 && !to.is_null() {
                let to = &mut *to;
                expect_type(to.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES)?;
                to.flags = 3;
                (to.maxMemoryFillPatternSize, to.numQueues) = (128, QUEUES);
            }
            give(count, 1)
        }
    })
}

pub(crate) unsafe extern "C" fn zeDeviceGetMemoryProperties(
    device: usize,
    count: *mut u32,
    to: *mut ze_device_memory_properties_t,
) -> ze_result_t {
    call("zeDeviceGetMemoryProperties", |driver| {
        driver.card(device)?;
        // SAFETY: the caller's pointers: a number, and a structure where there is room for one.
        unsafe {
            let room = read(count)?;
            if *room > 0 && !to.is_null() {
                let to = &mut *to;
                expect_type(to.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES)?;
                (to.flags, to.maxClockRate, to.maxBusWidth) = (0, 1000, 192);
                to.totalSize = driver.settings.memory as u64;
                put_name(&mut to.name);
            }
            give(count, 1)
        }
    })
}

pub(crate) unsafe extern "C" fn zeDeviceCanAccessPeer(
    device: usize,
    peer: usize,
    to: *mut u8,
) -> ze_result_t {
    call("zeDeviceCanAccessPeer", |driver| {
        let other = driver.card(device)? != driver.card(peer)?;
        // SAFETY: the caller's pointer, to one byte.
        unsafe { give(to, u8::from(!other || driver.settings.peers)) }
    })
}

pub(crate) unsafe extern "C" fn zeContextCreate(
    of: usize,
    desc: *const ze_context_desc_t,
    to: *mut usize,
) -> ze_result_t {
    call("zeContextCreate", |driver| {
        if of != DRIVER || !driver.started {
            return Err(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
        }
        // SAFETY: the caller's pointer, to one structure.
        let desc = unsafe { read(desc) }?;
        expect_type(desc.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_CONTEXT_DESC)?;
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(to, handle) }?;
        driver.contexts.insert(handle);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn zeContextDestroy(context: usize) -> ze_result_t {
    call_to_free("zeContextDestroy", |driver| {
        driver.context(context)?;
        driver.contexts.remove(&context);
        if driver.contexts.is_empty() {
            let left = driver.left();
            driver
                .wrong
                .extend(left.into_iter().map(|what| format!("the last context was destroyed before {what}")));
        }
        Ok(())
    })
}
