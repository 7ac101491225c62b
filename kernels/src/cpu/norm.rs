//! Root-mean-square norm, layer norm and softmax.

use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Simd};
use super::math::{FORK, exp};
use super::pool::Pool;

/// out\[token\]\[i\] = (x\[token\]\[i\] · r) · weight\[i\], r = f32(1 / √(Σx²/n + eps)); `x` and `out` are
/// `[tokens][n]`, n the length of `weight`.
///
/// The sum is in f64: lane j of 16 takes i = j, j+16, … ascending (squares are exact), then lanes i and i+8 are
/// added, i and i+4, i+2, i+1; the mean, the root and the quotient are in f64 too, rounded once.
///
/// # Panics
/// Where the lengths do not agree or `weight` is empty.
pub fn rms_norm(isa: Isa, pool: &Pool, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "a norm keeps the shape");
    let n = weight.len();
    pool.for_rows(out, n, FORK.div_ceil(n.max(1)), |token, out| {
        isa.run(Norm { x: Some(&x[token * n..][..n]), weight: Some(weight), eps, out });
    });
}

/// One row of [`rms_norm`].
pub(super) struct Norm<'a> {
    /// As long as `out`; none: what `out` holds.
    pub(super) x: Option<&'a [f32]>,
    /// As long as `out`; none: x · r alone.
    pub(super) weight: Option<&'a [f32]>,
    pub(super) eps: f32,
    pub(super) out: &'a mut [f32],
}

impl Kernel for Norm<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Norm { x, weight, eps, out } = self;
        let n = out.len();
        assert!(x.is_none_or(|x| x.len() == n) && weight.is_none_or(|w| w.len() == n), "rows of {n}");
        let scale = s.splat(rms_scale(n, squares(s, x.unwrap_or(out)), eps));
        for (i, out) in out.chunks_mut(LANES).enumerate() {
            let n = out.len();
            // SAFETY: chunk i of each holds n values, n <= 16.
            unsafe {
                let x = x.map_or(out.as_ptr(), |x| x.as_ptr().add(i * LANES));
                let mut y = s.mul(s.load_part(x, n), scale);
                if let Some(w) = weight {
                    y = s.mul(y, s.load_part(w.as_ptr().add(i * LANES), n));
                }
                s.store_part(out.as_mut_ptr(), n, y);
            }
        }
    }
}

/// 1 / √(mean + eps) of `n` values with this sum of squares.
#[inline(always)]
pub(super) fn rms_scale(n: usize, squares: f64, eps: f32) -> f32 {
    (1.0 / (squares / n as f64 + f64::from(eps)).sqrt()) as f32
}

/// out = (x · scale) · weight.
#[inline(always)]
pub(super) fn scaled<S: Simd>(s: S, x: &[f32], scale: f32, weight: &[f32], out: &mut [f32]) {
    let scale = s.splat(scale);
    let rows = x.chunks(LANES).zip(weight.chunks(LANES));
    for ((x, weight), out) in rows.zip(out.chunks_mut(LANES)) {
        let n = x.len().min(weight.len()).min(out.len());
        // SAFETY: each chunk holds n values, n <= 16.
        unsafe {
            let (x, w) = (s.load_part(x.as_ptr(), n), s.load_part(weight.as_ptr(), n));
            s.store_part(out.as_mut_ptr(), n, s.mul(s.mul(x, scale), w));
        }
    }
}

/// Σx² in the order of [`rms_norm`].
#[inline(always)]
pub(super) fn squares<S: Simd>(s: S, x: &[f32]) -> f64 {
    let mut sum = s.zero_d();
    for x in x.chunks(LANES) {
        // SAFETY: a chunk holds its length, at most 16.
        sum = s.add_square_d(sum, unsafe { s.load_part(x.as_ptr(), x.len()) });
    }
    s.sum_d(sum)
}

/// y\[token\]\[i\] = (x\[token\]\[i\] − mean) / √(var + eps) · weight\[i\] + bias\[i\]; `x` and `y` are `[tokens][n]`,
/// n the length of `weight` and `bias`, and var = Σ(x − mean)²/n.
///
/// c = f32(Σx/n); d = x − c; δ = Σd/n; var = Σd²/n − δ², 0 if below: what c rounded away, d still holds. r =
/// 1/√(var + eps). All sums and what is made of them in f64, in the order of [`rms_norm`]; then
/// y = ((d − f32(δ)) · f32(r)) · weight + bias, each operation rounded.
///
/// # Panics
/// Where the lengths do not agree or `weight` is empty.
pub fn layer_norm(isa: Isa, pool: &Pool, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "a norm keeps the shape");
    let n = weight.len();
    assert_eq!(bias.len(), n, "a bias for {n} weights");
    pool.for_rows(y, n, FORK.div_ceil(n.max(1)), |token, y| {
        isa.run(LayerNorm { x: &x[token * n..][..n], weight, bias, eps, y });
    });
}

struct LayerNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    y: &'a mut [f32],
}

impl Kernel for LayerNorm<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let LayerNorm { x, weight, bias, eps, y } = self;
        let count = x.len() as f64;
        let mut sum = s.zero_d();
        for x in x.chunks(LANES) {
            // SAFETY: a chunk holds its length, at most 16.
            sum = s.add_d(sum, unsafe { s.load_part(x.as_ptr(), x.len()) });
        }
        let center = s.splat((s.sum_d(sum) / count) as f32);
        let (mut sum, mut squares) = (s.zero_d(), s.zero_d());
        for (x, y) in x.chunks(LANES).zip(y.chunks_mut(LANES)) {
            let n = x.len().min(y.len());
            // SAFETY: both chunks hold n values, n <= 16. Read back so that the lanes past the end are 0.
            let d = unsafe {
                s.store_part(y.as_mut_ptr(), n, s.sub(s.load_part(x.as_ptr(), n), center));
                s.load_part(y.as_ptr(), n)
            };
            (sum, squares) = (s.add_d(sum, d), s.add_square_d(squares, d));
        }
        let delta = s.sum_d(sum) / count;
        let variance = s.sum_d(squares) / count - delta * delta;
        // A NaN stays one, which `max` would drop.
        let variance = if variance < 0.0 { 0.0 } else { variance };
        let scale = s.splat((1.0 / (variance + f64::from(eps)).sqrt()) as f32);
        let delta = s.splat(delta as f32);
        for ((y, weight), bias) in y.chunks_mut(LANES).zip(weight.chunks(LANES)).zip(bias.chunks(LANES)) {
            let n = y.len().min(weight.len()).min(bias.len());
            // SAFETY: each chunk holds n values, n <= 16.
            unsafe {
                let (w, b) = (s.load_part(weight.as_ptr(), n), s.load_part(bias.as_ptr(), n));
                let normed = s.mul(s.sub(s.load_part(y.as_ptr(), n), delta), scale);
                s.store_part(y.as_mut_ptr(), n, s.add(s.mul(normed, w), b));
            }
        }
    }
}

/// Each row of `x` (`[rows][n]`) to softmax(x), in place: e = e^(x − max), x = e · f32(1 / Σe), the sum in f64
/// in the order of [`rms_norm`]. A row of −∞ alone, or with a NaN, becomes NaN.
///
/// # Panics
/// Where `n` is 0 or does not divide the length of `x`.
pub fn softmax(isa: Isa, x: &mut [f32], n: usize) {
    assert!(n > 0 && x.len().is_multiple_of(n), "{} values are not rows of {n}", x.len());
    for row in x.chunks_exact_mut(n) {
        isa.run(Softmax(row));
    }
}

struct Softmax<'a>(&'a mut [f32]);

impl Kernel for Softmax<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let inverse = s.splat((1.0 / exponentials(s, self.0, None)) as f32);
        for x in self.0.chunks_mut(LANES) {
            // SAFETY: a chunk holds its length, at most 16.
            unsafe {
                let product = s.mul(s.load_part(x.as_ptr(), x.len()), inverse);
                s.store_part(x.as_mut_ptr(), x.len(), product);
            }
        }
    }
}

/// Each value to e^(x − max); their sum, lane by lane in f64. `sink` is one more value, the last in the sum.
#[inline(always)]
pub(super) fn exponentials<S: Simd>(s: S, values: &mut [f32], sink: Option<f32>) -> f64 {
    let mut largest = s.splat(sink.unwrap_or(f32::NEG_INFINITY));
    for x in values.chunks(LANES) {
        // SAFETY: a chunk holds its length, at most 16. The lanes past it repeat what is there already, and
        // the order of the operands drops a NaN, which the difference below brings back.
        largest = unsafe {
            if x.len() == LANES {
                s.max(s.load(x.as_ptr()), largest)
            } else {
                let mut padded = [f32::NEG_INFINITY; LANES];
                padded[..x.len()].copy_from_slice(x);
                s.max(s.load(padded.as_ptr()), largest)
            }
        };
    }
    let largest = s.splat(s.max_lane(largest));
    let mut sum = s.zero_d();
    for x in values.chunks_mut(LANES) {
        let n = x.len();
        // SAFETY: a chunk holds its length, at most 16.
        unsafe {
            let e = exp(s, s.sub(s.load_part(x.as_ptr(), n), largest));
            s.store_part(x.as_mut_ptr(), n, e);
            // Read back so that the lanes past the end are 0 in the sum.
            sum = s.add_d(sum, if n == LANES { e } else { s.load_part(x.as_ptr(), n) });
        }
    }
    match sink {
        None => s.sum_d(sum),
        // Every lane holds the same: its sixteenth part of their sum is that value, exactly.
        Some(sink) => {
            let e = s.add_d(s.zero_d(), exp(s, s.sub(s.splat(sink), largest)));
            s.sum_d(sum) + s.sum_d(e) / LANES as f64
        }
    }
}
