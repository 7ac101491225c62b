//! A processor as cards, through OpenCL: what stand-ins for drivers compute with, in tests on machines without a card.
//!
//! Memory is the host's, so that an address means the same to kernels, to copies and to whoever looks at it: kernels take
//! addresses, inside of allocations too. Any number of threads may run kernels at once, and none waits for another's, so
//! that kernels of two cards may wait for each other.
//!
//! ```no_run
//! use gantry_cpu_device::{Argument, Devices, POCL, flat};
//! let devices = Devices::open(POCL, 2)?;
//! let text = flat("kernels/device/norm.c".as_ref()).expect("a source");
//! let program = devices.build_source("norm.c", &text, "-cl-std=CL1.2")?;
//! let kernel = program.kernel("gantry_rms_norm")?;
//! let memory = devices.memory(1 << 20, 256)?;
//! let queue = devices.queue(0)?;
//! // SAFETY: as `Queue::run` says.
//! unsafe { queue.run(&kernel, [1, 1, 1], &[Argument::Address(memory.address() as u64)]) }?;
//! # Ok::<(), gantry_cpu_device::Error>(())
//! ```
#![allow(unsafe_code, reason = "calls of OpenCL, each with its reason")]

mod device;
mod error;
mod memory;
mod program;
mod queue;
mod source;

pub use device::{Devices, INTEL, POCL};
pub use error::Error;
pub use memory::Memory;
pub use program::{Kernel, Parameter, Program};
pub use queue::{Argument, Queue};
pub use source::flat;
