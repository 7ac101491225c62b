//! What can go wrong between here and a card.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use gantry_formats::exit::{Exit, ExitCode};
use std::borrow::Cow;

/// Why a card cannot be used, or stopped working.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No driver.
    #[error("no CUDA driver: libcuda.so was not found; install NVIDIA's driver, or run on --device cpu")]
    NoDriver,
    /// A driver that lacks what is needed.
    #[error("the CUDA driver lacks {symbol}; install a driver for CUDA {}.{} or newer", .needs / 1000, .needs % 1000 / 10)]
    Symbol {
        /// The first function that is missing.
        symbol: &'static str,
        /// The oldest version that would do, as the driver counts.
        needs: i32,
    },
    /// A driver that is too old.
    #[error(
        "the CUDA driver is for CUDA {}.{}, these kernels need {}.{} or newer; install a newer driver",
        .found / 1000, .found % 1000 / 10, .needs / 1000, .needs % 1000 / 10
    )]
    OldDriver {
        /// As the driver counts: 1000 × major + 10 × minor.
        found: i32,
        /// The oldest that would do.
        needs: i32,
    },
    /// No such card.
    #[error("cuda:{card}: there {} here, from cuda:0; `gantry-run devices` lists them", if *count == 1 { "is 1 card".into() } else { format!("are {count} cards") })]
    NoCard {
        /// The one that was asked for.
        card: usize,
        /// How many there are.
        count: usize,
    },
    /// A generation that these kernels were not compiled for.
    #[error("cuda:{card} ({name}) is of generation sm_{generation}; these kernels run on sm_80 and newer")]
    Generation {
        /// Which card.
        card: usize,
        /// What it is.
        name: String,
        /// 10 × major + minor.
        generation: u32,
    },
    /// This program was built where no nvcc was found.
    #[error(
        "this program was built without CUDA kernels: build it where nvcc is found (GANTRY_NVCC names it)"
    )]
    NoKernels,
    /// A kernel that the module does not have.
    #[error("no CUDA kernel is called {0}; this program and its kernels are of different versions")]
    NoKernel(String),
    /// Memory that a card does not have.
    #[error("cuda:{card}: no {bytes} bytes for {what}, {free} are free")]
    OutOfMemory {
        /// Which card.
        card: usize,
        /// What they are for.
        what: &'static str,
        /// How many.
        bytes: u64,
        /// How many are free now.
        free: u64,
    },
    /// Memory of the host that a card copies from, which the host does not have.
    #[error("cuda:{card}: no {bytes} bytes of the host's memory could be pinned for {what}, {free} are free")]
    NoPinned {
        /// For which card.
        card: usize,
        /// What they are for.
        what: &'static str,
        /// How many.
        bytes: u64,
        /// How many the host has free now.
        free: u64,
    },
    /// Cards that do not reach each other's memory.
    #[error(
        "cuda:{card} does not reach the memory of cuda:{other}; give cards that NVLink or one PCIe switch connects \
         (nvidia-smi topo -p2p r lists them), or one card"
    )]
    NoPeer {
        /// The card that would read and write.
        card: usize,
        /// The card whose memory it is.
        other: usize,
    },
    /// Anything else that the driver refused.
    #[error("cuda:{card}: {what}: {name} ({code})")]
    Call {
        /// Which card.
        card: usize,
        /// What was tried.
        what: Cow<'static, str>,
        /// The driver's name of it.
        name: String,
        /// The driver's number.
        code: u32,
    },
}

impl CudaError {
    /// What the driver said when `what` was tried on `card`.
    pub(super) fn call(card: usize, what: impl Into<Cow<'static, str>>, error: DriverError) -> Self {
        let name = error.error_name().map_or("unknown error".into(), |n| n.to_string_lossy().into_owned());
        Self::Call { card, what: what.into(), name, code: error.0 as u32 }
    }
}

impl ExitCode for CudaError {
    fn exit(&self) -> Exit {
        match self {
            Self::OutOfMemory { .. } | Self::NoPinned { .. } => Exit::Resources,
            // A context, a stream and a module take memory of the card too.
            Self::Call { code, .. } if *code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 => Exit::Resources,
            Self::Call { .. } => Exit::Other,
            _ => Exit::Incompatible,
        }
    }
}
