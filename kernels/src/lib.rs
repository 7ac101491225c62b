//! What devices compute.
//!
//! [`cpu`] holds the host kernels: one definition of every result, three ways to compute it, the same bits
//! from each.
//!
//! [`room`] says how much shared memory kernels are launched with. `cuda` (a feature) holds the compiled kernels of `cuda/` and
//! `device/`, which the runtime loads onto cards.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod room;
