//! Modules, and what compilers say.

use crate::compute;
use crate::driver::{Code, alive, call, call_to_free, expect_type, give, lock, read, status};
use crate::spirv::{self, Entry};
use gantry_cpu_device::Program;
use level_zero_sys::*;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::Arc;

pub(crate) struct Module {
    pub(crate) card: usize,
    pub(crate) entries: BTreeMap<String, Entry>,
    /// None where kernels do nothing.
    pub(crate) program: Option<Arc<Program>>,
}

/// The log is given whether it is built or not.
pub(crate) unsafe extern "C" fn zeModuleCreate(
    context: usize,
    device: usize,
    desc: *const ze_module_desc_t,
    to: *mut usize,
    log: *mut usize,
) -> ze_result_t {
    let mut driver = lock();
    let asked = driver.count("zeModuleCreate").and_then(|()| {
        driver.context(context)?;
        let card = driver.card(device)?;
        alive(card)?;
        Ok((card, driver.settings.skip, driver.settings.refuse.clone()))
    });
    // Building takes long, and other cards go on.
    drop(driver);
    status(asked.and_then(|(card, skip, refuse)| {
        // SAFETY: the caller's structure.
        let built = unsafe { build(desc, card, skip, refuse) }?;
        let mut driver = lock();
        let (said, built) = match built {
            Ok(built) => (String::new(), Some(built)),
            Err(said) => (said, None),
        };
        if !log.is_null() {
            let handle = driver.handle();
            // SAFETY: the caller's pointer, to one handle.
            unsafe { give(log, handle) }?;
            driver.logs.insert(handle, said);
        }
        let (entries, program) = built.ok_or(Code::ZE_RESULT_ERROR_MODULE_BUILD_FAILURE)?;
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(to, handle) }?;
        driver.modules.insert(handle, Module { card, entries, program });
        Ok(())
    }))
}

type Built = (BTreeMap<String, Entry>, Option<Arc<Program>>);

/// What comes of a module, or what the compiler says of it.
unsafe fn build(
    desc: *const ze_module_desc_t,
    card: usize,
    skip: bool,
    refuse: Option<String>,
) -> Result<Result<Built, String>, Code> {
    // SAFETY: the caller's pointer, to one structure.
    let desc = unsafe { read(desc) }?;
    expect_type(desc.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_MODULE_DESC)?;
    if desc.format != ze_module_format_t::ZE_MODULE_FORMAT_IL_SPIRV {
        return Err(Code::ZE_RESULT_ERROR_INVALID_NATIVE_BINARY);
    }
    if desc.pInputModule.is_null() || desc.inputSize == 0 {
        return Err(Code::ZE_RESULT_ERROR_INVALID_SIZE);
    }
    // SAFETY: the caller has so many bytes there, and flags that end with a zero.
    let (bytes, flags) = unsafe {
        let flags = desc.pBuildFlags;
        let flags = if flags.is_null() { c"" } else { CStr::from_ptr(flags) };
        (std::slice::from_raw_parts(desc.pInputModule, desc.inputSize), flags.to_string_lossy())
    };
    if let Some(said) = refuse {
        return Ok(Err(said));
    }
    Ok(spirv::entries(bytes).and_then(|entries| {
        let program = if skip { None } else { Some(compute::build(card, bytes, &flags)?) };
        Ok((entries, program))
    }))
}

pub(crate) unsafe extern "C" fn zeModuleDestroy(module: usize) -> ze_result_t {
    call_to_free("zeModuleDestroy", |driver| {
        driver.modules.remove(&module).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)?;
        if driver.kernels.values().any(|kernel| kernel.module == module) {
            driver.wrong.push("a module was destroyed before its kernels".into());
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn zeModuleBuildLogDestroy(log: usize) -> ze_result_t {
    call_to_free("zeModuleBuildLogDestroy", |driver| {
        driver.logs.remove(&log).map(|_| ()).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)
    })
}

/// With room for none it tells how much is needed.
pub(crate) unsafe extern "C" fn zeModuleBuildLogGetString(
    log: usize,
    size: *mut usize,
    to: *mut c_char,
) -> ze_result_t {
    call("zeModuleBuildLogGetString", |driver| {
        let text = driver.logs.get(&log).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)?;
        // SAFETY: the caller's pointer, to one number.
        let room = *unsafe { read(size) }?;
        if !to.is_null() {
            if room <= text.len() {
                return Err(Code::ZE_RESULT_ERROR_INVALID_SIZE);
            }
            // SAFETY: the caller has room for so many.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), text.len());
                to.add(text.len()).write(0);
            }
        }
        // SAFETY: as above.
        unsafe { give(size, text.len() + 1) }
    })
}
