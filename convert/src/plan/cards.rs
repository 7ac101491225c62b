//! Cards: what was asked of them, and what each has room for.

use crate::failure::Refusal;
use crate::kv::KvType;
use crate::units;
use anyhow::Result;
use gantry_formats::arch::{self, BlockState, Hparams, Metadata};
use gantry_formats::exit::Exit;
use gantry_formats::hotness::Hotness;
use gantry_formats::placement::{CardSpec, Fill, Strategy};
use gantry_formats::size;
use std::collections::BTreeSet;

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
                Err(Refusal::new(Exit::Usage, text))
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

    /// Bytes of card `card`'s budget for weights beside `kv` bytes of KV cache, in whole segment alignments;
    /// `None` without a budget.
    pub(super) fn room(&self, card: usize, kv: u64, segment: u32) -> Option<u64> {
        let budget = self.cards.get(card)?.bytes?;
        let left = budget.saturating_sub(self.reserve).saturating_sub(kv);
        Some(left / u64::from(segment) * u64::from(segment))
    }
}

/// What a sequence keeps, by layer.
#[derive(Clone, Debug, Default)]
pub(super) struct States {
    /// Positions; `None` where nothing says.
    pub(super) context: Option<u64>,
    /// `None` for a layer whose state is not known.
    by_layer: Vec<Option<BlockState>>,
    /// The same for half as many positions, a quarter, and so on.
    shorter: Vec<(u64, Vec<Option<BlockState>>)>,
}

/// Fewest positions that are offered where more do not fit.
const SHORTEST: u64 = 16;

impl States {
    /// Those of a model for `context` positions; `has` says whether it has a tensor.
    pub(super) fn new(
        hparams: &Hparams,
        metadata: &dyn Metadata,
        context: Option<u64>,
        has: impl Fn(&str) -> bool,
    ) -> Self {
        let of = |n: u64| arch::states(hparams, metadata, n, &has);
        let halves = std::iter::successors(context, |n| Some(n / 2)).skip(1).take_while(|n| *n >= SHORTEST);
        let shorter = halves.map(|n| (n, of(n))).collect();
        Self { context, by_layer: context.map(of).unwrap_or_default(), shorter }
    }

    /// Bytes that these layers keep; `None` where one is not known.
    pub(super) fn bytes(&self, layers: impl Iterator<Item = u32>, kv: KvType) -> Option<u64> {
        self.context?;
        sum(&self.by_layer, layers, kv)
    }

    /// The most positions, of those that are half as many again and again, whose states take at most `room` bytes.
    pub(super) fn fitting(&self, layers: &BTreeSet<u32>, kv: KvType, room: u64) -> Option<u64> {
        let fits = |states: &[Option<BlockState>]| {
            sum(states, layers.iter().copied(), kv).is_some_and(|n| n <= room)
        };
        self.shorter.iter().find(|(_, states)| fits(states)).map(|(n, _)| *n)
    }
}

fn sum(states: &[Option<BlockState>], mut layers: impl Iterator<Item = u32>, kv: KvType) -> Option<u64> {
    let of = |layer: u32| states.get(layer as usize).copied().flatten().map(|s| s.bytes(kv.bytes()));
    layers.try_fold(0u64, |sum, layer| Some(sum.saturating_add(of(layer)?)))
}

/// A card whose budget does not hold what must lie on it.
pub(super) struct Shortage<'a> {
    pub(super) card: usize,
    pub(super) budget: u64,
    pub(super) weights: u64,
    /// What the weights are.
    pub(super) what: &'a str,
    pub(super) kv: u64,
    /// Layers whose keys and values are on it.
    pub(super) layers: &'a BTreeSet<u32>,
}

impl Shortage<'_> {
    /// The refusal: how much is short, and what would fit.
    pub(super) fn refusal(&self, options: &CardOptions, states: &States, segment: u32) -> anyhow::Error {
        let (card, budget, what, reserve) = (self.card, self.budget, self.what, options.reserve);
        let weights = size::align_up(self.weights, segment.into()).unwrap_or(u64::MAX);
        let need = weights.saturating_add(self.kv).saturating_add(reserve);
        let mut text = format!(
            "card {card} is {} MiB short: {} of {what}, {} of KV cache and {} of reserve, its budget is {}",
            mib(need.saturating_sub(budget)),
            units::bytes(weights),
            units::bytes(self.kv),
            units::bytes(reserve),
            units::bytes(budget),
        );
        let left = budget.saturating_sub(weights.saturating_add(reserve));
        match states.fitting(self.layers, options.kv, left) {
            Some(context) => text += &format!("; --context {context} would fit"),
            None => text += &format!("; a budget of {}MiB would fit", need.div_ceil(1 << 20)),
        }
        Refusal::new(Exit::Resources, text)
    }
}

/// MiB with one digit, rounded up, so that adding them is enough.
pub(super) fn mib(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10).div_ceil(1 << 20);
    format!("{}.{}", tenths / 10, tenths % 10)
}
