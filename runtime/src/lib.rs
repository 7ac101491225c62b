//! The lean runtime: lifts a verified container into device memory and runs it.
//!
//! ```no_run
//! use gantry_runtime::{Container, Device, Model, ModelOptions};
//!
//! let container = Container::open("model.gantry".as_ref())?;
//! let device = Device::cpu(None)?;
//! let model = Model::load(&container, &device, &ModelOptions::default())?;
//! let mut session = model.session()?;
//! let logits = session.prefill(&[1, 2, 3])?;
//! # Ok::<(), gantry_runtime::RuntimeError>(())
//! ```
//!
//! Token ids in, logits out: the loader and the forward pass need no tokenizer and no command line. The feature
//! `text` adds tokenizers and chat templates from the container's own metadata, `cli` the program `gantry-run`.
//! `examples/generate.rs` generates text.
//!
//! The way of the bytes: [`load`] brings each card's segment into an arena and verifies it there, [`model`] names
//! the steps, [`backend`] has a kernel for each step and layout, [`Session`] keeps what was said. Where a model
//! lies on several cards, [`exchange`] has the rules by which they share a step.
#![deny(unsafe_code)]

pub mod backend;
mod error;
pub mod exchange;
pub mod load;
pub mod memory;
pub mod model;
pub mod sample;
mod session;
pub mod speculate;
#[cfg(feature = "text")]
pub mod text;
#[cfg(feature = "text")]
mod vocabulary;

pub use backend::{Device, KvType};
pub use error::{Result, RuntimeError};
pub use gantry_formats::container::Container;
pub use load::{LoadMode, LoadReport, Verify};
pub use model::{Model, ModelOptions};
pub use session::{MAX_TOGETHER, SavedFault, Session, Together};
pub use speculate::Speculation;
#[cfg(feature = "text")]
pub use vocabulary::vocab;
