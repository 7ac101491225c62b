//! Causal attention with grouped heads over a [`KvCache`]: dense, windowed or sparse, with compressed entries and
//! sinks.

mod kernels;
mod rows;

use kernels::{Exponentials, Scores, Weighted};
use rows::{Part, Positions};

use super::disjoint::Disjoint;
use super::isa::Isa;
use super::kv::{KvCache, KvShape};
use super::lanes::LANES;
use super::pool::Pool;
use super::scratch;

/// Scores that a thread holds at most, if one head's do not exceed it: 4 MiB.
const SCORES: usize = 1 << 20;

/// Scores that a thread keeps at once, of `group` query heads on one key head and up to `positions` keys.
pub fn attention_scores(group: usize, positions: usize) -> usize {
    group.saturating_mul(positions).min(SCORES.max(positions))
}
/// Products of q and k that take as long as a fork: some 500 keys of 64 dimensions.
const FORK: usize = 32_768;

/// The only positions, or entries, that a token sees.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<'a> {
    /// `[tokens][per_token]`, each row ascending and u32::MAX after its last.
    pub ids: &'a [u32],
    /// Places of a token.
    pub per_token: usize,
}

/// Entries that stand for blocks of positions.
#[derive(Clone, Copy, Debug)]
pub struct More<'a> {
    /// Entry b at position b; heads and lengths as in the cache of positions.
    pub cache: &'a KvCache,
    /// Positions of an entry: the token at p sees entries b < (p + 1) / ratio.
    pub ratio: usize,
    /// Those of them that it sees; none: all.
    pub chosen: Option<Chosen<'a>>,
}

/// What queries see.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a> {
    /// Keys and values by position, those of the tokens themselves already written.
    pub cache: &'a KvCache,
    /// Positions that a query sees at most, its own the last of them; none: all.
    pub window: Option<usize>,
    /// Those of them that it sees; none: all.
    pub chosen: Option<Chosen<'a>>,
    /// Further entries.
    pub more: Option<More<'a>>,
    /// Per query head a logit that takes part in the softmax (unscaled) and has no value.
    pub sinks: Option<&'a [f32]>,
}

/// out\[t\]\[h\] = Σ_i softmax_i(scale · q\[t\]\[h\]·k_i) v_i over what the token at position first + t sees, in one
/// softmax: of the positions <= first + t of `keys.cache` those that the window and `chosen` leave, ascending, then
/// the entries of `more`, ascending. A token that sees nothing gets 0.
///
/// Query head h reads key-value head h / (n_heads / heads). Token t's query heads stand at
/// `q[t·stride..][..n_heads·key_len]`; `out` is `[tokens][n_heads·value_len]`.
///
/// Per query and head: q·k in 16 lanes (dimension d in lane d mod 16, ascending; then lanes i and i+8, i and i+4,
/// i+2, i+1), times scale; e_i = e^(score − max), the sink among what the maximum is of; Σe in f64 (the i-th of all
/// that is seen in lane i mod 16, the same tree; then + e^(sink − max), itself an f32); out_d = (… (0 + e_0·v_0d) +
/// e_1·v_1d …) · f32(1/Σe). So the bits are the same alone and in a batch, and those of a list of positions are those
/// of a cache that holds no others.
///
/// # Panics
/// Where the shapes do not agree, the window or a ratio is 0, a position that is seen is not in its cache, or chosen
/// ones do not ascend or lie beyond what the token may see.
#[allow(clippy::too_many_arguments)] // Each is a part of the formula.
pub fn attention(
    isa: Isa,
    pool: &Pool,
    n_heads: usize,
    scale: f32,
    keys: &Keys<'_>,
    first: usize,
    q: &[f32],
    stride: usize,
    out: &mut [f32],
) {
    let KvShape { heads: kv_heads, key_len, value_len, .. } = keys.cache.shape;
    assert!(n_heads > 0 && n_heads.is_multiple_of(kv_heads), "{n_heads} heads over {kv_heads}");
    let (q_width, width) = (n_heads * key_len, n_heads * value_len);
    assert!(out.len().is_multiple_of(width) && q_width <= stride, "{} outputs of {width}", out.len());
    let tokens = out.len() / width;
    assert!(tokens == 0 || q.len() >= (tokens - 1) * stride + q_width, "{} of q", q.len());
    keys.check(n_heads, first, tokens);
    let group = n_heads / kv_heads;
    let out = Disjoint::new(out);

    // Where there are fewer items than threads, or too many scores, a group becomes several items.
    let longest = keys.longest(first + tokens);
    let splits = pool.threads().div_ceil((tokens * kv_heads).max(1)).min(group);
    let per = group.div_ceil(splits).min((SCORES / longest.max(1)).max(1));
    let splits = group.div_ceil(per);
    let chunk = (FORK / (per * key_len * longest).max(1)).max(1);
    pool.for_chunks(tokens * kv_heads * splits, chunk, |range| {
        for item in range {
            let (item, split) = (item / splits, item % splits);
            let (token, kv) = (item / kv_heads, item % kv_heads);
            let head = kv * group + split * per;
            let heads = per.min(group - split * per);
            // SAFETY: some heads of this token, which only this item writes.
            let out = unsafe { out.slice(token * width + head * value_len, heads * value_len) };
            Heads {
                isa,
                scale,
                kv,
                q: &q[token * stride + head * key_len..][..heads * key_len],
                sinks: keys.sinks.map(|sinks| &sinks[head..][..heads]),
                parts: keys.parts(first, token),
                out,
            }
            .run();
        }
    });
}

impl<'a> Keys<'a> {
    /// The assertions about it.
    fn check(&self, n_heads: usize, first: usize, tokens: usize) {
        assert!(self.window != Some(0), "a window without keys");
        let capacity = self.cache.capacity();
        assert!(first + tokens <= capacity, "positions {first}+{tokens} of {capacity}");
        assert!(self.sinks.is_none_or(|sinks| sinks.len() == n_heads), "a sink per head of {n_heads}");
        let chosen = [self.chosen, self.more.and_then(|more| more.chosen)];
        for chosen in chosen.into_iter().flatten() {
            let places = tokens.checked_mul(chosen.per_token);
            assert_eq!(Some(chosen.ids.len()), places, "{} chosen by each of {tokens}", chosen.per_token);
        }
        if let Some(more) = &self.more {
            assert!(more.ratio > 0, "entries of no positions");
            let (a, b) = (self.cache.shape, more.cache.shape);
            let same = (a.heads, a.key_len, a.value_len) == (b.heads, b.key_len, b.value_len);
            assert!(same, "entries of {b:?} beside keys of {a:?}");
        }
    }

    /// What the token before position `end` sees at most.
    fn longest(&self, end: usize) -> usize {
        let least = |n: usize, chosen: Option<Chosen<'_>>| n.min(chosen.map_or(usize::MAX, |c| c.per_token));
        let own = least(end.min(self.window.unwrap_or(usize::MAX)), self.chosen);
        own + self.more.map_or(0, |more| least(end / more.ratio, more.chosen))
    }

    /// What token `token`, at position first + token, sees.
    fn parts(&self, first: usize, token: usize) -> [Option<Part<'a>>; 2] {
        let row = |chosen: Chosen<'a>| &chosen.ids[token * chosen.per_token..][..chosen.per_token];
        let end = first + token + 1;
        let start = end - end.min(self.window.unwrap_or(end));
        let own = Part { cache: self.cache, positions: Positions::new(start, end, self.chosen.map(row)) };
        let more = self.more.map(|more| Part {
            cache: more.cache,
            positions: Positions::new(0, end / more.ratio, more.chosen.map(row)),
        });
        [Some(own), more].map(|part| part.filter(|part| part.positions.count() > 0))
    }
}

/// Query heads of one token that share a key-value head: `q` is `[heads][key_len]`, `out` `[heads][value_len]`.
struct Heads<'a> {
    isa: Isa,
    scale: f32,
    kv: usize,
    q: &'a [f32],
    sinks: Option<&'a [f32]>,
    /// Without empty ones.
    parts: [Option<Part<'a>>; 2],
    out: &'a mut [f32],
}

impl Heads<'_> {
    fn run(self) {
        let Heads { isa, scale, kv, q, sinks, parts, out } = self;
        let parts = parts.into_iter().flatten();
        let total = parts.clone().map(|part| part.positions.count()).sum::<usize>();
        let Some(shape) = parts.clone().next().map(|part| part.cache.shape) else {
            out.fill(0.0);
            return;
        };
        let heads = q.len() / shape.key_len;
        let room = [heads * total, heads, LANES * shape.key_len.max(shape.value_len)];
        scratch::with_lines(room.iter().map(|n| n.div_ceil(LANES)).sum(), |lines| {
            let (scores, rest) = lines.split_at_mut(room[0].div_ceil(LANES));
            let (inverse, wide) = rest.split_at_mut(room[1].div_ceil(LANES));
            let scores = &mut scratch::floats(scores)[..room[0]];
            let inverse = &mut scratch::floats(inverse)[..heads];
            let wide = scratch::floats(wide);
            let mut at = 0;
            for part in parts.clone() {
                part.keys(kv, Scores { isa, q, scale, scores, total, at, wide });
                at += part.positions.count();
            }
            isa.run(Exponentials { scores, total, sinks, inverse });
            at = 0;
            for part in parts {
                part.values(kv, Weighted { isa, scores, total, at, inverse, out, wide });
                at += part.positions.count();
            }
        });
    }
}
