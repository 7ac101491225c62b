//! Modules, and kernels by name.

use crate::code::{INVALID_HANDLE, INVALID_VALUE, NO_BINARY, NOT_FOUND};
use crate::code_object::CodeObject;
use crate::driver::{call, call_to_free, give};
use crate::metadata::Told;
use crate::settings::settings;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

/// `HIP_FUNC_ATTRIBUTE_…`: threads of a group, shared memory that a kernel declares.
const MOST_THREADS: c_int = 0;
const OWN_SHARED: c_int = 1;

pub(crate) struct Module {
    pub(crate) card: usize,
    kernels: BTreeMap<String, Told>,
}

pub(crate) struct Function {
    pub(crate) module: usize,
    pub(crate) card: usize,
    pub(crate) name: String,
    pub(crate) told: Told,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipModuleLoadData(module: *mut usize, image: *const u8) -> i32 {
    call("hipModuleLoadData", |driver| {
        let card = driver.current()?;
        // SAFETY: the caller's image.
        let read = unsafe { CodeObject::read(image) }?;
        if read.generation != Some(&*settings().generation) {
            return Err(NO_BINARY);
        }
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(module, handle) }?;
        driver.modules.insert(handle, Module { card, kernels: read.kernels });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipModuleUnload(module: usize) -> i32 {
    let idle = |driver: &crate::driver::Driver| driver.streams.values().cloned().collect();
    call_to_free("hipModuleUnload", idle, |driver| {
        driver.current()?;
        driver.modules.remove(&module).ok_or(INVALID_HANDLE)?;
        driver.functions.retain(|_, function| function.module != module);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) -> i32 {
    call("hipModuleGetFunction", |driver| {
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        let of = driver.modules.get(&module).ok_or(INVALID_HANDLE)?;
        // SAFETY: the caller's text, which ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)?.to_owned();
        let told = of.kernels.get(&name).ok_or(NOT_FOUND)?.clone();
        let found = Arc::new(Function { module, card: of.card, name, told });
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(function, handle) }?;
        driver.functions.insert(handle, found);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipFuncGetAttribute(value: *mut c_int, attribute: c_int, function: usize) -> i32 {
    call("hipFuncGetAttribute", |driver| {
        let told = &driver.functions.get(&function).ok_or(INVALID_HANDLE)?.told;
        let found = match attribute {
            MOST_THREADS => told.group,
            OWN_SHARED => told.shared,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller's pointer, to one number.
        unsafe { give(value, found as c_int) }
    })
}
