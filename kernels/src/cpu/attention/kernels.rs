//! The three steps for some query heads of one token: scores, exponentials, weighted sum.
//!
//! Keys and values are taken in blocks that stay in the first-level cache for every head.

use super::rows::{Rows, Run, Stored, Visit};
use crate::cpu::isa::{Isa, Kernel};
use crate::cpu::lanes::{LANES, Simd};
use crate::cpu::norm::exponentials;

/// Heads from which a block is widened once, ahead of them, instead of by each.
const WIDEN: usize = 8;
/// Bytes of values in a block, if 16 rows do not exceed it.
const BLOCK: usize = 16 << 10;

/// The scores of the keys of one part: `q` is `[heads][key_len]`, `scores` `[heads][total]`; this part's begin at
/// `at` in each row. `wide` holds 16 rows.
pub(super) struct Scores<'a> {
    pub(super) isa: Isa,
    pub(super) q: &'a [f32],
    pub(super) scale: f32,
    pub(super) scores: &'a mut [f32],
    pub(super) total: usize,
    pub(super) at: usize,
    pub(super) wide: &'a mut [f32],
}

impl Visit for Scores<'_> {
    fn visit<R: Rows>(self, k: R) {
        self.isa.run(WithRows(self, k));
    }
}

/// A step, and the rows it is for.
struct WithRows<A, R>(A, R);

impl<R: Rows> Kernel for WithRows<Scores<'_>, R> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let WithRows(Scores { q, scale, scores, total, at, wide, .. }, k) = self;
        let (len, keys) = (k.len(), k.count());
        let widen = R::SCALED || R::T::WIDENS && q.len() >= WIDEN * len;
        for first in (0..keys).step_by(LANES) {
            let n = (keys - first).min(LANES);
            let to = at + first;
            if widen {
                let wide = widened(s, k, first, n, wide);
                score_block(s, q, wide, 0, n, scale, scores, total, to);
            } else {
                score_block(s, q, k, first, n, scale, scores, total, to);
            }
        }
    }
}

/// The scores of `n` <= 16 keys from `first` for every head.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // Each is a part of the block.
fn score_block<R: Rows, S: Simd>(
    s: S,
    q: &[f32],
    k: R,
    first: usize,
    n: usize,
    scale: f32,
    scores: &mut [f32],
    total: usize,
    at: usize,
) {
    assert!(first + n <= k.count() && n <= LANES);
    let len = k.len();
    // Two heads at a time: what is loaded is used twice.
    let mut pairs = scores.chunks_exact_mut(2 * total);
    let mut twos = q.chunks_exact(2 * len);
    for (q, scores) in twos.by_ref().zip(pairs.by_ref()) {
        let (q, scores) = (q.split_at(len), scores.split_at_mut(total));
        let mut sums = [[s.splat(0.0); LANES]; 2];
        // SAFETY: first + i < count, asserted above, for each i < n; a row has as many elements as q.
        unsafe {
            for i in (0..n & !1).step_by(2) {
                let keys = [k.at(first + i), k.at(first + i + 1)];
                let four = dot_lanes(s, [q.0, q.1], keys);
                for (sums, two) in sums.iter_mut().zip(four) {
                    [sums[i], sums[i + 1]] = two;
                }
            }
            if n % 2 == 1 {
                let two = dot_lanes(s, [q.0, q.1], [k.at(first + n - 1)]);
                [[sums[0][n - 1]], [sums[1][n - 1]]] = two;
            }
        }
        finish(s, sums[0], scale, &mut scores.0[at..at + n]);
        finish(s, sums[1], scale, &mut scores.1[at..at + n]);
    }
    let rest = twos.remainder().chunks_exact(len).zip(pairs.into_remainder().chunks_exact_mut(total));
    for (q, scores) in rest {
        let mut sums = [s.splat(0.0); LANES];
        // SAFETY: as above.
        unsafe {
            for i in (0..n & !1).step_by(2) {
                let keys = [k.at(first + i), k.at(first + i + 1)];
                [[sums[i], sums[i + 1]]] = dot_lanes(s, [q], keys);
            }
            if n % 2 == 1 {
                [[sums[n - 1]]] = dot_lanes(s, [q], [k.at(first + n - 1)]);
            }
        }
        finish(s, sums, scale, &mut scores[at..at + n]);
    }
}

/// The scores of up to 16 keys, from the lane sums of each.
#[inline(always)]
fn finish<S: Simd>(s: S, sums: [S::F; LANES], scale: f32, scores: &mut [f32]) {
    let n = scores.len().min(LANES);
    // SAFETY: `scores` holds n <= 16.
    unsafe { s.store_part(scores.as_mut_ptr(), n, s.mul(s.sum16(sums), s.splat(scale))) };
}

/// `n` rows from `first`, as f32: times their scales, where they have some, which is exact for an int8 and an f16.
#[inline(always)]
fn widened<'a, R: Rows, S: Simd>(s: S, rows: R, first: usize, n: usize, wide: &'a mut [f32]) -> Run<'a, f32> {
    let len = rows.len();
    assert!(first + n <= rows.count() && n * len <= wide.len());
    for (i, wide) in wide.chunks_exact_mut(len).enumerate().take(n) {
        // SAFETY: first + i < count; the row and `wide` have `len` elements, of which a chunk takes its length
        // <= 16.
        unsafe {
            let row = rows.at(first + i);
            let scale = s.splat(if R::SCALED { rows.scale(first + i) } else { 1.0 });
            for (c, wide) in wide.chunks_mut(LANES).enumerate() {
                let from = row.add(c * LANES);
                let whole = wide.len() == LANES;
                let values = if whole { R::T::load(s, from) } else { R::T::load_part(s, from, wide.len()) };
                let values = if R::SCALED { s.mul(values, scale) } else { values };
                if whole {
                    s.store(wide.as_mut_ptr(), values);
                } else {
                    s.store_part(wide.as_mut_ptr(), wide.len(), values);
                }
            }
        }
    }
    Run::new(wide, n, len, len)
}

/// The lane sums of each q · each k, before the tree.
///
/// # Safety
/// Each has as many elements as the first q.
#[inline(always)]
unsafe fn dot_lanes<const Q: usize, const K: usize, T: Stored, S: Simd>(
    s: S,
    q: [&[f32]; Q],
    k: [*const T; K],
) -> [[S::F; K]; Q] {
    let len = q[0].len();
    let q = q.map(<[f32]>::as_ptr);
    let mut sums = [[s.splat(0.0); K]; Q];
    let mut d = 0;
    // SAFETY: d + 16 <= len, and then len - d < 16 elements are left.
    unsafe {
        while d + LANES <= len {
            // No closure here: it would not have the instructions of its function.
            let mut keys = [s.splat(0.0); K];
            for (key, k) in keys.iter_mut().zip(k) {
                *key = T::load(s, k.add(d));
            }
            for (q, sums) in q.iter().zip(&mut sums) {
                let q = s.load(q.add(d));
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = s.add(*sum, s.mul(q, key));
                }
            }
            d += LANES;
        }
        if d < len {
            let n = len - d;
            let mut keys = [s.splat(0.0); K];
            for (key, k) in keys.iter_mut().zip(k) {
                *key = T::load_part(s, k.add(d), n);
            }
            for (q, sums) in q.iter().zip(&mut sums) {
                let q = s.load_part(q.add(d), n);
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = s.add(*sum, s.mul(q, key));
                }
            }
        }
    }
    sums
}

/// Each head's scores to exponentials, and f32(1/Σ) to `inverse`.
pub(super) struct Exponentials<'a> {
    pub(super) scores: &'a mut [f32],
    pub(super) total: usize,
    /// One per head.
    pub(super) sinks: Option<&'a [f32]>,
    pub(super) inverse: &'a mut [f32],
}

impl Kernel for Exponentials<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let heads = self.scores.chunks_exact_mut(self.total).zip(self.inverse.iter_mut());
        for (head, (scores, inverse)) in heads.enumerate() {
            *inverse = (1.0 / exponentials(s, scores, self.sinks.map(|sinks| sinks[head]))) as f32;
        }
    }
}

/// Σ e·v over the rows of one part, added to `out` (`[heads][value_len]`) or put there by the first one; times
/// `inverse` in the last one. The rest as in [`Scores`].
pub(super) struct Weighted<'a> {
    pub(super) isa: Isa,
    pub(super) scores: &'a [f32],
    pub(super) total: usize,
    pub(super) at: usize,
    pub(super) inverse: &'a [f32],
    pub(super) out: &'a mut [f32],
    pub(super) wide: &'a mut [f32],
}

impl Visit for Weighted<'_> {
    fn visit<R: Rows>(self, v: R) {
        self.isa.run(WithRows(self, v));
    }
}

impl<R: Rows> Kernel for WithRows<Weighted<'_>, R> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let WithRows(Weighted { scores, total, at, inverse, out, wide, .. }, v) = self;
        let (len, rows) = (v.len(), v.count());
        let widen = R::SCALED || R::T::WIDENS && out.len() >= WIDEN * len;
        let block = match inverse.len() {
            _ if widen => LANES,
            1 => rows.max(1),
            _ => (BLOCK / (len * size_of::<R::T>())).max(LANES),
        };
        for first in (0..rows).step_by(block) {
            let n = (rows - first).min(block);
            let starts = at + first == 0;
            let ends = at + first + n == total;
            let heads = scores.chunks_exact(total).zip(out.chunks_exact_mut(len)).zip(inverse);
            if widen {
                let wide = widened(s, v, first, n, wide);
                for ((scores, out), inverse) in heads {
                    let e = &scores[at + first..][..n];
                    weigh_block(s, e, wide, 0, starts, ends.then_some(*inverse), out);
                }
            } else {
                for ((scores, out), inverse) in heads {
                    let e = &scores[at + first..][..n];
                    weigh_block(s, e, v, first, starts, ends.then_some(*inverse), out);
                }
            }
        }
    }
}

/// One head's Σ e·v over the rows from `first`, one for each of `e`.
#[inline(always)]
fn weigh_block<R: Rows, S: Simd>(
    s: S,
    e: &[f32],
    v: R,
    first: usize,
    starts: bool,
    inverse: Option<f32>,
    out: &mut [f32],
) {
    let len = v.len();
    assert!(first + e.len() <= v.count() && out.len() == len);
    let mut d = 0;
    // SAFETY: rows first.. are there, one for each of e; they and `out` have len elements, of which d + 64 <= len,
    // then d + 16 <= len and at last n < 16 are left.
    unsafe {
        while d + 4 * LANES <= len {
            weighted::<4, R, S>(s, e, v, first, d, starts, inverse, out);
            d += 4 * LANES;
        }
        while d + LANES <= len {
            weighted::<1, R, S>(s, e, v, first, d, starts, inverse, out);
            d += LANES;
        }
        if d < len {
            let n = len - d;
            let to = out.as_mut_ptr().add(d);
            let mut sum = if starts { s.splat(0.0) } else { s.load_part(to, n) };
            for (i, &e) in e.iter().enumerate() {
                let v = R::T::load_part(s, v.at(first + i).add(d), n);
                sum = s.add(sum, s.mul(s.splat(e), v));
            }
            s.store_part(to, n, scaled(s, sum, inverse));
        }
    }
}

/// `sum` times what the last part multiplies by.
#[inline(always)]
fn scaled<S: Simd>(s: S, sum: S::F, inverse: Option<f32>) -> S::F {
    match inverse {
        Some(inverse) => s.mul(sum, s.splat(inverse)),
        None => sum,
    }
}

/// Dimensions d..d + 16·N of [`weigh_block`].
///
/// # Safety
/// `out` and the rows have d + 16·N elements; there are `e.len()` rows from `first`.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // Each is a part of the block.
unsafe fn weighted<const N: usize, R: Rows, S: Simd>(
    s: S,
    e: &[f32],
    v: R,
    first: usize,
    d: usize,
    starts: bool,
    inverse: Option<f32>,
    out: &mut [f32],
) {
    // SAFETY: the caller's.
    unsafe {
        let to = out.as_mut_ptr().add(d);
        let mut sums = [s.splat(0.0); N];
        if !starts {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = s.load(to.add(i * LANES));
            }
        }
        for (row, &e) in e.iter().enumerate() {
            let (e, v) = (s.splat(e), v.at(first + row).add(d));
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = s.add(*sum, s.mul(e, R::T::load(s, v.add(i * LANES))));
            }
        }
        for (i, sum) in sums.into_iter().enumerate() {
            s.store(to.add(i * LANES), scaled(s, sum, inverse));
        }
    }
}
