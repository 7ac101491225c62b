//! AVX2 and F16C.

use super::{Float, portable};
use crate::q8_0::Stats;
use gantry_formats::block::GgmlType;

/// See [`super::Level::quantize`].
///
/// # Safety
/// The CPU has AVX2 and F16C: the caller holds a `Level` that says so.
#[target_feature(enable = "avx2,f16c")]
pub(super) fn quantize(
    float: Float,
    src: &[u8],
    quants: &mut [u8],
    scales: &mut [u8],
) -> Result<Stats, usize> {
    portable::quantize(float, src, quants, scales)
}
#[target_feature(enable = "avx2,f16c")]
pub(super) fn split(src: &[u8], quants: &mut [u8], scales: &mut [u8]) {
    portable::split(src, quants, scales)
}
#[target_feature(enable = "avx2,f16c")]
pub(super) fn dequantize(quants: &[u8], scales: &[u8], out: &mut [f32]) {
    portable::dequantize(quants, scales, out)
}
#[target_feature(enable = "avx2,f16c")]
pub(super) fn any_non_finite(ty: GgmlType, bytes: &[u8]) -> bool {
    portable::any_non_finite(ty, bytes)
}
