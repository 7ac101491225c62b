//! CUDA kernels, compiled when this crate was.

/// A fat binary with machine code for every generation from `sm_80` on, and the PTX of the newest; empty where this crate
/// was built without nvcc.
pub static FATBIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"));

/// Whether there is machine code for a generation (10 × major + minor) by its own name: only that has what no other generation
/// has. Others run code of an older one, or PTX.
pub fn compiled_for(generation: u32) -> bool {
    let name = format!("sm_{generation}");
    env!("GANTRY_CUDA_COMPILED").split_whitespace().any(|target| target == name)
}
