//! The strategy `replicate:N`.

use super::{load, packing::Packing};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// How many ways to give copies are kept at a time.
const WIDTH: usize = 16;

/// Without anything better for so many rounds, the search ends.
const PATIENCE: usize = 4;

/// Work of a search: ways that are tried, times the experts and copies of each.
const WORK: usize = 24_000;

/// Most ways that are tried, however few the experts.
const MOST_TRIED: usize = 2_000;

/// A largest load this near to the mean, as a part of it, is not searched on for.
const NEAR: u128 = 1_000;

/// Experts by card with `extra` copies more than there are experts, or as many as `rooms` hold and as can be on
/// distinct cards (at most [`load::MAX_COPIES`] of one expert). The tokens of an expert split evenly among its copies.
///
/// The hottest copy is split first, as the public EPLB does; then a copy at a time is given to another expert, the
/// best ways side by side, each packed as `balanced` packs. Where copies would make the largest load larger than in
/// `without`, by more than a thousandth, there are none.
pub(super) fn spread(tokens: &[u64], rooms: &[u32], extra: u32, without: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let search = Search::new(tokens, rooms);
    let weights = search.weights(&vec![1; tokens.len()]);
    let most = Packing::of(&weights, rooms, without).largest();
    match search.run(extra) {
        Some(way) if way.loads.first().is_some_and(|load| *load <= most + most / NEAR) => way.cards,
        _ => without.to_vec(),
    }
}

struct Search<'a> {
    tokens: &'a [u64],
    rooms: &'a [u32],
    /// Copies of one token's weight.
    scale: u128,
    /// Most copies of an expert.
    most: u8,
    /// The mean load, rounded up.
    mean: u128,
}

/// A way to give copies, packed.
struct Way {
    copies: Vec<u8>,
    /// Largest first.
    loads: Vec<u128>,
    cards: Vec<Vec<u32>>,
}

impl<'a> Search<'a> {
    fn new(tokens: &'a [u64], rooms: &'a [u32]) -> Self {
        let open = rooms.iter().filter(|room| **room > 0).count();
        let most = open.min(load::MAX_COPIES as usize) as u8;
        let scale = load::scale(u32::from(most));
        let sum: u128 = tokens.iter().map(|n| u128::from(*n) * scale).sum();
        Self { tokens, rooms, scale, most, mean: sum.div_ceil(rooms.len().max(1) as u128) }
    }

    /// What a copy weighs, by expert: whole, since the scale is a multiple of every number of copies.
    fn weights(&self, copies: &[u8]) -> Vec<u128> {
        let weight = |(n, copies): (&u64, &u8)| u128::from(*n) * self.scale / u128::from((*copies).max(1));
        self.tokens.iter().zip(copies).map(weight).collect()
    }

    fn run(&self, extra: u32) -> Option<Way> {
        let copies = self.hottest_split(extra);
        let held: usize = copies.iter().map(|n| usize::from(*n)).sum();
        let mut left = (WORK / held.max(1)).clamp(1, MOST_TRIED);
        let mut seen = BTreeSet::from([copies.clone()]);
        let mut best = self.pack(copies)?;
        let mut patience = PATIENCE;
        let mut round = self.neighbours(&best, left);
        while patience > 0 && left > 0 && !self.is_near(&best) {
            let mut next = Vec::new();
            for copies in round {
                if left > 0 && seen.insert(copies.clone()) {
                    left -= 1;
                    next.extend(self.pack(copies));
                }
            }
            next.sort_by(|a: &Way, b: &Way| a.loads.cmp(&b.loads));
            next.truncate(WIDTH);
            let Some(first) = next.first() else { break };
            let better = first.loads < best.loads;
            patience = if better { PATIENCE } else { patience - 1 };
            round = next.iter().flat_map(|way| self.neighbours(way, left / WIDTH + 1)).collect();
            if better {
                best = next.swap_remove(0);
            }
        }
        Some(best)
    }

    fn is_near(&self, way: &Way) -> bool {
        way.loads.first().is_none_or(|load| (load - self.mean.min(*load)) * NEAR <= self.mean)
    }

    /// Each copy to the expert whose copies are the hottest, ties by id, as far as distinct cards have room.
    fn hottest_split(&self, extra: u32) -> Vec<u8> {
        let mut copies = vec![1u8; self.tokens.len()];
        let room: u64 = self.rooms.iter().map(|room| u64::from(*room)).sum();
        let free = room.saturating_sub(self.tokens.len() as u64).min(u64::from(extra));
        let weight = |e: usize, n: u8| u128::from(self.tokens[e]) * self.scale / u128::from(n);
        let all = (0..self.tokens.len()).filter(|_| self.most > 1);
        let mut heap: BinaryHeap<_> = all.map(|e| (weight(e, 1), Reverse(e))).collect();
        let most_of = self.most_of();
        let mut placed = 0;
        while placed < free {
            let Some((_, Reverse(e))) = heap.pop() else { break };
            copies[e] += 1;
            if !fits(&copies, &most_of) {
                // Nor will it with more copies of others.
                copies[e] -= 1;
                continue;
            }
            placed += 1;
            if copies[e] < self.most {
                heap.push((weight(e, copies[e]), Reverse(e)));
            }
        }
        copies
    }

    /// At j: most copies that any j experts have on distinct cards. Empty where all cards with room have the same, so
    /// that whatever has room has distinct cards.
    fn most_of(&self) -> Vec<u64> {
        let mut open = self.rooms.iter().filter(|room| **room > 0);
        let first = open.next();
        if open.all(|room| Some(room) == first) {
            return Vec::new();
        }
        let of = |j: u32| self.rooms.iter().map(|room| u64::from(j.min(*room))).sum();
        (0..=self.tokens.len() as u32).map(of).collect()
    }

    fn pack(&self, copies: Vec<u8>) -> Option<Way> {
        let weights = self.weights(&copies);
        let bound = weights.iter().max().map_or(self.mean, |top| self.mean.max(*top));
        let mut packing = Packing::longest_first(&weights, &copies, self.rooms)?;
        packing.improve(bound);
        let loads = packing.loads();
        let cards = packing.into_cards();
        Some(Way { copies, loads, cards })
    }

    /// The ways in which one expert has a copy less and another one more, at most `most`, nearly: the hottest copies
    /// are split first, and the coldest ones joined. Of experts that are alike one is tried.
    fn neighbours(&self, way: &Way, most: usize) -> Vec<Vec<u8>> {
        let weights = self.weights(&way.copies);
        let kinds = |allowed: &dyn Fn(u8) -> bool| {
            let mut list: Vec<usize> = (0..weights.len()).filter(|e| allowed(way.copies[*e])).collect();
            list.sort_by_key(|e| (weights[*e], way.copies[*e], *e));
            list.dedup_by_key(|e| (weights[*e], way.copies[*e]));
            list
        };
        let from = kinds(&|copies| copies > 1);
        let to = kinds(&|copies| copies < self.most);
        // About as many of both, unless there are fewer of one.
        let side = (1..).find(|side| side * side >= most).unwrap_or(1);
        let takers = side.max(most / from.len().max(1)).min(to.len());
        let givers = (most / takers.max(1)).max(1);
        let mut out = Vec::new();
        for &to in to.iter().rev().take(takers) {
            for &from in from.iter().take(givers).filter(|from| **from != to) {
                let mut copies = way.copies.clone();
                copies[from] -= 1;
                copies[to] += 1;
                out.push(copies);
            }
        }
        out
    }
}

/// Whether there are distinct cards for the copies of every expert: the j with the most copies need no more than j
/// experts can have, for each j (Gale and Ryser, 1957).
fn fits(copies: &[u8], most_of: &[u64]) -> bool {
    if most_of.is_empty() {
        return true;
    }
    let mut by_copies = [0usize; load::MAX_COPIES as usize + 1];
    copies.iter().for_each(|n| by_copies[usize::from(*n)] += 1);
    let descending = (0..by_copies.len()).rev().flat_map(|n| std::iter::repeat_n(n as u64, by_copies[n]));
    let mut sum = 0;
    descending.zip(&most_of[1..]).all(|(n, most)| {
        sum += n;
        sum <= *most
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn copies_that_find_no_distinct_cards_go_to_others() {
        // The third card holds one expert: two experts cannot both be on all three.
        let found = Search::new(&[90, 80, 1], &[3, 3, 1]).run(4).unwrap();
        assert_eq!(found.copies, [3, 2, 2]);
        assert_eq!(found.cards[2], [0]);
    }

    proptest! {
        #[test]
        fn as_many_copies_are_made_as_have_room(
            tokens in prop::collection::vec(0u64..100, 1..8), rooms in prop::collection::vec(0u32..8, 1..6), extra in 0u32..20,
        ) {
            let experts = tokens.len() as u32;
            let rooms: Vec<u32> = rooms.iter().map(|room| *room.min(&experts)).collect();
            let room = rooms.iter().sum::<u32>();
            prop_assume!(room >= experts);
            let found = Search::new(&tokens, &rooms).run(extra).unwrap();
            let held: usize = found.cards.iter().map(Vec::len).sum();
            prop_assert_eq!(held as u32, room.min(experts + extra));
            prop_assert!(found.cards.iter().zip(&rooms).all(|(held, room)| held.len() <= *room as usize));
            prop_assert!(found.cards.iter().all(|held| held.windows(2).all(|w| w[0] < w[1])));
        }
    }
}
