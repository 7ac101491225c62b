//! What devices compute.
//!
//! [`cpu`] holds the host kernels: one definition of every result, three ways to compute it, the same bits
//! from each.

pub mod cpu;
