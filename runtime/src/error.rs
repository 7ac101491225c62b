//! What the runtime refuses, and the exit code that each refusal leaves with.

use crate::backend::cpu::Differ;
use crate::exchange::{ExchangeError, Late};
use crate::load::Damage;
use crate::memory::{CardShortage, Shortage};
use crate::session::SavedFault;
use gantry_formats::arch::{ArchError, HparamsError};
use gantry_formats::container::ContainerError;
use gantry_formats::exit::{Exit, ExitCode};
use gantry_formats::hotness::HotnessError;
use gantry_formats::placement::PlacementError;

/// Why a model is not loaded, or a session does not go on.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The container breaks a rule, or a file of it cannot be read.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// A hyperparameter is missing or cannot be.
    #[error(transparent)]
    Hparams(#[from] HparamsError),
    /// The architecture is unknown, or its table is newer than this program's.
    #[error(transparent)]
    Arch(#[from] ArchError),
    /// Weights are not the bytes that were written. Nothing was computed with them.
    #[error("{0}")]
    Damage(Box<Damage>),
    /// The container cannot run here: architecture, target, layout or completeness.
    #[error("{0}")]
    Incompatible(String),
    /// A tensor is missing, or its shape is not what the hyperparameters say.
    #[error("{tensor}: {what}")]
    Tensor {
        /// Its name.
        tensor: String,
        /// Found and expected.
        what: String,
    },
    /// The model does not fit.
    #[error("{0}")]
    Memory(Box<Shortage>),
    /// The cards that were asked for have too little room.
    #[error("{0}")]
    Cards(Box<CardShortage>),
    /// Nothing can be placed so.
    #[error(transparent)]
    Placing(#[from] PlacementError),
    /// Places that are not a total map of the container.
    #[error("placement: {0}; nothing was loaded")]
    Placement(String),
    /// Token counts of another model.
    #[error(transparent)]
    Hotness(#[from] HotnessError),
    /// The system gave no memory although the prediction said that there is enough.
    #[error("no {bytes} bytes for {what}")]
    Allocation {
        /// What they are for.
        what: &'static str,
        /// How many.
        bytes: u64,
        /// What the system said.
        source: std::io::Error,
    },
    /// The context is full.
    #[error(
        "the context is full: {used} of {context} positions are used, {wanted} more wanted; give a larger context \
         (--context), up to what the model was made for"
    )]
    ContextFull {
        /// Positions in use.
        used: usize,
        /// Positions wanted beyond them.
        wanted: usize,
        /// Positions that there are.
        context: usize,
    },
    /// A token that the vocabulary does not have.
    #[error(
        "token {token} does not exist: the model has embeddings for {vocab} tokens, ids 0 to {}; give ids that it \
         has, and where a text gave this one, the container's tokenizer belongs to another model",
        vocab.saturating_sub(1)
    )]
    Token {
        /// The id.
        token: u32,
        /// Size of the model's vocabulary.
        vocab: usize,
    },
    /// A setting that cannot be.
    #[error("{0}")]
    Setting(String),
    /// A saved session that is not taken.
    #[error(transparent)]
    Saved(#[from] SavedFault),
    /// Two cards computed the same expert differently.
    #[error(transparent)]
    Experts(Box<Differ>),
    /// A card cannot be used, or stopped working.
    #[cfg(feature = "cards")]
    #[error(transparent)]
    Card(#[from] crate::backend::device::CardError),
    /// The processor lacks the instruction set that was asked for.
    #[error(transparent)]
    Isa(#[from] gantry_kernels::cpu::IsaError),
    /// A card failed, or another waited for it in vain.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

impl From<Late> for RuntimeError {
    fn from(late: Late) -> Self {
        Self::Exchange(late.into())
    }
}

impl ExitCode for RuntimeError {
    fn exit(&self) -> Exit {
        match self {
            Self::Container(e) => e.exit(),
            Self::Hparams(e) => e.exit(),
            Self::Arch(e) => e.exit(),
            Self::Tensor { .. } => Exit::Input,
            Self::Damage(damage) => damage.exit(),
            Self::Exchange(e) => e.exit(),
            Self::Incompatible(_) | Self::Isa(_) => Exit::Incompatible,
            Self::Experts(_) => Exit::Integrity,
            #[cfg(feature = "cards")]
            Self::Card(e) => e.exit(),
            Self::Placing(e) => e.exit(),
            Self::Saved(e) => e.exit(),
            Self::Hotness(e) => e.exit(),
            Self::Placement(_) => Exit::Input,
            Self::Memory(_) | Self::Cards(_) | Self::Allocation { .. } => Exit::Resources,
            Self::ContextFull { .. } | Self::Token { .. } | Self::Setting(_) => Exit::Usage,
        }
    }
}

/// What the runtime returns.
pub type Result<T, E = RuntimeError> = std::result::Result<T, E>;
