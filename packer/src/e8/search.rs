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

use super::codebook::{CODEBOOK, LEVELS, NORMS};
use super::products::{collect, fill, negated, sum};
use super::target::Target;
use super::{CODES, LEN};
use crate::simd::lanes::Lanes;
use gantry_formats::block::e8::step;
use std::ops::Range;

/// Most lanes of a vector.
const WIDEST: usize = 16;

/// What rounding may add to an error, as a share of all that goes into it: some 20 roundings of 2⁻²⁴, with room.
const SLACK: f32 = 1e-4;

/// One f32 per lane.
type Row = [f32; WIDEST];

/// Which sign an odd number of negatives may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flips {
    /// Decided before: the target has none left.
    Done,
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
        let mut times = [[0.0; CODES]; NORMS];
        for (row, norm) in times.iter_mut().zip(&CODEBOOK.norms) {
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
    flips: Flips,
    /// Products of the pairs of values 0, 1 and of values 2, 3.
    pairs: [[V; 64]; 2],
    /// Norms of the same pairs, weighted.
    weighed: [[V; 64]; 2],
    /// The largest product of each norm, or the product of each entry where there are weights.
    products: [V; 256],
    /// The same with one sign flipped.
    flipped: [V; 256],
    /// As `products`, of what is tried last.
    spare: [V; 256],
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
            flips,
            pairs: [[zero; 64]; 2],
            weighed: [[zero; 64]; 2],
            products: [zero; 256],
            flipped: [zero; 256],
            spare: [zero; 256],
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
                let best = self.score::<WEIGHTED>(target, steps, 8 * first);
                for (_, error) in &best[..Self::SUBS] {
                    *out += f64::from(*error);
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
            let best = self.score::<WEIGHTED>(target, steps, group);
            let codes = best.map(|(code, _)| code);
            for (half, (code, error)) in best.into_iter().enumerate().take(Self::SUBS) {
                found.codes[first + half] = code as u8;
                found.error += f64::from(error);
            }
            let mut least = self.scores[codes[0]];
            least[8..].copy_from_slice(&self.scores[codes[1]][8..]);
            let mut flipped = [0.0; WIDEST];
            if self.flips != Flips::Done {
                self.settle::<WEIGHTED>(target, steps, group, codes, &mut least, &mut flipped);
                self.multiply(target, group);
            }
            let mut indices = [0.0; WIDEST];
            self.entries::<WEIGHTED>(steps, codes, V::load(&least), V::load(&flipped)).store(&mut indices);
            for (index, i) in found.indices[group..].iter_mut().zip(&indices[..V::N]) {
                *index = *i as u8;
            }
        }
        found
    }

    /// Products and norms of the groups from `group` on.
    #[inline(always)]
    fn prepare<const WEIGHTED: bool>(&mut self, target: &Target, group: usize) {
        if WEIGHTED {
            let weights: [V; 4] = std::array::from_fn(|j| V::load(&target.weights[j][group..]));
            fill(&mut self.weighed, weights, LEVELS.map(|h| h * h));
            for (norm, &pairs) in self.norms.iter_mut().zip(&CODEBOOK.pairs) {
                *norm = sum(&self.weighed, pairs);
            }
        }
        let used = if WEIGHTED { 256 } else { NORMS };
        let count = match self.flips {
            Flips::Done => 0,
            Flips::Any => 4,
        };
        // With each flip first, then as it is, which stays.
        for flip in (0..=count).rev() {
            let mut double: [V; 4] = std::array::from_fn(|j| V::load(&target.double[j][group..]));
            if flip > 0 {
                double[flip - 1] = negated(double[flip - 1]);
            }
            fill(&mut self.pairs, double, LEVELS);
            collect::<V, WEIGHTED>(&self.pairs, &mut self.products);
            if flip == count && flip > 0 {
                self.flipped[..used].copy_from_slice(&self.products[..used]);
            } else if flip > 0 {
                for (flipped, product) in self.flipped[..used].iter_mut().zip(&self.products) {
                    *flipped = product.max(*flipped);
                }
            }
        }
    }

    #[inline(always)]
    fn multiply(&mut self, target: &Target, group: usize) {
        fill(&mut self.pairs, std::array::from_fn(|j| V::load(&target.double[j][group..])), LEVELS);
    }

    /// Scores at every code that may be the best of a sub-block, and the sums of eights: in both lanes of an eight.
    /// Gives the best code of each sub-block and its error.
    ///
    /// Eight codes around the likely one come first. For codes below them no value can be above 31·step, so that
    /// what sticks out is an error they cannot avoid. A sum of scores is the least of lines in the step, so a
    /// concave function of it: codes between the eight and the last lie above the chord.
    #[inline(always)]
    fn score<const WEIGHTED: bool>(
        &mut self,
        target: &Target,
        steps: &Steps,
        group: usize,
    ) -> [(usize, f32); 2] {
        let mut odd = [0.0; WIDEST];
        if self.flips != Flips::Done {
            for (lane, odd) in odd.iter_mut().enumerate().take(V::N) {
                *odd = f32::from(target.is_odd((group + lane) / 2));
            }
        }
        let odd = V::load(&odd);
        let first = group / 8;
        let power = target.power[first..first + Self::SUBS].iter().sum::<f32>() / (32 * Self::SUBS) as f32;
        let low = first_code(power, steps.steps[0]);
        self.score_codes::<WEIGHTED, 8>(steps, low, odd);
        // Both bounds are held against the best of the eight.
        let mut best = [(0, 0.0); 2];
        for (half, best) in best.iter_mut().enumerate().take(Self::SUBS) {
            *best = self.best(steps, half, low..low + 8);
        }
        let (mut below, mut above) = (false, false);
        if low > 0 {
            for (half, (_, best)) in best.iter().enumerate().take(Self::SUBS) {
                let power = target.power[first + half];
                let excess = target.above::<WEIGHTED>(first + half, 31.0 * steps.steps[low - 1]);
                below |= excess - power <= best + SLACK * power;
            }
        }
        if low < CODES - 8 {
            const LAST: usize = CODES - 1;
            self.score_codes::<WEIGHTED, 1>(steps, LAST, odd);
            for (half, (_, best)) in best.iter().enumerate().take(Self::SUBS) {
                let (near, far) = (self.total(low + 7, half), self.total(LAST, half));
                for code in low + 8..LAST {
                    let share = (code - low - 7) as f32 / (LAST - low - 7) as f32;
                    let step = steps.steps[code];
                    let slack = SLACK * (target.power[first + half] + step * (near.abs() + far.abs()));
                    above |= step * (near + (far - near) * share) <= best + slack;
                }
            }
        }
        if below {
            self.score_codes::<WEIGHTED, 8>(steps, 0, odd);
        }
        if above {
            self.score_codes::<WEIGHTED, 8>(steps, CODES - 8, odd);
        }
        // What was scored is one run of codes, and the last where it was looked at for the bound.
        let run = if below { 0 } else { low }..if above { CODES } else { low + 8 };
        for (half, best) in best.iter_mut().enumerate().take(Self::SUBS) {
            if below || above {
                *best = self.best(steps, half, run.clone());
            }
            if low < CODES - 8 && !above {
                let last = self.best(steps, half, CODES - 1..CODES);
                *best = if last.1 < best.1 { last } else { *best };
            }
        }
        best
    }

    /// Scores and sums at `COUNT` codes from `from` on.
    #[inline(always)]
    fn score_codes<const WEIGHTED: bool, const COUNT: usize>(&mut self, steps: &Steps, from: usize, odd: V) {
        lowest::<V, WEIGHTED, COUNT>(&self.products, &self.norms, steps, from, &mut self.scores);
        let codes = from..from + COUNT;
        if self.flips == Flips::Done {
            for (sum, score) in self.sums[codes.clone()].iter_mut().zip(&self.scores[codes]) {
                let score = V::load(score);
                score.add(score.swap_pairs()).store(sum);
            }
            return;
        }
        lowest::<V, WEIGHTED, COUNT>(&self.flipped, &self.norms, steps, from, &mut self.flipped_scores);
        let one = V::splat(1.0);
        for code in codes {
            let (score, flipped) = (V::load(&self.scores[code]), V::load(&self.flipped_scores[code]));
            let with = flipped.add(score.swap_pairs());
            let without = score.add(score.swap_pairs());
            odd.select_eq(one, with.min(with.swap_pairs()), without).store(&mut self.sums[code]);
        }
    }

    /// The sum of a sub-block's scores at a code.
    #[inline(always)]
    fn total(&self, code: usize, half: usize) -> f32 {
        let e = &self.sums[code][8 * half..8 * half + 8];
        ((e[0] + e[2]) + e[4]) + e[6]
    }

    /// The best of these codes for a sub-block, the lowest of equals, and its error.
    #[inline(always)]
    fn best(&self, steps: &Steps, half: usize, codes: Range<usize>) -> (usize, f32) {
        let mut best = (0, f32::INFINITY);
        for code in codes {
            let error = steps.steps[code] * self.total(code, half);
            if error < best.1 {
                best = (code, error);
            }
        }
        best
    }

    /// Flips a sign in each odd eight, where `codes` say it costs least: the first group and the first value of
    /// equals. Puts the scores of groups so flipped into `least` and a 1 into
    /// `which`.
    #[inline(always)]
    fn settle<const WEIGHTED: bool>(
        &mut self,
        target: &mut Target,
        steps: &Steps,
        group: usize,
        codes: [usize; 2],
        least: &mut Row,
        which: &mut Row,
    ) {
        let double: [V; 4] = std::array::from_fn(|j| V::load(&target.double[j][group..]));
        let mut each = [[0.0; WIDEST]; 4];
        for (j, scores) in each.iter_mut().enumerate() {
            let mut double = double;
            double[j] = negated(double[j]);
            fill(&mut self.pairs, double, LEVELS);
            collect::<V, WEIGHTED>(&self.pairs, &mut self.spare);
            self.at_codes::<WEIGHTED>(steps, codes).store(scores);
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
            which[lane] = 1.0;
            let j = each.iter().position(|scores| scores[lane] == flipped[lane]).unwrap_or(0);
            target.flip(4 * (group + lane) + j);
        }
    }

    /// The least scores of `self.spare` at the given code of each sub-block.
    #[inline(always)]
    fn at_codes<const WEIGHTED: bool>(&self, steps: &Steps, [low, high]: [usize; 2]) -> V {
        let mut least = V::splat(f32::INFINITY);
        if WEIGHTED {
            let step = V::pair(steps.steps[low], steps.steps[high]);
            for (product, norm) in self.spare.iter().zip(&self.norms) {
                least = step.mul(*norm).sub(*product).min(least);
            }
        } else {
            for (product, times) in self.spare.iter().zip(&steps.times) {
                least = V::pair(times[low], times[high]).sub(*product).min(least);
            }
        }
        least
    }

    /// The lowest entries, as f32, whose score equals `least` at the given code of each sub-block. Lane i takes part
    /// with a flipped sign where `flipped` is 1.
    #[inline(always)]
    fn entries<const WEIGHTED: bool>(
        &self,
        steps: &Steps,
        [low, high]: [usize; 2],
        least: V,
        flipped: V,
    ) -> V {
        let mut found = V::splat(256.0);
        if WEIGHTED {
            let step = V::pair(steps.steps[low], steps.steps[high]);
            for (i, (norm, &pairs)) in self.norms.iter().zip(&CODEBOOK.pairs).enumerate().rev() {
                let score = step.mul(*norm).sub(sum(&self.pairs, pairs));
                found = score.select_eq(least, V::splat(i as f32), found);
            }
            return found;
        }
        let one = V::splat(1.0);
        let mut norms = 0_u64;
        for first in (0..NORMS).step_by(32) {
            let mut marks = V::no_marks();
            for i in 0..32 {
                let times = &steps.times[first + i];
                let mut product = self.products[first + i];
                if self.flips != Flips::Done {
                    product = flipped.select_eq(one, self.flipped[first + i], product);
                }
                V::pair(times[low], times[high]).sub(product).mark(least, 1 << i, &mut marks);
            }
            norms |= u64::from(V::marked(marks)) << first;
        }
        while norms != 0 {
            let number = norms.trailing_zeros() as usize;
            norms &= norms - 1;
            let times = V::pair(steps.times[number][low], steps.times[number][high]);
            for &(i, pairs) in &CODEBOOK.ordered[CODEBOOK.starts[number]..CODEBOOK.starts[number + 1]] {
                found = times.sub(sum(&self.pairs, pairs)).least_where_equal(least, i, found);
            }
        }
        found
    }
}

/// The first of the eight codes to look at for values of this mean square. Steps below 0.045 of its root leave out
/// too much of a normal distribution. Any would do: what is found does not depend on it.
#[inline(always)]
fn first_code(power: f32, first_step: f32) -> usize {
    // step = first·(2·code + 1), rounded up.
    let code = 0.045 * power.sqrt() / first_step * 0.5 + 0.5;
    (code as usize).min(CODES - 8)
}

/// The least scores of every lane at `COUNT` codes from `from` on.
#[inline(always)]
fn lowest<V: Lanes, const WEIGHTED: bool, const COUNT: usize>(
    products: &[V; 256],
    norms: &[V; 256],
    steps: &Steps,
    from: usize,
    out: &mut [Row; CODES],
) {
    if COUNT == 8 && V::MANY {
        lowest_by::<V, WEIGHTED, 8>(products, norms, steps, from, out);
    } else if COUNT == 8 {
        lowest_by::<V, WEIGHTED, 4>(products, norms, steps, from, out);
        lowest_by::<V, WEIGHTED, 4>(products, norms, steps, from + 4, out);
    } else {
        lowest_by::<V, WEIGHTED, 1>(products, norms, steps, from, out);
    }
}

/// `AT_ONCE` codes at a time: they share a product, do not wait for each other, and fit the registers.
#[inline(always)]
fn lowest_by<V: Lanes, const WEIGHTED: bool, const AT_ONCE: usize>(
    products: &[V; 256],
    norms: &[V; 256],
    steps: &Steps,
    from: usize,
    out: &mut [Row; CODES],
) {
    let mut least = [V::splat(f32::INFINITY); AT_ONCE];
    if WEIGHTED {
        let steps: [V; AT_ONCE] = std::array::from_fn(|i| V::splat(steps.steps[from + i]));
        for (product, norm) in products.iter().zip(norms) {
            for (least, step) in least.iter_mut().zip(&steps) {
                *least = step.mul(*norm).sub(*product).min(*least);
            }
        }
    } else {
        let from = from.min(CODES - AT_ONCE);
        for (product, times) in products.iter().zip(&steps.times) {
            let times = &times[from..from + AT_ONCE];
            for (least, &times) in least.iter_mut().zip(times) {
                *least = V::splat(times).sub(*product).min(*least);
            }
        }
    }
    for (out, least) in out[from..].iter_mut().zip(least) {
        least.store(out);
    }
}
