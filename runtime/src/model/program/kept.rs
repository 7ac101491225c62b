//! What a sequence keeps from step to step.

use super::{ConvShape, DeltaShape};

/// Something kept, by its index in [`Program::kept`](super::Program::kept).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptId(pub usize);

/// Something that each sequence keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kept {
    /// Keys and values of positions.
    Cache(CacheShape),
    /// The values before those of a batch.
    Conv(ConvShape),
    /// The state of a delta net.
    Delta(DeltaShape),
}

/// Keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Key and value heads.
    pub heads: usize,
    /// Values of a key.
    pub key_len: usize,
    /// Values of a value.
    pub value_len: usize,
    /// Whether values are the beginnings of keys, and not kept apart.
    pub shared: bool,
    /// Positions that stay readable, where not all do.
    pub window: Option<usize>,
    /// Positions of the sequence for each one here.
    pub ratio: usize,
    /// Whether it is f32 whatever the session's type of keys and values: it is computed with further.
    pub exact: bool,
}

impl CacheShape {
    /// Values that it keeps for one of its positions.
    pub fn values(&self) -> usize {
        self.heads * (self.key_len + if self.shared { 0 } else { self.value_len })
    }

    /// Rows of heads among them: keys, and values unless they are the same.
    pub fn rows(&self) -> usize {
        self.heads * if self.shared { 1 } else { 2 }
    }
}
