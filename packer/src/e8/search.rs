//! The exact search: for each sub-block of 32 the best of 16 codes, for each group of 4 the best of 256 entries.
//!
//! What is searched, in f32, every operation rounded, none fused (m the goal, w the weights, h half a codebook row,
//! step as in the decoder):
//!
//! * product(h) = (t0·h0 + t1·h1) + (t2·h2 + t3·h3) with t = 2·m, or t = (2·w)·m;
//! * norm(h) = Σ h², exact, or (w0·h0² + w1·h1²) + (w2·h2² + w3·h3²);
//! * a group's score at a step = the least step·norm(h) − product(h); its entry is the lowest that has it;
//! * a sub-block's error at a code = step·(((e0 + e1) + e2) + e3), e the sums of the scores of eight values' two
//!   groups; its code is the lowest with the least error.
//!
//! That is Σ (m − step·h)² without Σ m². Where signs are chosen too, e of an odd eight is the lesser of the sums with
//! a flip in its first or in its second group, and a group's flipped score is its least over the flips allowed.
//!
//! Rounding keeps order: of entries with one norm none scores less than the one with the largest product, and the
//! least score of all is found over 64 norms instead of 256 entries. The lowest entry that has it is then looked for
//! among all.

use super::codebook::{CODEBOOK, Codebook, LEVELS, NORMS};
use super::target::Target;
use super::{CODES, LEN};
use crate::simd::lanes::Lanes;
use gantry_formats::block::e8::step;

/// Most lanes of a vector.
const WIDEST: usize = 16;

/// One f32 per lane.
type Row = [f32; WIDEST];

/// Which sign an odd number of negatives may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flips {
    /// Decided before: the target has none left.
    Done,
    /// The smallest value of either group.
    Smallest,
    /// Any.
    Any,
}

/// The 16 steps of a scale, and each times each norm.
pub(super) struct Steps {
    steps: [f32; CODES],
    times: [[f32; CODES]; NORMS],
}

impl Steps {
    #[inline(always)]
    pub(super) fn of(d: f32) -> Self {
        let steps = std::array::from_fn(|code| step(d, code as u8));
        let book = &*CODEBOOK;
        let mut times = [[0.0; CODES]; NORMS];
        for (row, norm) in times.iter_mut().zip(&book.norms) {
            for (t, step) in row.iter_mut().zip(&steps) {
                *t = step * norm;
            }
        }
        Self { steps, times }
    }
}

/// What a search gives for a block.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) codes: [u8; LEN / 32],
    pub(super) indices: [u8; LEN / 4],
    /// Σ of the sub-blocks' errors, without Σ m².
    pub(super) error: f64,
}

/// Room for one vector of groups: eight of a sub-block, or sixteen of two.
pub(super) struct Search<V> {
    book: &'static Codebook,
    flips: Flips,
    /// Products of the pairs of values 0, 1 and of values 2, 3.
    pairs: [[V; 64]; 2],
    /// Norms of the same pairs, weighted.
    weighed: [[V; 64]; 2],
    /// The largest product of each norm, or the product of each entry where there are weights.
    products: [V; 256],
    /// The same with one sign flipped.
    flipped: [V; 256],
    /// The weighted norm of each entry.
    norms: [V; 256],
    /// Scores by code, without and with a flip, and the sums of an eight's two groups.
    scores: [Row; CODES],
    flipped_scores: [Row; CODES],
    sums: [Row; CODES],
}

impl<V: Lanes> Search<V> {
    /// Sub-blocks in a vector.
    const SUBS: usize = V::N / 8;

    #[inline(always)]
    pub(super) fn new(flips: Flips) -> Self {
        let zero = V::splat(0.0);
        Self {
            book: &CODEBOOK,
            flips,
            pairs: [[zero; 64]; 2],
            weighed: [[zero; 64]; 2],
            products: [zero; 256],
            flipped: [zero; 256],
            norms: [zero; 256],
            scores: [[0.0; WIDEST]; CODES],
            flipped_scores: [[0.0; WIDEST]; CODES],
            sums: [[0.0; WIDEST]; CODES],
        }
    }

    /// The errors of a block at each of `steps`, without looking for entries.
    #[inline(always)]
    pub(super) fn errors<const WEIGHTED: bool>(&mut self, target: &Target, steps: &[Steps], out: &mut [f64]) {
        out.fill(0.0);
        for first in (0..LEN / 32).step_by(Self::SUBS) {
            self.prepare::<WEIGHTED>(target, 8 * first);
            for (steps, out) in steps.iter().zip(&mut *out) {
                self.score::<WEIGHTED>(target, steps, 8 * first);
                for half in 0..Self::SUBS {
                    *out += f64::from(self.best(steps, half).1);
                }
            }
        }
    }

    /// The codes and entries of a block at one scale. Flips signs of the target where that was left open.
    #[inline(always)]
    pub(super) fn find<const WEIGHTED: bool>(&mut self, target: &mut Target, steps: &Steps) -> Found {
        let mut found = Found { codes: [0; LEN / 32], indices: [0; LEN / 4], error: 0.0 };
        for first in (0..LEN / 32).step_by(Self::SUBS) {
            let group = 8 * first;
            self.prepare::<WEIGHTED>(target, group);
            self.score::<WEIGHTED>(target, steps, group);
            let mut codes = [0; 2];
            for half in 0..Self::SUBS {
                let (code, error) = self.best(steps, half);
                codes[half] = code;
                found.codes[first + half] = code as u8;
                found.error += f64::from(error);
            }
            let mut least: Row = std::array::from_fn(|lane| self.scores[codes[lane / 8]][lane]);
            if self.flips != Flips::Done {
                self.settle::<WEIGHTED>(target, steps, group, codes, &mut least);
                self.multiply(target, group);
            }
            let mut indices = [0.0; WIDEST];
            self.entries::<WEIGHTED>(steps, codes, V::load(&least)).store(&mut indices);
            for (index, i) in found.indices[group..].iter_mut().zip(&indices[..V::N]) {
                *index = *i as u8;
            }
        }
        found
    }

    /// Products and norms of the groups from `group` on.
    #[inline(always)]
    fn prepare<const WEIGHTED: bool>(&mut self, target: &Target, group: usize) {
        let double: [V; 4] = std::array::from_fn(|j| V::load(&target.double[j][group..]));
        if WEIGHTED {
            let weights: [V; 4] = std::array::from_fn(|j| V::load(&target.weights[j][group..]));
            fill(&mut self.weighed, weights, LEVELS.map(|h| h * h));
            for (norm, entry) in self.norms.iter_mut().zip(&self.book.entries) {
                *norm = sum(&self.weighed, entry.pairs);
            }
        }
        match self.flips {
            Flips::Done => {}
            Flips::Smallest => {
                let mut flipped = target.double;
                for g in group..group + V::N {
                    let i = target.least::<WEIGHTED>(4 * g, 4);
                    flipped[i % 4][g] = -flipped[i % 4][g];
                }
                fill(&mut self.pairs, std::array::from_fn(|j| V::load(&flipped[j][group..])), LEVELS);
                collect::<V, WEIGHTED, false>(self.book, &self.pairs, &mut self.flipped);
            }
            Flips::Any => {
                for j in 0..4 {
                    fill(&mut self.pairs, negated(double, j), LEVELS);
                    if j == 0 {
                        collect::<V, WEIGHTED, false>(self.book, &self.pairs, &mut self.flipped);
                    } else {
                        collect::<V, WEIGHTED, true>(self.book, &self.pairs, &mut self.flipped);
                    }
                }
            }
        }
        fill(&mut self.pairs, double, LEVELS);
        collect::<V, WEIGHTED, false>(self.book, &self.pairs, &mut self.products);
    }

    #[inline(always)]
    fn multiply(&mut self, target: &Target, group: usize) {
        fill(&mut self.pairs, std::array::from_fn(|j| V::load(&target.double[j][group..])), LEVELS);
    }

    /// Scores at every code, and the sums of eights: in both lanes of an eight.
    #[inline(always)]
    fn score<const WEIGHTED: bool>(&mut self, target: &Target, steps: &Steps, group: usize) {
        lowest::<V, WEIGHTED>(&self.products, &self.norms, steps, &mut self.scores);
        if self.flips == Flips::Done {
            for (sum, score) in self.sums.iter_mut().zip(&self.scores) {
                let score = V::load(score);
                score.add(score.swap_pairs()).store(sum);
            }
            return;
        }
        lowest::<V, WEIGHTED>(&self.flipped, &self.norms, steps, &mut self.flipped_scores);
        let odd: Row = std::array::from_fn(|lane| {
            let l = (group + lane) / 2;
            f32::from(l < LEN / 8 && target.is_odd(l))
        });
        let (odd, one) = (V::load(&odd), V::splat(1.0));
        for ((sum, score), flipped) in self.sums.iter_mut().zip(&self.scores).zip(&self.flipped_scores) {
            let score = V::load(score);
            let with = V::load(flipped).add(score.swap_pairs());
            let without = score.add(score.swap_pairs());
            odd.select_eq(one, with.min(with.swap_pairs()), without).store(sum);
        }
    }

    /// The code of a sub-block and its error.
    #[inline(always)]
    fn best(&self, steps: &Steps, half: usize) -> (usize, f32) {
        let mut best = (0, f32::INFINITY);
        for (code, (sum, step)) in self.sums.iter().zip(&steps.steps).enumerate() {
            let e = &sum[8 * half..8 * half + 8];
            let error = step * (((e[0] + e[2]) + e[4]) + e[6]);
            if error < best.1 {
                best = (code, error);
            }
        }
        best
    }

    /// Flips a sign in each odd eight, where `codes` say it costs least: the first group and the first value of
    /// equals. Puts the scores of groups so flipped into `least`.
    #[inline(always)]
    fn settle<const WEIGHTED: bool>(
        &mut self,
        target: &mut Target,
        steps: &Steps,
        group: usize,
        codes: [usize; 2],
        least: &mut Row,
    ) {
        let double: [V; 4] = std::array::from_fn(|j| V::load(&target.double[j][group..]));
        let mut each = [[0.0; WIDEST]; 4];
        if self.flips == Flips::Any {
            for (j, scores) in each.iter_mut().enumerate() {
                fill(&mut self.pairs, negated(double, j), LEVELS);
                collect::<V, WEIGHTED, false>(self.book, &self.pairs, &mut self.products);
                self.at_codes::<WEIGHTED>(steps, codes).store(scores);
            }
        }
        for first in (0..V::N).step_by(2) {
            let l = (group + first) / 2;
            if !target.is_odd(l) {
                continue;
            }
            let (plain, flipped) = (&self.scores[codes[first / 8]], &self.flipped_scores[codes[first / 8]]);
            let in_first = flipped[first] + plain[first + 1];
            let in_second = flipped[first + 1] + plain[first];
            let lane = if in_first <= in_second { first } else { first + 1 };
            least[lane] = flipped[lane];
            let i = match self.flips {
                Flips::Any => {
                    let is_least = |scores: &Row| scores[lane] == flipped[lane];
                    4 * (group + lane) + each.iter().position(is_least).unwrap_or(0)
                }
                _ => target.least::<WEIGHTED>(4 * (group + lane), 4),
            };
            target.flip(i);
        }
    }

    /// The least scores of `self.products` at the given code of each sub-block.
    #[inline(always)]
    fn at_codes<const WEIGHTED: bool>(&self, steps: &Steps, [low, high]: [usize; 2]) -> V {
        let mut least = V::splat(f32::INFINITY);
        if WEIGHTED {
            let step = V::pair(steps.steps[low], steps.steps[high]);
            for (product, norm) in self.products.iter().zip(&self.norms) {
                least = step.mul(*norm).sub(*product).min(least);
            }
        } else {
            for (product, times) in self.products.iter().zip(&steps.times) {
                least = V::pair(times[low], times[high]).sub(*product).min(least);
            }
        }
        least
    }

    /// The lowest entries, as f32, whose score equals `least` at the given code of each sub-block.
    #[inline(always)]
    fn entries<const WEIGHTED: bool>(&self, steps: &Steps, [low, high]: [usize; 2], least: V) -> V {
        let step = V::pair(steps.steps[low], steps.steps[high]);
        let mut times = [step; NORMS];
        if !WEIGHTED {
            for (t, row) in times.iter_mut().zip(&steps.times) {
                *t = V::pair(row[low], row[high]);
            }
        }
        // From the last to the first, so that the lowest stays; in two halves, which do not wait for each other.
        let mut found = [V::splat(256.0); 2];
        for i in (0..128).rev() {
            for (half, found) in found.iter_mut().enumerate() {
                let i = 128 * half + i;
                let entry = self.book.entries[i];
                let norm = if WEIGHTED { step.mul(self.norms[i]) } else { times[usize::from(entry.norm & 63)] };
                let score = norm.sub(sum(&self.pairs, entry.pairs));
                *found = score.select_eq(least, V::splat(i as f32), *found);
            }
        }
        found[0].min(found[1])
    }
}

/// The products of both pairs with every pair of levels.
#[inline(always)]
fn fill<V: Lanes>(pairs: &mut [[V; 64]; 2], by: [V; 4], levels: [f32; 8]) {
    for (p, pairs) in pairs.iter_mut().enumerate() {
        let first: [V; 8] = std::array::from_fn(|i| by[2 * p].mul(V::splat(levels[i])));
        let second: [V; 8] = std::array::from_fn(|i| by[2 * p + 1].mul(V::splat(levels[i])));
        for (row, first) in pairs.as_chunks_mut::<8>().0.iter_mut().zip(first) {
            for (pair, second) in row.iter_mut().zip(second) {
                *pair = first.add(second);
            }
        }
    }
}

#[inline(always)]
fn sum<V: Lanes>(pairs: &[[V; 64]; 2], [a, b]: [u8; 2]) -> V {
    pairs[0][usize::from(a & 63)].add(pairs[1][usize::from(b & 63)])
}

#[inline(always)]
fn negated<V: Lanes>(mut by: [V; 4], j: usize) -> [V; 4] {
    by[j] = by[j].mul(V::splat(-1.0));
    by
}

/// The largest product of each norm, or every product; with `MERGE` also the largest of these and what is there.
#[inline(always)]
fn collect<V: Lanes, const WEIGHTED: bool, const MERGE: bool>(
    book: &Codebook,
    pairs: &[[V; 64]; 2],
    out: &mut [V; 256],
) {
    if WEIGHTED {
        for (out, entry) in out.iter_mut().zip(&book.entries) {
            let product = sum(pairs, entry.pairs);
            *out = if MERGE { product.max(*out) } else { product };
        }
        return;
    }
    let mut rest = &book.by_norm[..];
    for (out, &count) in out.iter_mut().zip(&book.counts) {
        let (these, after) = rest.split_at(count);
        rest = after;
        let mut largest = if MERGE { *out } else { V::splat(f32::NEG_INFINITY) };
        for &entry in these {
            largest = sum(pairs, entry).max(largest);
        }
        *out = largest;
    }
}

/// The least score of every lane at every code.
#[inline(always)]
fn lowest<V: Lanes, const WEIGHTED: bool>(
    products: &[V; 256],
    norms: &[V; 256],
    steps: &Steps,
    out: &mut [Row; CODES],
) {
    // Four codes at a time share a product and do not wait for each other.
    for (quarter, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let mut least = [V::splat(f32::INFINITY); 4];
        if WEIGHTED {
            let steps: [V; 4] = std::array::from_fn(|i| V::splat(steps.steps[4 * quarter + i]));
            for (product, norm) in products.iter().zip(norms) {
                for (least, step) in least.iter_mut().zip(&steps) {
                    *least = step.mul(*norm).sub(*product).min(*least);
                }
            }
        } else {
            for (product, times) in products.iter().zip(&steps.times) {
                let times = &times.as_chunks::<4>().0[quarter];
                for (least, &times) in least.iter_mut().zip(times) {
                    *least = V::splat(times).sub(*product).min(*least);
                }
            }
        }
        for (out, least) in out.iter_mut().zip(least) {
            least.store(out);
        }
    }
}
