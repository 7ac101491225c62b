//! The faster versions, and the one place that chooses between them.
//!
//! `portable` is plain Rust, `avx2` needs AVX2, F16C and FMA, `avx512` needs AVX-512 F, BW and VL besides. All give the
//! same bytes. The best that the CPU has is taken; `GANTRY_SIMD=portable|avx2|avx512` forces one, and it is an
//! error if the CPU lacks it.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod channel;
mod e8;
pub(crate) mod lanes;
#[cfg(target_arch = "x86_64")]
mod nearest;
mod portable;
mod rotation;
pub(crate) mod strips;
#[cfg(target_arch = "x86_64")]
mod strips_avx2;
#[cfg(target_arch = "x86_64")]
mod transpose_avx2;

pub(crate) use channel::Scale;

use crate::q8_0::Stats;
use gantry_formats::block::GgmlType;
use std::sync::OnceLock;

/// The environment variable that forces a level.
pub const VARIABLE: &str = "GANTRY_SIMD";

/// An f32 without its sign bit, as an i32: magnitudes order like these bits.
const MAGNITUDE: i32 = i32::MAX;

/// Bytes that kernels ask for ahead of where they read: about a page, at whose end a CPU's own prefetching stops.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 4096;

/// Asks for the line or lines `ahead` bytes after those of `block`. They need not exist.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch<const SIZE: usize>(block: &[u8; SIZE], ahead: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in (0..SIZE).step_by(64) {
        let at = block.as_ptr().wrapping_add(ahead + line);
        // SAFETY: a hint: it reads nothing that the program can see and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// A set of instructions that this CPU has: a value is the proof, made only by detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level(Kind);

/// Why `GANTRY_SIMD` cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelError {
    /// No such level.
    #[error(
        "{VARIABLE}={0}: no such instruction set, expected portable, avx2 or avx512; name one of them or unset \
         {VARIABLE}"
    )]
    Unknown(String),
    /// This CPU lacks it.
    #[error("{VARIABLE}={0}: this processor has only {1}; name one of them or unset {VARIABLE}")]
    Missing(&'static str, String),
}

/// The level in use: the best, or what `GANTRY_SIMD` forces. Read once per process.
pub fn level() -> Result<Level, LevelError> {
    static LEVEL: OnceLock<Result<Level, LevelError>> = OnceLock::new();
    LEVEL.get_or_init(|| choose(std::env::var_os(VARIABLE).as_deref())).clone()
}

fn choose(forced: Option<&std::ffi::OsStr>) -> Result<Level, LevelError> {
    let available = Level::available();
    let Some(name) = forced.filter(|name| !name.is_empty()) else {
        return Ok(available.last().copied().unwrap_or(Level::PORTABLE));
    };
    let Some(&known) = ["portable", "avx2", "avx512"].iter().find(|known| name == **known) else {
        return Err(LevelError::Unknown(name.to_string_lossy().into_owned()));
    };
    available.iter().find(|level| level.name() == known).copied().ok_or_else(|| {
        let names: Vec<_> = available.iter().map(|level| level.name()).collect();
        LevelError::Missing(known, names.join(", "))
    })
}

/// A plain float type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Float {
    F32,
    F16,
    Bf16,
}

impl Float {
    pub(crate) fn of(ty: GgmlType) -> Option<Self> {
        [Self::F32, Self::F16, Self::Bf16].into_iter().find(|float| float.ty() == ty)
    }

    pub(crate) fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    pub(crate) fn ty(self) -> GgmlType {
        match self {
            Self::F32 => GgmlType::F32,
            Self::F16 => GgmlType::F16,
            Self::Bf16 => GgmlType::BF16,
        }
    }
}

impl Level {
    /// Plain Rust, everywhere.
    pub const PORTABLE: Self = Self(Kind::Portable);

    /// Every level that this CPU has, slowest first.
    pub fn available() -> Vec<Self> {
        #[allow(unused_mut)]
        let mut levels = vec![Self::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma")
        {
            levels.push(Self(Kind::Avx2));
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
            {
                levels.push(Self(Kind::Avx512));
            }
        }
        levels
    }

    /// `portable`, `avx2` or `avx512`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
        }
    }

    /// Quantizes whole blocks of 32; the planes have the lengths that `src` asks for. Errors that are no larger than
    /// those of `known` need not be among the stats. The error is an index at or before the first block that has no
    /// Q8_0 form.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    pub(crate) fn quantize(
        self,
        float: Float,
        src: &[u8],
        (quants, scales): (&mut [u8], &mut [u8]),
        known: &Stats,
    ) -> Result<Stats, usize> {
        match self.0 {
            Kind::Portable => portable::quantize(float, src, quants, scales),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx2 => unsafe { avx2::quantize(float, src, (quants, scales), known) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx512 => unsafe { avx512::quantize(float, src, quants, scales) },
        }
    }

    /// [`Self::quantize`] of four rows of BF16, of equal lengths, into planes as long as each asks for, some of each row in
    /// turn. `None` where a level has no such thing, for rows that are no multiple of 256, and where a block has no Q8_0
    /// form; the planes then hold rubbish.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    pub(crate) fn quantize_four(
        self,
        rows: [&[u8]; 4],
        planes: [(&mut [u8], &mut [u8]); 4],
        known: &Stats,
    ) -> Option<Stats> {
        #[cfg(target_arch = "x86_64")]
        if self.0 == Kind::Avx2 && rows.iter().all(|row| row.len().is_multiple_of(512)) {
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            return unsafe { avx2::quantize_four(rows, planes, known) };
        }
        None
    }

    /// Moves the bytes of Q8_0 blocks into their planes, whose lengths fit.
    pub(crate) fn split(self, src: &[u8], quants: &mut [u8], scales: &mut [u8]) {
        match self.0 {
            Kind::Portable => portable::split(src, quants, scales),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected; AVX-512 includes AVX2.
            Kind::Avx2 | Kind::Avx512 => unsafe { avx2::split(src, quants, scales) },
        }
    }

    /// Whether bytes of a plain float type hold a NaN or an infinity; `None` for other types.
    pub(crate) fn any_non_finite(self, ty: GgmlType) -> Option<impl Fn(&[u8]) -> bool> {
        if !(ty.is_plain_float() || ty == GgmlType::F64) {
            return None;
        }
        Some(move |bytes: &[u8]| match self.0 {
            Kind::Portable => portable::any_non_finite(ty, bytes),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx2 => unsafe { avx2::any_non_finite(ty, bytes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Level` of this kind exists only where its features were detected.
            Kind::Avx512 => unsafe { avx512::any_non_finite(ty, bytes) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn a_forced_level_is_followed_or_refused() {
        let all = Level::available();
        assert_eq!(choose(None).ok(), all.last().copied());
        assert_eq!(choose(Some(OsStr::new(""))).ok(), all.last().copied());
        for &level in &all {
            assert_eq!(choose(Some(OsStr::new(level.name()))), Ok(level));
        }
        assert_eq!(choose(Some(OsStr::new("sse9"))), Err(LevelError::Unknown("sse9".into())));
        if !all.iter().any(|level| level.name() == "avx512") {
            assert!(matches!(choose(Some(OsStr::new("avx512"))), Err(LevelError::Missing("avx512", _))));
        }
    }
}
