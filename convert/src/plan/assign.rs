//! Assigns groups to cards: whole layers in runs, or each layer's experts over all cards and the rest on card 0.

use super::Options;
use super::cards::{Beside, refusal, state_bytes};
use super::fuse::Group;
use super::place::Kept;
use crate::failure::Refusal;
use anyhow::Result;
use gantry_formats::arch::BlockState;
use gantry_formats::container::MAX_CARDS;
use gantry_formats::exit::{Exit, ExitCode};
use gantry_formats::placement::{
    CardShortage, Demand, LayerExperts, Misfit, Placement, PlacementError, Resident, Strategy,
    longest_context,
};
use gantry_formats::size;
use std::collections::{BTreeMap, BTreeSet};

/// Fewest positions that are offered where more do not fit.
const SHORTEST: u64 = 16;

/// What was decided.
pub(super) struct Assigned {
    pub(super) strategy: Strategy,
    /// The card of each group that is no bank; of a bank nothing.
    pub(super) cards: Vec<usize>,
    /// Layers with banks, ascending.
    pub(super) experts: Vec<LayerExperts>,
    /// The cards of their experts.
    pub(super) map: Placement,
    /// Bytes that each card had for them, where they were spread.
    pub(super) usable: Vec<Option<u64>>,
}

/// Groups and what is asked of the cards.
pub(super) struct Asked<'a> {
    groups: &'a [Group],
    options: &'a Options,
    beside: &'a Beside<'a>,
    strategy: Strategy,
    experts: Vec<LayerExperts>,
    tensors: Vec<Resident>,
    copies: Vec<Resident>,
    /// Layers of what is no expert and no copy: where a layer's attention is, there its keys and values are.
    layers: BTreeSet<u32>,
}

impl<'a> Asked<'a> {
    /// # Errors
    /// Where the cards are too many, or the rule does not fit the model.
    pub(super) fn new(groups: &'a [Group], options: &'a Options, beside: &'a Beside<'a>) -> Result<Self> {
        let count = options.cards.cards.len();
        if count == 0 || count > MAX_CARDS {
            return Err(Refusal::new(Exit::Usage, format!("--cards {count}: expected 1 to {MAX_CARDS}")));
        }
        let experts = experts(groups, options)?;
        let strategy = options.cards.strategy(!experts.is_empty())?;
        let (mut tensors, mut copies, mut layers) = (Vec::new(), Vec::new(), BTreeSet::new());
        for group in groups {
            let (list, matrix) = match group {
                Group::Tensor(m) => (&mut tensors, m),
                Group::Copy(m) => (&mut copies, m),
                Group::Bank { .. } => continue,
            };
            list.push(Resident::new(matrix.layer, &matrix.role, matrix.bytes));
        }
        layers.extend(tensors.iter().filter_map(|t| t.layer));
        Ok(Self { groups, options, beside, strategy, experts, tensors, copies, layers })
    }

    /// Gives every group and every expert a card.
    ///
    /// # Errors
    /// Where the cards are too small, or nothing can be placed so.
    pub(super) fn assign(self) -> Result<Assigned> {
        let fit = match self.with(self.beside.context, |demand| demand.fit()) {
            Ok(fit) => fit,
            Err(Misfit::Short) => return Err(self.short()),
            Err(Misfit::Never(error)) => return Err(never(&error)),
        };
        let home = |group: &Group| match group {
            Group::Tensor(m) | Group::Copy(m) => {
                let Resident { layer, head, .. } = Resident::new(m.layer, &m.role, m.bytes);
                fit.home(layer, head)
            }
            Group::Bank { .. } => 0,
        };
        let cards = self.groups.iter().map(home).collect();
        let Self { strategy, experts, .. } = self;
        Ok(Assigned { strategy, cards, experts, map: fit.experts, usable: fit.usable })
    }

    /// Everything stays where it is.
    pub(super) fn keep(self, kept: Kept<'_>) -> Assigned {
        let of = |group: &Group| match group {
            Group::Tensor(m) | Group::Copy(m) => kept.tensors.get(&m.name).copied().unwrap_or(0),
            Group::Bank { .. } => 0,
        };
        Assigned {
            strategy: kept.strategy,
            cards: self.groups.iter().map(of).collect(),
            experts: self.experts,
            map: kept.map.clone(),
            usable: Vec::new(),
        }
    }

    /// The refusal that names what each card is short by, and what would fit.
    pub(super) fn short(&self) -> anyhow::Error {
        let context = self.beside.context;
        let fits = |context: u64| self.with(Some(context), |demand| demand.fit().is_ok());
        let fitting = context.and_then(|context| longest_context(SHORTEST, context, fits));
        match self.with(context, |demand| CardShortage::of(&demand, "card ", context, fitting)) {
            Ok(shortage) => Refusal::new(Exit::Resources, shortage.to_string()),
            Err(error) => never(&error),
        }
    }

    /// What is asked of the cards for sequences of `context` positions.
    fn with<T>(&self, context: Option<u64>, ask: impl FnOnce(Demand<'_>) -> T) -> T {
        let cards = &self.options.cards;
        let whole_layers = self.strategy == Strategy::Layers && cards.cards.len() > 1;
        let states: Vec<Option<BlockState>> = self.beside.states(context);
        let states: BTreeMap<u32, u64> = state_bytes(&states, self.layers.iter().copied(), cards.kv);
        let scratch = self.beside.scratch(context, cards.cards.len(), whole_layers).unwrap_or_default();
        ask(Demand {
            alignment: self.options.alignment,
            tensors: &self.tensors,
            copies: &self.copies,
            experts: &self.experts,
            states: &states,
            scratch: &scratch,
            reserve: cards.reserve,
            cards: &cards.cards,
            strategy: self.strategy,
            fill: cards.fill,
        })
    }
}

/// What no budget helps with.
fn never(error: &PlacementError) -> anyhow::Error {
    refusal(error.exit(), &format!("--cards: {error}"))
}

/// The layers with banks, ascending, with what each expert takes and how hot it is.
fn experts(groups: &[Group], options: &Options) -> Result<Vec<LayerExperts>> {
    let hotness = options.cards.hotness.as_ref().map(|m| &m.hotness);
    let mut out = Vec::new();
    for group in groups {
        let Group::Bank { layer, experts, bytes, .. } = group else { continue };
        let stride = size::align_up(*bytes, options.alignment.blob.into());
        let bytes = stride.ok_or_else(|| Refusal::new(Exit::Input, format!("layer {layer}: too large")))?;
        let counts = hotness.and_then(|h| h.layer(*layer)).unwrap_or_default().to_vec();
        out.push(LayerExperts { layer: *layer, experts: *experts as u32, bytes, counts });
    }
    out.sort_by_key(|l| l.layer);
    Ok(out)
}
