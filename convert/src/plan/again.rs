//! A plan made from a container instead of a source: the same tensors for another target, or on other cards.

use super::cards::Beside;
use super::place::Kept;
use super::{
    CardOptions, Encoding, Options, PlacementPlan, Plan, Replicas, ShardPlan, SourcePlan, TensorPlan, fuse,
    merged, place,
};
use crate::failure::Refusal;
use crate::recipe::{Recipe, Want};
use anyhow::Result;
use gantry_formats::arch::{self, Hparams};
use gantry_formats::container::{Container, Part};
use gantry_formats::exit::Exit;
use gantry_formats::layout::Layout;
use gantry_formats::placement::Strategy;
use gantry_formats::size;
use gantry_formats::target::Target;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What the options call the layout of one tensor that was asked for by name.
pub(crate) const CHOSEN: &str = "layout ";

/// What is to be another than in the container.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) target: &'static Target,
    pub(crate) split_cards: bool,
    pub(crate) cards: CardOptions,
    /// Positions that the KV cache is estimated for.
    pub(crate) context: Option<u64>,
    /// Every tensor and expert stays on its card.
    pub(crate) keeps_cards: bool,
}

impl Plan {
    /// The plan that `convert` would make of the same source with the same options and this change: int8 in the
    /// target's orders, everything else as it is. Nothing is requantized.
    ///
    /// # Errors
    /// Where this program would group the tensors of the container otherwise, so that it was made by another; where
    /// they do not fit the cards.
    pub(crate) fn again(container: &Container, change: &Change) -> Result<Self> {
        let manifest = container.manifest();
        let sources = sources(container);
        let mut tensors = tensors(container, &sources, change.target);
        let known = arch::find(&manifest.model.architecture).is_some();
        let fused = known && manifest.options.get("fuse").is_some_and(|fuse| fuse == "on");
        let options = Options {
            recipe: Recipe::parse(&manifest.recipe, "").map_err(anyhow::Error::msg)?,
            overrides: Vec::new(),
            encoding: Encoding::default(),
            target: change.target,
            fuse: fused,
            cards: change.cards.clone(),
            split_cards: change.split_cards,
            alignment: container.header().alignment,
            allow_incomplete: true,
            context: change.context,
        };
        let groups = fuse::group(&tensors, fused, options.alignment)?;
        let header = container.gguf_headers().first();
        let hparams = header.map(|header| Hparams::read(header));
        // For as many positions as `convert` assumes where nothing else is said.
        let trained = hparams.as_ref().and_then(|h| h.context_length);
        let context = header.and(change.context.or(trained.map(|n| n.min(4096))));
        let has = |name: &str| tensors.iter().any(|t| t.name == name);
        let beside = match header.zip(hparams.as_ref()) {
            Some((header, hparams)) => Beside::new(hparams, header, context, has),
            None => Beside::unknown(),
        };
        let homes: HashMap<String, usize> =
            manifest.tensors.iter().map(|t| (t.name.clone(), t.card as usize)).collect();
        let map = manifest.expert_map(manifest.cards.len());
        let strategy = manifest.placement.as_ref().and_then(|p| p.strategy.parse().ok());
        let kept = Kept { strategy: strategy.unwrap_or(Strategy::Layers), map: &map, tensors: &homes };
        let places = place::place(&tensors, groups, &options, &beside, change.keeps_cards.then_some(kept))?;
        drop(beside);
        let placement = match (change.keeps_cards, &manifest.placement) {
            (true, old) => PlacementPlan::kept(&places, old.clone()),
            (false, _) => PlacementPlan::new(&places, &options, context)?,
        };
        places.note_copies(&mut tensors);
        let mut resolved = manifest.options.clone();
        if !change.keeps_cards {
            resolved.insert("placement".into(), places.strategy.to_string());
        }
        let plan = Self {
            model: manifest.model.clone(),
            recipe: manifest.recipe.clone(),
            target: change.target.name.into(),
            encoding: options.encoding,
            options: resolved,
            shards: manifest
                .sources
                .iter()
                .map(|s| ShardPlan { file: s.file.clone(), bytes: s.bytes })
                .collect(),
            sources,
            tensors,
            layouts: places.layouts,
            stored: places.stored,
            banks: places.banks,
            aliases: manifest.aliases.clone(),
            blobs: places.blobs,
            replicas: Replicas::new(),
            cards: places.cards,
            placement,
            skeleton: places.skeleton,
            context,
            kv: options.cards.kv,
            warnings: manifest.warnings.clone(),
            notes: Vec::new(),
        };
        plan.check_same_matrices(container)?;
        Ok(plan)
    }

    fn check_same_matrices(&self, container: &Container) -> Result<()> {
        let manifest = container.manifest();
        let mut old: Vec<_> = manifest.tensors.iter().map(|t| (&t.name, &t.shape, &t.parts)).collect();
        let mut new: Vec<_> = self.stored.iter().map(|t| (&t.name, &t.shape, &t.parts)).collect();
        old.sort_unstable_by_key(|t| t.0);
        new.sort_unstable_by_key(|t| t.0);
        let matrices = |banks: &[gantry_formats::container::Bank]| -> BTreeSet<(u32, String, Vec<u64>)> {
            let all = banks.iter().flat_map(|b| b.matrices.iter().map(move |m| (b.layer, m)));
            all.map(|(layer, m)| (layer, m.name.clone(), m.shape.clone())).collect()
        };
        if old == new && matrices(&manifest.banks) == matrices(&self.banks) {
            return Ok(());
        }
        let text = "this program would group the container's tensors otherwise; convert the source again";
        Err(Refusal::new(Exit::Incompatible, text))
    }
}

fn sources(container: &Container) -> Vec<SourcePlan> {
    let list = container.manifest().source_tensors.iter().map(|t| SourcePlan {
        name: t.name.clone(),
        shard: t.shard as usize,
        start: 0,
        bytes: size::product(&t.dims).and_then(|n| t.ty.bytes_for(n)).unwrap_or(0),
        ty: t.ty,
        dims: t.dims.clone(),
    });
    list.collect()
}

/// The planned tensors that the container's matrices are made of, with their layouts on `target`.
fn tensors(container: &Container, sources: &[SourcePlan], target: &Target) -> Vec<TensorPlan> {
    let manifest = container.manifest();
    let mut out: BTreeMap<(u32, u64), TensorPlan> = BTreeMap::new();
    let mut add = |name: &str, layout: Layout, parts: &[Part], experts: bool| {
        for part in parts {
            let s = &sources[part.source as usize];
            let all = s.rows();
            // In a bank rows count inside one expert, and all of them are there.
            let rows = if experts { 0..all } else { part.rows[0]..part.rows[1] };
            let name = if rows == (0..all) { &s.name } else { name };
            let mut t = merged::tensor(part.source as usize, s, name.to_string(), rows);
            t.chosen = manifest.options.get(&format!("{CHOSEN}{name}")).and_then(|w| w.parse::<Want>().ok());
            t.layout = match layout {
                Layout::I8 { scales, plane_align, .. } if !t.chosen.is_some_and(Want::names_an_order) => {
                    Layout::I8 { order: target.order(&t.role, scales), scales, plane_align }
                }
                other => other,
            };
            t.exact = t.layout.keeps(t.ty);
            match out.entry((part.source, part.rows[0])) {
                Entry::Vacant(entry) => {
                    entry.insert(t);
                }
                // Rows that were seen before, as they are in the source: the copy that was asked for.
                Entry::Occupied(mut entry) if !experts => entry.get_mut().with_source = true,
                Entry::Occupied(_) => {}
            }
        }
    };
    for bank in &manifest.banks {
        for m in &bank.matrices {
            add(&m.name, container.layouts()[m.layout as usize], &m.parts, true);
        }
    }
    for t in &manifest.tensors {
        add(&t.name, container.layouts()[t.layout as usize], &t.parts, false);
    }
    out.into_values().collect()
}
