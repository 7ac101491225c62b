//! What devices compute.
//!
//! [`cpu`] holds the host kernels: one definition of every result, three ways to compute it, the same bits
//! from each.
//!
//! [`room`] says how much shared memory kernels are launched with. `cuda`, `hip` and `level_zero` (features) hold the compiled
//! kernels of `device/`, and of a folder for each family, which the runtime loads onto cards.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "hip")]
pub mod hip;
#[cfg(feature = "level-zero")]
pub mod level_zero;
pub mod room;
