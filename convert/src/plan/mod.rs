//! The plan: what a container will hold and where every byte goes, decided before the first one is written.
//!
//! Source tensors → roles → layouts → stored matrices made of parts → blobs → places in card segments. A plan is a
//! pure function of the source's headers and the options; [`crate::pack`] carries it out.

mod again;
mod assign;
mod cards;
mod choose;
mod fuse;
mod json;
mod merged;
mod model;
mod place;
mod placement;
mod route;
mod table;

pub(crate) use again::{CHOSEN, Change};
pub(crate) use cards::{CardOptions, Measured};
pub(crate) use choose::Override;
pub(crate) use fuse::MAX_EXPERTS;
pub(crate) use json::json;
pub(crate) use placement::{PlacementPlan, balance, numbers, report_json, share, summary};
pub(crate) use route::{Replicas, Route, chunk_elements};
pub(crate) use table::table;

use crate::encoding::Encoding;
use crate::kv::KvType;
use crate::recipe::{Recipe, Want};
use anyhow::Result;
use cards::Beside;
use gantry_formats::block::GgmlType;
use gantry_formats::container::{Alias, Alignment, Bank, Model, Section, Skeleton, StoredTensor};
use gantry_formats::gguf::Gguf;
use gantry_formats::layout::{Layout, Scales};
use gantry_formats::role::Kind;
use gantry_formats::target::{self, Target};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};

/// What was meant by the command line.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) recipe: Recipe,
    pub(crate) overrides: Vec<Override>,
    pub(crate) encoding: Encoding,
    pub(crate) target: &'static Target,
    pub(crate) fuse: bool,
    pub(crate) cards: CardOptions,
    pub(crate) split_cards: bool,
    pub(crate) alignment: Alignment,
    pub(crate) allow_incomplete: bool,
    pub(crate) context: Option<u64>,
}

/// A source file.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ShardPlan {
    /// Name without folder.
    pub(crate) file: String,
    /// Length.
    pub(crate) bytes: u64,
}

/// A tensor of the source.
#[derive(Clone, Debug)]
pub(crate) struct SourcePlan {
    /// Name, as [`gantry_formats::gguf::display_name`] shows it.
    pub(crate) name: String,
    /// Index of its file.
    pub(crate) shard: usize,
    /// First byte in its file.
    pub(crate) start: u64,
    /// Length in bytes.
    pub(crate) bytes: u64,
    pub(crate) ty: GgmlType,
    /// `ne0` first.
    pub(crate) dims: Vec<u64>,
}

impl SourcePlan {
    /// Rows, all dims above the first counted through.
    fn rows(&self) -> u64 {
        gantry_formats::size::product(self.dims.get(1..).unwrap_or(&[])).unwrap_or(0)
    }
}

/// A tensor and what becomes of it: one of the source, or some rows of one that the source has merged.
#[derive(Clone, Debug)]
pub(crate) struct TensorPlan {
    /// Name: the source's, or of its rows what the architecture calls them.
    pub(crate) name: String,
    /// Index of its source tensor.
    pub(crate) source: usize,
    /// First row of the source that it stands for.
    pub(crate) first_row: u64,
    /// Index of its file.
    pub(crate) shard: usize,
    /// First byte in its file.
    pub(crate) start: u64,
    /// Length in bytes.
    pub(crate) bytes: u64,
    pub(crate) ty: GgmlType,
    /// `ne0` first.
    pub(crate) dims: Vec<u64>,
    pub(crate) elements: u64,
    /// Role: the base name.
    pub(crate) role: String,
    pub(crate) layer: Option<u32>,
    pub(crate) kind: Kind,
    pub(crate) layout: Layout,
    /// Whether every value is kept bit for bit in `layout`.
    pub(crate) exact: bool,
    /// Whether the source's bytes are stored too, as they are.
    pub(crate) with_source: bool,
    /// The blob of these.
    pub(crate) copy: Option<u64>,
    /// Why the recipe's wish was not granted.
    pub(crate) fallback: Option<String>,
    /// What was asked for by name, where that is not what the recipe says for every target.
    pub(crate) chosen: Option<Want>,
    /// How its bytes reach the output.
    pub(crate) route: Route,
}

/// A blob's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BlobPlan {
    pub(crate) card: usize,
    /// First byte inside the card's segment.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// One card's share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CardPlan {
    /// Whether it is the host's memory.
    pub(crate) host: bool,
    /// Its budget, where one was given.
    pub(crate) budget: Option<u64>,
    /// Layers of which it holds something.
    pub(crate) layers: u64,
    /// Bytes of blobs, without padding.
    pub(crate) weight_bytes: u64,
    /// Those of experts in banks.
    pub(crate) expert_bytes: u64,
    pub(crate) segment_bytes: u64,
    /// KV cache and other states for the plan's context length, where the hyperparameters tell.
    pub(crate) kv_bytes: Option<u64>,
    /// Working memory of a run at most, where the hyperparameters tell.
    pub(crate) scratch_bytes: Option<u64>,
}

impl CardPlan {
    /// Bytes of all that is to lie on it, `reserve` of them free.
    pub(crate) fn total(&self, reserve: u64) -> u64 {
        let beside = [self.kv_bytes.unwrap_or(0), self.scratch_bytes.unwrap_or(0), reserve];
        beside.into_iter().fold(self.segment_bytes, u64::saturating_add)
    }

    /// Whether that is within its budget. What was placed before working memory was reckoned with may stay as it is:
    /// `kept`.
    fn fits(&self, reserve: u64, kept: bool) -> bool {
        let scratch = if kept { self.scratch_bytes.unwrap_or(0) } else { 0 };
        self.budget.is_none_or(|budget| self.total(reserve).saturating_sub(scratch) <= budget)
    }
}

/// The whole plan.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) model: Model,
    pub(crate) recipe: String,
    pub(crate) target: String,
    pub(crate) encoding: Encoding,
    /// Resolved options, as the manifest records them.
    pub(crate) options: BTreeMap<String, String>,
    pub(crate) shards: Vec<ShardPlan>,
    /// In file order.
    pub(crate) sources: Vec<SourcePlan>,
    /// In order of their sources and rows.
    pub(crate) tensors: Vec<TensorPlan>,
    pub(crate) layouts: Vec<Layout>,
    pub(crate) stored: Vec<StoredTensor>,
    pub(crate) banks: Vec<Bank>,
    pub(crate) aliases: Vec<Alias>,
    /// In order of card and offset.
    pub(crate) blobs: Vec<BlobPlan>,
    /// Blobs that hold what another holds.
    pub(crate) replicas: Replicas,
    pub(crate) cards: Vec<CardPlan>,
    pub(crate) placement: PlacementPlan,
    pub(crate) skeleton: Skeleton,
    /// Context length of the KV cache estimate.
    pub(crate) context: Option<u64>,
    /// Type of that cache.
    pub(crate) kv: KvType,
    /// Worth telling, and recorded in the manifest.
    pub(crate) warnings: Vec<String>,
    /// Worth telling.
    pub(crate) notes: Vec<String>,
}

impl Plan {
    /// Plans the conversion of `source`.
    ///
    /// # Errors
    /// Where the source does not fit its architecture, or the options do not fit the source.
    pub(crate) fn make(source: &Gguf, options: &Options) -> Result<Self> {
        let known = model::examine(source, options.allow_incomplete)?;
        let sources = model::sources(source)?;
        let mut tensors = merged::split(&sources, &known.hparams);
        choose::choose(&mut tensors, options, known.hparams.experts > 0)?;
        let groups = fuse::group(&tensors, known.arch.is_some() && options.fuse, options.alignment)?;
        let context = options.context.or(known.hparams.context_length.map(|n| n.min(4096)));
        let has = |name: &str| tensors.iter().any(|t| t.name == name);
        let beside = Beside::new(&known.hparams, source.header(), context, has);
        let places = place::place(&tensors, groups, options, &beside, None)?;
        drop(beside);
        let placement = PlacementPlan::new(&places, options, context)?;
        places.note_copies(&mut tensors);
        let (routes, replicas) = route::routes(&tensors, &places.stored, &places.banks, &places.layouts);
        for (tensor, route) in tensors.iter_mut().zip(routes) {
            tensor.route = route;
        }
        let aliases = known.aliases(&tensors);
        let mut resolved = options.encoding.resolved(&tensors, &sources);
        resolved.insert("fuse".into(), if options.fuse { "on" } else { "off" }.into());
        resolved.insert("placement".into(), places.strategy.to_string());
        for (t, want) in tensors.iter().filter_map(|t| Some((t, t.chosen?))) {
            resolved.insert(format!("{}{}", CHOSEN, t.name), want.to_string());
        }
        let mut warnings = known.warnings;
        let fallen = tensors.iter().filter_map(|t| Some(format!("{}: {}", t.name, t.fallback.as_ref()?)));
        warnings.extend(fallen);
        let mut notes = target::obstacles(known.arch, &known.hparams, places.layouts.iter());
        notes.extend(foreign(options.target, &places.layouts));
        if options.cards.limited() && places.cards.first().is_some_and(|c| c.kv_bytes.is_none()) {
            notes.push(
                "how large the KV cache is, the metadata do not say: budgets do not count all of it".into(),
            );
        }
        notes.extend(options.encoding.notes(&tensors, &sources));
        notes.extend(options.recipe.unused(&tensors, known.hparams.experts > 0));
        // What is stored twice because it was asked for is no surprise.
        let twice: HashSet<u64> = replicas.values().flatten().copied().collect();
        let once = places.blobs.iter().zip(0u64..).filter(|(_, i)| !twice.contains(i));
        let (read, packed) = (tensors.iter().map(|t| t.bytes), once.map(|(b, _)| b.bytes));
        let copied = tensors.iter().filter(|t| t.with_source).map(|t| t.bytes);
        if packed.sum::<u64>() - copied.sum::<u64>() > read.sum::<u64>() / 20 * 21 {
            let text = "the container is larger than the source, and no more accurate; --recipe lossless changes no value";
            notes.push(text.into());
        }
        Ok(Self {
            model: known.model,
            recipe: options.recipe.name.clone(),
            target: options.target.name.into(),
            encoding: options.encoding.clone(),
            options: resolved,
            shards: source
                .shards()
                .iter()
                .map(|s| ShardPlan { file: s.file_name().into(), bytes: s.len() })
                .collect(),
            sources,
            tensors,
            layouts: places.layouts,
            stored: places.stored,
            banks: places.banks,
            aliases,
            blobs: places.blobs,
            replicas,
            cards: places.cards,
            placement,
            skeleton: places.skeleton,
            context,
            kv: options.cards.kv,
            warnings,
            notes,
        })
    }

    /// Bytes of the files that will be written, sections estimated from above.
    pub(crate) fn disk_bytes(&self, header_bytes: u64) -> u64 {
        let table = gantry_formats::container::Table::bytes_for(self.blobs.iter().map(|b| b.bytes));
        // A stored tensor, its source tensor and a warning take some 700 bytes of JSON between them.
        let matrices = self.banks.iter().map(|b| b.matrices.len() + b.experts.len() / 64);
        let lines = self.stored.len() + self.sources.len() + matrices.sum::<usize>();
        let tail = header_bytes + table + (512 * lines as u64) + (64 << 10);
        let cards: u64 = match self.skeleton.split_cards {
            true => (0..self.cards.len()).map(|c| self.skeleton.card_file_bytes(c)).sum(),
            false => 0,
        };
        self.skeleton.tail_offset + tail + cards
    }

    /// Where card `card`'s segment lies in its file.
    pub(crate) fn segment(&self, card: usize) -> Section {
        self.skeleton.segments[card]
    }
}

/// What to tell of a target that is not this processor: that the CPU runs it where there is no backend yet, and which layouts
/// its kernels are not meant to read.
fn foreign(target: &Target, layouts: &[Layout]) -> Vec<String> {
    if target.family() == "cpu" {
        let own = |l: &&Layout| matches!(l, Layout::I8 { order, .. } if *order != target.order("", Scales::Block32));
        let slow: Vec<String> = layouts.iter().filter(own).map(Layout::to_string).collect();
        if slow.is_empty() {
            return Vec::new();
        }
        return vec![format!("{} is another target's order, which the CPU reads slower", slow.join(", "))];
    }
    let mut out = Vec::new();
    if target.family() != "cuda" {
        let family = target.family();
        out.push(format!("gantry-run has no {family} backend yet; it runs this on the CPU, slower"));
    }
    let odd: Vec<String> = layouts.iter().filter(|l| !target.takes(**l)).map(Layout::to_string).collect();
    if !odd.is_empty() {
        let text = format!(
            "kernels of {} are not meant to read {}; --set gives others",
            target.name,
            odd.join(", ")
        );
        out.push(text);
    }
    out
}
