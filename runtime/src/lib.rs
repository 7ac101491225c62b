//! The lean runtime.

pub mod sample;
#[cfg(feature = "text")]
pub mod text;
