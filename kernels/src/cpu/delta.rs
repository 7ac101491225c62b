//! The gated delta rule: linear attention whose state is one matrix a head.

use super::disjoint::Disjoint;
use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Simd};
use super::math::{FORK, exp_in_place, sigmoid_in_place, softplus_then};
use super::norm::squares;
use super::pieces::Pieces;
use super::pool::Pool;
use super::scratch;

/// Values j whose columns of a state lie together: 16 KiB at 128 keys, half of a first-level cache.
const BLOCK: usize = 2 * LANES;

/// Which key head a value head h uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeads {
    /// h mod key_heads.
    Tiled,
    /// h / (value_heads / key_heads).
    Grouped,
}

/// What a model says about its gated delta nets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaShape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Values of each head.
    pub dim: usize,
    /// Which key head a value head uses.
    pub keys: KeyHeads,
    /// Of the norm of queries and keys, x / √(Σx² + eps).
    pub eps: f32,
}

impl DeltaShape {
    /// f32 values of a sequence's state: value_heads · dim². All zero before the first token.
    ///
    /// # Panics
    /// Where that exceeds a `usize`.
    pub fn state(&self) -> usize {
        let head = self.dim.checked_mul(self.dim);
        head.and_then(|n| n.checked_mul(self.value_heads)).expect("a state fits memory")
    }

    /// Values of queries and keys and values of a token.
    fn width(&self) -> usize {
        let heads = self.key_heads.checked_mul(2).and_then(|n| n.checked_add(self.value_heads));
        heads.and_then(|n| n.checked_mul(self.dim)).expect("a row fits memory")
    }

    fn key_head(&self, value_head: usize) -> usize {
        match self.keys {
            KeyHeads::Tiled => value_head % self.key_heads,
            KeyHeads::Grouped => value_head / (self.value_heads / self.key_heads),
        }
    }

    /// What x is multiplied by, for Σx².
    fn inverse_length(&self, squares: f64) -> f32 {
        (1.0 / (squares + f64::from(self.eps)).sqrt()) as f32
    }
}

/// What the projections of a layer gave.
#[derive(Clone, Copy, Debug)]
pub struct DeltaInput<'a> {
    /// `[tokens][2·key_heads·dim + value_heads·dim]`: queries, keys, values, after the convolution.
    pub qkv: &'a [f32],
    /// Logits of the update's strength; the pieces of a token are its value heads, in order.
    pub beta: (&'a [f32], Pieces),
    /// What decides about the decay, likewise.
    pub alpha: (&'a [f32], Pieces),
    /// Factor of each value head on the logarithm of the decay (`ssm_a`), negative.
    pub decay: &'a [f32],
    /// What is added to alpha, for each value head (`ssm_dt`).
    pub dt: &'a [f32],
}

/// For each value head, with the state S\[i\]\[j\] (key i, value j), token after token:
///
/// 1. q, k = x · r of its key head's query and key, r = f32(1 / √(Σx² + eps)), Σx² in the order
///    of [`rms_norm`](super::rms_norm);
///    β = σ(beta); g = e^(decay · ln(1 + e^(alpha + dt))), each step rounded.
/// 2. u_j = Σ_i S_ij·k_i; d_j = β·(v_j − g·u_j).
/// 3. S_ij = g·S_ij + k_i·d_j.
/// 4. y_j = (Σ_i S_ij·q_i) · f32(1/√dim).
///
/// Sums over i start at 0 and ascend. `y` is `[tokens][value_heads·dim]`.
///
/// `state` is `[value_heads][dim/32][dim i][32 values j]`, the last block as narrow as what is left of dim.
///
/// # Panics
/// Where the lengths do not agree, a dimension is 0, or key heads do not divide value heads.
pub fn delta_net(
    isa: Isa,
    pool: &Pool,
    shape: &DeltaShape,
    tokens: usize,
    input: &DeltaInput<'_>,
    state: &mut [f32],
    y: &mut [f32],
) {
    let DeltaShape { key_heads, value_heads, dim, .. } = *shape;
    assert!(key_heads > 0 && value_heads > 0 && dim > 0, "{shape:?}");
    assert!(value_heads.is_multiple_of(key_heads), "{value_heads} value heads over {key_heads}");
    assert_eq!(state.len(), shape.state(), "a state of {shape:?}");
    let width = shape.width();
    assert_eq!(Some(input.qkv.len()), tokens.checked_mul(width), "{tokens} rows of {width}");
    assert_eq!(Some(y.len()), tokens.checked_mul(value_heads * dim), "{tokens} outputs of {shape:?}");
    assert!(input.decay.len() == value_heads && input.dt.len() == value_heads, "{value_heads} decays");
    for (values, pieces) in [input.beta, input.alpha] {
        pieces.check(tokens, values.len());
        assert_eq!(pieces.count.checked_mul(pieces.len), Some(value_heads), "{pieces:?} of value heads");
    }
    if tokens == 0 {
        return;
    }
    let (qk_len, gates_len) = (tokens * 2 * key_heads * dim, tokens * 2 * value_heads);
    scratch::with_lines((qk_len + gates_len).div_ceil(LANES), |lines| {
        let (qk, rest) = scratch::floats(lines).split_at_mut(qk_len);
        let gates = &mut rest[..gates_len];
        prepare(isa, pool, shape, tokens, input, qk, gates);
        let (state, y) = (Disjoint::new(state), Disjoint::new(y));
        let blocks = dim.div_ceil(BLOCK);
        let chunk = 2 * FORK / (tokens * dim * BLOCK);
        pool.for_chunks(value_heads * blocks, chunk, |range| {
            for item in range {
                let (head, first) = (item / blocks, item % blocks * BLOCK);
                let columns = BLOCK.min(dim - first);
                // SAFETY: the block's own part of the state, inside of its head's dim² values.
                let state = unsafe { state.slice(head * dim * dim + first * dim, columns * dim) };
                isa.run(Block {
                    dim,
                    qk: &qk[shape.key_head(head) * tokens * 2 * dim..][..tokens * 2 * dim],
                    gates: Rows { values: &gates[head..], stride: 2 * value_heads },
                    strength: value_heads,
                    v: Rows { values: &input.qkv[(2 * key_heads + head) * dim + first..], stride: width },
                    state,
                    y: y.skip(head * dim + first),
                    y_stride: value_heads * dim,
                    columns,
                    tokens,
                });
            }
        });
    });
}

/// Step 1: `qk` becomes `[key_heads][tokens][q, k][dim]`, `gates` `[tokens][g, β][value_heads]`.
fn prepare(
    isa: Isa,
    pool: &Pool,
    shape: &DeltaShape,
    tokens: usize,
    input: &DeltaInput<'_>,
    qk: &mut [f32],
    gates: &mut [f32],
) {
    let DeltaShape { key_heads, value_heads, dim, .. } = *shape;
    let width = shape.width();
    let (qk, gates) = (Disjoint::new(qk), Disjoint::new(gates));
    pool.for_chunks(tokens, FORK / (2 * key_heads * dim + 8 * value_heads), |range| {
        for token in range {
            let row = &input.qkv[token * width..][..width];
            for (i, x) in row.chunks_exact(dim).take(2 * key_heads).enumerate() {
                let (kind, head) = (i / key_heads, i % key_heads);
                // SAFETY: head < key_heads, kind < 2: inside; only this item has this token.
                let y = unsafe { qk.slice(((head * tokens + token) * 2 + kind) * dim, dim) };
                isa.run(Unit { shape, x, y });
            }
            // SAFETY: the token's gates, which only this item has.
            let (g, beta) =
                unsafe { gates.slice(token * 2 * value_heads, 2 * value_heads) }.split_at_mut(value_heads);
            gather(input.beta, token, beta);
            sigmoid_in_place(isa, beta);
            gather(input.alpha, token, g);
            g.iter_mut().zip(input.dt).for_each(|(g, dt)| *g += dt);
            softplus_then(isa, g, |x| x);
            g.iter_mut().zip(input.decay).for_each(|(g, decay)| *g *= decay);
            exp_in_place(isa, g);
        }
    });
}

/// The pieces of a token, one after the other.
fn gather((x, pieces): (&[f32], Pieces), token: usize, y: &mut [f32]) {
    for (piece, y) in y.chunks_exact_mut(pieces.len).enumerate() {
        y.copy_from_slice(&x[pieces.at(token, piece)..][..pieces.len]);
    }
}

/// y = x at length 1.
struct Unit<'a> {
    shape: &'a DeltaShape,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Unit<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let inverse = s.splat(self.shape.inverse_length(squares(s, self.x)));
        for (x, y) in self.x.chunks(LANES).zip(self.y.chunks_mut(LANES)) {
            let n = x.len().min(y.len());
            // SAFETY: each chunk holds n values, n <= 16.
            unsafe { s.store_part(y.as_mut_ptr(), n, s.mul(s.load_part(x.as_ptr(), n), inverse)) };
        }
    }
}

/// A row for each token, `stride` apart.
#[derive(Clone, Copy)]
struct Rows<'a> {
    values: &'a [f32],
    stride: usize,
}

/// A block of a head's state, through all tokens.
struct Block<'a> {
    tokens: usize,
    dim: usize,
    columns: usize,
    /// `[tokens][q, k][dim]`.
    qk: &'a [f32],
    /// g at 0, β at `strength`.
    gates: Rows<'a>,
    strength: usize,
    v: Rows<'a>,
    /// `[dim][columns]`.
    state: &'a mut [f32],
    /// Token t's `columns` outputs at t·`y_stride`, which nobody else writes.
    y: Disjoint<'a, f32>,
    y_stride: usize,
}

impl Kernel for Block<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Block { tokens, dim, columns, .. } = self;
        assert!(self.state.len() == dim * columns && self.qk.len() == tokens * 2 * dim);
        assert!(self.y.len >= (tokens - 1) * self.y_stride + columns);
        let mut j = 0;
        // Two vectors and their sums need more than 16 registers of 256 bits.
        while S::WIDE && j + 2 * LANES <= columns {
            self.columns::<2, true, S>(s, j, LANES);
            j += 2 * LANES;
        }
        while j + LANES <= columns {
            self.columns::<1, true, S>(s, j, LANES);
            j += LANES;
        }
        if j < columns {
            self.columns::<1, false, S>(s, j, columns - j);
        }
    }
}

impl Block<'_> {
    /// N vectors of columns from j, or (FULL false, N = 1) a part of one, of n. One pass over the state for a
    /// token: its update, its output and the next token's u.
    #[inline(always)]
    fn columns<const N: usize, const FULL: bool, S: Simd>(&mut self, s: S, j: usize, n: usize) {
        let Block { tokens, dim, columns, qk, gates, strength, v, y, y_stride, .. } = *self;
        assert!(j + if FULL { N * LANES } else { n } <= columns && (FULL || N == 1));
        let token_qk = |token: usize| qk[token * 2 * dim..][..2 * dim].split_at(dim);
        let state = &mut self.state[..dim * columns];
        // u is replaced as a whole below: an array that changes in the inner loop and lives on after it would not
        // stay in registers.
        let zero = [s.splat(0.0); N];
        let mut sums = zero;
        for (row, &k) in state.chunks_exact(columns).zip(token_qk(0).1) {
            let (row, k) = (&row[j..], s.splat(k));
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: a row has the columns from j.
                *sum = s.add(*sum, s.mul(unsafe { load::<FULL, S>(s, row.as_ptr(), i, n) }, k));
            }
        }
        let mut u = sums;
        let scale = s.splat((1.0 / (dim as f64).sqrt()) as f32);
        for token in 0..tokens {
            let gates = &gates.values[token * gates.stride..];
            let (g, beta) = (s.splat(gates[0]), s.splat(gates[strength]));
            let v = &v.values[token * v.stride..][..columns][j..];
            let mut d = u;
            for (i, d) in d.iter_mut().enumerate() {
                // SAFETY: v has the columns from j.
                let v = unsafe { load::<FULL, S>(s, v.as_ptr(), i, n) };
                *d = s.mul(beta, s.sub(v, s.mul(g, *d)));
            }
            let (q, k) = token_qk(token);
            // The last token has no next one: what its own key gives is dropped.
            let next = token_qk((token + 1).min(tokens - 1)).1;
            let (mut sums, mut ahead) = (zero, zero);
            for (row, ((&k, &q), &next)) in state.chunks_exact_mut(columns).zip(k.iter().zip(q).zip(next)) {
                let row = row[j..].as_mut_ptr();
                let (k, q, next) = (s.splat(k), s.splat(q), s.splat(next));
                for i in 0..N {
                    // SAFETY: a row has the columns from j.
                    let value = unsafe {
                        let value = s.add(s.mul(g, load::<FULL, S>(s, row, i, n)), s.mul(k, d[i]));
                        store::<FULL, S>(s, row, i, n, value);
                        value
                    };
                    sums[i] = s.add(sums[i], s.mul(value, q));
                    ahead[i] = s.add(ahead[i], s.mul(value, next));
                }
            }
            u = ahead;
            for (i, sum) in sums.into_iter().enumerate() {
                // SAFETY: the block's outputs of this token, inside (asserted in `run`) and nobody else's.
                unsafe { store::<FULL, S>(s, y.at(token * y_stride + j), i, n, s.mul(sum, scale)) };
            }
        }
    }
}

/// Vector i from `p`; not FULL: `n` lanes, the only vector.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn load<const FULL: bool, S: Simd>(s: S, p: *const f32, i: usize, n: usize) -> S::F {
    // SAFETY: the caller's.
    unsafe { if FULL { s.load(p.add(i * LANES)) } else { s.load_part(p, n) } }
}

/// The opposite of [`load`].
///
/// # Safety
/// They are writable.
#[inline(always)]
unsafe fn store<const FULL: bool, S: Simd>(s: S, p: *mut f32, i: usize, n: usize, a: S::F) {
    // SAFETY: the caller's.
    unsafe { if FULL { s.store(p.add(i * LANES), a) } else { s.store_part(p, n, a) } }
}
