//! Hyper-connections that mix their streams by a matrix of Sinkhorn's: mHC (arXiv 2512.24880) as DeepSeek-V4
//! computes it, which departs from the paper: it starts from a softmax, normalizes columns first, and adds eps to
//! the weights and to every sum.

use super::disjoint::Disjoint;
use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Simd};
use super::math::{FORK, sigmoid};
use super::norm::exponentials;
use super::pool::Pool;
use super::scratch;
use super::streams::{Streams, for_stretches};

/// What a model says about its hyper-connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sinkhorn {
    /// The streams.
    pub streams: Streams,
    /// Added to reading weights, to the start and to each sum that is divided by.
    pub eps: f32,
    /// How often each target's sum is brought to 1, at least once; between, each source's is.
    pub iterations: usize,
}

impl Sinkhorn {
    /// Logits of a token: `count` of reading, `count` of writing, `count²` of mixing.
    pub fn mixes(&self) -> usize {
        self.streams.count * (self.streams.count + 2)
    }
}

/// One logit: mix · scale + base.
#[inline(always)]
fn affine<S: Simd>(s: S, mix: &[f32], scale: f32, base: &[f32]) -> S::F {
    let n = mix.len().min(base.len());
    // SAFETY: each holds n values; callers pass at most 16.
    let (mix, base) = unsafe { (s.load_part(mix.as_ptr(), n), s.load_part(base.as_ptr(), n)) };
    s.add(s.mul(mix, s.splat(scale)), base)
}

/// What a layer reads from the streams, and how its result goes back. For each token, with the logits
/// l = mixes · scale + base, H = count:
///
/// 1. pre\[h\] = σ(l\[h\]) + eps, with `scale[0]`; y\[e\] = Σ_h pre\[h\]·x\[h\]\[e\], ascending.
/// 2. post\[h\] = 2σ(l\[H + h\]), with `scale[1]`.
/// 3. C\[to\]\[from\] = l\[2H + from·H + to\], with `scale[2]`: for each `from` a softmax over `to`, plus eps. Then,
///    `iterations` times, each `from` is divided by its sum and eps (not the first time), and after that each `to` by
///    its sum and eps. comb\[from·H + to\] = C\[to\]\[from\].
///
/// Logits, σ, pre and y are in f32, each operation rounded; e^ of the softmax too, and what follows of 3 in f64 (sums
/// ascending, products with a reciprocal), rounded once.
///
/// `x` is `[tokens][H][len]`, `mixes` `[tokens][H·(H+2)]`, `scale` `[3]`, `base` `[H·(H+2)]`, `y` `[tokens][len]`,
/// `post` `[tokens][H]`, `comb` `[tokens][H·H]`.
///
/// # Panics
/// Where the lengths do not agree, a stream has no values, or there is no iteration.
#[allow(clippy::too_many_arguments)] // Each is a part of the formula.
pub fn sinkhorn_read(
    isa: Isa,
    pool: &Pool,
    s: &Sinkhorn,
    x: &[f32],
    mixes: &[f32],
    scale: &[f32],
    base: &[f32],
    y: &mut [f32],
    post: &mut [f32],
    comb: &mut [f32],
) {
    let Streams { count, .. } = s.streams;
    let (tokens, width) = (s.streams.tokens(x), s.mixes());
    assert!(s.iterations > 0, "a matrix of Sinkhorn's has an iteration");
    assert_eq!(
        (mixes.len(), base.len(), scale.len()),
        (tokens * width, width, 3),
        "logits of {tokens} tokens"
    );
    assert_eq!(post.len(), tokens * count, "a factor for each stream of {tokens} tokens");
    assert_eq!(comb.len(), tokens * count * count, "a matrix for each of {tokens} tokens");
    let post = Disjoint::new(post);
    // A step of the iteration takes about as long as 4 values elsewhere.
    let chunk = FORK.div_ceil(8 * s.iterations * count * count);
    pool.for_rows(comb, count * count, chunk, |token, comb| {
        // SAFETY: token < tokens; for_rows gives each once.
        let post = unsafe { post.slice(token * count, count) };
        isa.run(Factors { s, mixes: &mixes[token * width..][..width], scale, base, post, comb });
    });
    read(isa, pool, s, x, (mixes, width), scale[0], &base[..count], y);
}

/// What the head reads from the streams: y\[e\] = Σ_h w\[h\]·x\[h\]\[e\], w\[h\] = σ(mixes\[h\]·scale + base\[h\]) + eps,
/// in the order of [`sinkhorn_read`]. `mixes` is `[tokens][count]`, `scale` `[1]`, `base` `[count]`.
///
/// # Panics
/// Where the lengths do not agree, or a stream has no values.
#[allow(clippy::too_many_arguments)] // Each is a part of the formula.
pub fn sinkhorn_head(
    isa: Isa,
    pool: &Pool,
    s: &Sinkhorn,
    x: &[f32],
    mixes: &[f32],
    scale: &[f32],
    base: &[f32],
    y: &mut [f32],
) {
    let Streams { count, .. } = s.streams;
    let tokens = s.streams.tokens(x);
    assert_eq!(
        (mixes.len(), base.len(), scale.len()),
        (tokens * count, count, 1),
        "logits of {tokens} tokens"
    );
    read(isa, pool, s, x, (mixes, count), scale[0], base, y);
}

/// The sum of the streams with their reading weights; the logits of a token are the first of its `mixes.1`.
#[allow(clippy::too_many_arguments)] // Each is a part of the formula.
fn read(
    isa: Isa,
    pool: &Pool,
    s: &Sinkhorn,
    x: &[f32],
    (mixes, stride): (&[f32], usize),
    scale: f32,
    base: &[f32],
    y: &mut [f32],
) {
    let Streams { count, len } = s.streams;
    let tokens = s.streams.tokens(x);
    assert_eq!(y.len(), tokens * len, "one stream of {len} for each of {tokens} tokens");
    let y = Disjoint::new(y);
    for_stretches(pool, tokens, len, FORK.div_ceil(count), |token, range| {
        // SAFETY: the range lies within the row, and no other call has it.
        let y = unsafe { y.slice(token * len + range.start, range.len()) };
        let mixes = &mixes[token * stride..][..count];
        let x = &x[token * count * len..][..count * len];
        scratch::with_lines(count.div_ceil(LANES), |lines| {
            let weights = &mut scratch::floats(lines)[..count];
            isa.run(Read { x, len, first: range.start, mixes, scale, base, eps: s.eps, weights, y });
        });
    });
}

/// Values from `first` on of one token.
struct Read<'a> {
    x: &'a [f32],
    len: usize,
    first: usize,
    mixes: &'a [f32],
    scale: f32,
    base: &'a [f32],
    eps: f32,
    weights: &'a mut [f32],
    y: &'a mut [f32],
}

impl Kernel for Read<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let logits = self.mixes.chunks(LANES).zip(self.base.chunks(LANES));
        for ((mix, base), w) in logits.zip(self.weights.chunks_mut(LANES)) {
            let weight = s.add(sigmoid(s, affine(s, mix, self.scale, base)), s.splat(self.eps));
            // SAFETY: a chunk holds its length, at most 16.
            unsafe { s.store_part(w.as_mut_ptr(), w.len(), weight) };
        }
        for (i, y) in self.y.chunks_mut(LANES).enumerate() {
            let n = y.len();
            let at = self.first + i * LANES;
            let mut sum = weighted(s, &self.x[at..][..n], self.weights[0]);
            for (stream, &weight) in self.weights.iter().enumerate().skip(1) {
                sum = s.add(sum, weighted(s, &self.x[stream * self.len + at..][..n], weight));
            }
            // SAFETY: a chunk holds n values, n <= 16.
            unsafe { s.store_part(y.as_mut_ptr(), n, sum) };
        }
    }
}

/// Up to 16 values x · weight.
#[inline(always)]
fn weighted<S: Simd>(s: S, x: &[f32], weight: f32) -> S::F {
    // SAFETY: callers pass at most 16 values.
    s.mul(s.splat(weight), unsafe { s.load_part(x.as_ptr(), x.len()) })
}

/// `post` and `comb` of one token.
struct Factors<'a> {
    s: &'a Sinkhorn,
    mixes: &'a [f32],
    scale: &'a [f32],
    base: &'a [f32],
    post: &'a mut [f32],
    comb: &'a mut [f32],
}

impl Kernel for Factors<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let count = self.post.len();
        let logits = self.mixes[count..].chunks(LANES).zip(self.base[count..].chunks(LANES));
        for ((mix, base), post) in logits.zip(self.post.chunks_mut(LANES)) {
            let (mix, base) = (&mix[..post.len()], &base[..post.len()]);
            let factor = s.mul(s.splat(2.0), sigmoid(s, affine(s, mix, self.scale[1], base)));
            // SAFETY: a chunk holds its length, at most 16.
            unsafe { s.store_part(post.as_mut_ptr(), post.len(), factor) };
        }
        let logits = self.mixes[2 * count..].chunks(LANES).zip(self.base[2 * count..].chunks(LANES));
        for ((mix, base), c) in logits.zip(self.comb.chunks_mut(LANES)) {
            // SAFETY: a chunk holds its length, at most 16.
            unsafe { s.store_part(c.as_mut_ptr(), c.len(), affine(s, mix, self.scale[2], base)) };
        }
        let eps = f64::from(self.s.eps);
        // Up to 8 streams without asking for memory.
        let (mut few, mut many) = ([0f64; 72], Vec::new());
        let c = match few.get_mut(..count * (count + 1)) {
            Some(few) => few,
            None => {
                many.resize(count * (count + 1), 0.0);
                &mut many[..]
            }
        };
        let (c, sums) = c.split_at_mut(count * count);
        for (from, c) in self.comb.chunks_exact_mut(count).zip(c.chunks_exact_mut(count)) {
            let inverse = 1.0 / exponentials(s, from, None);
            c.iter_mut().zip(&*from).for_each(|(c, &e)| *c = f64::from(e) * inverse + eps);
        }
        divide_targets(c, sums, eps);
        for _ in 1..self.s.iterations {
            for from in c.chunks_exact_mut(count) {
                let inverse = 1.0 / (from.iter().sum::<f64>() + eps);
                from.iter_mut().for_each(|c| *c *= inverse);
            }
            divide_targets(c, sums, eps);
        }
        self.comb.iter_mut().zip(c).for_each(|(comb, c)| *comb = *c as f32);
    }
}

/// Each C\[to\]\[·\] over (its sum + eps); `c` is `[from][to]`, `sums` room for one of each.
#[inline(always)]
fn divide_targets(c: &mut [f64], sums: &mut [f64], eps: f64) {
    sums.fill(0.0);
    for from in c.chunks_exact(sums.len()) {
        sums.iter_mut().zip(from).for_each(|(sum, c)| *sum += c);
    }
    sums.iter_mut().for_each(|sum| *sum = 1.0 / (*sum + eps));
    for from in c.chunks_exact_mut(sums.len()) {
        from.iter_mut().zip(&*sums).for_each(|(c, inverse)| *c *= inverse);
    }
}

/// x\[to\]\[e\] = add\[e\]·post\[to\] + Σ_from comb\[from·count + to\]·x\[from\]\[e\], for each token in place; ascending,
/// each operation rounded to f32. `x` is `[tokens][count][len]`, `add` `[tokens][len]`; `post` and `comb` as
/// [`sinkhorn_read`] gives them.
///
/// # Panics
/// Where the lengths do not agree, or a stream has no values.
pub fn sinkhorn_write(
    isa: Isa,
    pool: &Pool,
    s: Streams,
    x: &mut [f32],
    add: &[f32],
    post: &[f32],
    comb: &[f32],
) {
    let Streams { count, len } = s;
    let tokens = s.tokens(x);
    assert_eq!(add.len(), tokens * len, "one stream of {len} for each of {tokens} tokens");
    assert_eq!(post.len(), tokens * count, "a factor for each stream of {tokens} tokens");
    assert_eq!(comb.len(), tokens * count * count, "a matrix for each of {tokens} tokens");
    let x = Disjoint::new(x);
    for_stretches(pool, tokens, len, FORK.div_ceil(count * count), |token, range| {
        let x = x.skip(token * count * len + range.start);
        let post = &post[token * count..][..count];
        let comb = &comb[token * count * count..][..count * count];
        scratch::with_lines(count, |lines| {
            isa.run(Write {
                x,
                len,
                add: &add[token * len..][range],
                post,
                comb,
                old: scratch::floats(lines),
            });
        });
    });
}

/// Some values of each stream of one token: as many as `add` has from the start of `x`, and from each multiple of
/// `len` on. Nobody else has them, and they lie within the streams.
struct Write<'a> {
    x: Disjoint<'a, f32>,
    len: usize,
    add: &'a [f32],
    post: &'a [f32],
    comb: &'a [f32],
    /// Room for 16 values of each stream.
    old: &'a mut [f32],
}

impl Kernel for Write<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let count = self.post.len();
        for (i, add) in self.add.chunks(LANES).enumerate() {
            let n = add.len();
            for (stream, old) in self.old.chunks_exact_mut(LANES).enumerate().take(count) {
                // SAFETY: n <= 16 values of the part that is this kernel's.
                let x = unsafe { self.x.slice(stream * self.len + i * LANES, n) };
                // SAFETY: as above; `old` holds 16.
                unsafe { s.store(old.as_mut_ptr(), s.load_part(x.as_ptr(), n)) };
            }
            // SAFETY: a chunk holds n values, n <= 16.
            let add = unsafe { s.load_part(add.as_ptr(), n) };
            for (to, post) in self.post.iter().enumerate() {
                let mut sum = s.mul(add, s.splat(*post));
                for (from, old) in self.old.chunks_exact(LANES).enumerate().take(count) {
                    // SAFETY: `old` holds 16.
                    let old = unsafe { s.load(old.as_ptr()) };
                    sum = s.add(sum, s.mul(s.splat(self.comb[from * count + to]), old));
                }
                // SAFETY: as for the load of x.
                unsafe {
                    let x = self.x.slice(to * self.len + i * LANES, n);
                    s.store_part(x.as_mut_ptr(), n, sum);
                }
            }
        }
    }
}
