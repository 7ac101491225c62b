//! Tests of the whole protocol: single threads, all orders of small models, and many steps with delays.

mod ledger;
mod messages;
mod models;
mod stress;
mod wrong;

use super::{Patience, Who};
use std::time::Duration;

/// More patience than any test has time.
const ENDLESS: Patience = Patience { bound: Duration::MAX };
/// Two looks.
const NONE: Patience = Patience { bound: Duration::ZERO };

fn who(waiting: usize, for_card: usize) -> Who {
    Who { waiting, for_card, layer: Some(17) }
}
