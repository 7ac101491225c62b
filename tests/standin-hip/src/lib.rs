//! HIP over the host's memory: what `gantry-run` finds in tests as `libamdhip64.so`.
//!
//! It keeps account of everything it gives out, says what was wrong or left over when the process ends, fails where it is told
//! to, and computes: the kernels of a real code object, found by name, are run from their portable sources on this
//! processor, by way of OpenCL. Each stream has a thread, so that work is done while the caller goes on, and kernels of
//! two cards may wait for each other. `settings` says what the environment may ask for, `log` what is written.
//!
//! It tests the host's side of the runtime, and is no substitute for a card.
#![allow(unsafe_code, reason = "a library that is called from outside, each call with its reason")]

mod code;
mod code_object;
mod compute;
mod device;
mod driver;
mod event;
mod flip;
mod graph;
mod launch;
mod log;
mod memory;
mod metadata;
mod module;
mod settings;
mod stream;
mod work;
