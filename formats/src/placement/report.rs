//! What a placement is expected to do, for people and for the manifest.

use super::{LayerExperts, LayerPlacement, Placement, load};

/// Millionths: numbers that are the same on every machine.
const MILLION: u128 = 1_000_000;

/// A placement in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// By layer, in the order of the placement.
    pub layers: Vec<LayerReport>,
    /// Position of the least balanced layer in [`layers`](Self::layers), the first of several; `None` without layers.
    pub worst: Option<usize>,
    /// By card, its expected part of all routed tokens in millionths, each rounded; every layer counts alike.
    pub share_ppm: Vec<u32>,
    /// By card, bytes of its experts.
    pub bytes: Vec<u64>,
    /// Experts that are on several cards, by layer and id.
    pub copies: Vec<Copied>,
}

/// One layer in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerReport {
    /// Layer: N of `blk.N`.
    pub layer: u32,
    /// Expected tokens by card. Where the counts say nothing, an expert counts as one token.
    pub load: Vec<f64>,
    /// By card, its part of the layer's tokens in millionths, each rounded.
    pub share_ppm: Vec<u32>,
    /// Balancedness: the mean load over the largest, 1 where all cards have the same; in millionths, rounded down.
    pub balance_ppm: u32,
}

/// An expert on several cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Layer: N of `blk.N`.
    pub layer: u32,
    /// Expert.
    pub expert: u32,
    /// Its cards, ascending.
    pub cards: Vec<usize>,
}

/// The numbers of `placement`, whose layers are `layers` ([`Placement::check`]). To compare two placements of the same
/// layers, report each.
pub fn report(placement: &Placement, layers: &[LayerExperts]) -> Report {
    let n = placement.layers.iter().map(|own| own.cards.len()).max().unwrap_or(0);
    let mut out = Report {
        layers: Vec::new(),
        worst: None,
        share_ppm: Vec::new(),
        bytes: vec![0; n],
        copies: Vec::new(),
    };
    let mut shares = vec![0u128; n];
    let mut worst: Option<(u128, u128)> = None;
    for (own, model) in placement.layers.iter().zip(layers) {
        let Loads { by_card, unit } = loads(own, model, &mut out.copies);
        let whole: u128 = by_card.iter().sum();
        let largest = by_card.iter().max().copied().unwrap_or(0);
        let cards = by_card.len().max(1) as u128;
        let part = |load: u128, of: u128| if whole == 0 { 0 } else { part(load, whole, of) };
        for (card, load) in by_card.iter().enumerate() {
            // A millionth of a millionth of each layer: what is lost below does not add up to one.
            shares[card] += part(*load, MILLION * MILLION);
            let held = model.bytes.saturating_mul(own.cards[card].len() as u64);
            out.bytes[card] = out.bytes[card].saturating_add(held);
        }
        // The mean over the largest is whole over largest · cards; the least of all layers is the worst.
        let (top, bottom) = if largest == 0 { (1, 1) } else { (whole, largest * cards) };
        if worst.is_none_or(|(a, b)| less(top, bottom, a, b)) {
            worst = Some((top, bottom));
            out.worst = Some(out.layers.len());
        }
        out.layers.push(LayerReport {
            layer: own.layer,
            load: by_card.iter().map(|load| *load as f64 / unit as f64).collect(),
            share_ppm: by_card.iter().map(|load| rounded(part(*load, MILLION * 2), 2)).collect(),
            balance_ppm: self::part(top, bottom, MILLION) as u32,
        });
    }
    let count = out.layers.len().max(1) as u128;
    out.share_ppm = shares.iter().map(|share| rounded(2 * share, 2 * count * MILLION)).collect();
    out
}

struct Loads {
    by_card: Vec<u128>,
    /// What one token counts.
    unit: u128,
}

/// Loads by card, the tokens of an expert split evenly among its cards; notes those with several.
fn loads(own: &LayerPlacement, model: &LayerExperts, copies: &mut Vec<Copied>) -> Loads {
    let tokens = load::tokens(model);
    let mut holders: Vec<Vec<usize>> = vec![Vec::new(); tokens.len()];
    for (card, experts) in own.cards.iter().enumerate() {
        for expert in experts {
            if let Some(cards) = holders.get_mut(*expert as usize) {
                cards.push(card);
            }
        }
    }
    // Exact, unless numbers of copies occur that have no common multiple below 2^48.
    let numbers = holders.iter().map(|h| h.len().max(1) as u128);
    let unit = numbers.fold(1, |unit, n| {
        let next = load::least_common_multiple(unit, n);
        if next < 1 << 48 { next } else { unit }
    });
    let mut by_card = vec![0u128; own.cards.len()];
    for (expert, (cards, tokens)) in holders.into_iter().zip(tokens).enumerate() {
        let each = u128::from(tokens) * unit / cards.len().max(1) as u128;
        cards.iter().for_each(|card| by_card[*card] += each);
        if cards.len() > 1 {
            copies.push(Copied { layer: own.layer, expert: expert as u32, cards });
        }
    }
    Loads { by_card, unit }
}

/// `load` · `of` / `whole` without the product in between, where `load` ≤ `whole` and `of` < 2^44: digits of a long
/// division.
fn part(load: u128, whole: u128, of: u128) -> u128 {
    let (mut rest, mut out) = (0, 0);
    for bit in (0..44).rev() {
        // out · whole + rest = load · (of >> bit)
        let add = if of >> bit & 1 == 1 { load } else { 0 };
        let sum = rest * 2 + add;
        out = out * 2 + sum / whole;
        rest = sum % whole;
    }
    out
}

/// Whether a/b < c/d, exactly: by their continued fractions, since the products may not fit.
fn less(mut a: u128, mut b: u128, mut c: u128, mut d: u128) -> bool {
    let mut swapped = false;
    loop {
        let (p, q) = (a / b, c / d);
        if p != q {
            return (p < q) != swapped;
        }
        let (r, s) = (a % b, c % d);
        match (r, s) {
            (0, 0) => return false,
            (0, _) => return !swapped,
            (_, 0) => return swapped,
            _ => {}
        }
        // r/b < s/d where b/r > d/s.
        (a, b, c, d) = (b, r, d, s);
        swapped = !swapped;
    }
}

/// Of `n` parts, each `by` of which make one: rounded, halves up.
fn rounded(n: u128, by: u128) -> u32 {
    u32::try_from((n + by / 2) / by).unwrap_or(u32::MAX)
}
