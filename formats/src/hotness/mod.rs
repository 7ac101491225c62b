//! Hotness: how many tokens the routers of a model gave to each expert of each layer.
//!
//! Measured by running a model over text, and read from what measures it: Gantry's own JSON (`docs/HOTNESS.md`),
//! the `counts` of an importance matrix ([`Format::Imatrix`]), or SGLang's CSV, one file per rank, which are summed.
//! [`Reading::fit`] compares a reading with a model before anything is placed by it.

mod csv;
mod error;
mod fit;
mod imatrix;
mod json;
mod model;
mod read;

pub use error::{HotnessError, HotnessFault};
pub use fit::ENOUGH;
pub use json::{SCHEMA, VERSION};
pub use model::RoutedModel;
pub use read::{Format, MAX_TEXT, Reading, is_text, read};

/// Most layers of a model that are taken.
pub const MAX_LAYERS: u32 = 4096;

/// Most experts of a layer that are taken.
pub const MAX_EXPERTS: u32 = 1 << 14;

/// Most counts of all layers together that are kept: 32 MiB.
pub const MAX_COUNTS: u64 = 1 << 22;

/// Token counts by layer and expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hotness {
    /// Which model: [`RoutedModel::fingerprint`]. `None` where the file does not say.
    pub fingerprint: Option<String>,
    /// Blocks of the model, with experts or without.
    pub layers: u32,
    /// Experts of a layer.
    pub experts: u32,
    /// Tokens that were seen, 0 where that is not known.
    pub tokens: u64,
    /// Layers with experts, ascending.
    pub counts: Vec<LayerCounts>,
}

/// The counts of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerCounts {
    /// Layer: N of `blk.N`.
    pub layer: u32,
    /// Tokens by expert, [`Hotness::experts`] of them. A token counts once for each expert that it was given to.
    pub counts: Vec<u64>,
}

impl Hotness {
    /// No token seen yet: zeros for every layer of `model` that has experts.
    pub fn new(model: &RoutedModel) -> Self {
        let zeros = |&layer: &u32| LayerCounts { layer, counts: vec![0; model.experts as usize] };
        Self {
            fingerprint: model.fingerprint.clone(),
            layers: model.layers,
            experts: model.experts,
            tokens: 0,
            counts: model.routed.iter().map(zeros).collect(),
        }
    }

    /// The counts of a layer, by expert.
    pub fn layer(&self, layer: u32) -> Option<&[u64]> {
        let at = self.counts.binary_search_by_key(&layer, |l| l.layer).ok()?;
        self.counts.get(at).map(|l| l.counts.as_slice())
    }

    /// Adds the counts and tokens of `other`, which may have layers and experts that this has not.
    ///
    /// # Errors
    /// [`HotnessFault::Overflow`] where a sum does not fit 64 bits; the counts are then partly added.
    pub fn add(&mut self, other: &Self) -> Result<(), HotnessFault> {
        self.layers = self.layers.max(other.layers);
        self.experts = self.experts.max(other.experts);
        let experts = self.experts as usize;
        // Before memory is taken: one may have many layers and the other many experts.
        let new = other.counts.iter().filter(|l| self.layer(l.layer).is_none()).count();
        if (self.counts.len() + new) as u64 * u64::from(self.experts) > MAX_COUNTS {
            return Err(HotnessFault::Malformed { what: format!("more than {MAX_COUNTS} counts") });
        }
        self.counts.iter_mut().for_each(|l| l.counts.resize(experts, 0));
        for theirs in &other.counts {
            let layer = theirs.layer;
            let at = match self.counts.binary_search_by_key(&layer, |l| l.layer) {
                Ok(at) => at,
                Err(at) => {
                    self.counts.insert(at, LayerCounts { layer, counts: vec![0; experts] });
                    at
                }
            };
            for (expert, (own, count)) in self.counts[at].counts.iter_mut().zip(&theirs.counts).enumerate() {
                let what = || HotnessFault::Overflow { what: format!("layer {layer} expert {expert}") };
                *own = own.checked_add(*count).ok_or_else(what)?;
            }
        }
        let tokens = self.tokens.checked_add(other.tokens);
        self.tokens = tokens.ok_or_else(|| HotnessFault::Overflow { what: "the tokens".into() })?;
        self.check()
    }

    /// The rules that every hotness keeps: layers ascending and below [`layers`](Self::layers), as many counts as
    /// experts, numbers within the limits, and a sum of all counts that fits 64 bits.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), HotnessFault> {
        let bad = |what: String| Err(HotnessFault::Malformed { what });
        if self.layers > MAX_LAYERS || self.experts > MAX_EXPERTS {
            return bad(format!(
                "{} layers of {} experts, expected at most {MAX_LAYERS} of {MAX_EXPERTS}",
                self.layers, self.experts
            ));
        }
        if self.counts.len() as u64 * u64::from(self.experts) > MAX_COUNTS {
            return bad(format!("more than {MAX_COUNTS} counts"));
        }
        let mut before = None;
        for LayerCounts { layer, counts } in &self.counts {
            if *layer >= self.layers {
                return bad(format!("layer {layer}: the file's model has {} layers, from 0", self.layers));
            }
            if before.is_some_and(|before| before >= *layer) {
                return bad(format!("layer {layer} occurs twice, or after a later one"));
            }
            before = Some(*layer);
            if counts.len() as u64 != u64::from(self.experts) {
                let n = counts.len();
                return bad(format!("layer {layer}: {n} counts, expected {} (experts)", self.experts));
            }
        }
        let mut all = self.counts.iter().flat_map(|l| &l.counts);
        let sum = all.try_fold(0u64, |sum, count| sum.checked_add(*count));
        sum.map(|_| ()).ok_or_else(|| HotnessFault::Overflow { what: "all counts together".into() })
    }
}
