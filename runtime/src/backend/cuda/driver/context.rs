//! A card's context, and which cards there are.
#![allow(unsafe_code, reason = "calls of the driver, each with its reason")]

use super::CudaError;
use super::ledger::Ledger;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{DriverError, result};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The oldest driver that runs these kernels: they are compiled by CUDA 13.
const NEEDS: i32 = 13_000;

/// Every function of the driver that this program calls.
const SYMBOLS: [&str; 45] = [
    "cuCtxEnablePeerAccess",
    "cuCtxSetCurrent",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernelEx",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// What a card is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardInfo {
    /// Its number, from 0.
    pub card: usize,
    /// As the driver calls it.
    pub name: String,
    /// 10 × major + minor: 90 for `sm_90`.
    pub generation: u32,
    /// Multiprocessors.
    pub processors: u32,
    /// Bytes of memory in all.
    pub memory: u64,
    /// The CUDA version that the driver is for, 1000 × major + 10 × minor.
    pub driver: i32,
}

/// Finds the driver and starts it; gives its version, or none where it finds no card.
fn driver() -> Result<Option<i32>, CudaError> {
    static STARTED: OnceLock<Result<Option<i32>, Failed>> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        // SAFETY: it opens the driver's library if there is one; that library's initialisers are the driver's own.
        if !unsafe { sys::is_culib_present() } {
            return Err(Failed::NoDriver);
        }
        // SAFETY: the library is there, as was just seen.
        let library = unsafe { sys::culib() };
        let missing = SYMBOLS.iter().find(|name| {
            // SAFETY: the symbol is only looked up, not called.
            unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err()
        });
        if let Some(symbol) = missing {
            return Err(Failed::Symbol(symbol));
        }
        let mut version = 0;
        // SAFETY: the function is there, and writes the one integer it is given.
        let read = unsafe { sys::cuDriverGetVersion(&raw mut version) }.result();
        read.map_err(Failed::Start)?;
        if version < NEEDS {
            return Err(Failed::Old(version));
        }
        match result::init() {
            Ok(()) => Ok(Some(version)),
            // A driver that is installed where there is no card, as in many a container, has nothing to start.
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(None),
            Err(error) => Err(Failed::Start(error)),
        }
    });
    started.as_ref().copied().map_err(|failed| match failed {
        Failed::NoDriver => CudaError::NoDriver,
        Failed::Symbol(symbol) => CudaError::Symbol { symbol, needs: NEEDS },
        Failed::Old(found) => CudaError::OldDriver { found: *found, needs: NEEDS },
        Failed::Start(error) => CudaError::call(0, "starting the driver", *error),
    })
}

/// Why there is no driver; kept, for it is looked for once.
enum Failed {
    NoDriver,
    Symbol(&'static str),
    Old(i32),
    Start(DriverError),
}

/// All cards of this machine.
///
/// # Errors
/// Where there is no driver, or it is too old.
pub fn cards() -> Result<Vec<CardInfo>, CudaError> {
    let Some(driver) = driver()? else { return Ok(Vec::new()) };
    let count = result::device::get_count().map_err(|e| CudaError::call(0, "counting cards", e))?;
    (0..count as usize).map(|card| info(card, driver)).collect()
}

fn info(card: usize, driver: i32) -> Result<CardInfo, CudaError> {
    let failed = |e| CudaError::call(card, "asking what it is", e);
    let device = result::device::get(card as i32).map_err(failed)?;
    // SAFETY: the device is one that the driver gave.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) }.map_err(failed);
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let processors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    // SAFETY: as above.
    let memory = unsafe { result::device::total_mem(device) }.map_err(failed)? as u64;
    let name = result::device::get_name(device).map_err(failed)?;
    let generation = (major * 10 + minor) as u32;
    Ok(CardInfo { card, name, generation, processors: processors as u32, memory, driver })
}

/// A card that was opened.
#[derive(Debug)]
pub(crate) struct Context {
    info: CardInfo,
    device: sys::CUdevice,
    context: sys::CUcontext,
    pub(super) ledger: Ledger,
}

// SAFETY: a context may be current on any number of threads; every call below makes it current first.
unsafe impl Send for Context {}
// SAFETY: as above; the driver's calls are safe to make from several threads.
unsafe impl Sync for Context {}

impl Context {
    /// Opens card `card`.
    ///
    /// # Errors
    /// Where there is no such card, or these kernels do not run on it.
    pub(crate) fn open(card: usize) -> Result<Arc<Self>, CudaError> {
        let all = cards()?;
        let count = all.len();
        let info = all.into_iter().nth(card).ok_or(CudaError::NoCard { card, count })?;
        if info.generation < 80 {
            let CardInfo { name, generation, .. } = info;
            return Err(CudaError::Generation { card, name, generation });
        }
        let failed = |e| CudaError::call(card, "opening it", e);
        let device = result::device::get(card as i32).map_err(failed)?;
        // SAFETY: the device is one that the driver gave; it is released when this is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(failed)?;
        let opened = Arc::new(Self { info, device, context, ledger: Ledger::default() });
        opened.current()?;
        Ok(opened)
    }

    /// What the card is.
    pub(crate) fn info(&self) -> &CardInfo {
        &self.info
    }

    /// Bytes of shared memory that a group of threads may have, at most.
    pub(super) fn most_shared(&self) -> Result<u32, CudaError> {
        let most = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        // SAFETY: the device is one that the driver gave.
        let most = unsafe { result::device::get_attribute(self.device, most) };
        Ok(most.map_err(|e| self.failed("asking for its shared memory", e))?.max(0) as u32)
    }

    /// Makes this the context of the calling thread's next calls.
    pub(super) fn current(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as `self` is.
        unsafe { result::ctx::set_current(self.context) }.map_err(|e| self.failed("choosing it", e))
    }

    /// Bytes that are free now, and all.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn memory(&self) -> Result<(u64, u64), CudaError> {
        self.current()?;
        let (free, all) = result::mem_get_info().map_err(|e| self.failed("asking for free memory", e))?;
        Ok((free as u64, all as u64))
    }

    /// Lets kernels of this card read and write the memory of `other`.
    ///
    /// # Errors
    /// [`CudaError::NoPeer`] where nothing leads there; what the driver says.
    pub(crate) fn reach(&self, other: &Self) -> Result<(), CudaError> {
        self.current()?;
        let mut can = 0;
        // SAFETY: both devices are ones that the driver gave, and it writes one integer.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.device, other.device) };
        asked.result().map_err(|e| self.failed("asking whether it reaches another card", e))?;
        if can == 0 {
            return Err(CudaError::NoPeer { card: self.info.card, other: other.info.card });
        }
        // SAFETY: the other context is retained as long as `other` is, and without it this one reaches nothing.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) } {
            // A context is the process's: it stays enabled for the next model.
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => code.result().map_err(|e| self.failed("reaching another card's memory", e)),
        }
    }

    /// What of its memory is taken here, by name: how many allocations, and bytes of all.
    pub(crate) fn held(&self) -> BTreeMap<&'static str, (usize, u64)> {
        self.ledger.held()
    }

    pub(super) fn failed(&self, what: impl Into<Cow<'static, str>>, error: DriverError) -> CudaError {
        CudaError::call(self.info.card, what, error)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained in `open`. What the driver says at the end helps nobody.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}
