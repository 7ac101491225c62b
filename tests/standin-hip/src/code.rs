//! Error codes of HIP.

use crate::driver::lock;
use std::ffi::{CStr, c_char};

/// A `hipError_t` that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) i32);

pub(crate) const INVALID_VALUE: Code = Code(1);
pub(crate) const OUT_OF_MEMORY: Code = Code(2);
pub(crate) const NOT_INITIALIZED: Code = Code(3);
pub(crate) const INVALID_CONFIGURATION: Code = Code(9);
pub(crate) const NO_DEVICE: Code = Code(100);
pub(crate) const INVALID_DEVICE: Code = Code(101);
pub(crate) const INVALID_IMAGE: Code = Code(200);
pub(crate) const INVALID_CONTEXT: Code = Code(201);
pub(crate) const NO_BINARY: Code = Code(209);
pub(crate) const PEER_UNSUPPORTED: Code = Code(217);
pub(crate) const INVALID_HANDLE: Code = Code(400);
pub(crate) const NOT_FOUND: Code = Code(500);
pub(crate) const NOT_READY: Code = Code(600);
pub(crate) const ILLEGAL_ADDRESS: Code = Code(700);
pub(crate) const PEER_ENABLED: Code = Code(704);
pub(crate) const ALREADY_REGISTERED: Code = Code(712);
pub(crate) const NOT_REGISTERED: Code = Code(713);
pub(crate) const LAUNCH_FAILURE: Code = Code(719);
pub(crate) const CAPTURE_UNSUPPORTED: Code = Code(900);
pub(crate) const UNKNOWN: Code = Code(999);

/// Those that have a name here; others cannot be asked for.
const NAMES: [(Code, &CStr); 20] = [
    (INVALID_VALUE, c"hipErrorInvalidValue"),
    (OUT_OF_MEMORY, c"hipErrorOutOfMemory"),
    (NOT_INITIALIZED, c"hipErrorNotInitialized"),
    (INVALID_CONFIGURATION, c"hipErrorInvalidConfiguration"),
    (NO_DEVICE, c"hipErrorNoDevice"),
    (INVALID_DEVICE, c"hipErrorInvalidDevice"),
    (INVALID_IMAGE, c"hipErrorInvalidImage"),
    (INVALID_CONTEXT, c"hipErrorInvalidContext"),
    (NO_BINARY, c"hipErrorNoBinaryForGpu"),
    (PEER_UNSUPPORTED, c"hipErrorPeerAccessUnsupported"),
    (INVALID_HANDLE, c"hipErrorInvalidHandle"),
    (NOT_FOUND, c"hipErrorNotFound"),
    (NOT_READY, c"hipErrorNotReady"),
    (ILLEGAL_ADDRESS, c"hipErrorIllegalAddress"),
    (PEER_ENABLED, c"hipErrorPeerAccessAlreadyEnabled"),
    (ALREADY_REGISTERED, c"hipErrorHostMemoryAlreadyRegistered"),
    (NOT_REGISTERED, c"hipErrorHostMemoryNotRegistered"),
    (LAUNCH_FAILURE, c"hipErrorLaunchFailure"),
    (CAPTURE_UNSUPPORTED, c"hipErrorStreamCaptureUnsupported"),
    (UNKNOWN, c"hipErrorUnknown"),
];

impl Code {
    /// HIP's name of it.
    pub(crate) fn name(self) -> Option<&'static CStr> {
        NAMES.iter().find(|(code, _)| *code == self).map(|(_, name)| *name)
    }
}

/// It has no status of its own.
#[unsafe(no_mangle)]
extern "C" fn hipGetErrorName(error: i32) -> *const c_char {
    // It cannot fail; that it was called is counted.
    let _ = lock().count("hipGetErrorName");
    Code(error).name().unwrap_or(c"hipErrorUnknown").as_ptr()
}
