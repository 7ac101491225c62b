//! The headers of exported files: the source's own, or with the types that tensors have now.

use crate::failure::Refusal;
use crate::unpack::Unpacker;
use gantry_formats::block::GgmlType;
use gantry_formats::exit::Exit;
use gantry_formats::gguf::{GgufWriter, Header, Value};
use std::collections::BTreeMap;

/// `general.file_type` of a file whose matrices are mostly Q8_0.
const MOSTLY_Q8_0: u32 = 7;
/// `general.quantization_version` of today's block formats.
const QUANTIZATION_VERSION: u32 = 2;

/// One file that will be written.
#[derive(Debug)]
pub(super) struct ShardPlan<'c> {
    /// Its header.
    pub(super) header: Header,
    /// Its tensors, as indices of source tensors, in the order of the header.
    pub(super) tensors: Vec<usize>,
    /// Bytes outside header and tensors that are not zero: they have a place only in the file as it was.
    pub(super) residues: &'c [(u64, Vec<u8>)],
    /// Its length.
    pub(super) file_bytes: u64,
    /// Tensors whose type is not the source's.
    pub(super) changed: u64,
    rewritten: bool,
    /// Whether every value is the source's.
    exact: bool,
}

impl ShardPlan<'_> {
    /// Whether this has to be the source file, byte for byte.
    pub(super) fn is_source(&self) -> bool {
        !self.rewritten && self.exact
    }
}

/// Plans every file.
///
/// # Errors
/// Where the container does not hold a tensor, or its metadata section is of another model.
pub(super) fn plan<'c>(unpacker: &Unpacker<'c>) -> anyhow::Result<Vec<ShardPlan<'c>>> {
    let container = unpacker.container();
    let manifest = container.manifest();
    let bad = |text: String| Refusal::new(Exit::Input, text);
    let mut types = Vec::new();
    for i in 0..manifest.source_tensors.len() {
        types.push(unpacker.ty(i)?);
    }
    let mut plans = Vec::new();
    let mut next = 0;
    let any_changed = types.iter().zip(&manifest.source_tensors).any(|(ty, t)| *ty != t.ty);
    for (shard, (kept, header)) in
        container.metadata().shards.iter().zip(container.gguf_headers()).enumerate()
    {
        let tensors: Vec<usize> = (next..next + header.tensors().len()).collect();
        next += tensors.len();
        let changed = tensors.iter().filter(|&&i| types[i] != manifest.source_tensors[i].ty).count() as u64;
        // A tensor may have the source's type and other values: floats that were rounded and came back.
        let exact = tensors.iter().all(|&i| manifest.source_tensors[i].exact);
        let rewritten = changed > 0 || any_changed && shard == 0;
        let header = if rewritten { rewrite(header, &tensors, &types, unpacker)? } else { header.clone() };
        plans.push(ShardPlan {
            file_bytes: if rewritten { header.file_len() } else { kept.file_bytes },
            residues: if rewritten { &[] } else { &kept.residues },
            header,
            tensors,
            changed,
            rewritten,
            exact,
        });
    }
    if next != manifest.source_tensors.len() {
        let found = manifest.source_tensors.len();
        return Err(bad(format!("the manifest has {found} source tensors, the metadata section {next}")));
    }
    Ok(plans)
}

/// The header with new types; metadata that speak of them follow, where this is the shard that has them.
fn rewrite(
    header: &Header,
    tensors: &[usize],
    types: &[GgmlType],
    unpacker: &Unpacker<'_>,
) -> anyhow::Result<Header> {
    let mut writer = GgufWriter::from_header(header);
    for (place, &i) in tensors.iter().enumerate() {
        if header.tensors()[place].ty != types[i] {
            writer.set_type(place, types[i])?;
        }
    }
    if header.architecture().is_some() {
        if main_type(types, unpacker) == Some(GgmlType::Q8_0) {
            writer.set("general.file_type", Value::U32(MOSTLY_Q8_0));
        }
        if header.get("general.quantization_version").is_none() {
            writer.set("general.quantization_version", Value::U32(QUANTIZATION_VERSION));
        }
    }
    Ok(writer.finish()?)
}

/// The type that most values of matrices have.
fn main_type(types: &[GgmlType], unpacker: &Unpacker<'_>) -> Option<GgmlType> {
    let mut values: BTreeMap<GgmlType, u64> = BTreeMap::new();
    for (ty, tensor) in types.iter().zip(&unpacker.container().manifest().source_tensors) {
        if tensor.dims.len() > 1 {
            let elements = gantry_formats::size::product(&tensor.dims).unwrap_or(0);
            let count = values.entry(*ty).or_default();
            *count = count.saturating_add(elements);
        }
    }
    values.into_iter().max_by_key(|(_, count)| *count).map(|(ty, _)| ty)
}
