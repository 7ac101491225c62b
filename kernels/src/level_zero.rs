//! Kernels for Intel's cards as SPIR-V, compiled when this crate was.

/// What was compiled of one source.
#[derive(Debug)]
pub struct Module {
    /// Its source's name: `norm` of `norm.c`.
    pub name: &'static str,
    /// Its kernels. How many members a group of each has stands in the module.
    pub kernels: &'static [&'static str],
    /// Where it uses matrix instructions (DPAS): the size of sub-groups that it is for. Only a card whose matrix instructions have
    /// that many lanes takes it, 8 for `dg2`, 16 for `bmg` and `pvc`.
    pub sub_group: Option<u32>,
    /// SPIR-V 1.0, or 1.1 where `sub_group` is some, for OpenCL 1.2 with 64-bit addresses. Where `sub_group` is none no extension
    /// is needed. Results do not depend on the driver's options: products and sums are not contracted, division and square
    /// root are not the driver's.
    pub spirv: &'static [u8],
}

/// All modules; none where this crate was built without clang, opt and llvm-spirv of LLVM 15. A driver compiles each for seconds:
/// take those that are needed.
pub static SPIRV: &[Module] = include!(concat!(env!("OUT_DIR"), "/spirv.rs"));

/// What Intel's drivers are to be told of a module: buffers may be longer than 4 GiB, and threads may have twice the registers,
/// and be half as many, where a kernel has not enough. Other drivers may not know the second.
pub const OPTIONS: &str = "-ze-opt-greater-than-4GB-buffer-required -ze-intel-enable-auto-large-GRF-mode";

/// The module that has a kernel.
pub fn module_of(kernel: &str) -> Option<&'static Module> {
    SPIRV.iter().find(|module| module.kernels.contains(&kernel))
}
