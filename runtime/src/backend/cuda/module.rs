//! Kernels: a module of them, launches, and what those are told of matrices.

use super::refusal;
use crate::backend::device::driver::calls::{Arg, Done, Found, Handle, Launch, Refusal};
use cudarc::driver::sys::CUfunction_attribute as Attribute;
use cudarc::driver::{result, sys};
use gantry_kernels::cuda::FATBIN;
use std::ffi::{CString, c_void};

/// Most arguments of a kernel.
const MOST: usize = 40;

/// Loads the fat binary, of which the driver takes what fits the card; nothing where it is empty.
pub(super) fn load() -> Done<Option<Handle>> {
    if FATBIN.is_empty() {
        return Ok(None);
    }
    // The driver reads headers of it as 64-bit numbers.
    let word = |c: &[u8]| {
        let mut word = [0; 8];
        word[..c.len()].copy_from_slice(c);
        u64::from_ne_bytes(word)
    };
    let aligned: Vec<u64> = FATBIN.chunks(8).map(word).collect();
    // SAFETY: the image is whole, as the compiler wrote it, and the driver copies what it keeps.
    let module = unsafe { result::module::load_data(aligned.as_ptr().cast()) };
    module.map(|module| Some(module as Handle)).map_err(refusal)
}

/// # Safety
/// The module lives.
pub(super) unsafe fn function(kernels: Handle, name: &str) -> Done<Option<Found>> {
    let Ok(text) = CString::new(name) else { return Ok(None) };
    // SAFETY: the caller's promise.
    let function = match unsafe { result::module::get_function(kernels as sys::CUmodule, text) } {
        Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NOT_FOUND => return Ok(None),
        found => found.map_err(refusal)?,
    };
    let most = Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
    // SAFETY: the function was just found.
    let group = unsafe { result::function::get_function_attribute(function, most) }.map_err(refusal)?;
    Ok(Some(Found { function: function as Handle, group: group.max(1) as u32 }))
}

/// # Safety
/// The function's module lives.
pub(super) unsafe fn allow_shared(function: Handle, most: u32) -> Done<u32> {
    let function = function as sys::CUfunction;
    let own = Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
    // SAFETY: the caller's promise.
    let own = unsafe { result::function::get_function_attribute(function, own) }.map_err(refusal)?;
    let most = most.saturating_sub(own.max(0) as u32);
    let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: as above.
    unsafe { result::function::set_function_attribute(function, which, most as i32) }.map_err(refusal)?;
    Ok(most)
}

/// Launches a kernel on a card of a generation, 10 × major + minor.
///
/// # Safety
/// The function's module and the stream live, and the arguments are the kernel's.
///
/// # Panics
/// More than 40 arguments.
pub(super) unsafe fn launch(stream: Handle, launch: &Launch<'_>, generation: u32) -> Done {
    let Launch { function, grid: [x, y, z], group, shared, early, args } = *launch;
    assert!(args.len() <= MOST, "{} arguments", args.len());
    // The driver reads as many bytes of each as the kernel declares.
    let mut words = [0u64; MOST];
    let mut maps = [const { sys::CUtensorMap { opaque: [0; 16] } }; 4];
    let mut maps = maps.iter_mut();
    let mut pointers = [std::ptr::null_mut::<c_void>(); MOST];
    for ((word, pointer), arg) in words.iter_mut().zip(&mut pointers).zip(args) {
        *word = match arg {
            Arg::U64(n) => *n,
            Arg::U32(n) => (*n).into(),
            Arg::F32(x) => x.to_bits().into(),
            Arg::Map(map) => {
                let to = maps.next().unwrap_or_else(|| panic!("more than four matrices"));
                to.opaque = *map;
                *pointer = std::ptr::from_mut(to).cast();
                continue;
            }
        };
        *pointer = std::ptr::from_mut(word).cast();
    }
    let mut early_start = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    };
    let config = sys::CUlaunchConfig {
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: group,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shared,
        hStream: stream as sys::CUstream,
        attrs: &raw mut early_start,
        numAttrs: u32::from(early && generation >= 90),
    };
    let (pointers, extra) = (pointers.as_mut_ptr(), std::ptr::null_mut());
    // SAFETY: the caller's promise; the configuration and the pointers live as long as the call.
    unsafe { sys::cuLaunchKernelEx(&raw const config, function as sys::CUfunction, pointers, extra) }
        .result()
        .map_err(refusal)
}

/// How a kernel is told of rows of `width` bytes at `address` (`tensor_map` of `kernels/cuda/resident.cuh`).
pub(super) fn tensor_map(
    address: u64,
    [rows, width]: [usize; 2],
    tile: [u32; 2],
    swapped: bool,
) -> Result<[u64; 16], Refusal> {
    use sys::CUtensorMapSwizzle_enum::{CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_SWIZZLE_NONE};
    // A tile has up to 256 elements in a row: of a byte, or where these do not suffice of eight.
    let wide = tile[1] > 256 && width.is_multiple_of(8);
    let (kind, each) = match wide {
        true => (sys::CUtensorMapDataType_enum::CU_TENSOR_MAP_DATA_TYPE_INT64, 8),
        false => (sys::CUtensorMapDataType_enum::CU_TENSOR_MAP_DATA_TYPE_UINT8, 1),
    };
    let dims = [(width / each) as u64, rows as u64];
    let (strides, tile, steps) = ([width as u64], [tile[1] / each as u32, tile[0]], [1u32; 2]);
    let swizzle = if swapped { CU_TENSOR_MAP_SWIZZLE_128B } else { CU_TENSOR_MAP_SWIZZLE_NONE };
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    // SAFETY: the driver reads two of each and writes the map; it does not look at what lies at the address.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut map,
            kind,
            2,
            address as usize as *mut c_void,
            dims.as_ptr(),
            strides.as_ptr(),
            tile.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    status.result().map_err(refusal)?;
    Ok(map.opaque)
}
