//! NVIDIA's driver: its calls, behind what [`device`](super::device) asks of a family.
//!
//! The driver's library is looked for when a card is opened, never linked. `cudarc` declares its functions and panics
//! where one is missing, so that all that are used here are looked up first.
#![allow(unsafe_code, reason = "calls of the driver, each with its reason")]

mod card;
mod cublaslt;
mod memory;
mod module;
mod stream;

pub(crate) use cublaslt::CublasLt;

use super::device::driver::calls::{Card, Done, Driver, NoDriver, Refusal};
use super::device::driver::{CardInfo, CardName, Family, Generation};
use card::CudaCard;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{DriverError, result};
use std::sync::{Arc, OnceLock};

/// The oldest driver that runs these kernels: they are compiled by CUDA 13.
const NEEDS: i32 = 13_000;

/// Every function of the driver that this program calls.
const SYMBOLS: [&str; 46] = [
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
    "cuTensorMapEncodeTiled",
];

/// The driver, started; its version, or none where it has no card.
struct Cuda {
    version: Option<i32>,
}

/// Finds the driver and starts it, once.
pub(super) fn driver() -> Result<&'static dyn Driver, NoDriver> {
    static STARTED: OnceLock<Result<Cuda, NoDriver>> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        // SAFETY: it opens the driver's library if there is one; that library's initialisers are the driver's own.
        if !unsafe { sys::is_culib_present() } {
            return Err(NoDriver::Absent);
        }
        // SAFETY: the library is there, as was just seen.
        let library = unsafe { sys::culib() };
        let missing = SYMBOLS.iter().find(|name| {
            // SAFETY: the symbol is only looked up, not called.
            unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err()
        });
        if let Some(symbol) = missing {
            return Err(NoDriver::Symbol(symbol));
        }
        let mut version = 0;
        // SAFETY: the function is there, and writes the one integer it is given.
        let read = unsafe { sys::cuDriverGetVersion(&raw mut version) }.result();
        read.map_err(|e| NoDriver::Start(refusal(e)))?;
        if version < NEEDS {
            return Err(NoDriver::Old { found: words(version), needs: words(NEEDS) });
        }
        match result::init() {
            Ok(()) => Ok(Cuda { version: Some(version) }),
            // A driver that is installed where there is no card, as in many a container, has nothing to start.
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(Cuda { version: None }),
            Err(error) => Err(NoDriver::Start(refusal(error))),
        }
    });
    started.as_ref().map(|driver| driver as &dyn Driver).map_err(Clone::clone)
}

/// A version as the driver counts, 1000 × major + 10 × minor.
fn words(version: i32) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

fn refusal(error: DriverError) -> Refusal {
    let name = error.error_name().map_or("unknown error".into(), |n| n.to_string_lossy().into_owned());
    Refusal {
        name: name.into(),
        code: error.0 as u32,
        is_short: error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY,
    }
}

impl Driver for Cuda {
    fn cards(&self) -> Done<Vec<CardInfo>> {
        let Some(version) = self.version else { return Ok(Vec::new()) };
        let count = result::device::get_count().map_err(refusal)?;
        (0..count as usize).map(|card| info(card, version)).collect()
    }

    fn open(&self, card: &CardInfo) -> Done<Arc<dyn Card>> {
        Ok(Arc::new(CudaCard::open(card)?))
    }
}

fn info(card: usize, version: i32) -> Done<CardInfo> {
    let device = result::device::get(card as i32).map_err(refusal)?;
    // SAFETY: the device is one that the driver gave.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) }.map_err(refusal);
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let processors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let shared = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    // SAFETY: as above.
    let memory = unsafe { result::device::total_mem(device) }.map_err(refusal)? as u64;
    let name = result::device::get_name(device).map_err(refusal)?;
    let generation = Generation::Sm((major * 10 + minor) as u32);
    let (processors, shared) = (processors as u32, shared as u32);
    let at = CardName { family: Family::Cuda, card };
    Ok(CardInfo { at, name, generation, processors, shared, lanes: 0, memory, driver: words(version) })
}
