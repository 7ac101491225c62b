//! A card's context, and which cards there are.

use super::CardError;
use super::calls::{Card, Refusal};
use super::family::{CardName, Family, Generation};
use super::ledger::Ledger;
use gantry_formats::target::TARGETS;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What a card is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardInfo {
    /// Its name here.
    pub at: CardName,
    /// As the driver calls it.
    pub name: String,
    /// What kernels are compiled for.
    pub generation: Generation,
    /// Multiprocessors: what groups of threads are given to.
    pub processors: u32,
    /// Bytes of shared memory that a group of threads may have.
    pub shared: u32,
    /// Members of a sub-group that matrix instructions (DPAS) are for, of Intel's; 0 where there are none, and of others.
    pub lanes: u32,
    /// Bytes of memory in all.
    pub memory: u64,
    /// The driver and its version, in words.
    pub driver: String,
}

impl CardInfo {
    /// Whether it takes containers that are packed for `target`: those of its own generation and, of NVIDIA's, of older ones.
    pub fn takes(&self, target: &str) -> bool {
        let Some((family, generation)) = target.split_once(':') else { return false };
        family == self.at.family.name()
            && match &self.generation {
                Generation::Sm(own) => {
                    let of = generation.strip_prefix("sm_").and_then(|n| n.parse::<u32>().ok());
                    of.is_some_and(|of| of <= *own)
                }
                Generation::Named(own) => generation == own,
            }
    }
}

#[cfg(test)]
impl CardInfo {
    /// One of NVIDIA's, of a generation, 10 × major + minor.
    pub(crate) fn sm(generation: u32) -> Self {
        let (at, name) = (CardName { family: Family::Cuda, card: 0 }, "some".into());
        let (generation, driver) = (Generation::Sm(generation), "CUDA 13.0".into());
        Self { at, name, generation, processors: 132, shared: 232_448, lanes: 0, memory: 1 << 30, driver }
    }
}

/// All cards of a family in this machine.
///
/// # Errors
/// Where there is no driver, or it is too old.
pub fn cards(family: Family) -> Result<Vec<CardInfo>, CardError> {
    let driver = family.driver().map_err(|none| CardError::no_driver(family, none))?;
    driver.cards().map_err(|e| CardError::Driver { family, what: "counting cards", refusal: e.into() })
}

/// A card that was opened.
pub(crate) struct Context {
    info: CardInfo,
    card: Arc<dyn Card>,
    pub(super) ledger: Ledger,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.info.at)
    }
}

impl Context {
    /// Opens a card.
    ///
    /// # Errors
    /// Where there is no such card, or these kernels do not run on it.
    pub(crate) fn open(at: CardName) -> Result<Arc<Self>, CardError> {
        let CardName { family, card } = at;
        let all = cards(family)?;
        let count = all.len();
        let info = all.into_iter().nth(card).ok_or(CardError::NoCard { at, count })?;
        if !TARGETS.iter().any(|target| info.takes(target.name)) {
            let CardInfo { name, generation, .. } = info;
            return Err(CardError::Generation { at, name, generation });
        }
        let driver = family.driver().map_err(|none| CardError::no_driver(family, none))?;
        let card = driver.open(&info).map_err(|e| CardError::call(at, "opening it", e))?;
        Ok(Arc::new(Self { info, card, ledger: Ledger::default() }))
    }

    /// What the card is.
    pub(crate) fn info(&self) -> &CardInfo {
        &self.info
    }

    /// The driver's calls for it.
    pub(crate) fn card(&self) -> &dyn Card {
        &*self.card
    }

    /// Bytes that are free now, and all.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn memory(&self) -> Result<(u64, u64), CardError> {
        self.card.memory().map_err(|e| self.failed("asking for free memory", e))
    }

    /// Lets kernels of this card read and write the memory of `other`.
    ///
    /// # Errors
    /// [`CardError::NoPeer`] where nothing leads there; what the driver says.
    pub(crate) fn reach(&self, other: &Self) -> Result<(), CardError> {
        match self.card.reach(&*other.card) {
            Ok(true) => Ok(()),
            Ok(false) => Err(CardError::NoPeer { at: self.info.at, other: other.info.at }),
            Err(e) => Err(self.failed("reaching another card's memory", e)),
        }
    }

    /// What of its memory is taken here, by name: how many allocations, and bytes of all.
    pub(crate) fn held(&self) -> BTreeMap<&'static str, (usize, u64)> {
        self.ledger.held()
    }

    pub(super) fn failed(&self, what: impl Into<Cow<'static, str>>, refusal: Refusal) -> CardError {
        CardError::call(self.info.at, what, refusal)
    }
}
