//! What cards give each other in a run, behind one interface: here over memory that they reach ([`super::peers`]); a
//! library for cards of many hosts would stand in its place.

use super::steps::{Around, Runner};
use crate::Result;
use crate::model::program::Step;

/// What carries data from card to card.
///
/// Each card gives its own steps to its own stream, in the order of its list; what one sends or returns, another receives
/// or collects in the same order. Streams wait for each other, the host does not, so that a run may be recorded.
pub(super) trait Exchange: Send + Sync {
    /// Gives `step`, one of [`Step::Send`], [`Step::Receive`], [`Step::Return`], [`Step::Collect`], to the stream of
    /// `runner`, for `n` rows of tokens.
    fn step(&self, runner: &Runner, around: &Around<'_, '_>, step: &Step, n: usize) -> Result<()>;

    /// Lets no card wait any longer. What is on its way is lost.
    fn abort(&self);

    /// What the cards found wrong since the last [`reset`](Self::reset). All of them are idle.
    ///
    /// # Errors
    /// A card that was waited for in vain or has failed; rows that differ; what the driver says.
    fn check(&self) -> Result<()>;

    /// Begins anew, on idle cards.
    ///
    /// # Errors
    /// What the driver says.
    fn reset(&self) -> Result<()>;
}
