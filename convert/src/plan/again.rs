//! A plan made from a container instead of a source: the same tensors for another target.

use super::{CardPlan, Encoding, Options, Plan, ShardPlan, SourcePlan, TensorPlan, fuse, merged, place};
use crate::failure::Refusal;
use crate::recipe::{Recipe, Want};
use anyhow::Result;
use gantry_formats::arch;
use gantry_formats::container::{Container, Part};
use gantry_formats::exit::Exit;
use gantry_formats::layout::Layout;
use gantry_formats::size;
use gantry_formats::target::Target;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// What the options call the layout of one tensor that was asked for by name.
pub(crate) const CHOSEN: &str = "layout ";

impl Plan {
    /// The plan that `convert` would make of the same source with the same options for `target`: int8 in that target's
    /// orders, everything else as it is. Nothing is requantized.
    ///
    /// # Errors
    /// Where this program would group the tensors of the container otherwise, so that it was made by another.
    pub(crate) fn again(container: &Container, target: &'static Target) -> Result<Self> {
        let manifest = container.manifest();
        let sources = sources(container);
        let mut tensors = tensors(container, &sources, target);
        let split_cards = container.split_cards();
        let known = arch::find(&manifest.model.architecture).is_some();
        let fused = known && manifest.options.get("fuse").is_some_and(|fuse| fuse == "on");
        let options = Options {
            recipe: Recipe::parse(&manifest.recipe, "").map_err(anyhow::Error::msg)?,
            overrides: Vec::new(),
            encoding: Encoding::default(),
            target,
            fuse: fused,
            cards: manifest.cards.len(),
            split_cards,
            alignment: container.header().alignment,
            allow_incomplete: true,
            context: None,
        };
        let groups = fuse::group(&tensors, fused, options.alignment)?;
        let places = place::place(&tensors, groups, &options)?;
        places.note_copies(&mut tensors);
        let plan = Self {
            model: manifest.model.clone(),
            recipe: manifest.recipe.clone(),
            target: target.name.into(),
            encoding: options.encoding,
            options: manifest.options.clone(),
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
            cards: places.cards.into_iter().map(|c| CardPlan { kv_bytes: None, ..c }).collect(),
            skeleton: places.skeleton,
            context: None,
            warnings: manifest.warnings.clone(),
            notes: Vec::new(),
        };
        plan.check_same_matrices(container)?;
        Ok(plan)
    }

    fn check_same_matrices(&self, container: &Container) -> Result<()> {
        let manifest = container.manifest();
        let mut old: Vec<_> =
            manifest.tensors.iter().map(|t| (&t.name, &t.shape, &t.parts, t.card)).collect();
        let mut new: Vec<_> = self.stored.iter().map(|t| (&t.name, &t.shape, &t.parts, t.card)).collect();
        old.sort_unstable_by_key(|t| t.0);
        new.sort_unstable_by_key(|t| t.0);
        let banks = |b: &gantry_formats::container::Bank| (b.layer, b.card, b.experts.clone());
        let same_banks = manifest.banks.iter().map(banks).eq(self.banks.iter().map(banks));
        if old == new && same_banks {
            return Ok(());
        }
        let text = "this program would place the container's tensors otherwise; convert the source again";
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
