//! Causal attention with grouped heads over a [`KvCache`].

use half::f16;

use super::disjoint::Disjoint;
use super::isa::{Isa, Kernel};
use super::kv::{KvCache, KvPlane};
use super::lanes::{LANES, Simd};
use super::norm::exponentials;
use super::pool::Pool;
use super::scratch;

/// What a model says about its attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads; head h reads key-value head h / (n_heads / n_kv_heads).
    pub n_heads: usize,
    /// Factor on q·k, 1/√head_dim in most models.
    pub scale: f32,
    /// Keys that a query sees at most, its own position the last of them; none: all.
    pub window: Option<usize>,
}

/// out\[t\]\[h\] = Σ_p softmax_p(scale · q\[t\]\[h\]·k_p) v_p for the positions p <= first + t that the window
/// leaves, with the keys and values of `cache` (those of the tokens themselves already written).
///
/// Token t's query heads stand at `q[t·stride..][..n_heads·head_dim]`; `out` is
/// `[tokens][n_heads·head_dim]`.
///
/// Per query and head: q·k in 16 lanes (dimension d in lane d mod 16, ascending; then lanes i and i+8, i and
/// i+4, i+2, i+1), times scale; e_p = e^(score − max); Σe in f64 (key i of the window in lane i mod 16, the
/// same tree); out_d = (… (0 + e_0·v_0d) + e_1·v_1d …) · f32(1/Σe). So the bits are the same alone and in a
/// batch.
///
/// # Panics
/// Where the shapes do not agree, the window is 0 or the last position exceeds the capacity.
#[allow(clippy::too_many_arguments)] // Each is a part of the formula.
pub fn attention(
    isa: Isa,
    pool: &Pool,
    shape: AttentionShape,
    cache: &KvCache,
    first: usize,
    q: &[f32],
    stride: usize,
    out: &mut [f32],
) {
    let AttentionShape { n_heads, scale, window } = shape;
    let (kv_heads, dim) = (cache.n_kv_heads, cache.head_dim);
    let width = n_heads * dim;
    assert!(n_heads > 0 && n_heads.is_multiple_of(kv_heads), "{n_heads} heads over {kv_heads}");
    assert!(out.len().is_multiple_of(width) && width <= stride, "{} outputs of {width}", out.len());
    assert!(window != Some(0), "a window without keys");
    let tokens = out.len() / width;
    assert!(first + tokens <= cache.capacity, "positions {first}+{tokens} of {}", cache.capacity);
    assert!(tokens == 0 || q.len() >= (tokens - 1) * stride + width, "{} of q", q.len());
    let group = n_heads / kv_heads;
    let out = Disjoint::new(out);
    // A fork costs as much as some 500 keys of 64 dimensions.
    let item = group * dim * (first + tokens).min(window.unwrap_or(usize::MAX));
    let chunk = (32_768 / item).max(1);
    pool.for_chunks(tokens * kv_heads, chunk, |range| {
        for item in range {
            let (token, kv) = (item / kv_heads, item % kv_heads);
            let end = first + token + 1;
            let start = end.saturating_sub(window.unwrap_or(end));
            let at = (kv * cache.capacity + start) * dim;
            let keys = end - start;
            let q = &q[token * stride + kv * group * dim..][..group * dim];
            // SAFETY: the heads of this group of this token, which only this item writes.
            let out = unsafe { out.slice(token * width + kv * group * dim, group * dim) };
            scratch::with_lines((group * keys).div_ceil(LANES), |lines| {
                let scores = scores(lines, group * keys);
                match (&cache.keys, &cache.values) {
                    (KvPlane::F32(k), KvPlane::F32(v)) => {
                        let (k, v) = (&k[at..][..keys * dim], &v[at..][..keys * dim]);
                        isa.run(Group { q, k, v, dim, scale, scores, out });
                    }
                    (KvPlane::F16(k), KvPlane::F16(v)) => {
                        let (k, v) = (&k[at..][..keys * dim], &v[at..][..keys * dim]);
                        isa.run(Group { q, k, v, dim, scale, scores, out });
                    }
                    _ => unreachable!("a cache has one element type"),
                }
            });
        }
    });
}

/// The lines as floats.
fn scores(lines: &mut [scratch::Line], n: usize) -> &mut [f32] {
    assert!(n <= lines.len() * LANES);
    // SAFETY: a line is 16 × f32 without padding, so `lines` holds n of them.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), n) }
}

/// What a cache holds, widened exactly to f32.
trait Stored: Copy {
    /// # Safety
    /// 16 elements at `p`.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F;
    /// # Safety
    /// `n` elements at `p`, n <= 16; the other lanes become +0.
    unsafe fn load_part<S: Simd>(s: S, p: *const Self, n: usize) -> S::F;
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const f32) -> S::F {
        // SAFETY: the caller's.
        unsafe { s.load(p) }
    }
    #[inline(always)]
    unsafe fn load_part<S: Simd>(s: S, p: *const f32, n: usize) -> S::F {
        // SAFETY: the caller's.
        unsafe { s.load_part(p, n) }
    }
}

impl Stored for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const f16) -> S::F {
        // SAFETY: the caller's; f16 is a transparent u16.
        unsafe { s.load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_part<S: Simd>(s: S, p: *const f16, n: usize) -> S::F {
        let mut lanes = [0u16; LANES];
        // SAFETY: the caller's; n <= 16.
        unsafe {
            std::ptr::copy_nonoverlapping(p.cast(), lanes.as_mut_ptr(), n);
            s.load_f16(lanes.as_ptr())
        }
    }
}

/// The query heads that share one key-value head, for one token: `q` and `out` are `[group][dim]`, `k` and `v`
/// `[keys][dim]`, `scores` `[group][keys]` of working memory.
struct Group<'a, T> {
    q: &'a [f32],
    k: &'a [T],
    v: &'a [T],
    dim: usize,
    scale: f32,
    scores: &'a mut [f32],
    out: &'a mut [f32],
}

impl<T: Stored> Kernel for Group<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Group { q, k, v, dim, scale, scores, out } = self;
        let keys = k.len() / dim;
        // 16 keys at a time: their rows stay in the first-level cache for every head of the group.
        for first in (0..keys).step_by(LANES) {
            let n = (keys - first).min(LANES);
            for (q, scores) in q.chunks_exact(dim).zip(scores.chunks_exact_mut(keys)) {
                let mut sums = [s.splat(0.0); LANES];
                for (i, sum) in sums.iter_mut().enumerate().take(n) {
                    *sum = dot_lanes(s, q, &k[(first + i) * dim..][..dim]);
                }
                let scores = &mut scores[first..first + n];
                // SAFETY: `scores` holds n <= 16.
                unsafe { s.store_part(scores.as_mut_ptr(), n, s.mul(s.sum16(sums), s.splat(scale))) };
            }
        }
        for (scores, out) in scores.chunks_exact_mut(keys).zip(out.chunks_exact_mut(dim)) {
            let inverse = s.splat((1.0 / exponentials(s, scores)) as f32);
            let mut d = 0;
            while d + 4 * LANES <= dim {
                weighted::<4, T, S>(s, scores, v, dim, d, inverse, out);
                d += 4 * LANES;
            }
            while d + LANES <= dim {
                weighted::<1, T, S>(s, scores, v, dim, d, inverse, out);
                d += LANES;
            }
            if d < dim {
                let n = dim - d;
                let mut sum = s.splat(0.0);
                for (&e, v) in scores.iter().zip(v.chunks_exact(dim)) {
                    // SAFETY: the value has n elements from d, n < 16.
                    let v = unsafe { T::load_part(s, v.as_ptr().add(d), n) };
                    sum = s.add(sum, s.mul(s.splat(e), v));
                }
                // SAFETY: as above, for `out`.
                unsafe { s.store_part(out.as_mut_ptr().add(d), n, s.mul(sum, inverse)) };
            }
        }
    }
}

/// The lane sums of q·k, before the tree.
#[inline(always)]
fn dot_lanes<T: Stored, S: Simd>(s: S, q: &[f32], k: &[T]) -> S::F {
    let dim = q.len().min(k.len());
    let mut sum = s.splat(0.0);
    let mut d = 0;
    // SAFETY: d + 16 <= dim, and then dim - d < 16 elements are left.
    unsafe {
        while d + LANES <= dim {
            sum = s.add(sum, s.mul(s.load(q.as_ptr().add(d)), T::load(s, k.as_ptr().add(d))));
            d += LANES;
        }
        if d < dim {
            let n = dim - d;
            let (q, k) = (s.load_part(q.as_ptr().add(d), n), T::load_part(s, k.as_ptr().add(d), n));
            sum = s.add(sum, s.mul(q, k));
        }
    }
    sum
}

/// Dimensions d..d + 16·N of Σ e·v, times `inverse`.
#[inline(always)]
fn weighted<const N: usize, T: Stored, S: Simd>(
    s: S,
    scores: &[f32],
    v: &[T],
    dim: usize,
    d: usize,
    inverse: S::F,
    out: &mut [f32],
) {
    assert!(d + N * LANES <= dim && out.len() == dim);
    let mut sums = [s.splat(0.0); N];
    for (&e, v) in scores.iter().zip(v.chunks_exact(dim)) {
        let e = s.splat(e);
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: a value has `dim` elements (asserted above).
            let v = unsafe { T::load(s, v.as_ptr().add(d + i * LANES)) };
            *sum = s.add(*sum, s.mul(e, v));
        }
    }
    for (i, sum) in sums.into_iter().enumerate() {
        // SAFETY: `out` has `dim` elements (asserted above).
        unsafe { s.store(out.as_mut_ptr().add(d + i * LANES), s.mul(sum, inverse)) };
    }
}
