//! One row of a tensor table.

use super::error::GgufFault;
use super::limits::{MAX_DIMS, MAX_NAME_BYTES};
use super::name::display_name;
use crate::block::GgmlType;
use crate::size;
use std::fmt;

const NAME: usize = MAX_NAME_BYTES as usize;

/// A tensor: its name, shape, type, and where its bytes lie. 128 bytes, without an allocation of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TensorInfo {
    name: [u8; NAME],
    name_len: u8,
    dims: [u64; MAX_DIMS],
    dim_count: u8,
    /// Type of the values.
    pub ty: GgmlType,
    /// First byte, counted from the start of the file's data section.
    pub offset: u64,
    /// Number of values.
    pub elements: u64,
    /// Number of bytes, without padding.
    pub bytes: u64,
}

/// The memory limit counts on it: 131,072 of them are 16 MiB.
const _: () = assert!(size_of::<TensorInfo>() == 128);

impl TensorInfo {
    /// A tensor at offset 0. `dims` as in the file: the length of a row first. No dims: one element; a zero
    /// among them: none.
    ///
    /// # Errors
    /// Where the name or the number of dims is over its limit, rows are no whole number of blocks, or sizes do
    /// not fit 64 bits.
    pub fn new(name: &[u8], dims: &[u64], ty: GgmlType) -> Result<Self, GgufFault> {
        let mut own_name = [0; NAME];
        let (Some(place), Ok(name_len)) = (own_name.get_mut(..name.len()), u8::try_from(name.len())) else {
            return Err(GgufFault::NameLength { index: 0, at: 0, found: name.len() as u64 });
        };
        place.copy_from_slice(name);
        let mut own_dims = [1; MAX_DIMS];
        let (Some(place), Ok(dim_count)) = (own_dims.get_mut(..dims.len()), u8::try_from(dims.len())) else {
            return Err(GgufFault::Dims { name: display_name(name), found: dims.len() as u64 });
        };
        place.copy_from_slice(dims);
        let row = own_dims[0];
        if !row.is_multiple_of(ty.block_len()) {
            return Err(GgufFault::Row { name: display_name(name), ty, row });
        }
        let elements = size::product(dims);
        let (Some(elements), Some(bytes)) = (elements, elements.and_then(|n| ty.bytes_for(n))) else {
            return Err(GgufFault::Overflow { name: display_name(name), ty, dims: dims.to_vec() });
        };
        Ok(Self { name: own_name, name_len, dims: own_dims, dim_count, ty, offset: 0, elements, bytes })
    }

    /// The name's bytes: usually UTF-8, whatever they are.
    pub fn name(&self) -> &[u8] {
        self.name.get(..usize::from(self.name_len)).unwrap_or(&self.name)
    }

    /// The name for people, see [`display_name`].
    pub fn display_name(&self) -> String {
        display_name(self.name())
    }

    /// The dimensions as in the file: `dims()[0]` values lie side by side. Empty for a single element.
    pub fn dims(&self) -> &[u64] {
        self.dims.get(..usize::from(self.dim_count)).unwrap_or(&self.dims)
    }

    /// The dimensions, with 1 for those that are not there (ggml's `ne`).
    pub fn ne(&self) -> [u64; MAX_DIMS] {
        self.dims
    }

    /// Values in a row: the first dimension.
    pub fn row_len(&self) -> u64 {
        self.dims[0]
    }

    /// Number of rows; 0 where there is no element.
    pub fn rows(&self) -> u64 {
        self.elements.checked_div(self.row_len()).unwrap_or(0)
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        self.bytes.checked_div(self.rows()).unwrap_or(0)
    }
}

impl fmt::Debug for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorInfo")
            .field("name", &self.display_name())
            .field("dims", &self.dims())
            .field("ty", &self.ty)
            .field("offset", &self.offset)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
