//! The rotation at every level: [`crate::rotation`]'s plain code, compiled for each.

use super::{Kind, Level};
use crate::rotation::{Block, block};

impl Level {
    /// Rotates a block of values in place, or with `BACK` takes it back; the block fits the values.
    pub(crate) fn rotate<const BACK: bool>(self, with: &Block, values: &mut [f32]) {
        match self.0 {
            Kind::Portable => block::<BACK>(with, values),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx2 => unsafe { avx2::<BACK>(with, values) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx512 => unsafe { avx512::<BACK>(with, values) },
        }
    }
}

/// # Safety
/// The CPU has AVX2: the caller's `Level` says so.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2<const BACK: bool>(with: &Block, values: &mut [f32]) {
    block::<BACK>(with, values);
}

/// # Safety
/// The CPU has AVX-512 F, BW and VL: the caller's `Level` says so.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn avx512<const BACK: bool>(with: &Block, values: &mut [f32]) {
    block::<BACK>(with, values);
}
