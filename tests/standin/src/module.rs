//! Modules, kernels by name, and launches.

use crate::blake3_kernel;
use crate::code::{INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED};
use crate::driver::{Function, call, call_to_free, give};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`.
const MOST_THREADS: c_int = 0;

/// What a fat binary begins with.
const FAT_BINARY: u32 = 0xba55_ed50;

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
        if attribute != MOST_THREADS {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's pointer, to one number.
        unsafe { give(value, blake3_kernel::GROUP as c_int) }
    })
}

/// `CUlaunchConfig`, but for its attributes, which change nothing here: kernels run at once, one by one.
#[repr(C)]
struct Launch {
    grid: [c_uint; 3],
    group: [c_uint; 3],
    shared: c_uint,
    stream: usize,
    attributes: *const c_void,
    attribute_count: c_uint,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernelEx(
    launch: *const Launch,
    function: usize,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> i32 {
    call("cuLaunchKernelEx", |driver| {
        if launch.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's, for as long as the call.
        let launch = unsafe { &*launch };
        let card = driver.card_of_stream(launch.stream)?;
        let kernel = driver.functions.get(&function).ok_or(INVALID_HANDLE)?;
        if driver.modules.get(&kernel.module) != Some(&card) {
            return Err(INVALID_HANDLE);
        }
        let computed = kernel.name == "gantry_blake3";
        if driver.records(launch.stream) {
            return Ok(());
        }
        if !computed {
            return Err(NOT_SUPPORTED);
        }
        let [groups, y, z] = launch.grid;
        if [y, z, launch.shared] != [1, 1, 0]
            || launch.group != [blake3_kernel::GROUP, 1, 1]
            || launch.attribute_count != 0 && launch.attributes.is_null()
            || groups == 0
            || arguments.is_null()
            || !extra.is_null()
        {
            return Err(INVALID_VALUE);
        }
        // SAFETY: this kernel takes three addresses, and the caller has a pointer to each.
        let [memory, stretches, values] =
            [0, 1, 2].map(|i| unsafe { arguments.add(i).read().cast::<usize>().read_unaligned() });
        blake3_kernel::run(driver, card, groups as usize, memory, (stretches, values))
    })
}
