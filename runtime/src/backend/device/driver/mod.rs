//! Drivers of cards, behind types that own what they stand for: a context, memory, streams, events, kernels.
//!
//! A driver's library is looked for when a card is opened, never linked. What differs from family to family is behind
//! [`calls`]; nothing else here or above knows which family it has.

pub(crate) mod calls;
mod context;
mod error;
mod family;
mod graph;
mod ledger;
mod memory;
mod module;
mod staged;
mod stream;
mod tensor_map;
mod words;

pub(crate) use calls::Arg;
pub(crate) use context::Context;
pub use context::{CardInfo, cards};
pub use error::{CardError, Said};
pub use family::{CardName, Family, Generation};
pub(crate) use graph::Graph;
pub use memory::DeviceMemory;
pub(crate) use memory::{Pinned, Registered};
pub(crate) use module::{Function, Module, Start};
pub(crate) use staged::Staged;
pub(crate) use stream::{Event, Stream};
pub(crate) use tensor_map::TensorMap;
pub(crate) use words::SharedWords;
