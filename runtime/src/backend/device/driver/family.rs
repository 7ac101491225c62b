//! Families of cards, and how one of a family's cards is named.

use super::calls::{Driver, NoDriver};
use std::fmt;

/// Cards that one driver drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// NVIDIA's.
    Cuda,
    /// AMD's and Hygon's.
    Hip,
    /// Intel's.
    LevelZero,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Cuda, Self::Hip, Self::LevelZero];

    /// As devices and targets name it: `cuda`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::LevelZero => "level-zero",
        }
    }

    /// What its driver is called.
    pub fn driver_name(self) -> &'static str {
        match self {
            Self::Cuda => "CUDA",
            Self::Hip => "HIP",
            Self::LevelZero => "Level Zero",
        }
    }

    /// The library that is looked for, and what brings it.
    pub fn library(self) -> [&'static str; 2] {
        match self {
            Self::Cuda => ["libcuda.so", "NVIDIA's driver for CUDA 13 or newer"],
            Self::Hip => ["libamdhip64.so", "AMD's ROCm runtime, or Hygon's DTK"],
            Self::LevelZero => ["libze_loader.so.1", "Intel's compute runtime and the Level Zero loader"],
        }
    }

    /// What its kernels run on, in words.
    pub(super) fn generations(self) -> &'static str {
        match self {
            Self::Cuda => "sm_80 and newer",
            Self::Hip => "gfx928, gfx90a, gfx942, gfx950, gfx1100 and gfx1201",
            Self::LevelZero => "dg2, bmg and pvc",
        }
    }

    /// What compiles its kernels, and how the build is told of it.
    pub(super) fn compiler(self) -> [&'static str; 2] {
        match self {
            Self::Cuda => ["nvcc", "GANTRY_NVCC"],
            Self::Hip => ["a clang for AMD's cards", "GANTRY_CLANG_HIP"],
            Self::LevelZero => ["clang, opt and llvm-spirv", "GANTRY_CLANG_SPIRV"],
        }
    }

    /// Its driver.
    pub(super) fn driver(self) -> Result<&'static dyn Driver, NoDriver> {
        match self {
            Self::Cuda => crate::backend::cuda::driver(),
            Self::Hip => crate::backend::hip::driver(),
            Self::LevelZero => crate::backend::level_zero::driver(),
        }
    }
}

impl std::str::FromStr for Family {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|family| family.name() == name).ok_or(())
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A card as it is named: `cuda:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CardName {
    /// Whose.
    pub family: Family,
    /// Its number, from 0.
    pub card: usize,
}

impl fmt::Display for CardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.family, self.card)
    }
}

/// What kernels are compiled for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Generation {
    /// NVIDIA's, 10 × major + minor: kernels for an older one run too.
    Sm(u32),
    /// By the name that targets have, or that the driver gives: `gfx942`, `bmg`. Kernels for another do not run.
    Named(String),
}

impl Generation {
    /// NVIDIA's number; 0 of others.
    pub(crate) fn sm(&self) -> u32 {
        match self {
            Self::Sm(n) => *n,
            Self::Named(_) => 0,
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sm(n) => write!(f, "sm_{n}"),
            Self::Named(name) => f.write_str(name),
        }
    }
}
