//! Residual streams: what hyper-connections write to and read from.
//!
//! A token has `count` streams of `len` values, `[tokens][count][len]`. A read of the gated form is [`stream_norm`],
//! a product with the narrow matrix, [`silu_scaled`], a product with the wide one and [`stream_mix`].

use std::ops::Range;

use super::disjoint::Disjoint;
use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Simd};
use super::math::{FORK, sigmoid, silu};
use super::norm::{rms_scale, scaled};
use super::pool::Pool;

/// The residual streams of a token: its values are `[count][len]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    /// Streams.
    pub count: usize,
    /// Values of one.
    pub len: usize,
}

impl Streams {
    /// Values of a token.
    pub fn width(&self) -> usize {
        self.count * self.len
    }

    /// The tokens that `values` holds.
    #[track_caller]
    pub(super) fn tokens(&self, values: &[f32]) -> usize {
        let width = self.width();
        assert!(width > 0 && values.len().is_multiple_of(width), "{} values for {self:?}", values.len());
        values.len() / width
    }
}

/// What a layer adds to the streams.
#[derive(Clone, Copy, Debug)]
pub struct StreamWrite<'a> {
    /// `[tokens][len]`.
    pub add: &'a [f32],
    /// Logits of the factors and their stride: those of token t are `[t·stride..][..count]`. None: factors of 1.
    pub inject: Option<(&'a [f32], usize)>,
}

impl<'a> StreamWrite<'a> {
    #[track_caller]
    fn check(&self, s: Streams, tokens: usize) {
        assert_eq!(self.add.len(), tokens * s.len, "one stream of {} for each of {tokens} tokens", s.len);
        if let (Some((inject, stride)), 1..) = (self.inject, tokens) {
            assert!(s.count <= stride, "{} logits a token, {stride} apart", s.count);
            let need = (tokens - 1) * stride + s.count;
            assert!(inject.len() >= need, "{} logits for {tokens} tokens, {stride} apart", inject.len());
        }
    }

    /// Its part for the values `range` of a stream (of a token).
    fn part(&self, s: Streams, row: usize, range: Range<usize>) -> Part<'a> {
        let (token, stream) = (row / s.count, row % s.count);
        Part {
            add: &self.add[token * s.len..][range],
            logit: self.inject.map(|(inject, stride)| inject[token * stride + stream]),
            count: s.count,
        }
    }
}

/// A write to one stream.
struct Part<'a> {
    add: &'a [f32],
    logit: Option<f32>,
    count: usize,
}

impl Part<'_> {
    /// What `add` is multiplied with: 2σ(logit / count).
    #[inline(always)]
    fn factor<S: Simd>(&self, s: S) -> Option<S::F> {
        let logit = self.logit?;
        Some(s.mul(s.splat(2.0), sigmoid(s, s.splat(logit / self.count as f32))))
    }
}

/// x\[token\]\[h\] += add\[token\] · 2σ(inject\[token\]\[h\] / count), or, without `inject`, += add\[token\]; `x` is
/// `[tokens][count][len]`, `add` `[tokens][len]`, and token t's logits are `inject.0[t·inject.1..][..count]`.
/// Each operation is rounded to f32.
///
/// # Panics
/// Where the lengths do not agree, or a stream has no values.
pub fn stream_write(
    isa: Isa,
    pool: &Pool,
    s: Streams,
    x: &mut [f32],
    add: &[f32],
    inject: Option<(&[f32], usize)>,
) {
    let tokens = s.tokens(x);
    let write = StreamWrite { add, inject };
    write.check(s, tokens);
    let x = Disjoint::new(x);
    for_stretches(pool, tokens * s.count, s.len, FORK, |row, range| {
        // SAFETY: the range lies within the row, and no other call has it.
        let x = unsafe { x.slice(row * s.len + range.start, range.len()) };
        isa.run(Write { part: write.part(s, row, range), x });
    });
}

struct Write<'a> {
    part: Part<'a>,
    x: &'a mut [f32],
}

impl Kernel for Write<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = self.part.factor(s);
        for (x, add) in self.x.chunks_mut(LANES).zip(self.part.add.chunks(LANES)) {
            written(s, x, add, factor);
        }
    }
}

/// Up to 16 values x + add · factor, in their place too.
#[inline(always)]
fn written<S: Simd>(s: S, x: &mut [f32], add: &[f32], factor: Option<S::F>) -> S::F {
    let n = x.len().min(add.len());
    // SAFETY: each chunk holds n values, n <= 16.
    unsafe {
        let mut term = s.load_part(add.as_ptr(), n);
        if let Some(factor) = factor {
            term = s.mul(term, factor);
        }
        let sum = s.add(s.load_part(x.as_ptr(), n), term);
        s.store_part(x.as_mut_ptr(), n, sum);
        sum
    }
}

/// [`stream_write`] of what `write` holds, then normed\[token\]\[h\] = [`super::rms_norm`] of x\[token\]\[h\] with
/// the weights gamma\[h\], in its order: one norm for each stream. `x` and `normed` are `[tokens][count][len]`,
/// `gamma` `[count][len]`.
///
/// # Panics
/// Where the lengths do not agree, or a stream has no values.
#[allow(clippy::too_many_arguments)] // Each is a part of the formula.
pub fn stream_norm(
    isa: Isa,
    pool: &Pool,
    s: Streams,
    write: Option<StreamWrite<'_>>,
    x: &mut [f32],
    gamma: &[f32],
    eps: f32,
    normed: &mut [f32],
) {
    let tokens = s.tokens(x);
    assert_eq!(normed.len(), x.len(), "a norm keeps the shape");
    assert_eq!(gamma.len(), s.width(), "weights for {s:?}");
    if let Some(write) = &write {
        write.check(s, tokens);
    }
    let x = Disjoint::new(x);
    // Values are met twice.
    pool.for_rows(normed, s.len, (FORK / 2).div_ceil(s.len), |row, out| {
        // SAFETY: row < tokens · count; for_rows gives each once.
        let x = unsafe { x.slice(row * s.len, s.len) };
        let part = write.as_ref().map(|write| write.part(s, row, 0..s.len));
        isa.run(Norm { part, x, weight: &gamma[row % s.count * s.len..][..s.len], eps, out });
    });
}

struct Norm<'a> {
    part: Option<Part<'a>>,
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Norm<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut sum = s.zero_d();
        match self.part {
            Some(part) => {
                let factor = part.factor(s);
                for (x, add) in self.x.chunks_mut(LANES).zip(part.add.chunks(LANES)) {
                    // Lanes past the end are 0 + 0 · factor: 0, or NaN as the stream itself is then.
                    sum = s.add_square_d(sum, written(s, x, add, factor));
                }
            }
            None => {
                for x in self.x.chunks(LANES) {
                    // SAFETY: a chunk holds its length, at most 16.
                    sum = s.add_square_d(sum, unsafe { s.load_part(x.as_ptr(), x.len()) });
                }
            }
        }
        let scale = rms_scale(self.x.len(), s.sum_d(sum), self.eps);
        scaled(s, self.x, scale, self.weight, self.out);
    }
}

/// Each value to silu(x · scale), in place; silu(x) = x / (1 + e^-x).
pub fn silu_scaled(isa: Isa, pool: &Pool, x: &mut [f32], scale: f32) {
    let len = x.len();
    let x = Disjoint::new(x);
    for_stretches(pool, 1, len, FORK / 2, |_, range| {
        // SAFETY: the range lies within `x`, and no other call has it.
        let x = unsafe { x.slice(range.start, range.len()) };
        isa.run(SiluScaled { x, scale });
    });
}

struct SiluScaled<'a> {
    x: &'a mut [f32],
    scale: f32,
}

impl Kernel for SiluScaled<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = s.splat(self.scale);
        for x in self.x.chunks_mut(LANES) {
            // SAFETY: a chunk holds its length, at most 16.
            unsafe {
                let product = s.mul(s.load_part(x.as_ptr(), x.len()), scale);
                s.store_part(x.as_mut_ptr(), x.len(), silu(s, product));
            }
        }
    }
}

/// y\[token\]\[e\] = (Σ_h normed\[token\]\[h\]\[e\] · σ(gates\[token\]\[h\]\[e\])) · f32(1 / count); `normed` and
/// `gates` are `[tokens][count][len]`, `y` `[tokens][len]`. The streams are added in ascending order, each operation
/// rounded to f32.
///
/// # Panics
/// Where the lengths do not agree, or a stream has no values.
pub fn stream_mix(isa: Isa, pool: &Pool, s: Streams, normed: &[f32], gates: &[f32], y: &mut [f32]) {
    let tokens = s.tokens(normed);
    assert_eq!(gates.len(), normed.len(), "a gate for each value");
    assert_eq!(y.len(), tokens * s.len, "one stream of {} for each of {tokens} tokens", s.len);
    let y = Disjoint::new(y);
    for_stretches(pool, tokens, s.len, (FORK / 2).div_ceil(s.count), |token, range| {
        // SAFETY: the range lies within the row, and no other call has it.
        let y = unsafe { y.slice(token * s.len + range.start, range.len()) };
        let [normed, gates] = [normed, gates].map(|x| &x[token * s.width()..][..s.width()]);
        isa.run(Mix { s, normed, gates, first: range.start, y });
    });
}

/// Values from `first` on of one token.
struct Mix<'a> {
    s: Streams,
    normed: &'a [f32],
    gates: &'a [f32],
    first: usize,
    y: &'a mut [f32],
}

impl Kernel for Mix<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Streams { count, len } = self.s;
        let scale = s.splat(1.0 / count as f32);
        for (i, y) in self.y.chunks_mut(LANES).enumerate() {
            let n = y.len();
            let at = self.first + i * LANES;
            let mut sum = gated(s, &self.normed[at..][..n], &self.gates[at..][..n]);
            for at in (1..count).map(|stream| stream * len + at) {
                sum = s.add(sum, gated(s, &self.normed[at..][..n], &self.gates[at..][..n]));
            }
            // SAFETY: a chunk holds n values, n <= 16.
            unsafe { s.store_part(y.as_mut_ptr(), n, s.mul(sum, scale)) };
        }
    }
}

/// Up to 16 values x · σ(gate). A closure would not become code of the instruction set unless it is inlined.
#[inline(always)]
fn gated<S: Simd>(s: S, x: &[f32], gates: &[f32]) -> S::F {
    let n = x.len().min(gates.len());
    // SAFETY: n values each, n <= 16.
    unsafe { s.mul(s.load_part(x.as_ptr(), n), sigmoid(s, s.load_part(gates.as_ptr(), n))) }
}

/// Call `f(row, range)` so that the ranges cover each of `rows` rows of `len` values once, about `chunk` values to
/// a thread at a time. A row may be shared, so only what does not depend on its neighbours may be computed so.
pub(super) fn for_stretches(
    pool: &Pool,
    rows: usize,
    len: usize,
    chunk: usize,
    f: impl Fn(usize, Range<usize>) + Sync,
) {
    let blocks = len.div_ceil(LANES);
    pool.for_chunks(rows * blocks, chunk.div_ceil(LANES), |mut items| {
        while !items.is_empty() {
            let (row, first) = (items.start / blocks, items.start % blocks);
            let taken = items.len().min(blocks - first);
            f(row, first * LANES..((first + taken) * LANES).min(len));
            items.start += taken;
        }
    });
}
