//! HIP kernels, compiled when this crate was.

/// A generation (`gfx942`) and its code object, an ELF file with all kernels, for each that was compiled; empty where this crate
/// was built without a clang that knows them. A card runs the code object of its own generation alone.
pub static CODE: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/hip.rs"));
