//! Host kernels.
//!
//! Every result is defined once, with its order of operations, and computed by plain Rust, AVX2 or AVX-512
//! ([`Isa`]). **The bits are the same** from each of them, for a token alone or in a batch, and for any number
//! of threads: no fused multiply-add, integer sums where sums are exact, one documented order where they are
//! not. Only the payload of a NaN is not promised.
//!
//! The kernels assume the floating-point environment that Rust promises: round to nearest even, subnormals kept.
//!
//! Shapes are written outermost first; `[tokens][n]` is row-major, n contiguous.

#[cfg(target_endian = "big")]
compile_error!("weights are read where they lie, and they are little-endian");

mod attention;
mod compress;
mod conv;
mod delta;
mod disjoint;
mod e8;
mod float;
mod grouped;
mod groups;
mod int8;
mod isa;
mod kv;
mod kv_int8;
mod lanes;
mod math;
mod matrix;
mod ngram;
mod norm;
mod pieces;
mod pool;
mod product;
mod q8;
mod rope;
mod rotate;
mod route;
mod scratch;
mod select;
mod sinkhorn;
mod streams;

pub use attention::{Chosen, Keys, More, attention, attention_scores};
pub use compress::{Pooling, Span, mean_pool, softmax_pool};
pub use conv::{ConvShape, causal_conv};
pub use delta::{DeltaInput, DeltaShape, KeyHeads, delta_net};
pub use grouped::{Group, gemm_grouped};
pub use int8::I8Rows;
pub use isa::{Isa, IsaError, SIMD_VAR, isa};
pub use kv::{KvCache, KvShape, KvType, Window};
pub use kv_int8::kv_int8_row;
pub use math::{add, exp_in_place, silu_mul};
pub use matrix::{MatrixError, MatrixView};
pub use ngram::{Ngram, ngram_gate};
pub use norm::{layer_norm, rms_norm, softmax};
pub use pieces::{Gate, Pieces, copy_pieces, gate_pieces, rms_norm_pieces};
pub use pool::Pool;
pub use product::{ActivationKind, Activations, gemm};
pub use q8::Q8Rows;
pub use rope::{RopeAngles, RopeHeads, RopeScaling, RopeStyle, RopeTable, rope};
pub use rotate::rotate;
pub use route::{ExpertOutputs, Gating, Routing, route, route_given, weighted_sum};
pub use select::{Selection, select};
pub use sinkhorn::{Sinkhorn, sinkhorn_head, sinkhorn_read, sinkhorn_write};
pub use streams::{StreamWrite, Streams, silu_scaled, stream_mix, stream_norm, stream_write};
