//! Intel's driver: Level Zero's calls, behind what [`device`](super::device) asks of a family.
//!
//! The loader's library is looked for when a card is opened, never linked (`level_zero_sys`). All cards of a driver share one
//! context, so that one waits for another's events and reaches its memory. What a stream is given goes to an immediate command
//! list, with a barrier after each command; what was recorded is a command list of its own (`stream`, `graph`).
#![allow(unsafe_code, reason = "calls of the driver, each with its reason")]

mod card;
mod context;
mod error;
mod event;
mod generation;
mod graph;
mod memory;
mod module;
mod stream;

use super::device::driver::calls::{Card, Done, Driver, NoDriver};
use super::device::driver::{CardInfo, CardName, Family};
use card::LevelZeroCard;
use context::Context;
use error::{done, refusal};
use level_zero_sys::{
    NotLoaded, ZeLib, load, ze_api_version_t, ze_command_queue_group_properties_t,
    ze_command_queue_group_property_flag_t, ze_device_compute_properties_t, ze_device_handle_t,
    ze_device_memory_properties_t, ze_device_module_properties_t, ze_device_properties_t, ze_device_type_t,
    ze_driver_handle_t, ze_init_flag_t, ze_result_t, ze_structure_type_t,
};
use std::ffi::CStr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Properties, of which the driver reads what type of structure they are.
macro_rules! properties {
    ($name:ident, $stype:ident) => {{
        // SAFETY: a structure of plain numbers and a null pointer, of which zeros are one.
        let mut properties: $name = unsafe { std::mem::zeroed() };
        properties.stype = ze_structure_type_t::$stype;
        properties
    }};
}

/// The oldest Level Zero that has all that is called: memory that is freed when nothing uses it any more.
const NEEDS: (u32, u32) = (1, 3);

/// The drivers, started, and their cards.
struct LevelZero {
    ze: &'static ZeLib,
    cards: Vec<Device>,
}

/// A card as a driver has it.
struct Device {
    /// The driver's handle and version.
    driver: usize,
    version: (u32, u32),
    device: usize,
    /// Shared by cards of one driver: the context of those that are open.
    context: Arc<Mutex<Weak<Context>>>,
    /// Bytes of its memory that this program has taken.
    taken: Arc<AtomicU64>,
}

/// Finds the drivers and starts them, once.
pub(super) fn driver() -> Result<&'static dyn Driver, NoDriver> {
    static STARTED: OnceLock<Result<LevelZero, NoDriver>> = OnceLock::new();
    STARTED.get_or_init(start).as_ref().map(|driver| driver as &dyn Driver).map_err(Clone::clone)
}

fn start() -> Result<LevelZero, NoDriver> {
    let ze = load().map_err(|e| match e {
        NotLoaded::Absent => NoDriver::Absent,
        NotLoaded::Symbol(symbol) => NoDriver::Symbol(symbol),
    })?;
    let failed = |code| NoDriver::Start(refusal(code));
    // SAFETY: all functions are there, as was seen when the library was loaded.
    match unsafe { ze.zeInit(ze_init_flag_t::ZE_INIT_FLAG_GPU_ONLY.0) } {
        ze_result_t::ZE_RESULT_SUCCESS => {}
        // The loader finds no driver, as in a container that was given no card.
        ze_result_t::ZE_RESULT_ERROR_UNINITIALIZED => return Ok(LevelZero { ze, cards: Vec::new() }),
        code => return Err(failed(code)),
    }
    let mut cards = Vec::new();
    let mut old = None;
    // SAFETY: it is called as the specification says: for the number, then for as many.
    let drivers = all(|count, to| unsafe { ze.zeDriverGet(count, to as *mut ze_driver_handle_t) });
    for driver in drivers.map_err(failed)? {
        let mut version = ze_api_version_t(0);
        // SAFETY: the handle is one that the loader gave, and it writes one number.
        let asked = unsafe { ze.zeDriverGetApiVersion(driver as ze_driver_handle_t, &raw mut version) };
        done(asked).map_err(NoDriver::Start)?;
        let version = (version.0 >> 16, version.0 & 0xffff);
        if version < NEEDS {
            old = Some(version);
            continue;
        }
        let context = Arc::default();
        // SAFETY: as above.
        let devices = all(|count, to| unsafe {
            ze.zeDeviceGet(driver as ze_driver_handle_t, count, to as *mut ze_device_handle_t)
        });
        for device in devices.map_err(failed)? {
            if is_card(ze, device).map_err(NoDriver::Start)? {
                let (context, taken) = (Arc::clone(&context), Arc::default());
                cards.push(Device { driver, version, device, context, taken });
            }
        }
    }
    match old.filter(|_| cards.is_empty()) {
        Some(found) => Err(NoDriver::Old { found: words(found), needs: words(NEEDS) }),
        None => Ok(LevelZero { ze, cards }),
    }
}

fn words((major, minor): (u32, u32)) -> String {
    format!("Level Zero {major}.{minor}")
}

/// Handles that a function lists: asked for their number first.
fn all(list: impl Fn(*mut u32, *mut usize) -> ze_result_t) -> Result<Vec<usize>, ze_result_t> {
    let success = |code| if code == ze_result_t::ZE_RESULT_SUCCESS { Ok(()) } else { Err(code) };
    let mut count = 0;
    success(list(&raw mut count, std::ptr::null_mut()))?;
    let mut handles = vec![0; count as usize];
    if count > 0 {
        success(list(&raw mut count, handles.as_mut_ptr()))?;
    }
    handles.truncate(count as usize);
    Ok(handles)
}

fn is_card(ze: &ZeLib, device: usize) -> Done<bool> {
    let mut of = properties!(ze_device_properties_t, ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2);
    // SAFETY: the handle is one that the driver gave, and the structure says what it is.
    done(unsafe { ze.zeDeviceGetProperties(device as ze_device_handle_t, &raw mut of) })?;
    Ok(of.type_ == ze_device_type_t::ZE_DEVICE_TYPE_GPU)
}

/// What a card is, as far as it matters for running on it.
#[derive(Clone, Copy)]
struct Limits {
    /// Bytes of an allocation that needs no special asking.
    allocation: u64,
    /// Of all its memory.
    memory: u64,
    /// Members of a group.
    group: u32,
    sub_groups: [u32; 8],
    /// Nanoseconds of a tick of its clock, and bits that it counts with.
    tick: f64,
    bits: u32,
    /// The group of queues that computes.
    ordinal: u32,
}

impl LevelZero {
    /// What the driver tells of a card.
    fn look(&self, card: usize, device: &Device) -> Done<(CardInfo, Limits)> {
        let Self { ze, .. } = self;
        let handle = device.device as ze_device_handle_t;
        let mut of = properties!(ze_device_properties_t, ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2);
        let mut compute =
            properties!(ze_device_compute_properties_t, ZE_STRUCTURE_TYPE_DEVICE_COMPUTE_PROPERTIES);
        let mut module =
            properties!(ze_device_module_properties_t, ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES);
        // SAFETY: the handle is one that the driver gave, and each structure says what it is.
        unsafe {
            done(ze.zeDeviceGetProperties(handle, &raw mut of))?;
            done(ze.zeDeviceGetComputeProperties(handle, &raw mut compute))?;
            done(ze.zeDeviceGetModuleProperties(handle, &raw mut module))?;
        }
        // A tile each, or one for all.
        let mut count = 0;
        // SAFETY: as above; without room it counts.
        done(unsafe { ze.zeDeviceGetMemoryProperties(handle, &raw mut count, std::ptr::null_mut()) })?;
        let one = properties!(ze_device_memory_properties_t, ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES);
        let mut memories = vec![one; count as usize];
        // SAFETY: as above, with room for as many.
        done(unsafe { ze.zeDeviceGetMemoryProperties(handle, &raw mut count, memories.as_mut_ptr()) })?;
        let memory = memories.iter().map(|memory| memory.totalSize).sum();
        // SAFETY: the driver ends the name with a zero, and what follows it is zeros.
        let name = unsafe { CStr::from_ptr(of.name.as_ptr()) }.to_string_lossy().into_owned();
        let generation = generation::of(of.vendorId, of.deviceId);
        let info = CardInfo {
            at: CardName { family: Family::LevelZero, card },
            name,
            lanes: generation::lanes(&generation, module.flags),
            generation,
            processors: of.numSlices.saturating_mul(of.numSubslicesPerSlice),
            shared: compute.maxSharedLocalMemory,
            memory,
            driver: words(device.version),
        };
        let limits = Limits {
            allocation: of.maxMemAllocSize,
            memory,
            group: compute.maxTotalGroupSize.min(compute.maxGroupSizeX),
            sub_groups: compute.subGroupSizes,
            // In this form of the structure it is told in Hz.
            tick: 1e9 / of.timerResolution.max(1) as f64,
            bits: of.timestampValidBits,
            ordinal: self.ordinal(handle)?,
        };
        Ok((info, limits))
    }

    /// The first group of queues that computes.
    fn ordinal(&self, device: ze_device_handle_t) -> Done<u32> {
        let Self { ze, .. } = self;
        let mut count = 0;
        // SAFETY: the handle is one that the driver gave; without room it counts.
        done(unsafe {
            ze.zeDeviceGetCommandQueueGroupProperties(device, &raw mut count, std::ptr::null_mut())
        })?;
        let one = properties!(
            ze_command_queue_group_properties_t,
            ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES
        );
        let mut groups = vec![one; count as usize];
        // SAFETY: as above, with room for as many.
        done(unsafe {
            ze.zeDeviceGetCommandQueueGroupProperties(device, &raw mut count, groups.as_mut_ptr())
        })?;
        let computes = ze_command_queue_group_property_flag_t::ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE.0;
        let found = groups.iter().position(|group| group.flags & computes != 0);
        // One that cannot compute is no card; the driver says so when it is asked for a queue of the first group.
        Ok(found.unwrap_or(0) as u32)
    }
}

impl Driver for LevelZero {
    fn cards(&self) -> Done<Vec<CardInfo>> {
        self.cards.iter().enumerate().map(|(card, device)| Ok(self.look(card, device)?.0)).collect()
    }

    fn open(&self, card: &CardInfo) -> Done<Arc<dyn Card>> {
        let number = card.at.card;
        let found = self.cards.get(number);
        let device = found.ok_or_else(|| refusal(ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_HANDLE))?;
        let (_, limits) = self.look(number, device)?;
        let mut shared = device.context.lock().unwrap_or_else(PoisonError::into_inner);
        let context = match shared.upgrade() {
            Some(context) => context,
            None => {
                let context = Arc::new(Context::new(self.ze, device.driver)?);
                *shared = Arc::downgrade(&context);
                context
            }
        };
        Ok(Arc::new(LevelZeroCard::new(context, device.device, limits, Arc::clone(&device.taken))))
    }
}
