//! What a GGUF may ask for. Together they keep a hostile file under 64 MiB of memory: 32 MiB of raw header,
//! 16 MiB of tensor table ([`MAX_TENSORS`] × 128 bytes), 2 MiB of key table, and the sorted indices.

/// Bytes of header (everything before the tensor data), over all shards of a set: 32 MiB. The largest known,
/// with 262 thousand tokens and 514 thousand merges, has 16 MiB.
pub const MAX_HEADER_BYTES: u64 = 32 << 20;

/// Key/value pairs in one file.
pub const MAX_KEYS: u64 = 65_536;

/// Tensors in one file, and over all shards of a set.
pub const MAX_TENSORS: u64 = 131_072;

/// Bytes of one key (GGUF specification: 2¹⁶ − 1).
pub const MAX_KEY_BYTES: u64 = 65_535;

/// Bytes of one string or array: 1 GiB, as in ggml. [`MAX_HEADER_BYTES`] is stricter; a file between the two is
/// told that its header is too large.
pub const MAX_VALUE_BYTES: u64 = 1 << 30;

/// Bytes of a tensor's name: ggml's `GGML_MAX_NAME` is 64 with the terminating zero.
pub const MAX_NAME_BYTES: u64 = 63;

/// Dimensions of a tensor: ggml's `GGML_MAX_DIMS`.
pub const MAX_DIMS: usize = 4;

/// Alignment of the tensor data where `general.alignment` is not given.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// The fewest bytes that follow for one key/value pair: the length of its key. Whatever is missing behind that is
/// told by its own name.
pub(super) const MIN_ENTRY_BYTES: u64 = 8;

/// The fewest bytes that one row of the tensor table takes: an empty name, no dimensions.
pub(super) const MIN_INFO_BYTES: u64 = 8 + 4 + 4 + 8;

/// The most bytes that one row of the tensor table takes.
pub(super) const MAX_INFO_BYTES: u64 = MIN_INFO_BYTES + MAX_NAME_BYTES + 8 * MAX_DIMS as u64;

/// What one file, or a set of shards together, may still use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) header_bytes: u64,
    pub(super) tensors: u64,
}

impl Budget {
    /// The whole of it.
    pub(super) const FULL: Self = Self { header_bytes: MAX_HEADER_BYTES, tensors: MAX_TENSORS };
}
