//! Products of int8 weights in a matrix instruction's order.

mod quantize;
pub use quantize::I8Rows;
pub(super) use quantize::I8Slice;
