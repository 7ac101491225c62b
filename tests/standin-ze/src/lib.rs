//! A Level Zero driver over the host's memory, for tests of everything that a machine without a card can test.
//!
//! Level Zero's own loader opens it where `ZE_ENABLE_ALT_DRIVERS` names it, asks for its tables of functions (`tables.rs`) and
//! hands calls to it. It has the functions that `gantry-run` calls, and is stricter than a driver: handles, addresses, arguments of
//! kernels and the order that barriers give are all looked up. Queues and immediate command lists have a thread each, so that
//! what they are given is done while the caller goes on, as on a card. Kernels are those of the SPIR-V that a module
//! is made of, on the processor, through OpenCL (`gantry-cpu-device`). What it saw, what is still there at the end and
//! what was called wrongly goes to the file that `GANTRY_STANDIN_ZE_LOG` names (`log.rs`); `settings.rs` has the other
//! variables.
//!
//! Signatures and meaning are those of the
//! [specification](https://oneapi-src.github.io/level-zero-spec/level-zero/latest/).
#![allow(unsafe_code, reason = "a C interface: addresses come from the caller")]
#![allow(non_snake_case, reason = "the specification's names")]

mod command;
mod compute;
mod device;
mod driver;
mod event;
mod kernel;
mod list;
mod log;
mod memory;
mod module;
mod settings;
mod spirv;
mod tables;
mod worker;
