//! What devices compute.
//!
//! [`cpu`] holds the host kernels: one definition of every result, three ways to compute it, the same bits
//! from each.
//!
//! [`room`] says how much shared memory kernels are launched with. `cuda` and `hip` (features) hold the
//! compiled kernels of `device/`, and of `cuda/` or `hip/`, which the runtime loads onto cards.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "hip")]
pub mod hip;
pub mod room;
