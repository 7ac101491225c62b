//! CUDA kernels, compiled when this crate was.

/// A fat binary with machine code for every generation from `sm_80` on, and the PTX of the newest; empty where this crate
/// was built without nvcc.
pub static FATBIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"));
