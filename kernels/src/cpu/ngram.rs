//! Embeddings of token n-grams: which rows of the table a token has, and how much of them each stream takes.

use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Simd};
use super::math::{FORK, sigmoid};
use super::pool::Pool;
use super::streams::Streams;

/// How n-grams are hashed to rows of a table. Heads come in `size − 1` groups of as many: those of the pairs first,
/// then those of the triples, and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ngram {
    /// Tokens of the longest n-gram, at least 2.
    pub size: usize,
    /// The token that ends a text: no n-gram reaches over it.
    pub eos: u32,
    /// At least `size`: what each place of the window is multiplied by, the token itself first.
    pub multipliers: Vec<u64>,
    /// One for each head: its first row.
    pub offsets: Vec<u64>,
    /// One for each head: its rows, at least 1.
    pub vocabs: Vec<u64>,
}

impl Ngram {
    /// The rows of the token `window[0]`, one for each head; its predecessors follow in the window, the nearest first.
    /// `None`, like the end of a shorter window, is before the start.
    ///
    /// c\[0\] is the token, c\[s\] its predecessor at distance s; from the first that is missing or `eos` on, every
    /// c\[s\] is `eos` (a token that is `eos` itself still sees its predecessors). For n = 2..=size and each head of
    /// its group: mix = c\[0\]·m\[0\] ^ … ^ c\[n−1\]·m\[n−1\], products modulo 2^64; row = mix % vocab + offset.
    ///
    /// # Panics
    /// Where the window has no token, `rows` or a list has another length than stated, or a head has no rows.
    pub fn rows(&self, window: &[Option<u32>], rows: &mut [u64]) {
        let Ngram { size, eos, multipliers, offsets, vocabs } = self;
        assert!(*size >= 2 && multipliers.len() >= *size, "{} multipliers for {size}", multipliers.len());
        let heads = rows.len();
        assert!(offsets.len() == heads && vocabs.len() == heads, "offsets and sizes of {heads} heads");
        assert!(heads > 0 && heads.is_multiple_of(size - 1), "{heads} heads for n-grams of 2 to {size}");
        let token = window.first().copied().flatten().expect("a window starts with its token");
        let mut mix = u64::from(token).wrapping_mul(multipliers[0]);
        let mut cut = false;
        let group = heads / (size - 1);
        let heads = offsets.chunks_exact(group).zip(vocabs.chunks_exact(group));
        for (i, (rows, (offsets, vocabs))) in rows.chunks_exact_mut(group).zip(heads).enumerate() {
            let before = window.get(i + 1).copied().flatten().filter(|&token| !cut && token != *eos);
            cut = before.is_none();
            mix ^= u64::from(before.unwrap_or(*eos)).wrapping_mul(multipliers[i + 1]);
            for ((row, offset), vocab) in rows.iter_mut().zip(offsets).zip(vocabs) {
                *row = mix % vocab + offset;
            }
        }
    }
}

/// y\[token\]\[h\] = σ(sign(d)·√max(|d|, 1e-6)) · value\[token\], d = Σ key\[token\]\[h\]·query\[token\]\[h\] / √len;
/// d = 0 gives σ(0). `key`, `query` and `y` are `[tokens][count][len]`, `value` `[tokens][len]`.
///
/// The products are rounded to f32, their sum is in f64 in the order of [`super::rms_norm`]; the quotient and the root
/// are in f64, rounded once; σ and the product with the value are in f32.
///
/// # Panics
/// Where the lengths do not agree, or a stream has no values.
pub fn ngram_gate(
    isa: Isa,
    pool: &Pool,
    s: Streams,
    key: &[f32],
    query: &[f32],
    value: &[f32],
    y: &mut [f32],
) {
    let tokens = s.tokens(y);
    assert!(key.len() == y.len() && query.len() == y.len(), "a key and a query for each value");
    assert_eq!(value.len(), tokens * s.len, "one stream of {} for each of {tokens} tokens", s.len);
    // Values are met twice.
    pool.for_rows(y, s.len, (FORK / 2).div_ceil(s.len), |row, y| {
        let [key, query] = [key, query].map(|x| &x[row * s.len..][..s.len]);
        isa.run(Gate { key, query, value: &value[row / s.count * s.len..][..s.len], y });
    });
}

/// One stream of a token.
struct Gate<'a> {
    key: &'a [f32],
    query: &'a [f32],
    value: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Gate<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut sum = s.zero_d();
        for (key, query) in self.key.chunks(LANES).zip(self.query.chunks(LANES)) {
            let n = key.len().min(query.len());
            // SAFETY: each chunk holds n values, n <= 16.
            let product = unsafe { s.mul(s.load_part(key.as_ptr(), n), s.load_part(query.as_ptr(), n)) };
            sum = s.add_d(sum, product);
        }
        let gate = sigmoid(s, s.splat(logit(s.sum_d(sum), self.y.len())));
        for (value, y) in self.value.chunks(LANES).zip(self.y.chunks_mut(LANES)) {
            let n = value.len().min(y.len());
            // SAFETY: each chunk holds n values, n <= 16.
            unsafe { s.store_part(y.as_mut_ptr(), n, s.mul(s.load_part(value.as_ptr(), n), gate)) };
        }
    }
}

/// sign(d)·√max(|d|, 1e-6), d = dot / √len.
fn logit(dot: f64, len: usize) -> f32 {
    let d = dot / (len as f64).sqrt();
    if d == 0.0 {
        return 0.0;
    }
    // A NaN stays one, which `max` would drop.
    let size = if d.abs() < 1e-6 { 1e-6 } else { d.abs() };
    size.sqrt().copysign(d) as f32
}
