//! Blocks of positions pooled into one entry: compressed keys, and the keys that an index searches.

use std::ops::Range;

use super::disjoint::Disjoint;
use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Simd};
use super::math::{FORK, exp};
use super::pool::Pool;

/// Dimensions of one block that a thread takes at a time.
const STRIP: usize = 4 * LANES;

/// Rows of consecutive positions, `[positions][width]`, the first at position `first`. A kernel that reads fewer
/// than `width` values of a row leaves the others, and the last row may lack them.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The rows.
    pub values: &'a [f32],
    /// Position of the first row.
    pub first: usize,
    /// Values from a row to the next.
    pub width: usize,
}

impl<'a> Span<'a> {
    /// From column `column` of position `position` on.
    fn at(&self, position: usize, column: usize) -> &'a [f32] {
        &self.values[(position - self.first) * self.width + column..]
    }

    #[track_caller]
    fn check(&self, positions: &Range<usize>, row: usize) {
        let Span { values, first, width } = *self;
        assert!(row <= width, "{row} values of rows of {width}");
        assert!(first <= positions.start, "positions from {first}, wanted from {}", positions.start);
        let last = positions.end - 1 - first;
        let end = last.checked_mul(width).and_then(|at| at.checked_add(row));
        assert!(
            end.is_some_and(|end| end <= values.len()),
            "{} values from position {first}, rows of {width}, wanted to position {}",
            values.len(),
            positions.end
        );
    }
}

/// Which rows become one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// Positions of a block.
    pub ratio: usize,
    /// Each block also pools the positions of the one before: those with the first half of their row, its own
    /// with the second.
    pub overlap: bool,
    /// Values of an entry.
    pub len: usize,
}

impl Pooling {
    /// Values of a row.
    fn width(&self) -> usize {
        self.len * if self.overlap { 2 } else { 1 }
    }
}

/// out\[b\]\[d\] = Σ_p w_p · kv\[p\]\[d\] for each of `blocks`, w = softmax over p, **per d**, of
/// score\[p\]\[d\] + ape\[p mod ratio\]\[d\] (DeepSeek V4's compressors).
///
/// p runs over the block's positions b·ratio .. (b+1)·ratio. With `overlap` a row of `kv`, `score` and `ape` has
/// 2·len values: the positions of block b − 1 come first, with values 0..len of their rows, then the block's own
/// with values len..2·len; block 0 has only its own. `ape` is `[ratio][width]`, `out` `[blocks][len]`.
///
/// Per d: x_p = score + ape; e_p = e^(x_p − max); Σe and Σ e·kv from 0 in ascending p, each operation rounded;
/// their quotient. A position with score −∞ takes no part; a block of none but those becomes NaN.
///
/// # Panics
/// Where the lengths do not agree, a size is 0, or the spans lack a position.
#[allow(clippy::too_many_arguments)] // Each is a part of the formula.
pub fn softmax_pool(
    isa: Isa,
    pool: &Pool,
    shape: &Pooling,
    blocks: Range<usize>,
    kv: Span<'_>,
    score: Span<'_>,
    ape: &[f32],
    out: &mut [f32],
) {
    let Pooling { ratio, overlap, len } = *shape;
    let width = shape.width();
    assert_eq!(ape.len(), ratio * width, "offsets of {ratio} positions of {width}");
    if !check(ratio, len, &blocks, out) {
        return;
    }
    let positions = blocks.start.saturating_sub(usize::from(overlap)) * ratio..blocks.end * ratio;
    kv.check(&positions, width);
    score.check(&positions, width);
    let candidates = ratio * (width / len);
    // An exponential takes as long as four values of a plain sum.
    pooled(pool, len, 4 * candidates, out, |block, d, out| {
        let block = blocks.start + block;
        let part = |block: usize, column: usize| Part {
            kv: kv.at(block * ratio, column + d),
            score: score.at(block * ratio, column + d),
            ape: &ape[column + d..],
        };
        let before = (overlap && block > 0).then(|| part(block - 1, 0));
        let own = part(block, width - len);
        let strides = Strides { kv: kv.width, score: score.width, ape: width };
        isa.run(SoftmaxPool { ratio, before, own, strides, out });
    });
}

/// out\[b\] = (x_0 + x_1 + … in order of positions) / ratio, over the `ratio` rows of each of `blocks`; `out` is
/// `[blocks][len]` and pools the first `len` values of a row.
///
/// # Panics
/// Where the lengths do not agree, a size is 0, or the span lacks a position.
pub fn mean_pool(isa: Isa, pool: &Pool, ratio: usize, blocks: Range<usize>, rows: Span<'_>, out: &mut [f32]) {
    let len = if blocks.is_empty() { 1 } else { out.len() / blocks.len() };
    if !check(ratio, len, &blocks, out) {
        return;
    }
    rows.check(&(blocks.start * ratio..blocks.end * ratio), len);
    pooled(pool, len, ratio, out, |block, d, out| {
        let x = rows.at((blocks.start + block) * ratio, d);
        isa.run(MeanPool { ratio, x, stride: rows.width, out });
    });
}

/// Whether there is something to do.
#[track_caller]
fn check(ratio: usize, len: usize, blocks: &Range<usize>, out: &[f32]) -> bool {
    assert!(ratio > 0 && len > 0, "blocks of {ratio} positions of {len}");
    assert!(blocks.end.checked_mul(ratio).is_some(), "block {} of {ratio} positions", blocks.end);
    assert_eq!(Some(out.len()), blocks.len().checked_mul(len), "{} entries of {len}", blocks.len());
    !blocks.is_empty()
}

/// Call `f(block, d, values)` for each strip of each row of `out`, the strip starting at dimension d; a value
/// costs `work`.
fn pooled(
    pool: &Pool,
    len: usize,
    work: usize,
    out: &mut [f32],
    f: impl Fn(usize, usize, &mut [f32]) + Sync,
) {
    let strips = len.div_ceil(STRIP);
    let out = Disjoint::new(out);
    pool.for_chunks(out.len / len * strips, FORK.div_ceil(work * len.min(STRIP)), |range| {
        for item in range {
            let (block, d) = (item / strips, item % strips * STRIP);
            // SAFETY: the strip lies in the row of its block, and only this item writes it.
            f(block, d, unsafe { out.slice(block * len + d, STRIP.min(len - d)) });
        }
    });
}

/// `ratio` rows of a block from the first column of a strip on.
struct Part<'a> {
    kv: &'a [f32],
    score: &'a [f32],
    ape: &'a [f32],
}

struct Strides {
    kv: usize,
    score: usize,
    ape: usize,
}

struct SoftmaxPool<'a> {
    ratio: usize,
    before: Option<Part<'a>>,
    own: Part<'a>,
    strides: Strides,
    out: &'a mut [f32],
}

impl Kernel for SoftmaxPool<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let SoftmaxPool { ratio, before, own, strides, out } = self;
        let parts = || before.iter().chain([&own]);
        for (i, out) in out.chunks_mut(LANES).enumerate() {
            let (d, n) = (i * LANES, out.len());
            let score = |part: &Part<'_>, row: usize| {
                let score = load(s, &part.score[row * strides.score + d..][..n]);
                s.add(score, load(s, &part.ape[row * strides.ape + d..][..n]))
            };
            let mut largest = s.splat(f32::NEG_INFINITY);
            for part in parts() {
                for row in 0..ratio {
                    // This order of the operands drops a NaN, which the difference below brings back.
                    largest = s.max(score(part, row), largest);
                }
            }
            let (mut weights, mut sum) = (s.splat(0.0), s.splat(0.0));
            for part in parts() {
                for row in 0..ratio {
                    let e = exp(s, s.sub(score(part, row), largest));
                    weights = s.add(weights, e);
                    sum = s.add(sum, s.mul(e, load(s, &part.kv[row * strides.kv + d..][..n])));
                }
            }
            // SAFETY: a chunk holds n values, n <= 16.
            unsafe { s.store_part(out.as_mut_ptr(), n, s.div(sum, weights)) };
        }
    }
}

struct MeanPool<'a> {
    ratio: usize,
    x: &'a [f32],
    stride: usize,
    out: &'a mut [f32],
}

impl Kernel for MeanPool<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let MeanPool { ratio, x, stride, out } = self;
        let count = s.splat(ratio as f32);
        for (i, out) in out.chunks_mut(LANES).enumerate() {
            let (d, n) = (i * LANES, out.len());
            let mut sum = load(s, &x[d..][..n]);
            for row in 1..ratio {
                sum = s.add(sum, load(s, &x[row * stride + d..][..n]));
            }
            // SAFETY: a chunk holds n values, n <= 16.
            unsafe { s.store_part(out.as_mut_ptr(), n, s.div(sum, count)) };
        }
    }
}

/// At most 16 values, the other lanes +0.
#[inline(always)]
fn load<S: Simd>(s: S, x: &[f32]) -> S::F {
    debug_assert!(x.len() <= LANES);
    // SAFETY: x holds its length, which callers take from a chunk of at most 16.
    unsafe { if x.len() == LANES { s.load(x.as_ptr()) } else { s.load_part(x.as_ptr(), x.len()) } }
}
