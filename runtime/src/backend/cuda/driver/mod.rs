//! The CUDA driver, behind types that own what they stand for: a context, memory, streams, events, modules.
//!
//! The driver's library is looked for when a card is opened, never linked. `cudarc` declares its functions and panics
//! where one is missing, so that all that are used here are looked up first.

mod context;
mod cublaslt;
mod error;
mod graph;
mod ledger;
mod memory;
mod module;
mod staged;
mod stream;
mod tensor_map;
mod words;

pub(crate) use context::Context;
pub use context::{CardInfo, cards};
pub(crate) use cublaslt::CublasLt;
pub use error::CudaError;
pub(crate) use graph::Graph;
pub use memory::DeviceMemory;
pub(crate) use memory::{Pinned, Registered};
pub(crate) use module::{Arg, Function, Module, Start};
pub(crate) use staged::Staged;
pub(crate) use stream::{Event, Stream};
pub(crate) use tensor_map::TensorMap;
pub(crate) use words::SharedWords;
