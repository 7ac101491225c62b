//! From values to planes, block by block: scales to try, the search, what is stored.

use super::codebook::CODEBOOK;
use super::search::{Flips, Found, Search, Steps};
use super::target::Target;
use super::{LEN, Planes};
use crate::q8_0::Stats;
use crate::simd::lanes::Lanes;
use gantry_formats::block::{e8 as truth, fp16};

/// How a block is encoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Scales to try are the root mean square over each of these.
    pub(super) divisors: &'static [f64],
    /// And the largest magnitude over each of these. Of the first of both the larger is tried: a scale that follows
    /// the root mean square alone clips blocks with outliers, or with many zeros, to a fraction of their values.
    pub(super) reaches: &'static [f64],
    /// What is added to the scale before it is rounded.
    pub(super) offset: f64,
    /// Whether a flipped value still aims at its magnitude.
    pub(super) fold: bool,
    /// Which signs to choose from.
    pub(super) flips: Flips,
    /// How often the scale may follow the entries chosen, as long as the error falls.
    pub(super) refits: usize,
}

/// A block as it is stored.
struct Coded {
    d: u16,
    found: Found,
    /// As [`Target::signs`].
    signs: [u8; LEN / 8],
}

/// Encodes whole blocks; the planes have the lengths that `values` asks for, and `weights` the length of `values`.
/// The error is the index of the first block that is not finite or whose scale overflows.
#[inline(always)]
pub(crate) fn encode_blocks<V: Lanes>(
    plan: &Plan,
    values: &[f32],
    weights: Option<&[f32]>,
    planes: Planes<&mut [u8]>,
) -> Result<Stats, usize> {
    match weights {
        None => run::<V, false>(plan, values, values, planes),
        Some(weights) => run::<V, true>(plan, values, weights, planes),
    }
}

#[inline(always)]
fn run<V: Lanes, const WEIGHTED: bool>(
    plan: &Plan,
    values: &[f32],
    weights: &[f32],
    planes: Planes<&mut [u8]>,
) -> Result<Stats, usize> {
    let mut stats = Stats::default();
    let mut search = Search::<V>::new(plan.flips);
    let blocks = values.as_chunks::<LEN>().0.iter().zip(weights.as_chunks::<LEN>().0);
    let indices = planes.indices.as_chunks_mut::<{ truth::INDICES }>().0;
    let words = planes.words.as_chunks_mut::<{ truth::WORDS }>().0;
    let scales = planes.scales.as_chunks_mut::<{ truth::SCALE }>().0;
    let outs = indices.iter_mut().zip(words).zip(scales);
    for (i, ((x, weights), ((indices, words), scale))) in blocks.zip(outs).enumerate() {
        // Magnitudes order like their bits, infinities and then NaNs on top: one maximum finds both.
        let top = x.iter().fold(0, |top: i32, v| top.max(v.to_bits() as i32 & i32::MAX)) as u32;
        if top >= fp16::F32_EXPONENT {
            return Err(i);
        }
        stats.blocks += 1;
        if top == 0 {
            (*indices, *words, *scale) = ([0; truth::INDICES], [0; truth::WORDS], [0; truth::SCALE]);
            continue;
        }
        let coded = block::<V, WEIGHTED>(plan, &mut search, x, weights).ok_or(i)?;
        *indices = coded.found.indices;
        *scale = coded.d.to_le_bytes();
        let signs = coded.signs.as_chunks::<4>().0;
        for ((word, signs), code) in words.as_chunks_mut::<4>().0.iter_mut().zip(signs).zip(coded.found.codes)
        {
            let sign = |l: usize| u32::from(signs[l] & 0x7f) << (7 * l);
            *word = (sign(0) | sign(1) | sign(2) | sign(3) | u32::from(code) << 28).to_le_bytes();
        }
        note(&mut stats, &coded, x, f32::from_bits(top));
    }
    Ok(stats)
}

/// Adds what became of block `x` of largest magnitude `amax`.
#[inline(always)]
fn note(stats: &mut Stats, coded: &Coded, x: &[f32; LEN], amax: f32) {
    let d = fp16::f16_to_f32(coded.d);
    let steps: [f32; LEN / 32] = std::array::from_fn(|sub| truth::step(d, coded.found.codes[sub]));
    let mut worst = [0.0_f32; 4];
    for (g, (x, index)) in x.as_chunks::<4>().0.iter().zip(coded.found.indices).enumerate() {
        let halves = &CODEBOOK.halves[usize::from(index)];
        let signs = coded.signs[g / 2] >> (4 * (g & 1));
        for j in 0..4 {
            let sign = u32::from(signs >> j & 1) << 31;
            let decoded = f32::from_bits((steps[g / 8] * halves[j]).to_bits() ^ sign);
            worst[j] = worst[j].max((x[j] - decoded).abs());
        }
    }
    let worst = worst.into_iter().fold(0.0, f32::max);
    stats.lost += u64::from(coded.d == 0);
    stats.subnormal += u64::from(coded.d.wrapping_sub(1) < 0x03ff);
    stats.max_abs_error = stats.max_abs_error.max(worst);
    stats.max_rel_error = stats.max_rel_error.max(worst / amax);
}

/// Σ of 256 numbers: 8 partial sums of every eighth, then by halves.
#[inline(always)]
fn sum(x: impl Fn(usize) -> f64) -> f64 {
    let mut s = [0.0; 8];
    for i in (0..LEN).step_by(8) {
        for (j, s) in s.iter_mut().enumerate() {
            *s += x(i + j);
        }
    }
    ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}

/// The root of the weighted mean square.
#[inline(always)]
fn root_mean_square<const WEIGHTED: bool>(x: &[f32; LEN], weights: &[f32; LEN]) -> f64 {
    let square = |i: usize| f64::from(x[i]) * f64::from(x[i]);
    if WEIGHTED {
        let mean = sum(|i| f64::from(weights[i]) * square(i)) / sum(|i| f64::from(weights[i]));
        if mean > 0.0 {
            return mean.sqrt();
        }
    }
    (sum(square) / LEN as f64).sqrt()
}

/// The weights over their mean, so that sums of them stay in range; ones where all are zero.
#[inline(always)]
fn level_weights(weights: &[f32; LEN]) -> [f32; LEN] {
    let mean = sum(|i| f64::from(weights[i])) / LEN as f64;
    weights.map(|w| if mean > 0.0 { (f64::from(w) / mean) as f32 } else { 1.0 })
}

/// One finite block that is not zero, or `None` where its scale overflows.
#[inline(always)]
fn block<V: Lanes, const WEIGHTED: bool>(
    plan: &Plan,
    search: &mut Search<V>,
    x: &[f32; LEN],
    weights: &[f32; LEN],
) -> Option<Coded> {
    let leveled;
    let weights = if WEIGHTED {
        leveled = level_weights(weights);
        &leveled
    } else {
        weights
    };
    let rms = root_mean_square::<WEIGHTED>(x, weights);
    let amax = f64::from(x.iter().fold(0.0_f32, |m, v| m.max(v.abs())));
    let scale = |d: f64| fp16::f32_to_f16((d + plan.offset) as f32);
    let (&first, divisors) = plan.divisors.split_first()?;
    let (least, reaches) = match plan.reaches.split_first() {
        Some((&reach, others)) => (amax / reach, others),
        None => (0.0, plan.reaches),
    };
    let mut d = scale((rms / first).max(least));
    if !fp16::f16_is_finite(d) {
        return None;
    }
    let mut target = Target::of(x, WEIGHTED.then_some(weights));
    if plan.flips == Flips::Done {
        target.flip_smallest::<WEIGHTED>(plan.fold);
    }
    if !(divisors.is_empty() && reaches.is_empty()) {
        let others = divisors.iter().map(|divisor| rms / divisor).chain(reaches.iter().map(|r| amax / r));
        let ds = others.map(scale).filter(|&d| fp16::f16_is_finite(d));
        let ds: Vec<u16> = std::iter::once(d).chain(ds).collect();
        let steps: Vec<Steps> = ds.iter().map(|&d| Steps::of(fp16::f16_to_f32(d))).collect();
        let mut errors = vec![0.0; steps.len()];
        search.errors::<WEIGHTED>(&target, &steps, &mut errors);
        let mut least = f64::INFINITY;
        for (&candidate, error) in ds.iter().zip(errors) {
            if error < least {
                (d, least) = (candidate, error);
            }
        }
    }
    let start = (plan.refits > 0).then(|| target.clone());
    let found = search.find::<WEIGHTED>(&mut target, &Steps::of(fp16::f16_to_f32(d)));
    let mut best = Coded { d, found, signs: target.signs };
    if let Some(start) = start {
        for _ in 0..plan.refits {
            let d = refit(&target, &best.found);
            if d == best.d || !fp16::f16_is_finite(d) {
                break;
            }
            target.clone_from(&start);
            let found = search.find::<WEIGHTED>(&mut target, &Steps::of(fp16::f16_to_f32(d)));
            if found.error >= best.found.error {
                break;
            }
            best = Coded { d, found, signs: target.signs };
        }
    }
    Some(best)
}

/// The scale that fits a block's codes, entries and signs best: Σ t·q / Σ w·q², with q the values at scale 1 and t
/// the weighted goal.
#[inline(always)]
fn refit(target: &Target, found: &Found) -> u16 {
    let q = |i: usize| {
        let halves = &CODEBOOK.halves[usize::from(found.indices[i / 4])];
        f64::from(truth::step(1.0, found.codes[i / 32]) * halves[i % 4])
    };
    let fit = sum(|i| f64::from(target.double[i % 4][i / 4]) * q(i)) * 0.5;
    let square = sum(|i| f64::from(target.weights[i % 4][i / 4]) * (q(i) * q(i)));
    fp16::f32_to_f16((fit / square) as f32)
}
