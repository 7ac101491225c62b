//! What can go wrong between here and a card.

use super::calls::{NoDriver, Refusal};
use super::family::{CardName, Family, Generation};
use gantry_formats::exit::{Exit, ExitCode};
use std::borrow::Cow;

/// Why a card cannot be used, or stopped working.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// No driver.
    #[error("no {} driver: {} was not found; install {}, or run on --device cpu", .0.driver_name(), .0.library()[0], .0.library()[1])]
    NoDriver(Family),
    /// A driver that lacks what is needed.
    #[error("the {} driver lacks {symbol}; install {}", .family.driver_name(), .family.library()[1])]
    Symbol {
        /// Whose.
        family: Family,
        /// The first function that is missing.
        symbol: &'static str,
    },
    /// A driver that is too old.
    #[error("the {} driver is for {found}, this program needs {needs}; install {}", .family.name(), .family.library()[1])]
    OldDriver {
        /// Whose.
        family: Family,
        /// Its version, in words.
        found: String,
        /// The oldest that would do.
        needs: String,
    },
    /// A driver that does not do what concerns no single card.
    #[error("{family}: {what}: {refusal}")]
    Driver {
        /// Whose.
        family: Family,
        /// What was tried.
        what: &'static str,
        /// What it said.
        refusal: Said,
    },
    /// No such card.
    #[error("{at}: there {} here, from {}:0; `gantry-run devices` lists them", if *count == 1 { "is 1 card".into() } else { format!("are {count} cards") }, .at.family)]
    NoCard {
        /// The one that was asked for.
        at: CardName,
        /// How many there are.
        count: usize,
    },
    /// A generation that there are no kernels for.
    #[error("{at} ({name}) is of generation {generation}; these kernels run on {}", .at.family.generations())]
    Generation {
        /// Which card.
        at: CardName,
        /// What it is.
        name: String,
        /// Which one.
        generation: Generation,
    },
    /// This program was built where no compiler was found, or not for such a card.
    #[error(
        "this program was built without {} kernels for {at}: build it where {} is found ({} names it)",
        .at.family.driver_name(), .at.family.compiler()[0], .at.family.compiler()[1]
    )]
    NoKernels {
        /// Which card.
        at: CardName,
    },
    /// A kernel that the module does not have.
    #[error("no {} kernel is called {name}; this program and its kernels are of different versions", .family.driver_name())]
    NoKernel {
        /// Whose.
        family: Family,
        /// The kernel.
        name: String,
    },
    /// Memory that a card does not have.
    #[error("{at}: no {bytes} bytes for {what}, {free} are free")]
    OutOfMemory {
        /// Which card.
        at: CardName,
        /// What they are for.
        what: &'static str,
        /// How many.
        bytes: u64,
        /// How many are free now.
        free: u64,
    },
    /// Memory of the host that a card copies from, which the host does not have.
    #[error("{at}: no {bytes} bytes of the host's memory could be pinned for {what}, {free} are free")]
    NoPinned {
        /// For which card.
        at: CardName,
        /// What they are for.
        what: &'static str,
        /// How many.
        bytes: u64,
        /// How many the host has free now.
        free: u64,
    },
    /// Cards that do not reach each other's memory.
    #[error("{at} does not reach the memory of {other}; give cards that {} connects, or one card", link(.at.family))]
    NoPeer {
        /// The card that would read and write.
        at: CardName,
        /// The card whose memory it is.
        other: CardName,
    },
    /// Anything else that the driver refused.
    #[error("{at}: {what}: {refusal}")]
    Call {
        /// Which card.
        at: CardName,
        /// What was tried.
        what: Cow<'static, str>,
        /// What it said.
        refusal: Said,
    },
}

/// What a driver said: its name of it, and its number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} ({code})")]
pub struct Said {
    name: Cow<'static, str>,
    code: u32,
    is_short: bool,
}

impl From<Refusal> for Said {
    fn from(Refusal { name, code, is_short }: Refusal) -> Self {
        Self { name, code, is_short }
    }
}

/// What lets cards reach each other, and what lists it.
fn link(family: Family) -> &'static str {
    match family {
        Family::Cuda => "NVLink or one PCIe switch (nvidia-smi topo -p2p r lists them)",
        Family::Hip => "Infinity Fabric or one PCIe switch (rocm-smi --showtopo lists them)",
        Family::LevelZero => "Xe Link or one PCIe switch",
    }
}

impl CardError {
    /// What the driver said when `what` was tried on a card.
    pub(super) fn call(at: CardName, what: impl Into<Cow<'static, str>>, refusal: Refusal) -> Self {
        Self::Call { at, what: what.into(), refusal: refusal.into() }
    }

    pub(super) fn no_driver(family: Family, why: NoDriver) -> Self {
        match why {
            NoDriver::Absent => Self::NoDriver(family),
            NoDriver::Symbol(symbol) => Self::Symbol { family, symbol },
            NoDriver::Old { found, needs } => Self::OldDriver { family, found, needs },
            NoDriver::Start(refusal) => {
                Self::Driver { family, what: "starting the driver", refusal: refusal.into() }
            }
        }
    }
}

impl ExitCode for CardError {
    fn exit(&self) -> Exit {
        match self {
            Self::OutOfMemory { .. } | Self::NoPinned { .. } => Exit::Resources,
            // A context, a stream and a module take memory of the card too.
            Self::Call { refusal, .. } if refusal.is_short => Exit::Resources,
            Self::Call { .. } | Self::Driver { .. } => Exit::Other,
            _ => Exit::Incompatible,
        }
    }
}
