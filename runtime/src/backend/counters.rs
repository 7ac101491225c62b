//! How often each expert of each layer was used, for every device.

use crate::model::program::{Program, Step};
use std::sync::atomic::{AtomicU64, Ordering};

/// A count for each expert of each layer that routes.
pub(super) struct Counters(Vec<Vec<AtomicU64>>);

impl Counters {
    pub(super) fn new(program: &Program) -> Self {
        let mut counters = Vec::new();
        for step in &program.body {
            if let Step::Route { layer, routing, .. } = step {
                counters.resize_with(counters.len().max(layer + 1), Vec::new);
                counters[*layer].resize_with(routing.experts, AtomicU64::default);
            }
        }
        Self(counters)
    }

    /// Records the experts of some tokens in a layer.
    pub(super) fn add(&self, layer: usize, ids: impl Iterator<Item = u32>) {
        let Some(counters) = self.0.get(layer) else { return };
        for id in ids {
            if let Some(counter) = counters.get(id as usize) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// `[layer][expert]`.
    pub(super) fn counts(&self) -> Vec<Vec<u64>> {
        let layer = |layer: &Vec<AtomicU64>| layer.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        self.0.iter().map(layer).collect()
    }
}
