//! What the driver says when it refuses a call.

use crate::backend::device::driver::calls::{Done, Refusal};
use level_zero_sys::ze_result_t;
use std::borrow::Cow;

/// Names of the specification's codes, as far as calls of this program give them.
const NAMES: [(ze_result_t, &str); 33] = [
    (ze_result_t::ZE_RESULT_NOT_READY, "ZE_RESULT_NOT_READY"),
    (ze_result_t::ZE_RESULT_ERROR_DEVICE_LOST, "ZE_RESULT_ERROR_DEVICE_LOST"),
    (ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY, "ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY"),
    (ze_result_t::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
    (ze_result_t::ZE_RESULT_ERROR_MODULE_BUILD_FAILURE, "ZE_RESULT_ERROR_MODULE_BUILD_FAILURE"),
    (ze_result_t::ZE_RESULT_ERROR_MODULE_LINK_FAILURE, "ZE_RESULT_ERROR_MODULE_LINK_FAILURE"),
    (ze_result_t::ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET, "ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET"),
    (ze_result_t::ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE, "ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE"),
    (ze_result_t::ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS, "ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS"),
    (ze_result_t::ZE_RESULT_ERROR_NOT_AVAILABLE, "ZE_RESULT_ERROR_NOT_AVAILABLE"),
    (ze_result_t::ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE, "ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE"),
    (ze_result_t::ZE_RESULT_ERROR_UNINITIALIZED, "ZE_RESULT_ERROR_UNINITIALIZED"),
    (ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_VERSION, "ZE_RESULT_ERROR_UNSUPPORTED_VERSION"),
    (ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE, "ZE_RESULT_ERROR_UNSUPPORTED_FEATURE"),
    (ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT, "ZE_RESULT_ERROR_INVALID_ARGUMENT"),
    (ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_HANDLE, "ZE_RESULT_ERROR_INVALID_NULL_HANDLE"),
    (ze_result_t::ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE, "ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE"),
    (ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_POINTER, "ZE_RESULT_ERROR_INVALID_NULL_POINTER"),
    (ze_result_t::ZE_RESULT_ERROR_INVALID_SIZE, "ZE_RESULT_ERROR_INVALID_SIZE"),
    (ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_SIZE, "ZE_RESULT_ERROR_UNSUPPORTED_SIZE"),
    (ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT, "ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT"),
    (
        ze_result_t::ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT,
        "ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT",
    ),
    (ze_result_t::ZE_RESULT_ERROR_INVALID_ENUMERATION, "ZE_RESULT_ERROR_INVALID_ENUMERATION"),
    (ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION, "ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION"),
    (ze_result_t::ZE_RESULT_ERROR_INVALID_NATIVE_BINARY, "ZE_RESULT_ERROR_INVALID_NATIVE_BINARY"),
    (ze_result_t::ZE_RESULT_ERROR_INVALID_KERNEL_NAME, "ZE_RESULT_ERROR_INVALID_KERNEL_NAME"),
    (
        ze_result_t::ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION,
        "ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION",
    ),
    (
        ze_result_t::ZE_RESULT_ERROR_INVALID_GLOBAL_WIDTH_DIMENSION,
        "ZE_RESULT_ERROR_INVALID_GLOBAL_WIDTH_DIMENSION",
    ),
    (
        ze_result_t::ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX,
        "ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX",
    ),
    (
        ze_result_t::ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE,
        "ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE",
    ),
    (
        ze_result_t::ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE,
        "ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE",
    ),
    (ze_result_t::ZE_RESULT_ERROR_OVERLAPPING_REGIONS, "ZE_RESULT_ERROR_OVERLAPPING_REGIONS"),
    (ze_result_t::ZE_RESULT_ERROR_UNKNOWN, "ZE_RESULT_ERROR_UNKNOWN"),
];

/// What came of a call.
pub(super) fn done(code: ze_result_t) -> Done {
    if code == ze_result_t::ZE_RESULT_SUCCESS { Ok(()) } else { Err(refusal(code)) }
}

pub(super) fn refusal(code: ze_result_t) -> Refusal {
    let name = NAMES.iter().find(|(of, _)| *of == code).map_or("unknown error", |(_, name)| *name);
    said(code, name)
}

/// With words that tell more than the code's name.
pub(super) fn said(code: ze_result_t, words: impl Into<Cow<'static, str>>) -> Refusal {
    let short = [
        ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY,
        ze_result_t::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY,
    ];
    Refusal { name: words.into(), code: code.0, is_short: short.contains(&code) }
}
