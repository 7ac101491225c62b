//! The header of a random model, and what its tensors hold.

use super::fill::{self, Fill};
use super::spec::Spec;
use super::{derive, random, tokenizer};
use gantry_formats::arch::{Expected, Hparams, Presence, Resolved};
use gantry_formats::block::GgmlType;
use gantry_formats::gguf::{GgufWriter, Header, Value};

/// What llama.cpp takes at most.
pub(super) const MAX_BLOCKS: u64 = 512;
const MAX_EXPERTS: u64 = 1024;

/// Most errors that are told at once.
const TOLD: usize = 8;

/// A model that is to be written.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) header: Header,
    /// One per tensor, in order.
    pub(super) fills: Vec<Fill>,
}

/// The model that `spec` means, its matrices of type `ty`.
///
/// # Errors
/// What of the specification no model can have.
pub(super) fn model(spec: &Spec, ty: GgmlType, seed: u64) -> Result<Model, String> {
    let mut spec = spec.clone();
    limits(&spec)?;
    derive::fill(&mut spec, seed)?;
    let mut writer = metadata(&spec, ty);
    let meta = writer.finish().map_err(|e| e.to_string())?;
    let listed = |name: &str| spec.tensors.iter().any(|t| t == base(name));
    let has = |name: &str| name.ends_with("nextn.eh_proj.weight") || listed(name);
    let table = Resolved::read(spec.arch, &Hparams::read(&meta), &meta, has);
    if !table.errors.is_empty() {
        let list: Vec<String> = table.errors.iter().take(TOLD).map(ToString::to_string).collect();
        return Err(list.join("\n  "));
    }
    let wanted = |t: &Expected| match t.rule.presence {
        Presence::Optional | Presence::TiedTo(_) => t.certain && listed(&t.name),
        _ => table.is_required(t, has),
    };
    let mut list: Vec<Expected> = table.expected().filter(wanted).collect();
    // By block, as converters write them.
    list.sort_by_key(|t| t.block.map_or(0, |n| n + 1));
    let tied = !list.iter().any(|t| t.name == "output.weight");
    let mut fills = Vec::with_capacity(list.len());
    for t in &list {
        let dims: Option<Vec<u64>> = table.shape(t.rule, t.block.unwrap_or(0)).into_iter().collect();
        let dims = dims.ok_or_else(|| format!("{}: the keys do not say how large it is", t.name))?;
        if dims.contains(&0) {
            return Err(format!("{}: its shape would be {dims:?}", t.name));
        }
        let ty = fill::kind(t.rule.name, &dims, ty);
        writer.tensor(&t.name, &dims, ty).map_err(|e| e.to_string())?;
        let values = fill::values(t.rule.name, &dims, table.hparams.experts, tied);
        fills.push(Fill { key: random::key(seed, &t.name), values, ty, row: dims[0] });
    }
    let header = writer.finish().map_err(|e| e.to_string())?;
    Ok(Model { header, fills })
}

/// A tensor's name without its block.
fn base(name: &str) -> &str {
    name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, base)| base)
}

/// What would cost memory or time before the tables look at it, or what only llama.cpp minds.
fn limits(spec: &Spec) -> Result<(), String> {
    let within = |key: &str, least: u64, most: u64| match spec.number(key) {
        Some(n) if !(least..=most).contains(&n) => {
            Err(format!("{key} is {n}, expected between {least} and {most}"))
        }
        _ => Ok(()),
    };
    let vocab = spec.number("vocab_size").ok_or("vocab_size is missing")?;
    if vocab < tokenizer::LEAST {
        return Err(format!(
            "vocab_size is {vocab}; a vocabulary that can write any text has at least {} tokens",
            tokenizer::LEAST
        ));
    }
    within("vocab_size", 0, tokenizer::MOST)?;
    within("block_count", 1, MAX_BLOCKS)?;
    within("expert_count", 0, MAX_EXPERTS)
}

fn metadata(spec: &Spec, ty: GgmlType) -> GgufWriter {
    let arch = spec.arch.name;
    let mut writer = GgufWriter::new(3);
    writer.set("general.architecture", Value::Str(arch.as_bytes()));
    writer.set("general.type", Value::Str(b"model"));
    writer.set("general.name", Value::Str(format!("{} (random weights)", spec.name).as_bytes()));
    // llama.cpp's number of the most frequent type.
    let file_type = match ty {
        GgmlType::F16 => 1,
        GgmlType::Q8_0 => 7,
        GgmlType::BF16 => 32,
        _ => 0,
    };
    writer.set("general.file_type", Value::U32(file_type));
    writer.set("general.quantization_version", Value::U32(2));
    for (key, value) in &spec.keys {
        let own = key.starts_with("general.");
        let full = if own { key.clone() } else { format!("{arch}.{key}") };
        writer.set(full, value.view());
    }
    tokenizer::add(&mut writer, spec.number("vocab_size").unwrap_or(0));
    writer
}
