//! What a block aims at: magnitudes, signs, and which sign to flip where eight values hold an odd number of
//! negatives.

use super::LEN;

/// A block before its search. Group g is values 4g..4g+4.
#[derive(Clone)]
pub(super) struct Target {
    /// What step·h shall be near to, value by value: the magnitudes, and minus the magnitude where a sign was
    /// flipped against the value.
    pub(super) goal: [f32; LEN],
    /// Bit j of byte l is set where value 8l + j is stored as negative.
    pub(super) signs: [u8; LEN / 8],
    /// Twice the weighted goal, value j of group g at `[j][g]`.
    pub(super) double: [[f32; LEN / 4]; 4],
    /// The weights, in the same order; used only where there is an importance.
    pub(super) weights: [[f32; LEN / 4]; 4],
    /// The weighted sum of squares of each sub-block, in some order: only for bounds.
    pub(super) power: [f32; LEN / 32],
}

impl Target {
    /// The target of a block that is finite, with weights or without; nothing is flipped yet.
    #[inline(always)]
    pub(super) fn of(x: &[f32; LEN], weights: Option<&[f32; LEN]>) -> Self {
        let mut target = Self {
            goal: x.map(f32::abs),
            signs: [0; LEN / 8],
            double: [[0.0; LEN / 4]; 4],
            weights: [[1.0; LEN / 4]; 4],
            power: [0.0; LEN / 32],
        };
        for (bits, eight) in target.signs.iter_mut().zip(x.as_chunks::<8>().0) {
            // −0 is no negative.
            *bits = eight.iter().enumerate().fold(0, |bits, (j, &v)| bits | u8::from(v < 0.0) << j);
        }
        if let Some(weights) = weights {
            for (g, w) in weights.as_chunks::<4>().0.iter().enumerate() {
                (0..4).for_each(|j| target.weights[j][g] = w[j]);
            }
            for (g, m) in target.goal.as_chunks::<4>().0.iter().enumerate() {
                (0..4).for_each(|j| target.double[j][g] = 2.0 * target.weights[j][g] * m[j]);
            }
        } else {
            for (g, m) in target.goal.as_chunks::<4>().0.iter().enumerate() {
                (0..4).for_each(|j| target.double[j][g] = 2.0 * m[j]);
            }
        }
        for sub in 0..LEN / 32 {
            target.power[sub] = if weights.is_some() {
                target.above::<true>(sub, 0.0)
            } else {
                target.above::<false>(sub, 0.0)
            };
        }
        target
    }

    /// The weighted sum of squares of what a sub-block's magnitudes have above `limit`, in some order.
    #[inline(always)]
    pub(super) fn above<const WEIGHTED: bool>(&self, sub: usize, limit: f32) -> f32 {
        let mut sums = [0.0; 8];
        for (k, eight) in self.goal[32 * sub..32 * sub + 32].as_chunks::<8>().0.iter().enumerate() {
            for j in 0..8 {
                let above = eight[j].abs() - limit;
                let above = if above > 0.0 { above } else { 0.0 };
                let weight = if WEIGHTED { self.weights[j % 4][8 * sub + 2 * k + j / 4] } else { 1.0 };
                sums[j] += weight * (above * above);
            }
        }
        ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]))
    }

    /// Whether the eight values from 8l hold an odd number of negatives.
    #[inline(always)]
    pub(super) fn is_odd(&self, l: usize) -> bool {
        self.signs[l].count_ones() & 1 == 1
    }

    /// Of the eight values from `from` the first that is the smallest: by magnitude, or by weighted square.
    #[inline(always)]
    fn least<const WEIGHTED: bool>(&self, from: usize) -> usize {
        if !WEIGHTED && let Some(eight) = self.goal[from..].first_chunk::<8>() {
            // Magnitudes order like their bits: no branch decides, which could not be foreseen.
            let bits = eight.map(|m| m.to_bits() as i32 & i32::MAX);
            let least = bits.iter().fold(i32::MAX, |least, &bits| least.min(bits));
            let equal =
                bits.iter().enumerate().fold(0_u32, |equal, (j, &b)| equal | u32::from(b == least) << j);
            return from + equal.trailing_zeros() as usize;
        }
        let cost = |i: usize| {
            let by = if WEIGHTED { self.double[i % 4][i / 4] } else { 1.0 };
            self.goal[i] * by
        };
        (from + 1..from + 8).fold(from, |least, i| if cost(i) < cost(least) { i } else { least })
    }

    /// Stores value i with the other sign, and aims at minus its magnitude.
    #[inline(always)]
    pub(super) fn flip(&mut self, i: usize) {
        self.signs[i / 8] ^= 1 << (i % 8);
        self.goal[i] = -self.goal[i];
        let double = &mut self.double[i % 4][i / 4];
        *double = -*double;
    }

    /// Flips the smallest value of every odd eight; with `fold`, as the reference does, the aim stays the magnitude.
    #[inline(always)]
    pub(super) fn flip_smallest<const WEIGHTED: bool>(&mut self, fold: bool) {
        for l in 0..LEN / 8 {
            if self.is_odd(l) {
                let i = self.least::<WEIGHTED>(8 * l);
                if fold {
                    self.signs[l] ^= 1 << (i % 8);
                } else {
                    self.flip(i);
                }
            }
        }
    }
}
