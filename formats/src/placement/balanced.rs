//! The strategy `balanced`.

use super::packing::Packing;

/// Experts by card, at most `rooms` of them, so that the largest load of a card is small, and never larger than that of
/// `dealt`, which is within the rooms: among equals it is `dealt` itself.
///
/// Longest processing time first, then moves and swaps. Where the rooms hold whatever is given to a card, the largest
/// load is at most 4/3 − 1/(3n) of the least possible one on n cards (Graham, "Bounds on multiprocessing timing
/// anomalies", 1969), and with many experts much nearer. `tokens` are by expert and sum to less than 2^64.
pub(super) fn spread(tokens: &[u64], rooms: &[u32], dealt: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let weights: Vec<u128> = tokens.iter().map(|n| u128::from(*n)).collect();
    let bound = least(&weights, rooms.len());
    let deal = Packing::of(&weights, rooms, dealt);
    let first = Packing::longest_first(&weights, &vec![1; tokens.len()], rooms);
    let mut best = None;
    // Moves from the deal may lead on where those from the other start end.
    for mut packing in first.into_iter().chain([deal.clone()]) {
        if best.as_ref().is_none_or(|best: &Packing<'_>| !best.is_near(bound)) && !deal.is_near(bound) {
            packing.improve(bound);
            best = best.into_iter().chain([packing]).min_by_key(Packing::largest);
        }
    }
    match best {
        Some(best) if best.largest() < deal.largest() => best.into_cards(),
        _ => dealt.to_vec(),
    }
}

/// No packing has a smaller largest load: the mean, rounded up, and the heaviest expert.
fn least(weights: &[u128], cards: usize) -> u128 {
    let mean = weights.iter().sum::<u128>().div_ceil(cards.max(1) as u128);
    mean.max(weights.iter().max().copied().unwrap_or(0))
}
