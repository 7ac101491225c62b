//! Elementwise functions, the same bits everywhere.

use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Simd};
use super::pool::Pool;

/// Values that take about as long as a fork (2 µs): fewer stay on the calling thread.
pub(super) const FORK: usize = 8192;

/// e^x per lane, within one unit in the last place of the exact value (0.991 at worst, over every f32);
/// e^-inf = 0, from 88.73 on infinity, subnormal results kept, NaN stays NaN.
///
/// x = n·ln 2 + r with |r| <= 0.35; e^r by the polynomial of Cephes' `expf`; 2^n in two halves, so that
/// results below the smallest normal are rounded once.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // ln 2 in two parts; n has at most 8 bits and the first part 9, so n·LN2_HIGH is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const POLYNOMIAL: [f32; 6] =
        [1.987_569_2e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

    // Below the bound everything rounds to 0, above it to infinity. The operand order keeps a NaN.
    let x = s.max(s.splat(-104.0), s.min(s.splat(89.0), x));
    let n = round(s, s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.sub(s.sub(x, s.mul(n, s.splat(LN2_HIGH))), s.mul(n, s.splat(LN2_LOW)));
    let mut p = s.splat(POLYNOMIAL[0]);
    for c in &POLYNOMIAL[1..] {
        p = s.add(s.mul(p, r), s.splat(*c));
    }
    let p = s.add(s.add(s.mul(p, s.mul(r, r)), r), s.splat(1.0));
    let half = round(s, s.mul(n, s.splat(0.5)));
    s.mul(s.mul(p, power_of_two(s, half)), power_of_two(s, s.sub(n, half)))
}

/// 1.5·2^23: adding it rounds to an integer, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;

/// To the nearest integer, for |x| < 2^22.
#[inline(always)]
fn round<S: Simd>(s: S, x: S::F) -> S::F {
    s.sub(s.add(x, s.splat(ROUND)), s.splat(ROUND))
}

/// 2^n for integers -126..=127: the exponent field is n + 127; the bits of ROUND above it are shifted out.
#[inline(always)]
fn power_of_two<S: Simd>(s: S, n: S::F) -> S::F {
    s.shift_left_23(s.add(n, s.splat(ROUND + 127.0)))
}

/// x / (1 + e^-x) per lane.
#[inline(always)]
pub(super) fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(x, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), x))))
}

/// 1 / (1 + e^-x) per lane.
#[inline(always)]
pub(super) fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// Each value to 1 / (1 + e^-x), in place.
pub(super) fn sigmoid_in_place(isa: Isa, x: &mut [f32]) {
    isa.run(Sigmoid(x));
}

struct Sigmoid<'a>(&'a mut [f32]);

impl Kernel for Sigmoid<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.0.chunks_mut(LANES) {
            // SAFETY: a chunk holds its length, at most 16.
            unsafe { s.store_part(x.as_mut_ptr(), x.len(), sigmoid(s, s.load_part(x.as_ptr(), x.len()))) };
        }
    }
}

/// Each value to last(ln(1 + e^x)), in place. The logarithm as max(x, 0) + ln(1 + e^-|x|): e^ by [`exp`], the
/// rest and `last` in f64, rounded once. (Above 15 an f32 does not tell the logarithm
/// from x.)
pub(super) fn softplus_then(isa: Isa, values: &mut [f32], last: impl Fn(f64) -> f64) {
    for values in values.chunks_mut(LANES) {
        let mut e = [0f32; LANES];
        let e = &mut e[..values.len()];
        e.iter_mut().zip(&*values).for_each(|(e, x)| *e = -x.abs());
        exp_in_place(isa, e);
        for (x, &mut e) in values.iter_mut().zip(e) {
            // Of a NaN `max` gives 0; `e` is NaN then.
            *x = last(f64::from(x.max(0.0)) + ln_1p(f64::from(e))) as f32;
        }
    }
}

/// ln(1 + t) for 0 <= t <= 1, to 1e-13: 2·artanh(t/(2 + t)), whose argument is at most 1/3. A library's logarithm
/// would differ from one system to the next.
fn ln_1p(t: f64) -> f64 {
    let s = t / (2.0 + t);
    let square = s * s;
    let series = (0..13).rev().fold(0f64, |sum, i| sum * square + 1.0 / f64::from(2 * i + 1));
    2.0 * s * series
}

/// Each value to e^x, in place, within one unit in the last place (0.991 at worst, over every f32).
pub fn exp_in_place(isa: Isa, x: &mut [f32]) {
    isa.run(Exp(x));
}

struct Exp<'a>(&'a mut [f32]);

impl Kernel for Exp<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.0.chunks_mut(LANES) {
            // SAFETY: a chunk holds its length, at most 16.
            unsafe { s.store_part(x.as_mut_ptr(), x.len(), exp(s, s.load_part(x.as_ptr(), x.len()))) };
        }
    }
}

/// out\[token\]\[i\] = silu(g\[i\]) · u\[i\], where `gate_up` is `[tokens][2·n]`: n of g, then n of u, as a product
/// with stacked gate and up matrices gives them; `out` is `[tokens][n]`. silu(x) = x / (1 + e^-x). With a `limit`
/// g is at most that, and u lies within ± that, before the product (deepseek4's `swiglu_clamp_exp`).
///
/// # Panics
/// Where `n` is 0 or the lengths do not agree.
pub fn silu_mul(isa: Isa, pool: &Pool, gate_up: &[f32], n: usize, limit: Option<f32>, out: &mut [f32]) {
    assert!(n > 0 && gate_up.len() == 2 * out.len(), "{} of gate and up for {}", gate_up.len(), out.len());
    pool.for_rows(out, n, FORK.div_ceil(n), |token, out| {
        let (gate, up) = gate_up[token * 2 * n..][..2 * n].split_at(n);
        isa.run(SiluMul { gate, up, limit, out });
    });
}

struct SiluMul<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    limit: Option<f32>,
    out: &'a mut [f32],
}

impl Kernel for SiluMul<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let inputs = self.gate.chunks(LANES).zip(self.up.chunks(LANES));
        let bounds = self.limit.map(|l| (s.splat(-l), s.splat(l)));
        for ((gate, up), out) in inputs.zip(self.out.chunks_mut(LANES)) {
            let n = gate.len().min(up.len()).min(out.len());
            // SAFETY: each chunk holds n values, n <= 16.
            unsafe {
                let (mut g, mut u) = (s.load_part(gate.as_ptr(), n), s.load_part(up.as_ptr(), n));
                if let Some((low, high)) = bounds {
                    // The order of the operands keeps a NaN.
                    g = s.min(high, g);
                    u = s.max(low, s.min(high, u));
                }
                s.store_part(out.as_mut_ptr(), n, s.mul(silu(s, g), u));
            }
        }
    }
}

/// x\[i\] += y\[i\].
///
/// # Panics
/// Where the lengths differ.
pub fn add(isa: Isa, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "a sum of different lengths");
    isa.run(Add(x, y));
}

struct Add<'a>(&'a mut [f32], &'a [f32]);

impl Kernel for Add<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.0.iter_mut().zip(self.1).for_each(|(x, y)| *x += y);
    }
}
