//! The processor, as one device or several.

use crate::{Error, Memory, Program, Queue};
use opencl3::context::context::{create_context, release_context};
use opencl3::device::{
    CL_DEVICE_MAX_COMPUTE_UNITS, CL_DEVICE_PARTITION_EQUALLY, CL_DEVICE_TYPE_CPU, CL_DRIVER_VERSION,
    create_sub_devices, get_device_data, get_device_ids, get_device_info,
};
use opencl3::platform::get_platforms;
use opencl3::types::{cl_context, cl_device_id};
use std::ffi::c_void;
use std::sync::Arc;

/// The name of PoCL's platform, which takes OpenCL C.
pub const POCL: &str = "Portable Computing Language";
/// The name of the platform of Intel's runtime for processors, which takes SPIR-V too.
pub const INTEL: &str = "Intel(R) OpenCL";

/// The devices that play cards, and what is made of them.
#[derive(Clone, Debug)]
pub struct Devices {
    pub(crate) shared: Arc<Shared>,
}

/// What lives as long as anything that was made of it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) context: cl_context,
    /// One for each card; the same several times where the platform has fewer.
    pub(crate) cards: Vec<cl_device_id>,
}

// SAFETY: contexts and devices of OpenCL may be used by any thread.
unsafe impl Send for Shared {}
// SAFETY: as above; only setting a kernel's arguments is for one thread at a time.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: made in `open`, released once. What it says at the end helps nobody.
        let _ = unsafe { release_context(self.context) };
    }
}

/// The devices of the platform whose name begins with `platform`, at least one.
fn processors(platform: &str) -> Result<Vec<cl_device_id>, Error> {
    let platforms = get_platforms().map_err(|e| Error::refused("looking for platforms")(e.0))?;
    let mut found = Vec::new();
    for of in platforms {
        let name = of.name().map_err(|e| Error::refused("a platform's name")(e.0))?;
        // A platform without one says that it found none.
        let devices = get_device_ids(of.id(), CL_DEVICE_TYPE_CPU).unwrap_or_default();
        if name.starts_with(platform) && !devices.is_empty() {
            return Ok(devices);
        }
        found.push(name);
    }
    Err(Error::NoPlatform { wanted: platform.into(), found })
}

/// Equal parts of a device; none where it is not divided.
fn parts(device: cl_device_id, count: usize) -> Vec<cl_device_id> {
    let units = get_device_info(device, CL_DEVICE_MAX_COMPUTE_UNITS).map_or(0, |units| units.to_uint());
    let each = (units as usize / count).max(1);
    let equally = [CL_DEVICE_PARTITION_EQUALLY, each as isize, 0];
    create_sub_devices(device, &equally).unwrap_or_default()
}

impl Devices {
    /// The processor by the platform whose name begins with `platform`, as `cards` cards. PoCL is told to have as many devices
    /// of one thread each, unless `POCL_DEVICES` says what it has: so must be called before anything else of the process
    /// uses OpenCL, and before other threads read the environment.
    ///
    /// # Errors
    /// Where there is no such platform; what OpenCL says.
    pub fn open(platform: &str, cards: usize) -> Result<Self, Error> {
        if platform == POCL && std::env::var_os("POCL_DEVICES").is_none() {
            let devices = vec!["basic"; cards.max(1)].join(" ");
            // SAFETY: as the contract above says, nobody reads the environment meanwhile.
            unsafe { std::env::set_var("POCL_DEVICES", devices) };
        }
        let devices = processors(platform)?;
        Self::of(&devices, cards.max(1))
    }

    /// As many cards, each with a part of the processor and a context of its own, where the platform divides a processor:
    /// threads that run kernels for one then never run those of another, which may be waiting. Where there are too few
    /// parts, cards share them. Intel's runtime needs `CL_CONFIG_CPU_TBB_NUM_WORKERS=1` beside that.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn apart(platform: &str, cards: usize) -> Result<Vec<Self>, Error> {
        let whole = processors(platform)?;
        let parts = if cards > 1 { parts(whole[0], cards) } else { Vec::new() };
        let devices = if parts.is_empty() { whole } else { parts };
        devices.iter().cycle().take(cards.max(1)).map(|device| Self::of(&[*device], 1)).collect()
    }

    fn of(devices: &[cl_device_id], count: usize) -> Result<Self, Error> {
        let cards: Vec<cl_device_id> = devices.iter().cycle().take(count).copied().collect();
        let own = &devices[..devices.len().min(count)];
        let context = create_context(own, std::ptr::null(), None, std::ptr::null_mut::<c_void>());
        let context = context.map_err(Error::refused("making a context"))?;
        Ok(Self { shared: Arc::new(Shared { context, cards }) })
    }

    /// How many cards there are.
    pub fn cards(&self) -> usize {
        self.shared.cards.len()
    }

    /// Builds OpenCL C; `name` is for messages. A warning is an error.
    ///
    /// # Errors
    /// [`Error::Build`] with the compiler's log.
    pub fn build_source(&self, name: &str, text: &str, options: &str) -> Result<Program, Error> {
        Program::of_source(&self.shared, name, text, options)
    }

    /// Builds an intermediate language, SPIR-V where the platform takes it; `name` is for messages.
    ///
    /// # Errors
    /// [`Error::Build`] with the compiler's log.
    pub fn build_il(&self, name: &str, il: &[u8], options: &str) -> Result<Program, Error> {
        Program::of_il(&self.shared, name, il, options)
    }

    /// Takes what [`Program::binary`] gave.
    ///
    /// # Errors
    /// What OpenCL says: another version than that of the program's does not take it.
    pub fn build_binary(&self, name: &str, binary: &[u8]) -> Result<Program, Error> {
        Program::of_binary(&self.shared, name, binary)
    }

    /// What the driver of the device calls its version.
    ///
    /// # Errors
    /// What OpenCL says.
    pub fn version(&self) -> Result<String, Error> {
        let version = get_device_data(self.shared.cards[0], CL_DRIVER_VERSION);
        let version = version.map_err(Error::refused("the driver's version"))?;
        Ok(String::from_utf8_lossy(&version).trim_end_matches('\0').to_owned())
    }

    /// Memory that kernels of all cards reach, of whatever value; `align` is a power of two.
    ///
    /// # Errors
    /// Where there is not so much.
    pub fn memory(&self, bytes: usize, align: usize) -> Result<Memory, Error> {
        Memory::new(&self.shared, bytes, align)
    }

    /// A queue of a card, from 0: one for each thread that runs kernels.
    ///
    /// # Errors
    /// What OpenCL says.
    ///
    /// # Panics
    /// Where there is no such card.
    pub fn queue(&self, card: usize) -> Result<Queue, Error> {
        Queue::new(&self.shared, card)
    }
}
