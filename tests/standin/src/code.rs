//! Error codes of the driver.

use crate::driver::{call, give};
use std::ffi::{CStr, c_char};

/// A `CUresult` that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) i32);

pub(crate) const INVALID_VALUE: Code = Code(1);
pub(crate) const OUT_OF_MEMORY: Code = Code(2);
pub(crate) const NOT_INITIALIZED: Code = Code(3);
pub(crate) const NO_DEVICE: Code = Code(100);
pub(crate) const INVALID_DEVICE: Code = Code(101);
pub(crate) const INVALID_IMAGE: Code = Code(200);
pub(crate) const INVALID_CONTEXT: Code = Code(201);
pub(crate) const INVALID_HANDLE: Code = Code(400);
pub(crate) const NOT_FOUND: Code = Code(500);
pub(crate) const NOT_READY: Code = Code(600);
pub(crate) const ILLEGAL_ADDRESS: Code = Code(700);
pub(crate) const PEER_UNSUPPORTED: Code = Code(217);
pub(crate) const PEER_ENABLED: Code = Code(704);
pub(crate) const ALREADY_REGISTERED: Code = Code(712);
pub(crate) const NOT_REGISTERED: Code = Code(713);
pub(crate) const NOT_SUPPORTED: Code = Code(801);
pub(crate) const CAPTURE_UNSUPPORTED: Code = Code(900);
pub(crate) const UNKNOWN: Code = Code(999);

/// Those that have a name here; others cannot be asked for, because callers may know no more than the driver's own.
const NAMES: [(Code, &CStr); 18] = [
    (INVALID_VALUE, c"CUDA_ERROR_INVALID_VALUE"),
    (OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY"),
    (NOT_INITIALIZED, c"CUDA_ERROR_NOT_INITIALIZED"),
    (NO_DEVICE, c"CUDA_ERROR_NO_DEVICE"),
    (INVALID_DEVICE, c"CUDA_ERROR_INVALID_DEVICE"),
    (INVALID_IMAGE, c"CUDA_ERROR_INVALID_IMAGE"),
    (INVALID_CONTEXT, c"CUDA_ERROR_INVALID_CONTEXT"),
    (INVALID_HANDLE, c"CUDA_ERROR_INVALID_HANDLE"),
    (NOT_FOUND, c"CUDA_ERROR_NOT_FOUND"),
    (NOT_READY, c"CUDA_ERROR_NOT_READY"),
    (ILLEGAL_ADDRESS, c"CUDA_ERROR_ILLEGAL_ADDRESS"),
    (PEER_UNSUPPORTED, c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
    (PEER_ENABLED, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"),
    (ALREADY_REGISTERED, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
    (NOT_REGISTERED, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"),
    (NOT_SUPPORTED, c"CUDA_ERROR_NOT_SUPPORTED"),
    (CAPTURE_UNSUPPORTED, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
    (UNKNOWN, c"CUDA_ERROR_UNKNOWN"),
];

impl Code {
    /// The driver's name of it.
    pub(crate) fn name(self) -> Option<&'static CStr> {
        NAMES.iter().find(|(code, _)| *code == self).map(|(_, name)| *name)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: i32, name: *mut *const c_char) -> i32 {
    call("cuGetErrorName", |_| {
        let found = Code(error).name();
        // SAFETY: the caller's pointer, to one pointer.
        unsafe { give(name, found.map_or(std::ptr::null(), CStr::as_ptr)) }?;
        found.map(|_| ()).ok_or(INVALID_VALUE)
    })
}
