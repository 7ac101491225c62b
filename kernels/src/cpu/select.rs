//! Which entries a token attends to: index scores, and the best of them.

use super::disjoint::Disjoint;
use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Simd};
use super::pool::Pool;
use super::scratch;

/// Floats of scores held at once, unless one token needs more: a long context would take tokens × entries.
const HELD: usize = 1 << 21;

/// How a token chooses entries; entry b stands for positions b·ratio .. (b+1)·ratio and is visible to the token
/// at p where p has reached the last of them: b < (p+1)/ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Heads of a query.
    pub heads: usize,
    /// Values of a head and of a key.
    pub len: usize,
    /// Entries that a token chooses.
    pub top: usize,
    /// Positions of an entry.
    pub ratio: usize,
    /// Give positions: those of the chosen entries, then the tail that no entry holds yet, up to p.
    pub expand: bool,
}

impl Selection {
    /// Ids of a token: `top`, or the positions of `top` entries and the longest tail.
    pub fn per_token(&self) -> usize {
        if self.expand { self.top * self.ratio + self.ratio - 1 } else { self.top }
    }

    /// Write a token's ids: entries in ascending order, for the token at `position`.
    fn write(&self, entries: impl Iterator<Item = usize>, position: usize, ids: &mut [u32]) {
        let mut n = 0;
        let mut put = |id: usize| {
            ids[n] = id as u32;
            n += 1;
        };
        if self.expand {
            let ratio = self.ratio;
            entries.for_each(|b| (b * ratio..(b + 1) * ratio).for_each(&mut put));
            ((position + 1) / ratio * ratio..=position).for_each(&mut put);
        } else {
            entries.for_each(put);
        }
        ids[n..].fill(u32::MAX);
    }
}

/// The `top` visible entries of each token with the highest scores, score_b = Σ_h w_h · max(0, q_h·k_b), in
/// ascending order; of equal scores the lowest entry first, and a NaN counts as −∞.
///
/// Token t stands at position `first + t`; its heads are `q[t·stride..][..heads·len]`, its weights
/// `w[t·wstride..][..heads]` (none: 1) of `weights` = (w, wstride). `keys` is `[entries][len]`, with every entry
/// that the last token sees. `ids` is `[tokens][per_token()]`, filled up with `u32::MAX`.
///
/// q·k in 16 lanes (value d in lane d mod 16, ascending; then lanes i and i+8, i and i+4, i+2, i+1); the sum from 0
/// in order of heads, each operation rounded. Where a token sees at most `top` entries it gets all of them, unscored.
///
/// # Panics
/// Where the lengths do not agree, a size is 0, keys are missing, or a position does not lie below `u32::MAX`.
#[allow(clippy::too_many_arguments)] // Each is a part of the formula.
pub fn select(
    isa: Isa,
    pool: &Pool,
    shape: &Selection,
    keys: &[f32],
    first: usize,
    q: &[f32],
    stride: usize,
    weights: Option<(&[f32], usize)>,
    ids: &mut [u32],
) {
    let Selection { heads, len, top, ratio, .. } = *shape;
    assert!(heads > 0 && len > 0 && top > 0 && ratio > 0, "a size is 0: {shape:?}");
    let per_token = shape.per_token();
    assert!(ids.len().is_multiple_of(per_token), "{} ids, {per_token} a token", ids.len());
    let tokens = ids.len() / per_token;
    if tokens == 0 {
        return;
    }
    let end = first.checked_add(tokens).filter(|&end| end <= u32::MAX as usize);
    let end = end.unwrap_or_else(|| panic!("positions {first}+{tokens} are no ids"));
    let covers = |n: usize, stride: usize, row: usize| row <= stride && n >= (tokens - 1) * stride + row;
    assert!(covers(q.len(), stride, heads * len), "{} of q for {tokens} tokens", q.len());
    if let Some((w, wstride)) = weights {
        assert!(covers(w.len(), wstride, heads), "{} weights for {tokens} tokens", w.len());
    }
    assert!(keys.len() / len >= end / ratio, "{} key values, {} keys are visible", keys.len(), end / ratio);

    // The first token that sees more than `top`.
    let whole = ((top + 1) * ratio - 1).saturating_sub(first).min(tokens);
    let (all, mut chosen) = ids.split_at_mut(whole * per_token);
    for (t, ids) in all.chunks_exact_mut(per_token).enumerate() {
        shape.write(0..(first + t + 1) / ratio, first + t, ids);
    }
    if whole == tokens {
        return;
    }
    let row = (end / ratio).next_multiple_of(LANES);
    let at_once = (HELD / row).max(1);
    let mut token = whole;
    while token < tokens {
        let n = at_once.min(tokens - token);
        let (ids, rest) = chosen.split_at_mut(n * per_token);
        chosen = rest;
        // A row of scores for each token, then a copy of each.
        scratch::with_lines(2 * n * (row / LANES), |lines| {
            let (scores, copies) = scratch::floats(lines).split_at_mut(n * row);
            let tokens = Tokens {
                first: first + token,
                q: &q[token * stride..],
                stride,
                weights: weights.map(|(w, wstride)| (&w[token * wstride..], wstride)),
            };
            tokens.score(isa, pool, shape, keys, scores, row);
            let (scores, copies) = (&*scores, Disjoint::new(copies));
            pool.for_rows(ids, per_token, 1, |t, ids| {
                let position = first + token + t;
                let visible = (position + 1) / ratio;
                // SAFETY: a row of its own for each token.
                let copy = unsafe { copies.slice(t * row, visible) };
                shape.write(best(&scores[t * row..][..visible], copy, top), position, ids);
            });
        });
        token += n;
    }
}

/// The `top` highest in ascending order of index, the lowest first of equal ones. There are more than `top`, and
/// none is a NaN or −0.
fn best<'a>(scores: &'a [f32], copy: &mut [f32], top: usize) -> impl Iterator<Item = usize> + use<'a> {
    copy.copy_from_slice(scores);
    let (above, &mut least, _) = copy.select_nth_unstable_by(top - 1, |a, b| b.total_cmp(a));
    let mut ties = top - above.iter().filter(|&&score| score > least).count();
    scores.iter().enumerate().filter_map(move |(b, &score)| {
        let tie = score == least && ties > 0;
        ties -= usize::from(tie);
        (tie || score > least).then_some(b)
    })
}

/// The tokens that are scored at once, the first at position `first`.
struct Tokens<'a> {
    first: usize,
    q: &'a [f32],
    stride: usize,
    weights: Option<(&'a [f32], usize)>,
}

impl Tokens<'_> {
    /// scores\[t\]\[b\], rows of `row`, for the entries that each token sees.
    fn score(&self, isa: Isa, pool: &Pool, shape: &Selection, keys: &[f32], scores: &mut [f32], row: usize) {
        let Selection { heads, len, ratio, .. } = *shape;
        let tokens = scores.len() / row;
        // Tokens take turns at the same keys, which stay cached; a lone one is cut finer to occupy all threads.
        let strip = if tokens < 4 { LANES } else { 4 * LANES };
        let scores = Disjoint::new(scores);
        let chunk = (32_768 / (strip * heads * len)).max(1);
        pool.for_chunks(row.div_ceil(strip) * tokens, chunk, |range| {
            for item in range {
                let (start, t) = (item / tokens * strip, item % tokens);
                let visible = (self.first + t + 1) / ratio;
                let n = visible.saturating_sub(start).min(strip);
                // SAFETY: inside the row of t, as n entries from `start` are visible; only this item writes them.
                let scores = unsafe { scores.slice(t * row + start.min(visible), n) };
                let q = &self.q[t * self.stride..][..heads * len];
                let weights = self.weights.map(|(w, wstride)| &w[t * wstride..][..heads]);
                let keys = &keys[start.min(visible) * len..][..n * len];
                isa.run(Score { q, weights, keys, len, scores });
            }
        });
    }
}

/// The scores of some entries for one token, NaN made −∞ and −0 made +0.
struct Score<'a> {
    q: &'a [f32],
    weights: Option<&'a [f32]>,
    keys: &'a [f32],
    len: usize,
    scores: &'a mut [f32],
}

impl Kernel for Score<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Score { q, weights, keys, len, scores } = self;
        let zero = s.splat(0.0);
        for (keys, scores) in keys.chunks(LANES * len).zip(scores.chunks_mut(LANES)) {
            let n = scores.len();
            let mut total = zero;
            for (head, q) in q.chunks_exact(len).enumerate() {
                let mut sums = [zero; LANES];
                if n < LANES {
                    for (sum, key) in sums.iter_mut().zip(keys.chunks_exact(len)) {
                        *sum = dots::<1, S>(s, q, key)[0];
                    }
                } else if S::WIDE {
                    sums = dots::<LANES, S>(s, q, keys);
                } else {
                    for (sums, keys) in sums.chunks_exact_mut(4).zip(keys.chunks_exact(4 * len)) {
                        sums.copy_from_slice(&dots::<4, S>(s, q, keys));
                    }
                }
                // This order of the operands keeps a NaN.
                let positive = s.max(zero, s.sum16(sums));
                total = s.add(total, s.mul(s.splat(weights.map_or(1.0, |w| w[head])), positive));
            }
            let total = s.add(s.max(total, s.splat(f32::NEG_INFINITY)), zero);
            // SAFETY: a chunk holds n values, n <= 16.
            unsafe { s.store_part(scores.as_mut_ptr(), n, total) };
        }
    }
}

/// The lane sums of q·k for N keys, before the tree.
#[inline(always)]
fn dots<const N: usize, S: Simd>(s: S, q: &[f32], keys: &[f32]) -> [S::F; N] {
    let len = q.len();
    assert_eq!(keys.len(), N * len);
    let mut sums = [s.splat(0.0); N];
    let mut d = 0;
    // SAFETY: each key has `len` values (asserted above); d + 16 <= len, and then len - d < 16 are left.
    unsafe {
        while d + LANES <= len {
            let x = s.load(q.as_ptr().add(d));
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = s.add(*sum, s.mul(x, s.load(keys.as_ptr().add(i * len + d))));
            }
            d += LANES;
        }
        if d < len {
            let x = s.load_part(q.as_ptr().add(d), len - d);
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = s.add(*sum, s.mul(x, s.load_part(keys.as_ptr().add(i * len + d), len - d)));
            }
        }
    }
    sums
}
