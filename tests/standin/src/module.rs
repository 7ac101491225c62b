//! Modules, kernels by name, and launches.

use crate::blake3_kernel;
use crate::code::{Code, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED};
use crate::device::MOST_SHARED;
use crate::driver::{Driver, Function, call, call_to_free, give};
use crate::sample_kernels;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `CU_FUNC_ATTRIBUTE_…`: threads of a group, shared memory that a kernel declares, and that it may have beside.
const MOST_THREADS: c_int = 0;
const OWN_SHARED: c_int = 1;
const MORE_SHARED: c_int = 8;

/// What a fat binary begins with.
const FAT_BINARY: u32 = 0xba55_ed50;

/// Kernels that are computed here.
#[derive(Clone, Copy)]
enum Kernel {
    Blake3,
    Argmax,
    TopK,
}

impl Kernel {
    fn find(name: &str) -> Option<Self> {
        Some(match name {
            "gantry_blake3" => Self::Blake3,
            "gantry_argmax" => Self::Argmax,
            "gantry_top_k" => Self::TopK,
            _ => return None,
        })
    }

    /// Bytes of each argument.
    fn arguments(self) -> &'static [usize] {
        match self {
            Self::Blake3 => &[8, 8, 8],
            Self::Argmax => &[8, 8, 8, 4],
            Self::TopK => &[8, 8, 8, 4, 4],
        }
    }
}

/// A launch of one of them.
#[derive(Clone, Copy)]
pub(crate) struct Launch {
    kernel: Kernel,
    groups: usize,
    args: [u64; 5],
}

impl Launch {
    pub(crate) fn run(self, driver: &mut Driver, card: usize) -> Result<(), Code> {
        let [memory, stretches, values, ..] = self.args.map(|n| n as usize);
        match self.kernel {
            Kernel::Blake3 => blake3_kernel::run(driver, card, self.groups, memory, (stretches, values)),
            Kernel::Argmax => sample_kernels::argmax(driver, card, self.groups, self.args),
            Kernel::TopK => sample_kernels::top_k(driver, card, self.groups, self.args),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut usize, image: *const c_void) -> i32 {
    call("cuModuleLoadData", |driver| {
        let card = driver.current()?;
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: an image has at least a header, whose first word says what it is.
        let magic = unsafe { image.cast::<u32>().read_unaligned() };
        if magic != FAT_BINARY {
            return Err(INVALID_IMAGE);
        }
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(module, handle) }?;
        driver.modules.insert(handle, card);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleUnload(module: usize) -> i32 {
    call_to_free("cuModuleUnload", |driver| {
        driver.current()?;
        driver.modules.remove(&module).ok_or(INVALID_HANDLE)?;
        driver.functions.retain(|_, function| function.module != module);
        Ok(())
    })
}

/// Whatever is called `gantry_…` is taken for a kernel of the image, which is not looked into.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) -> i32 {
    call("cuModuleGetFunction", |driver| {
        if !driver.modules.contains_key(&module) || name.is_null() {
            return Err(INVALID_HANDLE);
        }
        // SAFETY: the caller's text, which ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)?.to_string();
        if !name.starts_with("gantry_") {
            return Err(NOT_FOUND);
        }
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(function, handle) }?;
        driver.functions.insert(handle, Function { module, name });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: usize) -> i32 {
    call("cuFuncGetAttribute", |driver| {
        if !driver.functions.contains_key(&function) {
            return Err(INVALID_HANDLE);
        }
        let found = match attribute {
            MOST_THREADS => blake3_kernel::GROUP as c_int,
            OWN_SHARED => 0,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller's pointer, to one number.
        unsafe { give(value, found) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(function: usize, attribute: c_int, value: c_int) -> i32 {
    call("cuFuncSetAttribute", |driver| {
        if !driver.functions.contains_key(&function) {
            return Err(INVALID_HANDLE);
        }
        match attribute == MORE_SHARED && (0..=MOST_SHARED).contains(&value) {
            true => Ok(()),
            false => Err(INVALID_VALUE),
        }
    })
}

/// No kernel that takes such a map is computed here: it is checked, and says where the matrix lies.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuTensorMapEncodeTiled(
    map: *mut [u64; 16],
    _kind: c_int,
    rank: c_uint,
    address: u64,
    _sizes: *const u64,
    strides: *const u64,
    tile: *const c_uint,
    _steps: *const c_uint,
    _interleave: c_int,
    _swizzle: c_int,
    _promotion: c_int,
    _fill: c_int,
) -> i32 {
    call("cuTensorMapEncodeTiled", |_| {
        if rank != 2 || !address.is_multiple_of(16) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's pointers: one stride, and two sizes of a tile.
        let (stride, tile) = unsafe { (strides.read(), [tile.read(), tile.add(1).read()]) };
        if !stride.is_multiple_of(16) || tile.iter().any(|n| *n == 0 || *n > 256) {
            return Err(INVALID_VALUE);
        }
        let mut words = [0; 16];
        words[0] = address;
        // SAFETY: the caller's pointer, to one map.
        unsafe { give(map, words) }
    })
}

/// `CUlaunchConfig`, but for its attributes, which change nothing here: kernels run at once, one by one.
#[repr(C)]
struct Config {
    grid: [c_uint; 3],
    group: [c_uint; 3],
    shared: c_uint,
    stream: usize,
    attributes: *const c_void,
    attribute_count: c_uint,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernelEx(
    config: *const Config,
    function: usize,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> i32 {
    call("cuLaunchKernelEx", |driver| {
        if config.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's, for as long as the call.
        let config = unsafe { &*config };
        let card = driver.card_of_stream(config.stream)?;
        let kernel = driver.functions.get(&function).ok_or(INVALID_HANDLE)?;
        if driver.modules.get(&kernel.module) != Some(&card) {
            return Err(INVALID_HANDLE);
        }
        let Some(kernel) = Kernel::find(&kernel.name) else {
            return if driver.records(config.stream) || driver.settings.skip {
                Ok(())
            } else {
                Err(NOT_SUPPORTED)
            };
        };
        let [groups, y, z] = config.grid;
        if [y, z, config.shared] != [1, 1, 0]
            || config.group != [blake3_kernel::GROUP, 1, 1]
            || config.attribute_count != 0 && config.attributes.is_null()
            || groups == 0
            || arguments.is_null()
            || !extra.is_null()
        {
            return Err(INVALID_VALUE);
        }
        let mut args = [0; 5];
        for (i, (arg, bytes)) in args.iter_mut().zip(kernel.arguments()).enumerate() {
            // SAFETY: the kernel takes as many arguments of these sizes, and the caller has a pointer to each.
            unsafe {
                let from = arguments.add(i).read();
                *arg = match bytes {
                    4 => u64::from(from.cast::<u32>().read_unaligned()),
                    _ => from.cast::<u64>().read_unaligned(),
                };
            }
        }
        let (stream, launch) = (config.stream, Launch { kernel, groups: groups as usize, args });
        if driver.records_launch(stream, launch) { Ok(()) } else { launch.run(driver, card) }
    })
}
