//! How fast kernels are, each alone: launched by the functions that run a model's steps, one by one. (What few
//! tokens have fused, by `plan`, is not measured here.)
//!
//! Launches are recorded as graphs and replayed. Weights are cold: each launch of a graph reads another copy, so many of
//! them that no cache holds them. What can be read at most is measured in the same run, with kernels that people would
//! have otherwise: cuBLASLt's int8 product, and our own for rows that are not packed.

mod built_in;
mod cases;
mod described;
mod ids;
mod replay;
mod roof;
mod stretched;

use super::driver::{CardError, CardInfo, CardName, Context};
use super::{bare, check_target, limits};
use crate::backend::cuda::CublasLt;
use crate::backend::{KvType, Settings};
use crate::model;
use crate::{Container, Result};
use cases::Cases;
use std::sync::Arc;
use stretched::Stretched;

pub use roof::Roof;

/// How kernels are measured.
#[derive(Clone, Debug)]
pub struct KernelOptions {
    /// Replays before any that counts.
    pub warm_up: usize,
    /// Replays that count.
    pub samples: usize,
    /// Only cases whose layout, shape and tokens (`n=8`) have all of these words in them.
    pub only: Vec<String>,
    /// Longest sequence; `None`: the model's, at most 4096.
    pub context: Option<usize>,
    /// How keys and values are kept.
    pub kv: KvType,
}

impl KernelOptions {
    /// Whether some case with so many tokens may have been asked for.
    fn want_tokens(&self, n: usize) -> bool {
        self.only.iter().filter(|word| word.starts_with("n=")).all(|word| *word == format!("n={n}"))
    }

    /// Whether a case is one of those that were asked for.
    fn want(&self, what: &str, shape: &str, n: usize) -> bool {
        let text = format!("{what} {shape} n={n} ");
        self.only.iter().all(|word| match word.starts_with("n=") {
            // Whole numbers: n=1 is not n=16.
            true => text.contains(&format!("{word} ")),
            false => text.contains(word.as_str()),
        })
    }
}

/// A kernel, or a few that make one step, at one shape.
#[derive(Clone, Debug)]
pub struct KernelCase {
    /// A layout, or what the step is called.
    pub what: String,
    /// Rows and columns, or heads, or values.
    pub shape: String,
    /// Kernels of a launch in their order; for a library its own.
    pub kernels: Vec<&'static str>,
    /// Tokens of a run.
    pub tokens: usize,
    /// Positions of the sequence, where that counts.
    pub length: Option<usize>,
    /// Bytes that have to be read: weights, what is kept of a sequence, or where there is neither, activations.
    pub bytes: u64,
    /// Multiplications and additions of a product.
    pub operations: u64,
    /// Copies that were read in turn.
    pub copies: usize,
    /// Whether they are so many that caches do not matter.
    pub cold: bool,
    /// Whether it is here to compare with.
    pub baseline: bool,
    /// What was measured, or why nothing was.
    pub time: std::result::Result<Timing, String>,
}

/// Microseconds of one launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// The median.
    pub median: f64,
    /// Nine of ten were no longer.
    pub p90: f64,
}

impl KernelCase {
    /// Bytes per second.
    pub fn rate(&self) -> Option<f64> {
        self.time.as_ref().ok().map(|t| self.bytes as f64 / t.median.max(1e-3) * 1e6)
    }

    /// Operations per second of a product.
    pub fn speed(&self) -> Option<f64> {
        let time = self.time.as_ref().ok().filter(|_| self.operations > 0);
        time.map(|t| self.operations as f64 / t.median.max(1e-3) * 1e6)
    }
}

/// A card that kernels are measured on, and what bounds them there.
pub struct KernelBench {
    context: Arc<Context>,
    roof: Roof,
    pinned: f64,
    library: std::result::Result<CublasLt, String>,
}

impl KernelBench {
    /// Measures what bounds kernels on `card`, and looks for cuBLASLt.
    ///
    /// # Errors
    /// Where there is no such card, and what the driver says.
    pub fn open(card: CardName) -> Result<Self> {
        let context = Context::open(card)?;
        let roof = roof::measure(&context)?;
        let pinned = bare::pinned_copy(card, context.memory()?.0 / 4)?;
        let library = CublasLt::open(&context)?;
        Ok(Self { context, roof, pinned, library })
    }

    /// The card.
    pub fn card(&self) -> &CardInfo {
        self.context.info()
    }

    /// What can be read at most.
    pub fn roof(&self) -> Roof {
        self.roof
    }

    /// Bytes per second of copies from pinned memory of the host.
    pub fn pinned(&self) -> f64 {
        self.pinned
    }

    /// cuBLASLt's version, or why it is not compared with.
    pub fn library(&self) -> std::result::Result<String, &str> {
        self.library.as_ref().map(CublasLt::version).map_err(String::as_str)
    }

    /// Measures every kernel that a container's model launches, at every shape that it has: with random weights, and
    /// with the sequences of one session. `each` gets one after the other.
    ///
    /// # Errors
    /// Where the model does not run on this card, and what the driver says.
    pub fn model(
        &self,
        container: &Container,
        options: &KernelOptions,
        each: &mut dyn FnMut(KernelCase),
    ) -> Result<()> {
        let packed = &container.manifest().cards;
        let [card] = packed.as_slice() else { return Err(limits::one_card()) };
        check_target(self.context.info(), &card.target)?;
        let trained = model::plan(container, 1)?.context;
        let context =
            options.context.unwrap_or(trained.unwrap_or(stretched::CONTEXT).min(stretched::CONTEXT));
        let context = context.max(1);
        let settings = Settings { context, batch: context.min(stretched::BATCH), kv: options.kv, window: 0 };
        let program = model::plan(container, context)?;
        limits::check(&program, &settings, 1)?;
        let stretched = Stretched::of_model(container, program, (self.budget()?, options))?;
        Cases::new((&self.context, settings), stretched, options)?.run(self.library.as_ref().ok(), each)
    }

    /// Measures products of the layouts that this card's target has, at some shapes of large models.
    ///
    /// # Errors
    /// What the driver says.
    pub fn built_in(&self, options: &KernelOptions, each: &mut dyn FnMut(KernelCase)) -> Result<()> {
        let stretched = built_in::products(self.context.info(), (self.budget()?, options))?;
        let settings = Settings { context: 1, batch: built_in::most(options), kv: options.kv, window: 0 };
        Cases::new((&self.context, settings), stretched, options)?.run(self.library.as_ref().ok(), each)
    }

    /// Bytes for copies of weights: half of what is free.
    fn budget(&self) -> Result<u64, CardError> {
        Ok(self.context.memory()?.0 / 2)
    }
}
