//! How many experts of each layer each card is given.

use super::{Fill, LayerExperts, PlacementError, load};

/// Experts by card for each layer. They sum to the layer's experts, and no card gets more bytes than it has.
///
/// `usable` are bytes by card; `budgets` says in which proportion cards are given experts where there is a choice
/// ([`Fill::Share`]): equal budgets get equal shares though one card may have more room than another. Cards without a
/// limit count alike, each as much as the largest budget.
///
/// A card takes at most the largest number of experts per layer whose bytes over all layers fit. Only where that
/// leaves experts without a place are the bytes left on the cards used for more experts in some layers than in others;
/// so what is refused lacks less than one expert per card.
///
/// # Errors
/// [`PlacementError::Short`] where they do not fit.
pub(super) fn quotas(
    layers: &[LayerExperts],
    usable: &[Option<u64>],
    budgets: &[Option<u64>],
    fill: Fill,
) -> Result<Vec<Vec<u32>>, PlacementError> {
    let needs = load::check(layers)?;
    super::check_cards(usable.len())?;
    if budgets.len() != usable.len() {
        return Err(PlacementError::Budgets { found: budgets.len(), expected: usable.len() });
    }
    let weights = weights(budgets);
    let (quotas, missing) = distribute(layers, usable, &weights, fill);
    if missing == 0 {
        return Ok(quotas);
    }
    let n = usable.len();
    let has = |usable: &[Option<u64>]| usable.iter().fold(0u64, |sum, b| sum.saturating_add(b.unwrap_or(0)));
    let enough = enough(layers, usable, &weights, fill);
    let card = (n == 1 || fill == Fill::First).then_some(n - 1);
    let (needs, has) = match card {
        Some(card) => (bytes_of(layers, &quotas, card) + missing, has(&usable[card..=card])),
        None => (needs, has(usable)),
    };
    Err(PlacementError::Short { card, needs, has, short: missing, enough })
}

/// By layer and card, up to how many experts fit beyond `quotas`, all layers at once. The same number more in each
/// layer; of what is left one more in the layers whose hottest expert has the largest share of the tokens.
pub(super) fn ceilings(
    layers: &[LayerExperts],
    usable: &[Option<u64>],
    quotas: &[Vec<u32>],
) -> Vec<Vec<u32>> {
    let mut out = quotas.to_vec();
    let peak = |layer: &LayerExperts| {
        let tokens = load::tokens(layer);
        let (top, all) = (tokens.iter().max().copied().unwrap_or(0), tokens.iter().sum::<u64>());
        (u128::from(top), u128::from(all.max(1)))
    };
    let peaks: Vec<(u128, u128)> = layers.iter().map(peak).collect();
    let mut order: Vec<usize> = (0..layers.len()).collect();
    order.sort_by(|&a, &b| (peaks[b].0 * peaks[a].1).cmp(&(peaks[a].0 * peaks[b].1)).then(a.cmp(&b)));
    for (card, usable) in usable.iter().enumerate() {
        let mut free = usable.map(|usable| usable.saturating_sub(bytes_of(layers, quotas, card)));
        let left: Vec<u32> =
            layers.iter().zip(quotas).map(|(l, q)| l.experts - q[card].min(l.experts)).collect();
        let more = most_per_layer(layers, &left, free);
        for (i, layer) in layers.iter().enumerate() {
            let n = more.min(left[i]);
            out[i][card] += n;
            free = free.map(|free| free - u64::from(n) * layer.bytes);
        }
        for &i in &order {
            if out[i][card] < layers[i].experts && free.is_some_and(|free| free >= layers[i].bytes) {
                out[i][card] += 1;
                free = free.map(|free| free - layers[i].bytes);
            }
        }
    }
    out
}

/// What each card counts where shares are in proportion.
fn weights(budgets: &[Option<u64>]) -> Vec<u64> {
    let largest = budgets.iter().flatten().max().copied().unwrap_or(1);
    budgets.iter().map(|budget| budget.unwrap_or(largest).max(1)).collect()
}

/// Quotas, and the bytes of the experts that found no place.
fn distribute(
    layers: &[LayerExperts],
    usable: &[Option<u64>],
    weights: &[u64],
    fill: Fill,
) -> (Vec<Vec<u32>>, u64) {
    let n = usable.len();
    let mut left: Vec<u32> = layers.iter().map(|layer| layer.experts).collect();
    let mut quotas = vec![vec![0; n]; layers.len()];
    match fill {
        Fill::First => {
            for card in 0..n {
                let most = most_per_layer(layers, &left, usable[card]);
                for (quota, left) in quotas.iter_mut().zip(&mut left) {
                    quota[card] = most.min(*left);
                    *left -= quota[card];
                }
            }
        }
        Fill::Share => {
            let caps: Vec<u32> = usable.iter().map(|usable| most_per_layer(layers, &left, *usable)).collect();
            for (quota, left) in quotas.iter_mut().zip(&mut left) {
                *quota = share(*left, weights, &caps);
                *left -= quota.iter().sum::<u32>();
            }
        }
    }
    // Largest experts first, since small ones fit where large ones do not.
    let mut order: Vec<usize> = (0..layers.len()).filter(|i| left[*i] > 0).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(layers[*i].bytes), *i));
    let free = |card: usize| usable[card].map_or(u64::MAX, |all| all - bytes_of(layers, &quotas, card));
    let mut free: Vec<u64> = (0..n).map(free).collect();
    let mut missing = 0;
    for i in order {
        let LayerExperts { experts, bytes, .. } = layers[i];
        while left[i] > 0 {
            let fits = |card: &usize| free[*card] >= bytes && quotas[i][*card] < experts;
            let card = match fill {
                Fill::First => (0..n).find(fits),
                Fill::Share => (0..n).filter(fits).min_by_key(|card| (std::cmp::Reverse(free[*card]), *card)),
            };
            let Some(card) = card else { break };
            free[card] -= bytes;
            quotas[i][card] += 1;
            left[i] -= 1;
        }
        missing += u64::from(left[i]) * bytes;
    }
    (quotas, missing)
}

/// The largest number of experts per layer, of at most `left`, whose bytes over all layers fit.
fn most_per_layer(layers: &[LayerExperts], left: &[u32], usable: Option<u64>) -> u32 {
    let most = left.iter().max().copied().unwrap_or(0);
    let Some(usable) = usable else { return most };
    let fits = |k: u32| {
        let bytes = layers.iter().zip(left).map(|(layer, left)| u64::from(k.min(*left)) * layer.bytes);
        bytes.sum::<u64>() <= usable
    };
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// Experts by card in proportion to `weights`, none beyond its cap: largest remainder first. Fewer than `experts` only
/// where the caps sum to less.
fn share(experts: u32, weights: &[u64], caps: &[u32]) -> Vec<u32> {
    let mut out = vec![0; weights.len()];
    let mut open: Vec<usize> = (0..weights.len()).filter(|card| caps[*card] > 0).collect();
    let mut left = u128::from(experts);
    loop {
        let whole: u128 = open.iter().map(|card| u128::from(weights[*card])).sum();
        // A card whose share is beyond its cap gets the cap, and the others share what that leaves.
        let part = |card: usize| left * u128::from(weights[card]);
        let (full, rest): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|card| part(**card) >= u128::from(caps[**card]) * whole);
        if full.is_empty() {
            return remainders(out, left, whole, weights, &rest);
        }
        for card in full {
            out[card] = caps[card];
            left -= u128::from(caps[card]);
        }
        open = rest;
    }
}

/// Shares of cards none of which reaches its cap.
fn remainders(mut out: Vec<u32>, left: u128, whole: u128, weights: &[u64], open: &[usize]) -> Vec<u32> {
    if open.is_empty() {
        return out;
    }
    let mut rest = left;
    for &card in open {
        let floor = left * u128::from(weights[card]) / whole;
        out[card] = floor as u32;
        rest -= floor;
    }
    // Among equal remainders the order in which the deal reaches the cards, so that equal cards cut no deal short.
    let back = (left / open.len() as u128) % 2 == 1;
    let mut order = open.to_vec();
    order.sort_by_key(|&card| {
        let remainder = left * u128::from(weights[card]) % whole;
        (std::cmp::Reverse(remainder), if back { weights.len() - card } else { card })
    });
    for &card in order.iter().take(rest as usize) {
        out[card] += 1;
    }
    out
}

fn bytes_of(layers: &[LayerExperts], quotas: &[Vec<u32>], card: usize) -> u64 {
    layers.iter().zip(quotas).map(|(layer, quota)| u64::from(quota[card]) * layer.bytes).sum()
}

/// Usable bytes by card that would do: the last card's where cards are filled in order, else every card's in
/// proportion.
fn enough(layers: &[LayerExperts], usable: &[Option<u64>], weights: &[u64], fill: Fill) -> Vec<u64> {
    let n = usable.len();
    let mut free = usable.to_vec();
    match fill {
        Fill::First => free[n - 1] = None,
        Fill::Share => free = vec![None; n],
    }
    let (quotas, _) = distribute(layers, &free, weights, fill);
    let held = |card: usize| bytes_of(layers, &quotas, card).max(usable[card].unwrap_or(0));
    let enough: Vec<u64> = (0..n).map(held).collect();
    // Experts of several sizes may leave gaps; with room for one more on each card they never do.
    let largest = layers.iter().map(|layer| layer.bytes).max().unwrap_or(0);
    let wider = || enough.iter().map(|bytes| bytes.saturating_add(largest)).collect();
    let limits: Vec<Option<u64>> = enough.iter().map(|bytes| Some(*bytes)).collect();
    if distribute(layers, &limits, &self::weights(&limits), fill).1 == 0 { enough } else { wider() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(n: u32, experts: u32, bytes: u64) -> Vec<LayerExperts> {
        (0..n).map(|layer| LayerExperts { layer, experts, bytes, counts: vec![] }).collect()
    }

    fn of(layers: &[LayerExperts], usable: &[u64], fill: Fill) -> Result<Vec<Vec<u32>>, PlacementError> {
        let usable: Vec<_> = usable.iter().map(|bytes| Some(*bytes)).collect();
        quotas(layers, &usable, &usable, fill)
    }

    #[test]
    fn shares_are_in_proportion_and_the_largest_remainder_comes_first() {
        let far = [u32::MAX; 4];
        assert_eq!(share(512, &[24, 16], &far), [307, 205]);
        assert_eq!(share(10, &[3, 3, 1], &far), [4, 4, 2]);
        assert_eq!(share(256, &[1, 1, 1], &far), [85, 85, 86]);
        assert_eq!(share(128, &[1; 6], &[99; 6]), [21, 21, 21, 21, 22, 22]);
        assert_eq!(share(4, &[1; 8], &[4; 8]), [1, 1, 1, 1, 0, 0, 0, 0]);
        assert_eq!(share(1, &[1, 1], &far), [1, 0]);
        assert_eq!(share(0, &[1, 1], &far), [0, 0]);
        assert_eq!(share(9, &[u64::MAX, u64::MAX], &far), [5, 4]);
    }

    #[test]
    fn what_is_beyond_a_cap_goes_to_the_others_in_proportion() {
        assert_eq!(share(100, &[1, 1, 2], &[10, 100, 100]), [10, 30, 60]);
        assert_eq!(share(100, &[1, 1, 2], &[10, 20, 30]), [10, 20, 30]);
        assert_eq!(share(100, &[5, 1], &[0, 100]), [0, 100]);
    }

    #[test]
    fn equal_cards_get_equal_shares_though_one_has_less_room() {
        let model = layers(4, 512, 10);
        let (usable, budgets) = ([Some(20_000), Some(12_000)], [Some(24_000); 2]);
        assert_eq!(quotas(&model, &usable, &budgets, Fill::Share), Ok(vec![vec![256, 256]; 4]));
        let usable = [Some(20_000), Some(9_160)];
        assert_eq!(quotas(&model, &usable, &budgets, Fill::Share), Ok(vec![vec![283, 229]; 4]));
    }

    #[test]
    fn the_first_card_is_as_full_as_it_gets() {
        let model = layers(4, 512, 10);
        assert_eq!(of(&model, &[283 * 40 + 39, 20_000], Fill::First), Ok(vec![vec![283, 229]; 4]));
        let all = quotas(&model, &[None, None], &[None, None], Fill::First);
        assert_eq!(all, Ok(vec![vec![512, 0]; 4]));
    }

    #[test]
    fn layers_of_other_sizes_have_quotas_of_their_own() {
        let mut model = layers(3, 8, 100);
        model[1] = LayerExperts { layer: 1, experts: 4, bytes: 300, counts: vec![] };
        assert_eq!(of(&model, &[1400, 1400], Fill::Share), Ok(vec![vec![4, 4], vec![2, 2], vec![4, 4]]));
        // Two of each layer are 1000 bytes; three would be 1500.
        let first = of(&model, &[1000, 1800], Fill::First).unwrap();
        assert_eq!(first, [[2, 6], [2, 2], [2, 6]]);
    }

    #[test]
    fn bytes_that_caps_leave_are_used_before_anything_is_refused() {
        // Three cards with room for 85⅓ of 256 experts in each of 48 layers: none has room for 86 in all of them.
        let model = layers(48, 256, 10);
        let quotas = of(&model, &[40_960; 3], Fill::Share).unwrap();
        assert!(
            quotas.iter().all(|q| q.iter().sum::<u32>() == 256 && q.iter().all(|n| *n == 85 || *n == 86))
        );
        assert!((0..3).all(|card| bytes_of(&model, &quotas, card) == 40_960));
    }

    #[test]
    fn what_is_short_names_the_card_the_bytes_and_what_would_fit() {
        let mib = 1u64 << 20;
        let model = layers(2, 100, mib);
        let error = of(&model, &[50 * mib, 100 * mib + 5], Fill::Share).unwrap_err();
        let PlacementError::Short { card: None, needs, has, short, ref enough } = error else {
            panic!("{error:?}")
        };
        assert_eq!((needs, has, short), (200 * mib, 150 * mib + 5, 50 * mib));
        assert_eq!(of(&model, enough, Fill::Share).map(|q| q.len()), Ok(2));
        let said = "all cards together: 200.0 MiB to hold, 150.1 MiB usable, 50.0 MiB short; with 66.0 MiB, 134.0 MiB usable";
        assert_eq!(error.to_string(), format!("{said} it would fit"));

        let error = of(&model, &[120 * mib, 70 * mib], Fill::First).unwrap_err();
        let said = "card 1: 80.0 MiB to hold, 70.0 MiB usable, 10.0 MiB short; with 120.0 MiB, 80.0 MiB usable it would fit";
        assert_eq!(error.to_string(), said);
        assert!(of(&model, &[120 * mib, 80 * mib], Fill::First).is_ok());

        let error = of(&model, &[199 * mib], Fill::Share).unwrap_err();
        let said = "card 0: 200.0 MiB to hold, 199.0 MiB usable, 1.0 MiB short; with 200.0 MiB usable on each card it would fit";
        assert_eq!(error.to_string(), said);
    }

    #[test]
    fn ceilings_use_what_is_left_where_the_hottest_expert_weighs_most() {
        let mut model = layers(3, 4, 10);
        model[2].counts = vec![7, 1, 1, 1];
        model[1].counts = vec![4, 2, 2, 2];
        let usable = [Some(90), None];
        let quotas = quotas(&model, &[Some(60), Some(60)], &[None, None], Fill::Share).unwrap();
        assert_eq!(quotas, [[2, 2]; 3]);
        assert_eq!(ceilings(&model, &usable, &quotas), [[3, 4]; 3]);
        assert_eq!(ceilings(&model, &[Some(70), Some(60)], &quotas), [[2, 2], [2, 2], [3, 2]]);
        assert_eq!(ceilings(&model, &[Some(80), Some(60)], &quotas), [[2, 2], [3, 2], [3, 2]]);
    }
}
