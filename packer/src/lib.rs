//! Pure functions from source bytes to packed bytes.
//!
//! Same input, same bytes out: on any host, at any SIMD width, in any cut of the work. Nothing here opens a file,
//! starts a thread or knows a device. Faster versions of the scalar truths in [`gantry_formats::block`] live in
//! [`simd`], the only place with `unsafe`.
#![deny(unsafe_code)]

pub mod e8;
mod error;
pub mod finite;
pub mod fragment;
pub mod int8;
pub mod q8_0;
pub mod rotation;
pub mod simd;

pub use error::PackError;
pub use finite::check_finite;
