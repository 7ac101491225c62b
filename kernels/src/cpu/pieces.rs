//! Stretches of rows: heads inside a projection, streams of a residual.

use super::disjoint::Disjoint;
use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Simd};
use super::math::{FORK, sigmoid, silu};
use super::norm::Norm;
use super::pool::Pool;

/// `count` stretches of `len` values, `stride` apart, in each row of `row` values: heads, streams. Row t starts
/// at t·`row`, its piece p at `start` + p·`stride`; the last row may end with its last piece. Pieces that are
/// only read may overlap: with stride 0 one is read `count` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// From one token to the next.
    pub row: usize,
    /// The first piece within a row.
    pub start: usize,
    /// Pieces of a row.
    pub count: usize,
    /// Values of a piece.
    pub len: usize,
    /// From one piece to the next.
    pub stride: usize,
}

impl Pieces {
    /// All pieces lie inside `values`; an overflow is outside.
    #[track_caller]
    pub(super) fn check(&self, tokens: usize, values: usize) {
        let Pieces { row, start, count, len, stride } = *self;
        assert!(count > 0 && len > 0, "{count} pieces of {len}");
        let end = (count - 1).checked_mul(stride).and_then(|at| at.checked_add(start)?.checked_add(len));
        assert!(end.is_some_and(|end| end <= row), "{self:?}: a row ends before its pieces");
        let all = tokens.checked_sub(1).map_or(Some(0), |t| t.checked_mul(row)?.checked_add(end?));
        assert!(all.is_some_and(|all| all <= values), "{self:?}: {tokens} rows in {values} values");
    }

    /// [`Pieces::check`], and no two pieces overlap.
    #[track_caller]
    fn check_written(&self, tokens: usize, values: usize) {
        self.check(tokens, values);
        assert!(self.count == 1 || self.stride >= self.len, "{self:?}: pieces overlap");
    }

    /// Where a piece starts.
    #[inline(always)]
    pub(super) fn at(&self, token: usize, piece: usize) -> usize {
        token * self.row + self.start + piece * self.stride
    }

    /// Call `f(token, piece, values)` for each piece of `y`.
    fn for_each(
        &self,
        pool: &Pool,
        tokens: usize,
        y: &mut [f32],
        f: impl Fn(usize, usize, &mut [f32]) + Sync,
    ) {
        let y = Disjoint::new(y);
        pool.for_chunks(tokens * self.count, FORK.div_ceil(self.len), |range| {
            for item in range {
                let (token, piece) = (item / self.count, item % self.count);
                // SAFETY: the callers have checked that the pieces lie inside and do not overlap; for_chunks
                // gives each once.
                f(token, piece, unsafe { y.slice(self.at(token, piece), self.len) });
            }
        });
    }
}

/// y piece = (x piece · r) · weight, r = f32(1 / √(Σx²/len + eps)), each piece in the order of
/// [`rms_norm`](super::rms_norm). `weight` holds `len` values for all pieces, or `count`·`len`; none: x · r.
/// Without `x` the pieces of `y` are normed in place. What lies between the pieces of `y` stays.
///
/// # Panics
/// Where `x` has other pieces (`count`, `len`) than `to`, the weight another length, a piece is empty or lies
/// outside of its row or buffer, or pieces of `y` overlap.
#[allow(clippy::too_many_arguments)] // Each is a part of the formula.
pub fn rms_norm_pieces(
    isa: Isa,
    pool: &Pool,
    tokens: usize,
    x: Option<(&[f32], Pieces)>,
    weight: Option<&[f32]>,
    eps: f32,
    y: &mut [f32],
    to: Pieces,
) {
    to.check_written(tokens, y.len());
    if let Some((x, from)) = x {
        from.check(tokens, x.len());
        assert!((from.count, from.len) == (to.count, to.len), "a norm keeps the shape: {from:?}, {to:?}");
    }
    let per_piece = weight.is_some_and(|w| w.len() != to.len);
    if let Some(w) = weight {
        assert!(!per_piece || w.len() == to.count * to.len, "{} weights for {to:?}", w.len());
    }
    to.for_each(pool, tokens, y, |token, piece, out| {
        let x = x.map(|(x, from)| &x[from.at(token, piece)..][..from.len]);
        let weight = weight.map(|w| &w[if per_piece { piece * to.len } else { 0 }..][..to.len]);
        isa.run(Norm { x, weight, eps, out });
    });
}

/// y piece = x piece. What lies between the pieces of `y` stays.
///
/// # Panics
/// Where `from` has other pieces (`count`, `len`) than `to`, a piece is empty or lies outside of its row or
/// buffer, or pieces of `y` overlap.
pub fn copy_pieces(_: Isa, pool: &Pool, tokens: usize, x: &[f32], from: Pieces, y: &mut [f32], to: Pieces) {
    from.check(tokens, x.len());
    to.check_written(tokens, y.len());
    assert!((from.count, from.len) == (to.count, to.len), "a copy keeps the shape: {from:?}, {to:?}");
    to.for_each(pool, tokens, y, |token, piece, out| {
        out.copy_from_slice(&x[from.at(token, piece)..][..from.len]);
    });
}

/// What a gate's logits go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// x / (1 + e^-x).
    Silu,
}

/// y piece = y piece · act(g piece), in place. `from.len` 1: one factor for a piece of `y`; `from.count` 1 as
/// well: one for all pieces of a token.
///
/// # Panics
/// Where the pieces of `from` are neither those of `to` nor factors of them, a piece is empty or lies outside of
/// its row or buffer, or pieces of `y` overlap.
#[allow(clippy::too_many_arguments)] // Each is a part of the formula.
pub fn gate_pieces(
    isa: Isa,
    pool: &Pool,
    tokens: usize,
    act: Gate,
    g: &[f32],
    from: Pieces,
    y: &mut [f32],
    to: Pieces,
) {
    from.check(tokens, g.len());
    to.check_written(tokens, y.len());
    let one = from.count == 1 && from.len == 1;
    assert!(
        one || from.count == to.count && (from.len == to.len || from.len == 1),
        "gates are one for a value, a piece or a token: {from:?}, {to:?}"
    );
    to.for_each(pool, tokens, y, |token, piece, y| {
        let g = &g[from.at(token, if one { 0 } else { piece })..][..from.len];
        isa.run(Gated { act, g, y });
    });
}

/// One piece: `g` is as long as `y`, or one value.
struct Gated<'a> {
    act: Gate,
    g: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Gated<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Gated { act, g, y } = self;
        assert!(g.len() == y.len() || g.len() == 1);
        let act = |g: S::F| match act {
            Gate::Sigmoid => sigmoid(s, g),
            Gate::Silu => silu(s, g),
        };
        let one = (g.len() < y.len()).then(|| act(s.splat(g[0])));
        for (i, y) in y.chunks_mut(LANES).enumerate() {
            let n = y.len();
            // SAFETY: a chunk holds n values, n <= 16, and so does chunk i of `g` where it is as long as `y`.
            unsafe {
                let factor = match one {
                    Some(one) => one,
                    None => act(s.load_part(g.as_ptr().add(i * LANES), n)),
                };
                s.store_part(y.as_mut_ptr(), n, s.mul(s.load_part(y.as_ptr(), n), factor));
            }
        }
    }
}
