//! E8 super-blocks in three planes.
mod codebook;
mod encode;
mod search;
mod target;

pub(crate) use encode::{Plan, encode};
use gantry_formats::block::e8 as truth;

/// Values per block.
pub const LEN: usize = truth::LEN;

/// Sub-scale codes.
const CODES: usize = 16;

/// planes
#[derive(Clone, Copy, Debug)]
pub struct Planes<T> {
    /// i
    pub indices: T,
    /// w
    pub words: T,
    /// s
    pub scales: T,
}
