//! The strategy `layers` on cards with budgets.

use super::{PlacementError, check_cards};

/// The card of each layer: runs of consecutive layers, one at least for each card, never cutting a layer, so that the
/// card that is fullest in proportion to its usable bytes is as little full as such runs allow.
///
/// Card 0 also holds `first` bytes (embeddings) and the last card `last` bytes (the head). Cards without a limit count
/// alike, each as much as the largest limit. Among equals, the early cards have the long runs.
///
/// # Errors
/// [`PlacementError::Short`] where no such runs are within the limits; it names the card that lacks most in the best
/// runs there are. Where there are more cards than layers, or no card.
pub fn layer_runs(
    bytes_per_layer: &[u64],
    first: u64,
    last: u64,
    usable: &[Option<u64>],
) -> Result<Vec<usize>, PlacementError> {
    let (n, count) = (usable.len(), bytes_per_layer.len());
    check_cards(n)?;
    if n > 1 && n > count {
        return Err(PlacementError::FewLayers { cards: n, layers: count });
    }
    let mut all = bytes_per_layer.iter().chain([&first, &last]);
    let needs = all.try_fold(0u64, |sum, bytes| sum.checked_add(*bytes));
    let needs = needs.ok_or_else(|| PlacementError::Overflow { what: "bytes of all layers".into() })?;
    let largest = usable.iter().flatten().max().copied().unwrap_or(1);
    let weights: Vec<u64> = usable.iter().map(|usable| usable.unwrap_or(largest).max(1)).collect();
    let runs = Runs { bytes: bytes_per_layer, first, last, cards: n };
    let map = runs.least_full(&weights, needs);
    let loads = runs.loads(&map);
    let over = |card: usize| usable[card].map_or(0, |usable| loads[card].saturating_sub(usable));
    let worst = (0..n).min_by_key(|card| (std::cmp::Reverse(over(*card)), *card)).unwrap_or(0);
    if over(worst) == 0 {
        return Ok(map);
    }
    let enough = (0..n).map(|card| loads[card].max(usable[card].unwrap_or(0))).collect();
    Err(PlacementError::Short {
        card: Some(worst),
        needs: loads[worst],
        has: usable[worst].unwrap_or(0),
        short: over(worst),
        enough,
    })
}

struct Runs<'a> {
    bytes: &'a [u64],
    first: u64,
    last: u64,
    cards: usize,
}

impl Runs<'_> {
    /// Bytes by card.
    fn loads(&self, map: &[usize]) -> Vec<u64> {
        let mut loads = vec![0; self.cards];
        loads[0] += self.first;
        loads[self.cards - 1] += self.last;
        map.iter().zip(self.bytes).for_each(|(card, bytes)| loads[*card] += bytes);
        loads
    }

    /// The runs whose largest load by weight is smallest.
    fn least_full(&self, weights: &[u64], needs: u64) -> Vec<usize> {
        let limits = |part: u128| -> Vec<u64> {
            let limit =
                |w: &u64| u64::try_from(u128::from(*w).saturating_mul(part) >> GRAIN).unwrap_or(u64::MAX);
            weights.iter().map(limit).collect()
        };
        // No card holds more than all, so that a limit of `needs` for the smallest weight is enough.
        let (mut low, mut high) = (0u128, u128::from(needs.max(1)) << GRAIN);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.within(&limits(middle)).is_some() { high = middle } else { low = middle + 1 }
        }
        let mut best = self.within(&limits(high)).unwrap_or_default();
        // A step of the search is a part of 2^-GRAIN: what is still better than its result is found one by one.
        loop {
            let loads = self.loads(&best);
            let fuller = |a: usize, b: usize| {
                (u128::from(loads[a]) * u128::from(weights[b])
                    > u128::from(loads[b]) * u128::from(weights[a]))
                .then_some(a)
                .unwrap_or(b)
            };
            let top = (0..self.cards).rev().reduce(|a, b| fuller(a, b)).unwrap_or(0);
            let (load, weight) = (u128::from(loads[top]), u128::from(weights[top]));
            // The largest loads that are less than load ÷ weight of each card's weight.
            let below = |w: &u64| (load * u128::from(*w)).div_ceil(weight).checked_sub(1);
            let limits: Option<Vec<u64>> =
                weights.iter().map(|w| below(w).map(|n| u64::try_from(n).unwrap_or(u64::MAX))).collect();
            match limits.and_then(|limits| self.within(&limits)) {
                Some(better) => best = better,
                None => return best,
            }
        }
    }

    /// Runs that keep each card within its limit, the early ones as long as they can be; `None` where there are none.
    fn within(&self, limits: &[u64]) -> Option<Vec<usize>> {
        let (count, n) = (self.bytes.len(), self.cards);
        if count == 0 {
            return (limits[0] >= self.first.saturating_add(self.last)).then(Vec::new);
        }
        // By card and first layer, where its run ends at the latest so that the later cards can hold the rest.
        let mut ends = vec![vec![None; count + 1]; n];
        let mut can: Vec<bool> = (0..=count).map(|at| at == count).collect();
        for card in (0..n).rev() {
            let fixed = if card == 0 { u128::from(self.first) } else { 0 };
            let fixed = fixed + if card + 1 == n { u128::from(self.last) } else { 0 };
            let limit = u128::from(limits[card]);
            let mut latest = None;
            let latest: Vec<Option<usize>> = (0..=count)
                .map(|at| {
                    latest = if can[at] { Some(at) } else { latest };
                    latest
                })
                .collect();
            let (mut end, mut load) = (0, fixed);
            for start in 0..count {
                if end < start {
                    (end, load) = (start, fixed);
                }
                while end < count && load + u128::from(self.bytes[end]) <= limit {
                    load += u128::from(self.bytes[end]);
                    end += 1;
                }
                ends[card][start] = latest[end].filter(|at| load <= limit && *at > start);
                load -= if end > start { u128::from(self.bytes[start]) } else { 0 };
            }
            can = ends[card].iter().map(Option::is_some).collect();
        }
        let mut map = Vec::with_capacity(count);
        for (card, ends) in ends.iter().enumerate() {
            let end = ends[map.len()]?;
            map.resize(end, card);
        }
        Some(map)
    }
}

/// Binary digits of the search's steps.
const GRAIN: u32 = 40;
