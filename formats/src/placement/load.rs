//! What experts cost their cards, in integers: ties and results are exact and the same everywhere.

use super::{LayerExperts, PlacementError};
use crate::hotness::MAX_EXPERTS;

/// Most cards that one expert has copies on. The least common multiple of the numbers up to it is below 2^48, so that
/// loads in units of its inverse are whole numbers and fit 128 bits.
pub(super) const MAX_COPIES: u32 = 32;

/// Tokens by expert. A layer of which nothing is known, or whose experts were never used, is one whose experts are all
/// alike.
pub(super) fn tokens(layer: &LayerExperts) -> Vec<u64> {
    if layer.counts.iter().all(|n| *n == 0) { vec![1; layer.experts as usize] } else { layer.counts.clone() }
}

/// Experts, hottest first, ties by id.
pub(super) fn hottest_first(tokens: &[u64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..tokens.len() as u32).collect();
    order.sort_by_key(|e| (std::cmp::Reverse(tokens[*e as usize]), *e));
    order
}

/// The unit in which tokens split among up to `copies` copies are whole numbers.
pub(super) fn scale(copies: u32) -> u128 {
    (1..=u128::from(copies.min(MAX_COPIES))).fold(1, least_common_multiple)
}

pub(super) fn least_common_multiple(a: u128, b: u128) -> u128 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// Refuses what cannot be computed with: more experts than there may be, counts of another number of them, and sums
/// beyond 64 bits. Gives the bytes of all experts together.
pub(super) fn check(layers: &[LayerExperts]) -> Result<u64, PlacementError> {
    let mut all = 0u64;
    for LayerExperts { layer, experts, bytes, counts } in layers {
        let overflow = |of: &str| PlacementError::Overflow { what: format!("layer {layer}: {of}") };
        if *experts > MAX_EXPERTS {
            return Err(PlacementError::Experts { layer: *layer, found: *experts });
        }
        if !counts.is_empty() && counts.len() != *experts as usize {
            let found = counts.len();
            return Err(PlacementError::Counts { layer: *layer, found, expected: *experts });
        }
        let sum = counts.iter().try_fold(0u64, |sum, n| sum.checked_add(*n));
        sum.ok_or_else(|| overflow("tokens"))?;
        let own = u64::from(*experts).checked_mul(*bytes);
        all = own.and_then(|own| all.checked_add(own)).ok_or_else(|| overflow("bytes up to here"))?;
    }
    Ok(all)
}
