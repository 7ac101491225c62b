//! What kernels are told of a matrix of which the card copies tiles by itself.

use super::{CardError, Context};
use std::sync::Arc;

/// A matrix and its tiles, as the driver writes it for a kernel (`tensor_map` of `kernels/cuda/resident.cuh`). What lies past the
/// matrix's end is zeros in a tile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TensorMap(pub(crate) [u64; 16]);

impl TensorMap {
    /// Rows of `width` bytes side by side at `address`, in tiles of `tile` = rows and bytes of a row; in a tile, pieces of 16
    /// bytes are swapped over 128 bytes where `swapped`.
    ///
    /// # Errors
    /// What the driver says: addresses and widths that are no multiple of 16, tiles of more than 256 rows.
    pub(crate) fn new(
        context: &Arc<Context>,
        address: u64,
        shape: [usize; 2],
        tile: [u32; 2],
        swapped: bool,
    ) -> Result<Self, CardError> {
        let map = context.card().tensor_map(address, shape, tile, swapped);
        map.map(Self).map_err(|e| context.failed("describing a matrix", e))
    }
}
