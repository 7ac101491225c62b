//! Refusing NaN and infinities in what is carried as it is.

use crate::PackError;
use crate::simd::{self, Level};
use gantry_formats::block::GgmlType;
use gantry_formats::block::finite::first_fault;

/// Bytes looked at before a hit is searched for: a multiple of every plain float, and small enough for the cache.
const STRIDE: usize = 16 << 10;

/// Checks that `src` holds no NaN and no infinity: every value of a plain float type, every f16, f32 or E8M0
/// scale and minimum of a block type. Integers pass. Names the first fault.
pub fn check_finite(ty: GgmlType, src: &[u8]) -> Result<(), PackError> {
    check_finite_at(simd::level()?, ty, src)
}

/// [`check_finite`] at a given level.
pub fn check_finite_at(level: Level, ty: GgmlType, src: &[u8]) -> Result<(), PackError> {
    let size = ty.block_bytes() as usize;
    if !src.len().is_multiple_of(size) {
        return Err(gantry_formats::block::BlockError::Ragged { ty, bytes: src.len() }.into());
    }
    let Some(any) = level.any_non_finite(ty) else {
        return first_fault(ty, src).map_or(Ok(()), |fault| Err(fault.into()));
    };
    for (i, chunk) in src.chunks(STRIDE).enumerate() {
        if any(chunk)
            && let Some(fault) = first_fault(ty, chunk)
        {
            return Err(PackError::from(fault).moved((i * STRIDE / size) as u64, 0));
        }
    }
    Ok(())
}
