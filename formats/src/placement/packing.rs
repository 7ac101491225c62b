//! Experts of one layer on their cards, and the steps that make the largest load smaller.

use std::cmp::Reverse;

/// Most steps of [`Packing::improve`], by expert and copy. Real layers need a few dozen in all.
const STEPS: usize = 8;

/// Experts by card. An expert with copies weighs the same on each card that holds it.
#[derive(Clone)]
pub(super) struct Packing<'a> {
    /// What each copy weighs, by expert.
    weights: &'a [u128],
    /// Most experts by card.
    rooms: &'a [u32],
    /// Experts by card: by weight, then by id, both ascending.
    cards: Vec<Vec<u32>>,
    loads: Vec<u128>,
    /// Whether a card holds an expert: at expert · cards + card.
    holds: Vec<bool>,
}

/// Up to so many experts and copies, also pairs of them change places, which takes the fourth power of their number.
const PAIRS: usize = 32;

/// A largest load this near to what is least, as a part of that, is not made smaller: counts are not that exact.
const NEAR: u128 = 10_000;

/// Experts that go to another card, and those that come back for them.
struct Step {
    to: usize,
    give: [Option<u32>; 2],
    take: [Option<u32>; 2],
}

impl<'a> Packing<'a> {
    fn empty(weights: &'a [u128], rooms: &'a [u32]) -> Self {
        let n = rooms.len();
        let holds = vec![false; weights.len() * n];
        Self { weights, rooms, cards: vec![Vec::new(); n], loads: vec![0; n], holds }
    }

    /// A deal that is there already.
    pub(super) fn of(weights: &'a [u128], rooms: &'a [u32], cards: &[Vec<u32>]) -> Self {
        let mut packing = Self::empty(weights, rooms);
        for (card, experts) in cards.iter().enumerate() {
            experts.iter().for_each(|expert| packing.put(*expert, card));
        }
        packing
    }

    /// Longest processing time first: the heaviest copy to the card with the smallest load, among equals to the one
    /// with the fewest experts, then to the one with the least room. `None` where the rooms leave an expert's copies no distinct cards.
    pub(super) fn longest_first(weights: &'a [u128], copies: &[u8], rooms: &'a [u32]) -> Option<Self> {
        let mut packing = Self::empty(weights, rooms);
        let mut order: Vec<u32> = (0..weights.len() as u32).collect();
        order.sort_by_key(|e| (Reverse(weights[*e as usize]), *e));
        for expert in order {
            for _ in 0..copies[expert as usize] {
                let open = |card: &usize| packing.has_room(*card) && !packing.is_on(expert, *card);
                let least =
                    |card: &usize| (packing.loads[*card], packing.cards[*card].len(), rooms[*card], *card);
                let card = (0..rooms.len()).filter(open).min_by_key(least);
                let card = card.or_else(|| packing.make_room(expert))?;
                packing.put(expert, card);
            }
        }
        Some(packing)
    }

    /// A card without `expert` that has room, after experts went on from card to card along the shortest chain that ends
    /// where room is. As in any flow, there is one unless no packing gives all of them distinct cards.
    fn make_room(&mut self, expert: u32) -> Option<usize> {
        let n = self.rooms.len();
        let mut queue: Vec<usize> = (0..n).filter(|card| !self.is_on(expert, *card)).collect();
        let mut seen: Vec<bool> = (0..n).map(|card| queue.contains(&card)).collect();
        // By card, which expert came to it, and from where.
        let mut via: Vec<Option<(usize, u32)>> = vec![None; n];
        let mut at = 0;
        while let Some(&from) = queue.get(at) {
            at += 1;
            for to in 0..n {
                let other = self.cards[from].iter().copied().find(|other| !self.is_on(*other, to));
                let Some(other) = other.filter(|_| !seen[to]) else { continue };
                seen[to] = true;
                via[to] = Some((from, other));
                if self.has_room(to) {
                    let mut card = to;
                    while let Some((before, other)) = via[card] {
                        self.take(other, before);
                        self.put(other, card);
                        card = before;
                    }
                    return Some(card);
                }
                queue.push(to);
            }
        }
        None
    }

    /// Moves and swaps between the card with the largest load and another one, always the best of them, until none
    /// makes both loads smaller than that, or the largest is next to `bound`, below which no packing gets.
    pub(super) fn improve(&mut self, bound: u128) {
        let held: usize = self.cards.iter().map(Vec::len).sum();
        for _ in 0..STEPS * held {
            let worst = self.worst();
            if self.is_near(bound) {
                return;
            }
            let pairs = || if held <= PAIRS { self.best_pairs(worst) } else { None };
            let Some(Step { to, give, take }) = self.best_step(worst).or_else(pairs) else { return };
            give.iter().flatten().for_each(|expert| self.take(*expert, worst));
            take.iter().flatten().for_each(|expert| self.take(*expert, to));
            give.iter().flatten().for_each(|expert| self.put(*expert, to));
            take.iter().flatten().for_each(|expert| self.put(*expert, worst));
        }
    }

    /// The best step with up to two experts each way.
    fn best_pairs(&self, from: usize) -> Option<Step> {
        let mut best: Option<(u128, Step)> = None;
        for to in (0..self.rooms.len()).filter(|to| *to != from && self.loads[*to] < self.loads[from]) {
            let gives = self.pairs(from, to);
            let takes = self.pairs(to, from);
            let fits = |card: usize, less: usize, more: usize| {
                self.cards[card].len() - less + more <= self.rooms[card] as usize
            };
            for (give, out) in &gives {
                for (take, back) in takes.iter().filter(|(_, back)| back < out) {
                    let (g, t) = (give.iter().flatten().count(), take.iter().flatten().count());
                    let load = (self.loads[from] - (out - back)).max(self.loads[to] + (out - back));
                    let better = best.as_ref().map_or(load < self.loads[from], |(least, _)| load < *least);
                    if better && fits(from, g, t) && fits(to, t, g) {
                        best = Some((load, Step { to, give: *give, take: *take }));
                    }
                }
            }
        }
        best.map(|(_, step)| step)
    }

    /// None, one or two of a card's experts that another does not hold, and what they weigh.
    fn pairs(&self, card: usize, other: usize) -> Vec<([Option<u32>; 2], u128)> {
        let free: Vec<u32> = self.cards[card].iter().copied().filter(|e| !self.is_on(*e, other)).collect();
        let weight = |expert: u32| self.weights[expert as usize];
        let mut out = vec![([None, None], 0)];
        for (i, &a) in free.iter().enumerate() {
            out.push(([Some(a), None], weight(a)));
            out.extend(free[..i].iter().map(|&b| ([Some(a), Some(b)], weight(a) + weight(b))));
        }
        out
    }

    fn best_step(&self, from: usize) -> Option<Step> {
        let mut best: Option<(u128, Step)> = None;
        for to in (0..self.rooms.len()).filter(|to| *to != from && self.loads[*to] < self.loads[from]) {
            let gap = self.loads[from] - self.loads[to];
            let mut consider = |less: u128, give: u32, take: Option<u32>| {
                // The larger of both loads afterwards.
                let load = (self.loads[from] - less).max(self.loads[to] + less);
                if best.as_ref().is_none_or(|(least, _)| load < *least) {
                    best = Some((load, Step { to, give: [Some(give), None], take: [take, None] }));
                }
            };
            let others = &self.cards[to];
            for &give in &self.cards[from] {
                let weight = self.weights[give as usize];
                if weight == 0 || self.is_on(give, to) {
                    continue;
                }
                if weight < gap && self.has_room(to) {
                    consider(weight, give, None);
                }
                // What makes both equal, if it came back, and what is next to that on either side.
                let ideal = weight.saturating_sub(gap / 2);
                let middle = others.partition_point(|other| self.weights[*other as usize] < ideal);
                let less = |other: &u32| weight.checked_sub(self.weights[*other as usize]).filter(|d| *d > 0);
                let mut heavier = others[middle..].iter().take_while(|other| less(other).is_some());
                let mut lighter =
                    others[..middle].iter().rev().take_while(|other| less(other).is_some_and(|d| d < gap));
                let free = |other: &&u32| !self.is_on(**other, from);
                for &other in heavier.find(free).iter().chain(lighter.find(free).iter()) {
                    less(other)
                        .filter(|d| *d < gap)
                        .into_iter()
                        .for_each(|d| consider(d, give, Some(*other)));
                }
            }
        }
        best.map(|(_, step)| step)
    }

    fn has_room(&self, card: usize) -> bool {
        self.cards[card].len() < self.rooms[card] as usize
    }

    fn is_on(&self, expert: u32, card: usize) -> bool {
        self.holds[expert as usize * self.rooms.len() + card]
    }

    fn at(&self, expert: u32, card: usize) -> usize {
        let key = |e: u32| (self.weights[e as usize], e);
        self.cards[card].partition_point(|other| key(*other) < key(expert))
    }

    fn put(&mut self, expert: u32, card: usize) {
        let at = self.at(expert, card);
        self.cards[card].insert(at, expert);
        self.loads[card] += self.weights[expert as usize];
        self.holds[expert as usize * self.rooms.len() + card] = true;
    }

    fn take(&mut self, expert: u32, card: usize) {
        let at = self.at(expert, card);
        self.cards[card].remove(at);
        self.loads[card] -= self.weights[expert as usize];
        self.holds[expert as usize * self.rooms.len() + card] = false;
    }

    fn worst(&self) -> usize {
        (0..self.loads.len()).min_by_key(|card| (Reverse(self.loads[*card]), *card)).unwrap_or(0)
    }

    /// The largest load.
    pub(super) fn largest(&self) -> u128 {
        self.loads.iter().max().copied().unwrap_or(0)
    }

    /// Whether moves and swaps towards `bound` are not worth while any more.
    pub(super) fn is_near(&self, bound: u128) -> bool {
        self.largest() <= bound + bound / NEAR
    }

    /// The loads, largest first.
    pub(super) fn loads(&self) -> Vec<u128> {
        let mut loads = self.loads.clone();
        loads.sort_unstable_by_key(|load| Reverse(*load));
        loads
    }

    /// Experts by card, ascending.
    pub(super) fn into_cards(mut self) -> Vec<Vec<u32>> {
        self.cards.iter_mut().for_each(|card| card.sort_unstable());
        self.cards
    }
}
