//! What can be wrong with a GGUF: one [`GgufFault`] per broken rule, and the file it was found in.

use super::limits::{MAX_DIMS, MAX_HEADER_BYTES, MAX_NAME_BYTES};
use super::value::ValueType;
use crate::block::GgmlType;
use crate::exit::{Exit, ExitCode};
use std::io;
use thiserror::Error;

/// A fault and the file that has it.
#[derive(Debug, Error)]
#[error("{file}: {fault}")]
pub struct GgufError {
    file: String,
    fault: Box<GgufFault>,
}

impl GgufError {
    pub(super) fn new(file: &str, fault: GgufFault) -> Self {
        Self { file: file.to_owned(), fault: Box::new(fault) }
    }

    /// The file, as it was named.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// What is wrong with it.
    pub fn fault(&self) -> &GgufFault {
        &self.fault
    }
}

impl ExitCode for GgufError {
    fn exit(&self) -> Exit {
        Exit::Input
    }
}

/// A broken rule. Keys and names in it are as [`display_name`](super::display_name) shows them; offsets count
/// from the start of the file unless said otherwise.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the fields are what the messages say")]
pub enum GgufFault {
    /// The system refused to open or read.
    #[error("cannot {doing}: {source}")]
    Io { doing: String, source: io::Error },
    /// Not one byte.
    #[error("empty file, expected a GGUF; download or copy it again")]
    Empty,
    /// Something else than a GGUF.
    #[error("{what}")]
    NotGguf { what: String },
    /// The file ends inside its header.
    #[error(
        "truncated header: {what} at byte {at} takes {need} bytes, {left} are left; download or copy the file again"
    )]
    Truncated { what: &'static str, at: u64, need: u64, left: u64 },
    /// Raw header bytes that go on after the tensor table.
    #[error("{extra} bytes after the tensor table, which ends at byte {at}; the header should end there")]
    TrailingHeader { at: u64, extra: u64 },
    /// The magic is right and the version is not 2 or 3.
    #[error("GGUF version {found} is not supported, expected 2 or 3; {}", version_hint(*.found))]
    Version { found: u32 },
    /// Written for big-endian machines.
    #[error(
        "a big-endian GGUF (version {version}, byte-swapped), expected little-endian; convert it with llama.cpp's \
         gguf_convert_endian.py"
    )]
    BigEndian { version: u32 },
    /// A count in the fixed header that the file cannot hold or that is over the limit.
    #[error("{what} {found} at byte {at} is more than {most}, {why}")]
    Count { what: &'static str, found: u64, at: u64, most: u64, why: &'static str },
    /// More header than any model has.
    #[error(
        "the header goes on past {limit} bytes at byte {at}; at most {MAX_HEADER_BYTES} are read, over all shards"
    )]
    HeaderTooLarge { at: u64, limit: u64 },
    /// A key's length.
    #[error(
        "metadata entry {index}: key length {found} at byte {at} is more than the {most} that can follow"
    )]
    KeyLength { index: u64, at: u64, found: u64, most: u64 },
    /// A key without a name.
    #[error("metadata entry {index}: empty key at byte {at}")]
    EmptyKey { index: u64, at: u64 },
    /// A key twice.
    #[error("duplicate key `{key}`: entries {first} and {second}")]
    DuplicateKey { key: String, first: u32, second: u32 },
    /// A string's or array's length.
    #[error("key `{key}`: {what} length {found} at byte {at} is more than the {most} that can follow")]
    Length { key: String, what: &'static str, at: u64, found: u64, most: u64 },
    /// A value type that does not exist.
    #[error("key `{key}`: value type {found} at byte {at}, expected 0 to 12")]
    ValueType { key: String, at: u64, found: u32 },
    /// An array of arrays.
    #[error("key `{key}`: nested array at byte {at}; arrays hold numbers, bools or strings")]
    NestedArray { key: String, at: u64 },
    /// A bool that is neither.
    #[error("key `{key}`: bool {found} at byte {at}, expected 0 or 1")]
    Bool { key: String, at: u64, found: u8 },
    /// `general.alignment` of another type.
    #[error("general.alignment is of type {found}, expected u32")]
    AlignmentType { found: ValueType },
    /// `general.alignment` that is no power of two.
    #[error("general.alignment is {found}, expected a power of two")]
    Alignment { found: u32 },
    /// No architecture, or not as a string.
    #[error("no general.architecture (a string) in the metadata, so that nothing says what model this is{}", shard_hint(*.shard))]
    Architecture { shard: bool },
    /// A tensor's name is too long.
    #[error("tensor {index}: name of {found} bytes at byte {at}, expected at most {MAX_NAME_BYTES}")]
    NameLength { index: u64, at: u64, found: u64 },
    /// A tensor name twice in one file.
    #[error("duplicate tensor `{name}`: entries {first} and {second} of the tensor table")]
    DuplicateTensor { name: String, first: u32, second: u32 },
    /// Too many dimensions.
    #[error("tensor `{name}`: {found} dimensions, expected at most {MAX_DIMS}")]
    Dims { name: String, found: u64 },
    /// Sizes that do not fit 64 bits.
    #[error("tensor `{name}`: {ty} of shape {dims:?} has more elements or bytes than 64 bits count")]
    Overflow { name: String, ty: GgmlType, dims: Vec<u64> },
    /// Rows that are no whole number of blocks.
    #[error("tensor `{name}`: rows of {row} values, expected a multiple of {} for {ty}", .ty.block_len())]
    Row { name: String, ty: GgmlType, row: u64 },
    /// A type id that was taken out of GGUF.
    #[error(
        "tensor `{name}`: type id {id} ({old}) was removed from GGUF; convert the original model again, or requantize \
         the file with a llama.cpp of its time"
    )]
    RemovedType { name: String, id: u32, old: &'static str },
    /// A type id that is not known.
    #[error("tensor `{name}`: unknown type id {id}; the file is damaged or newer than this program")]
    UnknownType { name: String, id: u32 },
    /// Overlap, hole or disorder in the data.
    #[error(
        "tensor `{name}`: data offset {found}, expected {expected}, the padded end of the tensors before it; the file \
         is damaged"
    )]
    Offset { name: String, found: u64, expected: u64 },
    /// Data beyond the end of the file.
    #[error(
        "tensor `{name}`: its data ends at byte {end}, the file has {len}; it is truncated, download or copy it again"
    )]
    Short { name: String, end: u64, len: u64 },
    /// A shard that is not there.
    #[error("{missing} is missing; put all {count} shards of the set into one folder")]
    MissingShard { missing: String, count: u32 },
    /// A set whose parts cannot be found by name.
    #[error(
        "split.count is {count}, so this is one shard of a set, but its name is not of the form \
         NAME-00001-of-{count:05}.gguf, which says where the others are; give it its name back"
    )]
    ShardName { count: u64 },
    /// The number of shards is not the same everywhere.
    #[error("split.count is {}, expected {expected}, {why}{}", or_missing(.found), also_missing(.missing))]
    SplitCount { found: Option<u64>, expected: u32, why: &'static str, missing: Option<String> },
    /// A shard in another's place.
    #[error("split.no is {}, expected {expected} (it counts from 0)", or_missing(.found))]
    SplitNumber { found: Option<u64>, expected: u32 },
    /// The number of tensors is not the same everywhere.
    #[error("split.tensors.count is {}, expected {expected}, {why}", or_missing(.found))]
    SplitTensors { found: Option<u64>, expected: u64, why: &'static str },
    /// A split key that is no count.
    #[error("{key} is of type {found}, expected an integer that is not negative")]
    SplitKey { key: &'static str, found: ValueType },
    /// A tensor name twice in a set.
    #[error("duplicate tensor `{name}`: also in {other}")]
    DuplicateAcross { name: String, other: String },
    /// An index or key that a header being written does not have.
    #[error("nothing to change: {what}")]
    Absent { what: String },
}

fn version_hint(found: u32) -> &'static str {
    if found < 2 {
        "convert the original model again with a current llama.cpp"
    } else {
        "a newer program may read it"
    }
}

fn shard_hint(shard: bool) -> &'static str {
    if shard { "; the first shard of a set holds it" } else { "" }
}

fn or_missing(found: &Option<u64>) -> String {
    found.map_or_else(|| "missing".to_owned(), |n| n.to_string())
}

fn also_missing(missing: &Option<String>) -> String {
    missing.as_ref().map_or_else(String::new, |m| format!("; {m} is missing"))
}
