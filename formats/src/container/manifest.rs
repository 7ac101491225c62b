//! The manifest: plain JSON that says what the segments hold and where it came from.
//!
//! It holds no time stamps and no paths: the same input with the same resolved options gives the same bytes.
//! Blob hashes are not here but in the binary [table](super::Table); indices tie the two together.

use super::PlacementSection;
use crate::block::GgmlType;
use crate::layout::LayoutTag;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the manifest's schema.
pub const SCHEMA: u32 = 1;

/// The whole manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Which model this is.
    pub model: Model,
    /// Device family and generation that the layouts were chosen for, e.g. `cpu`.
    pub target: String,
    /// Recipe that chose them.
    pub recipe: String,
    /// Layout tags, indexed by `layout` fields.
    pub layouts: Vec<LayoutTag>,
    /// What each card is.
    pub cards: Vec<CardInfo>,
    /// Stored tensors outside expert banks, by card and offset.
    pub tensors: Vec<StoredTensor>,
    /// Expert banks, by card and offset.
    pub banks: Vec<Bank>,
    /// Why experts lie where they lie; absent where there is one card without a budget or counts, and in containers
    /// from before this was recorded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub placement: Option<PlacementSection>,
    /// Names that stand for another tensor's bytes.
    pub aliases: Vec<Alias>,
    /// Source files, in shard order.
    pub sources: Vec<Source>,
    /// Every tensor of the source, in file order: what it was and what became of it.
    pub source_tensors: Vec<SourceTensor>,
    /// What wrote this.
    pub tool: Tool,
    /// Resolved options that shape the bytes, by name.
    pub options: BTreeMap<String, String>,
    /// Warnings given at conversion.
    pub warnings: Vec<String>,
}

/// Model identity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// `general.architecture`.
    pub architecture: String,
    /// Version of the architecture's table that the model was checked against
    /// ([`Architecture::version`](crate::arch::Architecture::version)); 0 where this program had none. Containers
    /// from before this was recorded have 1.
    #[serde(default = "first_version")]
    pub arch_version: u32,
    /// `general.name`, where it is there and UTF-8.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Number of weights.
    pub parameters: u64,
    /// Whether every tensor that the architecture needs is here; otherwise it cannot run.
    pub complete: bool,
    /// Why it is not complete.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub incomplete: Vec<String>,
}

fn first_version() -> u32 {
    1
}

/// A card as packed for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardInfo {
    /// Target of this card's layouts.
    pub target: String,
    /// Bytes of its blobs, without padding.
    pub weight_bytes: u64,
}

/// A stored tensor: one blob with one matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredTensor {
    /// Name; for a fused matrix the name of its role, e.g. `blk.0.attn_qkv.weight`.
    pub name: String,
    /// Role: the base name.
    pub role: String,
    /// Layer, where it belongs to one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub layer: Option<u32>,
    /// Index into `layouts`.
    pub layout: u32,
    /// Shape, outermost first: `[rows, cols]` for a matrix, `[n]` for a vector.
    pub shape: Vec<u64>,
    /// Card.
    pub card: u32,
    /// First byte inside the card's segment.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Index in the hash table.
    pub blob: u64,
    /// What it is made of, stacked by rows in this order.
    pub parts: Vec<Part>,
}

/// One piece of a stored matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Index into `source_tensors`.
    pub source: u32,
    /// Rows `[from, to)` of the source; for an expert matrix, rows inside one expert.
    pub rows: [u64; 2],
    /// Columns `[from, to)`, where not all.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cols: Option<[u64; 2]>,
}

/// One layer's experts on one card. Expert `experts[s]` lies at `offset + s · stride` and is one blob.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bank {
    /// Layer.
    pub layer: u32,
    /// Card.
    pub card: u32,
    /// First byte inside the card's segment.
    pub offset: u64,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// Bytes of each blob.
    pub bytes: u64,
    /// Index of slot 0 in the hash table; slot `s` follows at `first_blob + s`.
    pub first_blob: u64,
    /// Slot → expert, ascending.
    pub experts: Vec<u32>,
    /// What each blob holds, in order.
    pub matrices: Vec<BankMatrix>,
}

/// One matrix of every expert in a bank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BankMatrix {
    /// Name, e.g. `blk.0.ffn_gate_exps.weight`.
    pub name: String,
    /// Role: the base name.
    pub role: String,
    /// Index into `layouts`.
    pub layout: u32,
    /// Shape of one expert's matrix, `[rows, cols]`.
    pub shape: Vec<u64>,
    /// First byte inside the blob.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// What it is made of; `rows` count inside one expert.
    pub parts: Vec<Part>,
}

/// A name without bytes of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alias {
    /// The name that the architecture asks for.
    pub name: String,
    /// The stored tensor that serves it.
    pub of: String,
}

/// A source file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// File name without folder.
    pub file: String,
    /// Length in bytes.
    pub bytes: u64,
    /// BLAKE3 of the whole file, hex.
    pub blake3: String,
}

/// What a source tensor was and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceTensor {
    /// Name; bytes that are not UTF-8 are escaped as `\xNN`.
    pub name: String,
    /// Index into `sources`.
    pub shard: u32,
    /// Type in the source.
    #[serde(rename = "type")]
    pub ty: GgmlType,
    /// Dims, `ne0` first, as GGUF writes them.
    pub dims: Vec<u64>,
    /// BLAKE3 of its bytes, hex.
    pub blake3: String,
    /// Whether every value is kept bit for bit.
    pub exact: bool,
    /// Largest |source − stored| over its values, where not exact.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_error: Option<f32>,
    /// Blocks whose scale became zero although they held values.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub lost_blocks: u64,
    /// Blocks with a subnormal scale.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub subnormal_blocks: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The program that wrote a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// `gantry`.
    pub name: String,
    /// Its version.
    pub version: String,
}
