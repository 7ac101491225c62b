//! How even one layer's counts are.

use gantry_formats::hotness::LayerCounts;
use serde::Serialize;

/// Experts in [`Balance::top`].
const TOP: usize = 8;

/// One layer. Shares are parts of 1; all are 0 where no token was seen.
#[derive(Debug, Serialize)]
pub(super) struct Balance {
    pub(super) layer: u32,
    /// Sum of the counts: tokens times experts for each.
    pub(super) choices: u64,
    /// Largest count over mean count, 1 where all are equal; the inverse of the balancedness of one expert a card.
    pub(super) max_over_mean: f64,
    /// Coefficient of variation: standard deviation over mean.
    pub(super) variation: f64,
    /// exp(−Σ p ln p) over the shares p: experts that an even spread of the same entropy would use.
    pub(super) effective_experts: f64,
    pub(super) least_share: f64,
    pub(super) most_share: f64,
    /// The most used experts, ties by id.
    pub(super) top: Vec<Share>,
    /// Experts that no token came to.
    pub(super) unused: Vec<u32>,
}

/// An expert's part of its layer.
#[derive(Debug, Serialize)]
pub(super) struct Share {
    pub(super) expert: u32,
    pub(super) count: u64,
    pub(super) share: f64,
}

impl Balance {
    /// That of these counts, whose sum fits 64 bits.
    pub(super) fn of(layer: &LayerCounts) -> Self {
        let counts = &layer.counts;
        let choices = counts.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
        let share = |n: u64| if choices == 0 { 0.0 } else { n as f64 / choices as f64 };
        let most = counts.iter().copied().max().unwrap_or(0);
        let least = counts.iter().copied().min().unwrap_or(0);
        let n = counts.len() as f64;
        // In shares, whose mean is 1/n: squares of counts would lose digits.
        let squares: f64 = counts.iter().map(|c| (share(*c) * n - 1.0).powi(2)).sum();
        let entropy: f64 = counts.iter().map(|c| share(*c)).filter(|p| *p > 0.0).map(|p| -p * p.ln()).sum();
        let mut order: Vec<(u32, u64)> = (0u32..).zip(counts.iter().copied()).collect();
        let unused = order.iter().filter(|(_, count)| *count == 0).map(|(expert, _)| *expert).collect();
        order.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let top = order.into_iter().take(TOP).filter(|(_, count)| *count > 0);
        let seen = |value: f64| if choices == 0 { 0.0 } else { value };
        Self {
            layer: layer.layer,
            choices,
            max_over_mean: share(most) * n,
            variation: seen((squares / n.max(1.0)).sqrt()),
            effective_experts: seen(entropy.exp()),
            least_share: share(least),
            most_share: share(most),
            top: top.map(|(expert, count)| Share { expert, count, share: share(count) }).collect(),
            unused,
        }
    }
}
