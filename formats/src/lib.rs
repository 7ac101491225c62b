//! What bytes mean: GGUF, block codecs, the Gantry container, layout tags, architecture tables and hashes.
//!
//! This crate starts no threads, maps no files and knows no devices; everything it reads comes through
//! [`source::ReadAt`]. All integers on disk are little-endian.
#![forbid(unsafe_code)]

pub mod arch;
pub mod block;
pub mod container;
pub mod exit;
pub mod gguf;
pub mod hash;
pub mod hotness;
pub mod layout;
pub mod message;
pub mod placement;
pub mod role;
pub mod rotation;
pub mod size;
pub mod source;
pub mod target;
