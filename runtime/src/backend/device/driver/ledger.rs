//! What of a card's memory is taken, and for what: allocations by their names.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Allocations of a context.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<BTreeMap<u64, (&'static str, u64)>>);

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (&'static str, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `bytes` bytes from `address` on are for `what` now.
    pub(super) fn take(&self, address: u64, what: &'static str, bytes: u64) {
        self.lock().insert(address, (what, bytes));
    }

    /// What began at `address` was freed.
    pub(super) fn free(&self, address: u64) {
        self.lock().remove(&address);
    }

    /// What is taken now, by name: how many allocations, and bytes of all.
    pub(super) fn held(&self) -> BTreeMap<&'static str, (usize, u64)> {
        let mut held: BTreeMap<&'static str, (usize, u64)> = BTreeMap::new();
        for (what, bytes) in self.lock().values() {
            let (count, sum) = held.entry(what).or_default();
            (*count, *sum) = (*count + 1, *sum + bytes);
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_freed_is_not_held() {
        let ledger = Ledger::default();
        ledger.take(256, "weights", 100);
        ledger.take(512, "keys", 7);
        ledger.take(768, "keys", 8);
        assert_eq!(ledger.held(), BTreeMap::from([("keys", (2, 15)), ("weights", (1, 100))]));
        ledger.free(768);
        ledger.free(256);
        assert_eq!(ledger.held(), BTreeMap::from([("keys", (1, 7))]));
        ledger.free(512);
        assert!(ledger.held().is_empty());
    }
}
