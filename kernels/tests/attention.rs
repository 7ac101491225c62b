//! Attention: every implementation against f64, and against each other bit for bit, alone and in batches.

mod random;

use gantry_kernels::cpu::{AttentionShape, Isa, KvCache, KvType, Pool, attention};
use half::f16;
use random::{Rng, assert_same, assert_written, poison};

struct Case {
    shape: AttentionShape,
    kv_heads: usize,
    dim: usize,
    tokens: usize,
    kind: KvType,
    /// `[tokens][stride]`: q, k, v of a token one after the other.
    qkv: Vec<f32>,
}

impl Case {
    fn new(rng: &mut Rng, heads: (usize, usize), dim: usize, tokens: usize, kind: KvType, size: f32) -> Self {
        let window = [None, None, Some(1), Some(5), Some(40)][rng.below(5)];
        let shape = AttentionShape { n_heads: heads.0, scale: 1.0 / (dim as f32).sqrt(), window };
        let qkv = rng.units(tokens * (heads.0 + 2 * heads.1) * dim, size);
        Case { shape, kv_heads: heads.1, dim, tokens, kind, qkv }
    }

    fn stride(&self) -> usize {
        (self.shape.n_heads + 2 * self.kv_heads) * self.dim
    }

    fn width(&self) -> usize {
        self.shape.n_heads * self.dim
    }

    /// All tokens, `batch` at a time; the cache is larger than they need and holds garbage beyond them.
    fn run(&self, isa: Isa, pool: &Pool, batch: usize) -> Vec<f32> {
        let (stride, kv_width) = (self.stride(), self.kv_heads * self.dim);
        let mut cache = KvCache::new(self.kind, self.kv_heads, self.tokens + 3, self.dim);
        let garbage = vec![f32::NAN; kv_width];
        cache.write(self.tokens, 1, &garbage, &garbage, kv_width);
        let mut out = poison(self.tokens * self.width());
        for first in (0..self.tokens).step_by(batch) {
            let n = batch.min(self.tokens - first);
            let qkv = &self.qkv[first * stride..][..n * stride];
            let (k, v) = (&qkv[self.width()..], &qkv[self.width() + kv_width..]);
            cache.write(first, n, k, v, stride);
            let out = &mut out[first * self.width()..][..n * self.width()];
            attention(isa, pool, self.shape, &cache, first, qkv, stride, out);
        }
        assert_written(&out);
        out
    }

    fn stored(&self, x: f32) -> f64 {
        match self.kind {
            KvType::F32 => f64::from(x),
            KvType::F16 => f16::from_f32(x).to_f64(),
        }
    }

    /// The output in f64, and the largest |v| that takes part: what errors are measured against.
    fn oracle(&self, token: usize, head: usize) -> (Vec<f64>, f64) {
        let (stride, dim) = (self.stride(), self.dim);
        let kv = head / (self.shape.n_heads / self.kv_heads);
        let first = (token + 1).saturating_sub(self.shape.window.unwrap_or(usize::MAX));
        let q = &self.qkv[token * stride + head * dim..][..dim];
        let part = |p: usize, at: usize| &self.qkv[p * stride + self.width() + (at + kv) * dim..][..dim];
        let scores: Vec<f64> = (first..=token)
            .map(|p| {
                let dot = q.iter().zip(part(p, 0)).map(|(&q, &k)| f64::from(q) * self.stored(k)).sum::<f64>();
                dot * f64::from(self.shape.scale)
            })
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let (mut out, mut largest) = (vec![0f64; dim], 0f64);
        for (p, score) in (first..).zip(&scores) {
            for (out, &v) in out.iter_mut().zip(part(p, self.kv_heads)) {
                *out += (score - max).exp() / sum * self.stored(v);
                largest = largest.max(self.stored(v).abs());
            }
        }
        (out, largest)
    }
}

#[test]
fn attention_matches_f64_and_agrees_bit_for_bit() {
    let mut rng = Rng(31);
    for dim in [1, 8, 16, 20, 64, 80, 128, 144] {
        for heads in [(1, 1), (3, 1), (4, 2), (9, 3)] {
            for kind in [KvType::F32, KvType::F16] {
                let size = [1.0, 4.0][rng.below(2)];
                let tokens = [1, 2, 15, 16, 17, 70][rng.below(6)];
                let case = Case::new(&mut rng, heads, dim, tokens, kind, size);
                let truth = case.run(Isa::PORTABLE, &Pool::new(1), tokens);
                for token in 0..tokens {
                    for head in 0..heads.0 {
                        let (exact, largest) = case.oracle(token, head);
                        let y = &truth[token * case.width() + head * dim..][..dim];
                        for (y, exact) in y.iter().zip(exact) {
                            // A score of size s has an error of some s·ε, which exp makes relative.
                            let bound = 2e-6 * f64::from(size * size).max(1.0) * largest;
                            assert!(
                                (f64::from(*y) - exact).abs() <= bound,
                                "{dim} {heads:?}: {y} for {exact}"
                            );
                        }
                    }
                }
                for isa in random::others() {
                    let y = case.run(isa, &Pool::new(2), tokens);
                    assert_same(&y, &truth, &format!("{} {dim} {heads:?} {kind:?}", isa.name()));
                }
            }
        }
    }
}

#[test]
fn a_token_alone_equals_it_in_a_batch_on_any_number_of_threads() {
    let mut rng = Rng(32);
    for kind in [KvType::F32, KvType::F16] {
        let case = Case::new(&mut rng, (6, 2), 64, 133, kind, 2.0);
        for isa in Isa::available() {
            let alone = case.run(isa, &Pool::new(1), 1);
            for threads in 1..=4 {
                let pool = Pool::new(threads);
                for batch in [1, 2, 3, 7, 8, 16, 33, 133] {
                    let y = case.run(isa, &pool, batch);
                    assert_same(&y, &alone, &format!("{} {batch} on {threads} threads", isa.name()));
                }
            }
        }
    }
}

#[test]
fn the_cache_says_how_large_it_is() {
    let cache = KvCache::new(KvType::F16, 3, 100, 64);
    assert_eq!((cache.capacity(), cache.bytes()), (100, 2 * 3 * 100 * 64 * 2));
}
