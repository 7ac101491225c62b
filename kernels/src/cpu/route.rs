//! Which experts a token goes to, with which weights, and the sum of what they give.

use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Simd};
use super::math::{FORK, sigmoid_in_place, softplus_then};
use super::norm::softmax;
use super::pool::Pool;
use super::scratch;

/// How a router's logits become probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts, as [`softmax`].
    Softmax,
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// √(ln(1 + e^x)).
    SqrtSoftplus,
    /// The logits themselves; the weights of the chosen experts then go through a softmax.
    SoftmaxWeight,
}

/// How a layer chooses experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Experts.
    pub experts: usize,
    /// Experts that a token uses: slots.
    pub used: usize,
    /// How logits become probabilities.
    pub gating: Gating,
    /// Groups of experts of the same size, in order of the experts; 1 for none.
    pub groups: usize,
    /// Groups that a token may use.
    pub groups_used: usize,
    /// Divide the weights by their sum.
    pub normalize: bool,
    /// What the weights are multiplied by at last; 0 and 1 leave them.
    pub scale: f32,
}

/// The least that weights are divided by: the smallest normal fp16.
const LEAST_SUM: f32 = 6.103_515_6e-5;

impl Routing {
    #[track_caller]
    fn check(&self, logits: &[f32], ids: &[u32], weights: &[f32]) {
        let Routing { experts, used, groups, groups_used, .. } = *self;
        assert!(used > 0 && used <= experts, "{used} of {experts} experts");
        assert!(groups > 0 && experts.is_multiple_of(groups), "{experts} experts in {groups} groups");
        assert!(
            groups == 1 || groups_used <= groups && used <= groups_used * (experts / groups),
            "{used} of the {experts} experts from {groups_used} of {groups} groups"
        );
        assert!(logits.len().is_multiple_of(experts), "{} logits for {experts} experts", logits.len());
        let slots = logits.len() / experts * used;
        assert!(ids.len() == slots && weights.len() == slots, "{used} slots a token are {slots}");
    }

    /// Probabilities of one token's experts, in place of its logits.
    fn probabilities(&self, isa: Isa, values: &mut [f32]) {
        match self.gating {
            Gating::Softmax => softmax(isa, values, values.len()),
            Gating::Sigmoid => sigmoid_in_place(isa, values),
            Gating::SqrtSoftplus => softplus_then(isa, values, f64::sqrt),
            Gating::SoftmaxWeight => {}
        }
    }

    /// What comes after the choice: `weights` holds the probabilities of the chosen experts.
    fn finish(&self, isa: Isa, weights: &mut [f32]) {
        if self.gating == Gating::SoftmaxWeight {
            softmax(isa, weights, weights.len());
        }
        if self.normalize {
            let sum = weights.iter().fold(0f64, |sum, &w| sum + f64::from(w)) as f32;
            // A NaN stays one, which `max` would drop.
            let by = if sum < LEAST_SUM { LEAST_SUM } else { sum };
            weights.iter_mut().for_each(|w| *w /= by);
        }
        if self.scale != 0.0 && self.scale != 1.0 {
            weights.iter_mut().for_each(|w| *w *= self.scale);
        }
    }
}

/// The experts of each token and their weights: `logits` is `[tokens][experts]`, `bias` `[experts]`, `ids` and
/// `weights` are `[tokens][used]`, a token's experts in descending order of score.
///
/// 1. p = probabilities of the logits, by `gating`.
/// 2. score = p + bias.
/// 3. With several groups: a group's score is the sum of its two highest; experts outside the `groups_used` best
///    groups are out.
/// 4. The `used` experts with the highest scores; of equal ones the lowest first (of groups, too). A NaN counts as
///    −∞.
/// 5. w = p of each, without bias; [`Gating::SoftmaxWeight`]: softmax over them.
/// 6. `normalize`: w = w / max(Σw, 2^-14), the sum in f64 in order of slots, rounded once.
/// 7. w = w · `scale`, unless that is 0 or 1.
///
/// # Panics
/// Where the lengths do not agree, no expert or more than there are (in the groups) are used, or groups differ in
/// size.
pub fn route(
    isa: Isa,
    pool: &Pool,
    routing: &Routing,
    logits: &[f32],
    bias: Option<&[f32]>,
    ids: &mut [u32],
    weights: &mut [f32],
) {
    routing.check(logits, ids, weights);
    let Routing { experts, used, .. } = *routing;
    assert!(bias.is_none_or(|b| b.len() == experts), "a bias for {experts} experts");
    let mut slots: Vec<(&mut [u32], &mut [f32])> =
        ids.chunks_exact_mut(used).zip(weights.chunks_exact_mut(used)).collect();
    pool.for_rows(&mut slots, 1, (FORK / 4).div_ceil(experts), |token, slots| {
        let (ids, weights) = &mut slots[0];
        scratch::with_lines(2 * experts.div_ceil(LANES), |lines| {
            let (p, scores) = scratch::floats(lines).split_at_mut(experts);
            p.copy_from_slice(&logits[token * experts..][..experts]);
            routing.probabilities(isa, p);
            let scores = &mut scores[..experts];
            scores.copy_from_slice(p);
            if let Some(bias) = bias {
                scores.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
            }
            if routing.groups > 1 {
                keep_groups(routing, scores);
            }
            highest(scores, ids, weights);
            for (&id, w) in ids.iter().zip(weights.iter_mut()) {
                *w = p[id as usize];
            }
        });
        routing.finish(isa, weights);
    });
}

/// The weights of experts that were chosen otherwise: as [`route`] from step 5 on.
///
/// # Panics
/// Where the lengths do not agree or an id is no expert.
pub fn route_given(
    isa: Isa,
    pool: &Pool,
    routing: &Routing,
    logits: &[f32],
    ids: &[u32],
    weights: &mut [f32],
) {
    routing.check(logits, ids, weights);
    let Routing { experts, used, .. } = *routing;
    let bad = ids.iter().find(|&&id| id as usize >= experts);
    assert_eq!(bad, None, "an id of {experts} experts");
    pool.for_rows(weights, used, (FORK / 4).div_ceil(experts), |token, weights| {
        scratch::with_lines(experts.div_ceil(LANES), |lines| {
            let p = &mut scratch::floats(lines)[..experts];
            p.copy_from_slice(&logits[token * experts..][..experts]);
            routing.probabilities(isa, p);
            for (&id, w) in ids[token * used..].iter().zip(weights.iter_mut()) {
                *w = p[id as usize];
            }
        });
        routing.finish(isa, weights);
    });
}

/// The indices of the highest scores, descending, the lowest index first among equals; `best` is room for them.
fn highest(scores: &[f32], ids: &mut [u32], best: &mut [f32]) {
    let mut found = 0;
    for (i, &score) in scores.iter().enumerate() {
        let score = if score.is_nan() { f32::NEG_INFINITY } else { score };
        if found == ids.len() && score <= best[found - 1] {
            continue;
        }
        let mut at = found.min(ids.len() - 1);
        while at > 0 && score > best[at - 1] {
            (best[at], ids[at]) = (best[at - 1], ids[at - 1]);
            at -= 1;
        }
        (best[at], ids[at]) = (score, i as u32);
        found = (found + 1).min(ids.len());
    }
}

/// Scores of experts outside the best groups to −∞.
fn keep_groups(routing: &Routing, scores: &mut [f32]) {
    let size = routing.experts / routing.groups;
    let group_scores: Vec<f32> = scores
        .chunks_exact(size)
        .map(|scores| {
            let (mut ids, mut best) = ([0; 2], [0f32; 2]);
            let n = size.min(2);
            highest(scores, &mut ids[..n], &mut best[..n]);
            best[0] + best[1]
        })
        .collect();
    let (mut ids, mut best) = (vec![0; routing.groups_used], vec![0f32; routing.groups_used]);
    highest(&group_scores, &mut ids, &mut best);
    for (group, scores) in scores.chunks_exact_mut(size).enumerate() {
        if !ids.contains(&(group as u32)) {
            scores.fill(f32::NEG_INFINITY);
        }
    }
}

/// What experts gave, and how it becomes one row for each token.
#[derive(Clone, Copy, Debug)]
pub struct ExpertOutputs<'a> {
    /// `[tokens][used][n]`.
    pub x: &'a [f32],
    /// `[tokens][used]`.
    pub weights: &'a [f32],
    /// Slots of a token.
    pub used: usize,
    /// Columns.
    pub n: usize,
}

/// y\[token\] = Σ w\[token\]\[slot\] · x\[token\]\[slot\], `y` being `[tokens][n]`.
///
/// Order: y = w₀·x₀; for slot 1, 2, …: y = y + w·x, each operation rounded.
///
/// # Panics
/// Where the lengths do not agree, or there is no slot.
pub fn weighted_sum(isa: Isa, pool: &Pool, outputs: &ExpertOutputs<'_>, y: &mut [f32]) {
    let ExpertOutputs { x, weights, used, n } = *outputs;
    assert!(n > 0 && used > 0 && y.len().is_multiple_of(n), "{} values for rows of {n}", y.len());
    let slots = y.len() / n * used;
    assert_eq!(weights.len(), slots, "weights of {used} slots a token");
    assert_eq!(Some(x.len()), slots.checked_mul(n), "outputs of {used} slots a token");
    pool.for_rows(y, n, FORK.div_ceil(n * used), |token, y| {
        let slot = |i: usize| {
            let i = token * used + i;
            (weights[i], &x[i * n..][..n])
        };
        isa.run(Sum { slot, used, y });
    });
}

struct Sum<'a, F> {
    slot: F,
    used: usize,
    y: &'a mut [f32],
}

impl<'x, F: Fn(usize) -> (f32, &'x [f32])> Kernel for Sum<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (i, y) in self.y.chunks_mut(LANES).enumerate() {
            let n = y.len();
            let term = |slot: usize| {
                let (w, x) = (self.slot)(slot);
                let x = &x[i * LANES..][..n];
                // SAFETY: n values, n <= 16.
                s.mul(s.splat(w), unsafe { s.load_part(x.as_ptr(), n) })
            };
            let mut sum = term(0);
            for slot in 1..self.used {
                sum = s.add(sum, term(slot));
            }
            // SAFETY: a chunk holds n values, n <= 16.
            unsafe { s.store_part(y.as_mut_ptr(), n, sum) };
        }
    }
}
