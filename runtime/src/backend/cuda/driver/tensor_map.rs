//! What kernels are told of a matrix of which the card copies tiles by itself.
#![allow(unsafe_code, reason = "calls of the driver, each with its reason")]

use super::{Context, CudaError};
use cudarc::driver::sys;
use std::sync::Arc;

/// A matrix and its tiles, as the driver writes it for a kernel (`tensor_map` of `kernels/cuda/resident.cuh`). What lies past the
/// matrix's end is zeros in a tile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TensorMap(pub(super) sys::CUtensorMap);

impl TensorMap {
    /// Rows of `width` bytes side by side at `address`, in tiles of `tile` = rows and bytes of a row; in a tile, pieces of 16
    /// bytes are swapped over 128 bytes where `swapped`.
    ///
    /// # Errors
    /// What the driver says: addresses and widths that are no multiple of 16, tiles of more than 256 rows.
    pub(crate) fn new(
        context: &Arc<Context>,
        address: u64,
        [rows, width]: [usize; 2],
        tile: [u32; 2],
        swapped: bool,
    ) -> Result<Self, CudaError> {
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
        context.current()?;
        // SAFETY: the driver reads two of each and writes the map; it does not look at what lies at the address.
        let status = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                kind,
                2,
                address as usize as *mut std::ffi::c_void,
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
        status.result().map_err(|e| context.failed("describing a matrix", e))?;
        Ok(Self(map))
    }
}
