//! Cards: what was asked of them, and what a run takes of them beside weights.

use crate::failure::Refusal;
use crate::kv::KvType;
use anyhow::Result;
use gantry_formats::arch::{self, BlockState, Hparams, Metadata, Run};
use gantry_formats::exit::Exit;
use gantry_formats::hotness::Hotness;
use gantry_formats::message::wrap;
use gantry_formats::placement::{CardSpec, Fill, Strategy};
use std::collections::BTreeMap;
use std::fmt;

/// What was meant by the options on cards and placement.
#[derive(Clone, Debug)]
pub(crate) struct CardOptions {
    pub(crate) cards: Vec<CardSpec>,
    /// `None`: what suits the model.
    pub(crate) strategy: Option<Strategy>,
    pub(crate) fill: Fill,
    /// Bytes of each budget that are left free.
    pub(crate) reserve: u64,
    pub(crate) kv: KvType,
    /// Counts of this model.
    pub(crate) hotness: Option<Measured>,
}

/// Counts that fit the model, and what is odd about them.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) hotness: Hotness,
    pub(crate) warnings: Vec<String>,
}

impl CardOptions {
    /// One card without a limit.
    #[cfg(test)]
    pub(crate) fn one() -> Self {
        Self {
            cards: vec![CardSpec { host: false, bytes: None }],
            strategy: None,
            fill: Fill::Share,
            reserve: 0,
            kv: KvType::F32,
            hotness: None,
        }
    }

    /// The rule to place by, in a model with experts in banks or without.
    pub(super) fn strategy(&self, has_banks: bool) -> Result<Strategy> {
        // With every expert on card 0 there is one plan, whatever the rule.
        let alone = self.cards.len() == 1 && has_banks;
        match self.strategy.filter(|_| !alone) {
            None if has_banks && self.cards.len() > 1 => Ok(Strategy::Paired),
            None => Ok(Strategy::Layers),
            Some(Strategy::Layers) => Ok(Strategy::Layers),
            Some(other) if has_banks => Ok(other),
            Some(other) => {
                let text =
                    format!("--placement {other}: the model has no experts; its cards take whole layers");
                Err(refusal(Exit::Usage, &text))
            }
        }
    }

    /// By card.
    pub(super) fn budgets(&self) -> Vec<Option<u64>> {
        self.cards.iter().map(|c| c.bytes).collect()
    }

    /// Whether any card has a budget.
    pub(super) fn limited(&self) -> bool {
        self.cards.iter().any(|c| c.bytes.is_some())
    }

    /// Whether the manifest says why: one card without a budget or counts holds everything, whatever
    /// the rule.
    pub(super) fn worth_recording(&self) -> bool {
        self.cards.len() > 1 || self.limited() || self.hotness.is_some()
    }
}

/// A refusal in lines of at most 80 columns, as it is shown behind `error: `.
pub(super) fn refusal(exit: Exit, text: &str) -> anyhow::Error {
    const SHOWN: &str = "error: ";
    let lines = wrap(&format!("{SHOWN}{text}"), 2);
    Refusal::new(exit, lines.trim_start_matches(SHOWN))
}

/// What a run takes beside weights, for some context.
pub(super) struct Beside<'a> {
    /// Positions; `None` where nothing says.
    pub(super) context: Option<u64>,
    model: Option<Model<'a>>,
}

/// A model by its metadata and the names of its tensors.
struct Model<'a> {
    hparams: &'a Hparams,
    metadata: &'a dyn Metadata,
    has: Box<dyn Fn(&str) -> bool + 'a>,
}

impl<'a> Beside<'a> {
    /// That of a model for `context` positions; `has` says whether it has a tensor.
    pub(super) fn new(
        hparams: &'a Hparams,
        metadata: &'a dyn Metadata,
        context: Option<u64>,
        has: impl Fn(&str) -> bool + 'a,
    ) -> Self {
        Self { context, model: Some(Model { hparams, metadata, has: Box::new(has) }) }
    }

    /// That of a model of which nothing is known.
    pub(super) fn unknown() -> Self {
        Self { context: None, model: None }
    }

    /// What a sequence of `context` positions keeps, by layer; `None` for a layer of which that is not known.
    pub(super) fn states(&self, context: Option<u64>) -> Vec<Option<BlockState>> {
        let of = |(model, context): (&Model<'_>, u64)| {
            arch::states(model.hparams, model.metadata, context, &model.has)
        };
        self.model.as_ref().zip(context).map(of).unwrap_or_default()
    }

    /// Bytes of working memory by card; `None` where it is not known.
    pub(super) fn scratch(&self, context: Option<u64>, cards: usize, whole_layers: bool) -> Option<Vec<u64>> {
        let (model, context) = self.model.as_ref().zip(context)?;
        arch::scratch(model.hparams, model.metadata, Run { context, cards, whole_layers }, &model.has)
    }
}

impl fmt::Debug for Beside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beside").field("context", &self.context).finish_non_exhaustive()
    }
}

/// Bytes of `states` in `layers`, nothing for those that are not known.
pub(super) fn state_bytes(
    states: &[Option<BlockState>],
    layers: impl Iterator<Item = u32>,
    kv: KvType,
) -> BTreeMap<u32, u64> {
    let of = |layer: u32| Some((layer, kv.bytes(states.get(layer as usize)?.as_ref()?)));
    layers.filter_map(of).collect()
}
