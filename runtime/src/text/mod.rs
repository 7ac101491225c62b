//! Text in and out: tokenizers, chat templates and UTF-8 streams, built from the GGUF metadata that a container
//! carries.
//!
//! The measure of right is llama.cpp: the same text gives the same ids. Where this differs on purpose, the
//! item's documentation says so.

mod bpe;
pub mod chat;
mod error;
mod hash;
mod special;
mod split;
mod spm;
pub mod stream;
mod strftime;
mod tokenizer;
mod vocab;

pub use chat::{ChatTemplate, Message};
pub use error::TextError;
pub use split::names as pre_tokenizers;
pub use stream::{Step, TextStream};
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use vocab::{Meta, Metadata, Vocab};
