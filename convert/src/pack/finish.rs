//! The last step: manifest, sections and header, then the files get their names.

use super::{Failure, Job, Packed, worker::write_failure};
use crate::failure::Refusal;
use crate::pack::output::{Outputs, Stamp};
use crate::plan::Plan;
use anyhow::{Context, Result};
use gantry_formats::container::{
    self, CardInfo, Finished, Manifest, Metadata, SCHEMA, ShardHeader, Source, SourceTensor, Table, Tool,
};
use gantry_formats::exit::Exit;
use gantry_formats::gguf::Gguf;
use gantry_formats::hash;
use gantry_formats::source::ReadAt;
use gantry_packer::q8_0::Stats;
use std::os::unix::fs::FileExt;

/// Most bytes outside header and tensors that are carried: real files have none that are not zero.
const MAX_RESIDUE: u64 = 16 << 20;
/// Most warnings of one kind that are given one by one.
const LISTED: usize = 20;

/// What a finished conversion tells.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) root: String,
    pub(crate) container_id: String,
    /// Bytes of all files written.
    pub(crate) bytes: u64,
    pub(crate) warnings: Vec<String>,
    /// The tensor with the largest relative error, where one was rounded.
    pub(crate) worst: Option<Worst>,
}

/// The worst errors of all tensors: relative to the largest value of its block, and absolute.
#[derive(Clone, Debug)]
pub(crate) struct Worst {
    pub(crate) relative: (f32, String),
    pub(crate) absolute: (f32, String),
}

/// The source's headers and odd bytes, for the metadata section. Read first: a source with too many of them is
/// refused before the work.
pub(crate) fn metadata(source: &Gguf) -> Result<Metadata> {
    let mut shards = Vec::new();
    for shard in source.shards() {
        let mut residues = Vec::new();
        let mut total = 0u64;
        let mut buffer = vec![0; 1 << 16];
        for gap in shard.gaps() {
            let mut at = gap.start;
            while at < gap.end {
                let bytes = &mut buffer[..(gap.end - at).min(1 << 16) as usize];
                shard
                    .source()
                    .read_exact_at(at, bytes)
                    .with_context(|| format!("cannot read {}", shard.file_name()))?;
                let odd = |b: &u8| *b != 0;
                if let (Some(first), Some(last)) = (bytes.iter().position(odd), bytes.iter().rposition(odd)) {
                    residues.push((at + first as u64, bytes[first..=last].to_vec()));
                    total += (last - first + 1) as u64;
                }
                at += bytes.len() as u64;
                if total > MAX_RESIDUE {
                    let text = format!(
                        "{}: more than {MAX_RESIDUE} bytes belong to neither header nor tensors; the file is damaged",
                        shard.file_name()
                    );
                    return Err(Refusal::new(Exit::Input, text));
                }
            }
        }
        let (header, data_offset) = (shard.header().raw().to_vec(), shard.header().data_offset());
        shards.push(ShardHeader { file_bytes: shard.len(), header, data_offset, residues });
    }
    Ok(Metadata { shards })
}

/// Writes manifest, sections and headers, and publishes the files.
pub(crate) fn finish(
    job: Job<'_>,
    packed: &Packed,
    metadata: &Metadata,
    stamp: &Stamp,
) -> Result<Summary, Failure> {
    let changed = || {
        Refusal::new(Exit::Input, "file changed while reading: the source is not what it was at the start")
    };
    if Stamp::of(job.source).ok().as_ref() != Some(stamp) {
        return Err(Failure::fatal(changed()));
    }
    let plan = job.plan;
    let mut table = Table::default();
    for (blob, done) in plan.blobs.iter().zip(&packed.blobs) {
        table.push(blob.card as u64, blob.offset, blob.bytes, done.entry.hash, &done.values);
    }
    let manifest = manifest(plan, packed);
    let finished = container::finish(&plan.skeleton, &manifest, metadata, &table).map_err(Failure::fatal)?;
    write(plan, job.outputs, &finished).context("cannot write the output").map_err(write_failure)?;
    job.outputs.publish().map_err(write_failure)?;
    let header = &finished.header;
    let cards = if plan.skeleton.split_cards { plan.cards.len() } else { 0 };
    Ok(Summary {
        root: hash::hex(&header.root),
        container_id: hash::hex(&header.container_id),
        bytes: header.file_bytes + (0..cards).map(|c| plan.skeleton.card_file_bytes(c)).sum::<u64>(),
        warnings: manifest.warnings,
        worst: worst(plan, packed),
    })
}

/// Writes sections and headers; the packed bytes are written already.
pub(crate) fn write(plan: &Plan, outputs: &Outputs, finished: &Finished) -> std::io::Result<()> {
    // Packed bytes are on disk before a header says that they are right.
    outputs.sync()?;
    let index = outputs.index();
    index.write_all_at(&finished.tail, plan.skeleton.tail_offset)?;
    index.set_len(finished.header.file_bytes)?;
    if plan.skeleton.split_cards {
        for card in 0..plan.cards.len() {
            let file = outputs.card(card);
            file.write_all_at(&container::card_file_header(&finished.header, card), 0)?;
            file.set_len(plan.skeleton.card_file_bytes(card))?;
        }
    }
    index.write_all_at(&finished.header.to_bytes(), 0)
}

fn manifest(plan: &Plan, packed: &Packed) -> Manifest {
    // What is rounded and kept besides is exact, and has an error all the same.
    let (mut exact, mut rounded) = (vec![true; plan.sources.len()], vec![false; plan.sources.len()]);
    let mut stats = vec![Stats::default(); plan.sources.len()];
    for (t, one) in plan.tensors.iter().zip(&packed.stats) {
        exact[t.source] &= t.exact || t.with_source;
        rounded[t.source] |= !t.exact;
        stats[t.source].merge(one);
    }
    let source_tensors = plan.sources.iter().enumerate().map(|(i, s)| SourceTensor {
        name: s.name.clone(),
        shard: s.shard as u32,
        ty: s.ty,
        dims: s.dims.clone(),
        blake3: hash::hex(&packed.sources[i]),
        exact: exact[i],
        max_error: rounded[i].then_some(stats[i].max_abs_error),
        lost_blocks: stats[i].lost,
        subnormal_blocks: stats[i].subnormal,
    });
    let sources = plan.shards.iter().zip(&packed.files).map(|(s, digest)| Source {
        file: s.file.clone(),
        bytes: s.bytes,
        blake3: hash::hex(digest),
    });
    Manifest {
        schema: SCHEMA,
        model: plan.model.clone(),
        target: plan.target.clone(),
        recipe: plan.recipe.clone(),
        layouts: plan.layouts.iter().map(|l| l.tag()).collect(),
        cards: plan
            .cards
            .iter()
            .map(|c| CardInfo { target: plan.target.clone(), weight_bytes: c.weight_bytes })
            .collect(),
        tensors: plan.stored.clone(),
        banks: plan.banks.clone(),
        placement: plan.placement.section.clone(),
        aliases: plan.aliases.clone(),
        sources: sources.collect(),
        source_tensors: source_tensors.collect(),
        tool: Tool { name: "gantry".into(), version: env!("CARGO_PKG_VERSION").into() },
        options: plan.options.clone(),
        warnings: warnings(plan, packed),
    }
}

/// The plan's warnings, and what packing lost.
fn warnings(plan: &Plan, packed: &Packed) -> Vec<String> {
    let mut out = plan.warnings.clone();
    let odd: Vec<(&str, &Stats)> = plan
        .tensors
        .iter()
        .zip(&packed.stats)
        .filter(|(_, s)| s.lost + s.subnormal > 0)
        .map(|(t, s)| (t.name.as_str(), s))
        .collect();
    for (name, s) in odd.iter().take(LISTED) {
        out.push(format!(
            "{name}: {} blocks lost (their scale rounds to 0), {} with a subnormal scale, of {}; worst relative \
             error {:.3}",
            s.lost, s.subnormal, s.blocks, s.max_rel_error
        ));
    }
    if odd.len() > LISTED {
        let sum = |count: fn(&Stats) -> u64| odd[LISTED..].iter().map(|(_, s)| count(s)).sum::<u64>();
        let (lost, subnormal) = (sum(|s| s.lost), sum(|s| s.subnormal));
        out.push(format!(
            "{} more tensors: {lost} blocks lost, {subnormal} with a subnormal scale",
            odd.len() - LISTED
        ));
    }
    out
}

fn worst(plan: &Plan, packed: &Packed) -> Option<Worst> {
    let largest = |of: fn(&Stats) -> f32| {
        let rounded = plan.tensors.iter().zip(&packed.stats).filter(|(t, s)| !t.exact && s.blocks > 0);
        let (t, s) = rounded.max_by(|a, b| of(a.1).total_cmp(&of(b.1)))?;
        Some((of(s), t.name.clone()))
    };
    Some(Worst { relative: largest(|s| s.max_rel_error)?, absolute: largest(|s| s.max_abs_error)? })
}
