//! A sequence of tokens with everything that attention may be told about it, and its result in f64.
#![allow(dead_code)] // Each test binary uses its part.

use gantry_kernels::cpu::{
    Chosen, Isa, Keys, KvCache, KvShape, KvType, More, Pool, Window, attention, kv_int8_row,
};
use half::f16;

use crate::random::{Rng, assert_written, poison};

/// For each token what it sees of what it could, ascending.
pub(crate) type Lists = Vec<Vec<u32>>;

#[derive(Clone)]
pub(crate) struct Entries {
    pub(crate) ratio: usize,
    pub(crate) chosen: Option<Lists>,
    /// `[entries][heads·(key_len + value_len)]`.
    pub(crate) rows: Vec<f32>,
    pub(crate) kind: KvType,
}

#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) n_heads: usize,
    pub(crate) shape: KvShape,
    pub(crate) scale: f32,
    pub(crate) tokens: usize,
    pub(crate) kind: KvType,
    pub(crate) window: Option<usize>,
    pub(crate) store: Option<Window>,
    pub(crate) chosen: Option<Lists>,
    pub(crate) more: Option<Entries>,
    pub(crate) sinks: Option<Vec<f32>>,
    /// `[tokens][stride]`: q, k, v of a token one after the other (v is not used where the cache is shared).
    pub(crate) rows: Vec<f32>,
}

/// A list of up to `per` of the numbers below `end`, the last few likelier.
fn some_of(rng: &mut Rng, end: usize, per: usize) -> Vec<u32> {
    let n = rng.below(per + 1);
    let mut ids: Vec<u32> = (0..n.min(end)).map(|_| rng.below(end) as u32).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

pub(crate) fn lists(rng: &mut Rng, tokens: usize, per: usize, end: impl Fn(usize) -> usize) -> Lists {
    (0..tokens).map(|token| some_of(rng, end(token), per)).collect()
}

/// What a row of a head stands for where it is kept.
fn stored(kind: KvType, row: &[f32]) -> Vec<f64> {
    match kind {
        KvType::F32 => row.iter().map(|x| f64::from(*x)).collect(),
        KvType::F16 => row.iter().map(|x| f16::from_f32(*x).to_f64()).collect(),
        KvType::Int8 => {
            let mut q = vec![0; row.len()];
            let scale = kv_int8_row(row, &mut q).to_f64();
            q.iter().map(|q| f64::from(*q) * scale).collect()
        }
    }
}

/// The lists of tokens `first..first + n` as the kernels take them.
fn places(lists: &Lists, first: usize, n: usize) -> (Vec<u32>, usize) {
    let per_token = lists.iter().map(Vec::len).max().unwrap_or(0) + 1;
    let row = |list: &Vec<u32>| {
        let mut row = list.clone();
        row.resize(per_token, u32::MAX);
        row
    };
    (lists[first..first + n].iter().flat_map(row).collect(), per_token)
}

fn as_chosen((ids, per_token): &(Vec<u32>, usize)) -> Chosen<'_> {
    Chosen { ids, per_token: *per_token }
}

impl Case {
    pub(crate) fn new(
        rng: &mut Rng,
        n_heads: usize,
        shape: KvShape,
        tokens: usize,
        kind: KvType,
        size: f32,
    ) -> Self {
        let stride = n_heads * shape.key_len + shape.heads * (shape.key_len + shape.value_len);
        Case {
            n_heads,
            shape,
            scale: 1.0 / (shape.key_len as f32).sqrt(),
            tokens,
            kind,
            window: None,
            store: None,
            chosen: None,
            more: None,
            sinks: None,
            rows: rng.units(tokens * stride, size),
        }
    }

    pub(crate) fn with_chosen(mut self, rng: &mut Rng, per: usize) -> Self {
        self.chosen = Some(lists(rng, self.tokens, per, |token| token + 1));
        self
    }

    pub(crate) fn with_more(mut self, rng: &mut Rng, ratio: usize, per: Option<usize>, kind: KvType) -> Self {
        let chosen = per.map(|per| lists(rng, self.tokens, per, |token| (token + 1) / ratio));
        let row = self.shape.heads * (self.shape.key_len + self.shape.value_len);
        let rows = rng.units(self.tokens / ratio * row, 1.0);
        self.more = Some(Entries { ratio, chosen, rows, kind });
        self
    }

    pub(crate) fn with_sinks(mut self, rng: &mut Rng) -> Self {
        self.sinks = Some(rng.units(self.n_heads, 3.0));
        self
    }

    pub(crate) fn stride(&self) -> usize {
        self.q_width() + self.kv_widths().0 + self.kv_widths().1
    }

    pub(crate) fn q_width(&self) -> usize {
        self.n_heads * self.shape.key_len
    }

    pub(crate) fn kv_widths(&self) -> (usize, usize) {
        (self.shape.heads * self.shape.key_len, self.shape.heads * self.shape.value_len)
    }

    pub(crate) fn width(&self) -> usize {
        self.n_heads * self.shape.value_len
    }

    /// The cache of positions, with garbage after the last one.
    pub(crate) fn cache(&self) -> KvCache {
        let mut cache = KvCache::new(self.kind, self.shape, self.tokens + 3, self.store);
        if self.store.is_none() {
            let garbage = vec![f32::NAN; self.stride()];
            let values = (!self.shape.shared).then_some(&garbage[..]);
            cache.write(self.tokens, 1, &garbage, values, self.stride());
        }
        cache
    }

    fn entries(&self) -> Option<KvCache> {
        let more = self.more.as_ref()?;
        let n = self.tokens / more.ratio;
        let mut cache = KvCache::new(more.kind, self.shape, n + 2, None);
        let (k, v) = self.kv_widths();
        let garbage = vec![f32::NAN; k + v];
        let values = |rows: &'_ [f32]| (!self.shape.shared).then(|| rows[k..].to_vec());
        cache.write(n, 1, &garbage, values(&garbage).as_deref(), k + v);
        if n > 0 {
            cache.write(0, n, &more.rows, values(&more.rows).as_deref(), k + v);
        }
        Some(cache)
    }

    /// Tokens `first..first + n`, written and then attended to.
    pub(crate) fn step(
        &self,
        isa: Isa,
        pool: &Pool,
        cache: &mut KvCache,
        first: usize,
        n: usize,
    ) -> Vec<f32> {
        let stride = self.stride();
        let rows = &self.rows[first * stride..][..n * stride];
        let (k, v) = (&rows[self.q_width()..], &rows[self.q_width() + self.kv_widths().0..]);
        cache.write(first, n, k, (!self.shape.shared).then_some(v), stride);
        let entries = self.entries();
        let own = self.chosen.as_ref().map(|lists| places(lists, first, n));
        let theirs = self.more.as_ref().and_then(|more| more.chosen.as_ref());
        let theirs = theirs.map(|lists| places(lists, first, n));
        let more = self.more.as_ref().zip(entries.as_ref());
        let more = more.map(|(more, cache)| More {
            cache,
            ratio: more.ratio,
            chosen: theirs.as_ref().map(as_chosen),
        });
        let sinks = self.sinks.as_deref();
        let keys = Keys { cache, window: self.window, chosen: own.as_ref().map(as_chosen), more, sinks };
        let mut out = poison(n * self.width());
        attention(isa, pool, self.n_heads, self.scale, &keys, first, rows, stride, &mut out);
        assert_written(&out);
        out
    }

    /// All tokens, `batch` at a time.
    pub(crate) fn run(&self, isa: Isa, pool: &Pool, batch: usize) -> Vec<f32> {
        let mut cache = self.cache();
        let mut out = Vec::new();
        for first in (0..self.tokens).step_by(batch) {
            out.extend(self.step(isa, pool, &mut cache, first, batch.min(self.tokens - first)));
        }
        out
    }

    /// The output of one head in f64, and the largest |v| that takes part: what errors are measured against.
    pub(crate) fn oracle(&self, token: usize, head: usize) -> (Vec<f64>, f64) {
        let KvShape { heads, key_len, value_len, shared } = self.shape;
        let (stride, kv) = (self.stride(), head / (self.n_heads / heads));
        // A row of k and v to the key and the value of head kv, as stored.
        let entry = |row: &[f32], kind: KvType| {
            let key = stored(kind, &row[kv * key_len..][..key_len]);
            let value = &row[heads * key_len + kv * value_len..][..value_len];
            let value = if shared { key[..value_len].to_vec() } else { stored(kind, value) };
            (key, value)
        };
        let mut seen = Vec::new();
        for p in (token + 1).saturating_sub(self.window.unwrap_or(usize::MAX))..=token {
            if self.chosen.as_ref().is_none_or(|lists| lists[token].contains(&(p as u32))) {
                seen.push(entry(&self.rows[p * stride + self.q_width()..], self.kind));
            }
        }
        if let Some(more) = &self.more {
            for b in 0..(token + 1) / more.ratio {
                if more.chosen.as_ref().is_none_or(|lists| lists[token].contains(&(b as u32))) {
                    seen.push(entry(&more.rows[b * heads * (key_len + value_len)..], more.kind));
                }
            }
        }
        let q = &self.rows[token * stride + head * key_len..][..key_len];
        let score = |key: &[f64]| {
            q.iter().zip(key).map(|(&q, k)| f64::from(q) * k).sum::<f64>() * f64::from(self.scale)
        };
        let scores: Vec<f64> = seen.iter().map(|(key, _)| score(key)).collect();
        let sink = self.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
        let sum: f64 = scores.iter().chain(&sink).map(|s| s.exp()).sum();
        let (mut out, mut largest) = (vec![0f64; value_len], 0f64);
        for ((_, value), score) in seen.iter().zip(&scores) {
            for (out, v) in out.iter_mut().zip(value) {
                *out += score.exp() / sum * v;
                largest = largest.max(v.abs());
            }
        }
        (out, largest)
    }

    /// `y` is what f64 gives, to `bound` of the largest value.
    #[track_caller]
    pub(crate) fn assert_close(&self, y: &[f32], bound: f64, what: &str) {
        self.assert_near(&self.oracles(), y, bound, what);
    }

    /// What f64 gives, and the largest value, of every head of every token.
    pub(crate) fn oracles(&self) -> Vec<(Vec<f64>, f64)> {
        let each = |token| (0..self.n_heads).map(move |head| self.oracle(token, head));
        (0..self.tokens).flat_map(each).collect()
    }

    /// The same for [`oracles`](Self::oracles) that are known.
    #[track_caller]
    pub(crate) fn assert_near(&self, oracles: &[(Vec<f64>, f64)], y: &[f32], bound: f64, what: &str) {
        for (i, (y, (exact, largest))) in y.chunks(self.shape.value_len).zip(oracles).enumerate() {
            let (token, head) = (i / self.n_heads, i % self.n_heads);
            for (y, exact) in y.iter().zip(exact) {
                let close = (f64::from(*y) - exact).abs() <= bound * largest;
                assert!(close, "{what}: token {token}, head {head}: {y} for {exact}");
            }
        }
    }
}
