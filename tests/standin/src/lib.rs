//! A CUDA driver over the host's memory, for tests of everything that a machine without a card can test.
//!
//! It has the functions of the driver that `gantry-run` calls, and is stricter than the driver: handles, contexts, addresses
//! and pages are all looked up. Work is done when it is given, so that streams and events never wait. Of the kernels only
//! `gantry_blake3` and those that choose a token are computed. What it saw, what is still allocated at the end and what was called wrongly goes to the
//! file that `GANTRY_STANDIN_LOG` names (`log.rs`); `settings.rs` has the other
//! variables.
//!
//! Signatures and meaning are those of the [driver API](https://docs.nvidia.com/cuda/cuda-driver-api/).
#![allow(unsafe_code, reason = "a C interface: addresses come from the caller")]
#![allow(non_snake_case, reason = "the driver's names")]

mod blake3_kernel;
mod code;
mod device;
mod driver;
mod graph;
mod log;
mod memory;
mod module;
mod sample_kernels;
mod settings;
mod stream;
