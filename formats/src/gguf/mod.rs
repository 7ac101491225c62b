//! GGUF files: read, validate once, write back losslessly.
//!
//! A GGUF is `"GGUF"`, a version, two counts, key/value pairs, a tensor table, padding, and the tensors' bytes.
//! [`Header`] is one file's part up to the end of the tensor table, kept byte for byte; [`Gguf`] is an open
//! model, one file or a split set; [`GgufWriter`] makes headers, new ones or from old ones, and [`DataWriter`]
//! puts the tensors' bytes behind them. Everything that a file claims is checked when it is opened, against the
//! named [`limits`]; what comes later indexes without checks.

mod cursor;
mod data;
mod error;
mod header;
pub mod limits;
mod magic;
mod metadata;
mod name;
mod owned;
mod parse;
mod reader;
mod split;
mod tensor;
mod value;
mod writer;

pub use data::DataWriter;
pub use error::{GgufError, GgufFault};
pub use header::{Entry, Header};
pub use name::{display_name, parse_display_name};
pub use owned::{Element, OwnedArray, OwnedValue};
pub use reader::{Gguf, Shard, Tensor};
pub use split::ShardName;
pub use tensor::TensorInfo;
pub use value::{ArrayIter, ArrayView, Value, ValueType};
pub use writer::GgufWriter;
