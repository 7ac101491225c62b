//! What devices compute.
//!
//! [`cpu`] holds the host kernels: one definition of every result, three ways to compute it, the same bits
//! from each.
//!
//! [`room`] says how much shared memory kernels are launched with. `cuda` (a feature) holds the compiled kernels of `cuda/` and
//! `device/`, which the runtime loads onto cards; `level_zero` (a feature) those of `device/`.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "level-zero")]
pub mod level_zero;
pub mod room;
