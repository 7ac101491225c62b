//! E8 at every level: [`crate::e8`]'s generic code, compiled for each.

use super::lanes::Plain;
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::{Kind, Level};
use crate::e8::{Plan, Planes, encode_blocks};
use crate::q8_0::Stats;

impl Level {
    /// Encodes whole blocks of 256; lengths fit. The error is the index of the first block that has no E8 form.
    pub(crate) fn encode_e8(
        self,
        plan: &Plan,
        values: &[f32],
        weights: Option<&[f32]>,
        planes: Planes<&mut [u8]>,
    ) -> Result<Stats, usize> {
        match self.0 {
            Kind::Portable => encode_blocks::<Plain>(plan, values, weights, planes),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx2 => unsafe { avx2(plan, values, weights, planes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx512 => unsafe { avx512(plan, values, weights, planes) },
        }
    }
}

/// # Safety
/// The CPU has AVX2: the caller's `Level` says so.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(
    plan: &Plan,
    values: &[f32],
    weights: Option<&[f32]>,
    planes: Planes<&mut [u8]>,
) -> Result<Stats, usize> {
    encode_blocks::<Avx2>(plan, values, weights, planes)
}

/// # Safety
/// The CPU has AVX-512 F, BW and VL: the caller's `Level` says so.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn avx512(
    plan: &Plan,
    values: &[f32],
    weights: Option<&[f32]>,
    planes: Planes<&mut [u8]>,
) -> Result<Stats, usize> {
    encode_blocks::<Avx512>(plan, values, weights, planes)
}
