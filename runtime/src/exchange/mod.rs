//! How the cards of one machine exchange data within one decode step.
//!
//! One card routes: for each layer it sends every other card a *request* (routed ids and the quantized input
//! of the experts) through that card's [`Mailbox`]; each card computes its own experts and writes their rows straight
//! into that card's [`Board`]; it waits for every card and combines the rows in slot order. Where layers are split
//! over cards instead, each card *hands over* its live buffers to the next one through a mailbox. Other devices follow
//! the same rules with their own loads and stores; here they are safe Rust over atomic words.
//!
//! # Rules
//!
//! 1. **Words, then the flag.** Who sends writes the words with relaxed stores, then the [`Epoch`] into the flag with
//!    release order, in one go ([`Mailbox::publish`], [`Board::post`]). Who waits reads the flag with acquire order,
//!    then the words. On a device, words and flag are written by the same kernel, and words of another device are
//!    read past those caches that the interconnect does not invalidate.
//! 2. **A flag holds an epoch, and only that epoch will do.** Words are buffered once, so those under a flag belong to
//!    the flag's epoch alone: a waiter goes on when the flag *equals* what it expects ([`Epoch`] says why that, not
//!    "this or later"). Each side advances a counter of its own; on a device the counter is advanced there, since a
//!    value of the host would freeze in a captured graph.
//! 3. **Every wait is bounded** by a [`Patience`]; what ends it says which card waited for which, in which layer
//!    ([`Late`]).
//! 4. **Who fails says so.** [`Mailbox::abort`], [`Mailbox::refuse`] and [`Board::fail`] set a flag to a value that is
//!    no epoch; waiters stop at once and name the card. It stays so until `reset`, which needs the sole reference.
//!
//! # Why one buffer is enough
//!
//! A place may be written again only after its reader has read it, and the writer must *know* that.
//!
//! - **A mailbox acknowledges.** Its reader releases the epoch that it took when its [`Reader`] ends; `publish`
//!   first waits, bounded, until all that it published before was taken. This holds for requests and handovers alike,
//!   whatever the order in which their users call, also where epochs are skipped because a card had nothing to do.
//! - **A board has no acknowledge of its own; the next request is it.** The card that routes publishes request e + 1 only after it
//!   has read all rows of e, and a card posts rows of e + 1 only after it has read request e + 1. So its reads of
//!   e come before that card's writes of e + 1 by the order of the request's flag. A card that has no request in
//!   e + 1 must not post either. Rows of different cards are disjoint, so cards never wait for each other.
//! - **The card that routes waits for every card that it asked**, also where one has failed the check of an earlier one: either
//!   that, or it gives up the whole exchange (rule 4, then new mailboxes and boards or `reset`).
//!
//! The tests run these rules through the [loom](https://docs.rs/loom) model checker, which tries the orders in which
//! threads and memory may act, and show that it objects when a rule is broken.

mod board;
mod delays;
mod epoch;
mod error;
mod flag;
mod mailbox;
mod patience;
mod reader;
#[cfg(test)]
mod tests;
mod word;
mod writer;

pub use board::{Board, Rows};
pub use delays::{Delays, Point};
pub use epoch::Epoch;
pub use error::{Awaited, BadRow, ExchangeError, Full, Late, Short, Unread};
pub use flag::State;
pub use mailbox::Mailbox;
pub use patience::{Patience, Pause, Who};
pub use reader::Reader;
pub use word::Word;
pub use writer::Writer;
