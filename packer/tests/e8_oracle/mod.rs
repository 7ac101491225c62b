//! The rule of E8 encoding with nothing left out: every code, every entry.

use gantry_formats::block::e8::step;
use gantry_formats::block::{fp16, iq3xxs_grid};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    Reference,
    Default,
}

/// xorshift64*: the same numbers everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(2_685_821_657_736_338_717) >> 32) as u32
    }

    /// In (0, 1).
    pub(crate) fn uniform(&mut self) -> f32 {
        ((self.next() >> 9) as f32 + 0.5) / (1 << 23) as f32
    }

    /// Of a normal distribution.
    pub(crate) fn normal(&mut self) -> f32 {
        let (u, v) = (f64::from(self.uniform()), f64::from(self.uniform()));
        ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
    }
}

fn sum(x: impl Fn(usize) -> f64) -> f64 {
    let s: [f64; 8] = std::array::from_fn(|j| (0..32).fold(0.0, |s, i| s + x(8 * i + j)));
    ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}

/// Half the codebook.
fn halves() -> [[f32; 4]; 256] {
    iq3xxs_grid().map(|row| row.map(|g| f32::from(g) * 0.5))
}

/// The block that `x` gets.
pub(crate) fn encode(rule: Rule, x: &[f32; 256], importance: Option<&[f32; 256]>) -> [u8; 98] {
    let mut out = [0; 98];
    if x.iter().all(|x| *x == 0.0) {
        return out;
    }
    let square = |i: usize| f64::from(x[i]) * f64::from(x[i]);
    let mut mean = sum(square) / 256.0;
    let mut weights = [1.0_f32; 256];
    if let Some(importance) = importance {
        let average = sum(|i| f64::from(importance[i])) / 256.0;
        if average > 0.0 {
            weights = importance.map(|w| (f64::from(w) / average) as f32);
        }
        let weighted = sum(|i| f64::from(weights[i]) * square(i)) / sum(|i| f64::from(weights[i]));
        if weighted > 0.0 {
            mean = weighted;
        }
    }
    let d = match rule {
        Rule::Reference => mean.sqrt() / 20.0 + 1e-12,
        Rule::Default => {
            let amax = x.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
            (mean.sqrt() / 66.0).max(f64::from(amax) / (15.5 * 0.5 * 62.0 * 0.5))
        }
    };
    let half = fp16::f32_to_f16(d as f32);
    let d = fp16::f16_to_f32(half);
    out[96..].copy_from_slice(&half.to_le_bytes());

    let mut goal = x.map(f32::abs);
    let mut negative = x.map(|x| x < 0.0);
    for l in 0..32 {
        let eight = 8 * l..8 * l + 8;
        if negative[eight.clone()].iter().filter(|n| **n).count() % 2 == 1 {
            let cost = |i: usize| {
                if importance.is_some() { goal[i] * (2.0 * weights[i] * goal[i]) } else { goal[i] }
            };
            let least = eight.clone().map(cost).fold(f32::INFINITY, f32::min);
            let i = eight.clone().find(|&i| cost(i) == least).expect("one of them");
            negative[i] = !negative[i];
            if rule == Rule::Default {
                goal[i] = -goal[i];
            }
        }
    }
    let halves = halves();
    for sub in 0..8 {
        let mut best = (f32::INFINITY, 0, [0; 8]);
        for code in 0..16 {
            let step = step(d, code as u8);
            let (mut scores, mut indices) = ([0.0_f32; 8], [0; 8]);
            for group in 0..8 {
                let at = 32 * sub + 4 * group;
                let t: [f32; 4] = std::array::from_fn(|j| 2.0 * weights[at + j] * goal[at + j]);
                let w: [f32; 4] = std::array::from_fn(|j| weights[at + j]);
                scores[group] = f32::INFINITY;
                for (i, h) in halves.iter().enumerate() {
                    let product = (t[0] * h[0] + t[1] * h[1]) + (t[2] * h[2] + t[3] * h[3]);
                    let q = h.map(|h| h * h);
                    let norm = (w[0] * q[0] + w[1] * q[1]) + (w[2] * q[2] + w[3] * q[3]);
                    let score = step * norm - product;
                    if score < scores[group] {
                        (scores[group], indices[group]) = (score, i as u8);
                    }
                }
            }
            let e: [f32; 4] = std::array::from_fn(|l| scores[2 * l] + scores[2 * l + 1]);
            let error = step * (((e[0] + e[1]) + e[2]) + e[3]);
            if error < best.0 {
                best = (error, code, indices);
            }
        }
        out[8 * sub..8 * sub + 8].copy_from_slice(&best.2);
        let mut word = (best.1 as u32) << 28;
        for i in 0..32 {
            if i % 8 < 7 {
                word |= u32::from(negative[32 * sub + i]) << (7 * (i / 8) + i % 8);
            }
        }
        out[64 + 4 * sub..][..4].copy_from_slice(&word.to_le_bytes());
    }
    out
}

/// The least squared error that any codes, entries and signs give at this scale, where an odd number of negatives
/// is mended by one sign.
pub(crate) fn least_error(x: &[f32; 256], d: f32) -> f64 {
    let halves = halves();
    let group = |m: [f64; 4], step: f64| {
        let error = |h: &[f32; 4]| (0..4).map(|j| (m[j] - step * f64::from(h[j])).powi(2)).sum::<f64>();
        halves.iter().map(error).fold(f64::INFINITY, f64::min)
    };
    let eight = |x: &[f32; 8], step: f64| {
        let m: [f64; 8] = x.map(|x| f64::from(x.abs()));
        let four = |m: &[f64; 8], at: usize| group([m[at], m[at + 1], m[at + 2], m[at + 3]], step);
        if x.iter().filter(|x| **x < 0.0).count() % 2 == 0 {
            return four(&m, 0) + four(&m, 4);
        }
        let flipped = |i: usize| {
            let mut m = m;
            m[i] = -m[i];
            four(&m, 0) + four(&m, 4)
        };
        (0..8).map(flipped).fold(f64::INFINITY, f64::min)
    };
    let sub_block = |x: &[f32; 32]| {
        let at =
            |code: u8| x.as_chunks::<8>().0.iter().map(|x| eight(x, f64::from(step(d, code)))).sum::<f64>();
        (0..16).map(at).fold(f64::INFINITY, f64::min)
    };
    x.as_chunks::<32>().0.iter().map(sub_block).sum()
}
