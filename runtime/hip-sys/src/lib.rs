//! The calls of HIP, AMD's interface to its cards, that the runtime makes.
//!
//! The library is looked for at run time: nothing of ROCm is needed to build this. [`Hip::open`] finds all functions or names
//! the first that is missing, and a call gives a [`Code`] where HIP refuses it; nothing here panics.
//!
//! Signatures and numbers are those of `hip_runtime_api.h` of HIP 6.2 to 7.14, where they are all the same.
#![allow(unsafe_code, reason = "a library of C, opened and called")]

mod code;
mod functions;
mod library;
mod numbers;
mod properties;

pub use code::Code;
pub use functions::{Event, Function, Graph, GraphExec, Hip, Module, Stream};
pub use library::NoLibrary;
pub use numbers::{attribute, capture, device_malloc, event, function, host_malloc, host_register, stream};
