//! Which instructions the kernels use: detected once, chosen in one place.

use std::ffi::OsStr;
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Portable, Simd};

/// The environment variable that forces an instruction set: `portable`, `avx2` or `avx512`.
pub const SIMD_VAR: &str = "GANTRY_SIMD";

/// Why no instruction set could be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The name is not one of ours.
    #[error(
        "{SIMD_VAR}={0}: no such instruction set, expected portable, avx2 or avx512; name one of them or unset \
         {SIMD_VAR}"
    )]
    Unknown(String),
    /// This processor does not have it; computing with another one instead would hide that.
    #[error("{SIMD_VAR}={0}: this processor has only {1}; name one of them or unset {SIMD_VAR}")]
    Absent(&'static str, String),
}

/// An instruction set that this processor has: a value exists only where its features were detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(pub(super) Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Isa {
    /// Plain Rust, on every processor.
    pub const PORTABLE: Isa = Isa(Level::Portable(Portable));

    /// AVX2 with F16C, where the processor has them.
    pub fn avx2() -> Option<Isa> {
        #[cfg(target_arch = "x86_64")]
        return Avx2::detect().map(|token| Isa(Level::Avx2(token)));
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// AVX-512 F, BW, VL, DQ and VNNI, where the processor has them.
    pub fn avx512() -> Option<Isa> {
        #[cfg(target_arch = "x86_64")]
        return Avx512::detect().map(|token| Isa(Level::Avx512(token)));
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// Every instruction set of this processor, the slowest first.
    pub fn available() -> Vec<Isa> {
        [Some(Isa::PORTABLE), Isa::avx2(), Isa::avx512()].into_iter().flatten().collect()
    }

    /// The one of this name (as in [`SIMD_VAR`]).
    pub fn from_name(name: &str) -> Result<Isa, IsaError> {
        let Some(&known) = ["portable", "avx2", "avx512"].iter().find(|known| name == **known) else {
            return Err(IsaError::Unknown(name.to_owned()));
        };
        let available = Isa::available();
        available.iter().find(|isa| isa.name() == known).copied().ok_or_else(|| {
            let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
            IsaError::Absent(known, names.join(", "))
        })
    }

    /// Its name, as in [`SIMD_VAR`].
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_) => "avx512",
        }
    }

    /// Run a lane-wise kernel with these instructions.
    #[inline]
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self.0 {
            Level::Portable(token) => kernel.run(token),
            // SAFETY: the token exists only where every feature of `with_avx2` was detected.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(token) => unsafe { with_avx2(token, kernel) },
            // SAFETY: the token exists only where every feature of `with_avx512` was detected.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(token) => unsafe { with_avx512(token, kernel) },
        }
    }
}

/// The instruction set of this process: [`SIMD_VAR`] if set, else the widest that the processor has. Read
/// once; later changes of the variable have no effect.
pub fn isa() -> Result<Isa, IsaError> {
    static CHOSEN: OnceLock<Result<Isa, IsaError>> = OnceLock::new();
    CHOSEN.get_or_init(|| choose(std::env::var_os(SIMD_VAR).as_deref())).clone()
}

fn choose(forced: Option<&OsStr>) -> Result<Isa, IsaError> {
    match forced.filter(|name| !name.is_empty()) {
        // What is not UTF-8 is no name either.
        Some(name) => Isa::from_name(&name.to_string_lossy()),
        None => Ok(Isa::available().last().copied().unwrap_or(Isa::PORTABLE)),
    }
}

/// A kernel written once over 16 lanes. `run` must be `#[inline(always)]`: it becomes AVX code by being
/// inlined into a function that enables the features.
pub(super) trait Kernel {
    type Out;
    fn run<S: Simd>(self, s: S) -> Self::Out;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn with_avx2<K: Kernel>(token: Avx2, kernel: K) -> K::Out {
    kernel.run(token)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn with_avx512<K: Kernel>(token: Avx512, kernel: K) -> K::Out {
    kernel.run(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_are_errors() {
        for isa in Isa::available() {
            assert_eq!(Isa::from_name(isa.name()), Ok(isa));
        }
        assert_eq!(Isa::from_name("mmx"), Err(IsaError::Unknown("mmx".into())));
    }

    #[test]
    fn a_forced_one_is_followed_or_refused() {
        let best = Isa::available().last().copied();
        assert_eq!((choose(None).ok(), choose(Some(OsStr::new(""))).ok()), (best, best));
        for isa in Isa::available() {
            assert_eq!(choose(Some(OsStr::new(isa.name()))), Ok(isa));
        }
        if Isa::avx512().is_none() {
            let absent = choose(Some(OsStr::new("avx512"))).unwrap_err();
            assert!(absent.to_string().contains("has only portable"), "{absent}");
        }
        #[cfg(unix)]
        {
            let name = std::os::unix::ffi::OsStrExt::from_bytes(b"avx2\xff");
            assert_eq!(choose(Some(name)), Err(IsaError::Unknown("avx2\u{fffd}".into())));
        }
    }
}
