//! How much working memory a model takes when it runs, at most: so that what is packed for a budget runs in it.
//!
//! ```text
//! a token's bytes   = 4 · values of all buffers + forms of what products read
//! card 0            = batch · (a token's bytes + the largest product on its way) + head + scores of attention
//! whole layers: c   = batch · (a token's bytes + residual + what comes from other cards), on the last card the logits
//! experts spread: c = batch · (the experts' buffers + what comes from card 0); card 0 also gets the experts' rows
//! ```
//!
//! The runtime's graphs (`runtime::model::graph`) name the buffers; layers take turns with them. Which form of its
//! input a product reads depends on the layout of its weights: all forms that there are count here.

use super::state::BATCH;
use super::{Hparams, Metadata, Resolved, find};
use std::num::Saturating;

/// Threads that hold scores of attention in this bound.
pub const SCRATCH_THREADS: u64 = 64;

/// Rows that the runtime makes logits of at once.
const HEAD_ROWS: u64 = 16;

/// Scores that a thread holds at most, if one head's do not exceed it.
const SCORES: u64 = 1 << 20;

/// How a model is run, as far as its working memory depends on it: one sequence, batches of the default size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Positions of the sequence.
    pub context: u64,
    /// Cards that share the model.
    pub cards: usize,
    /// Whether each card has whole layers; else all but experts is on card 0.
    pub whole_layers: bool,
}

/// Bytes of working memory by card, at most, with up to [`SCRATCH_THREADS`] threads and without drafting; `None` where
/// the architecture has no table or the hyperparameters do not say. `has` says whether the model has a tensor.
pub fn scratch(h: &Hparams, meta: &dyn Metadata, run: Run, has: impl Fn(&str) -> bool) -> Option<Vec<u64>> {
    let resolved = Resolved::read(find(&h.architecture)?, h, meta, &has);
    let widths = Widths::of(&resolved, run.context)?;
    let Widths { residual, embd, vocab, .. } = widths;
    let batch = Saturating(BATCH.min(run.context).max(1));
    let four = Saturating(4u64);
    let head = batch.min(Saturating(HEAD_ROWS)) * four * (vocab + residual);
    let scores = (widths.group * Saturating(run.context)).min(Saturating(SCORES.max(run.context)));
    let first = batch * (widths.token() + widths.aside) + head + four * Saturating(SCRATCH_THREADS) * scores;
    let mut cards = vec![Saturating(0); run.cards];
    *cards.first_mut()? = first;
    let last = run.cards - 1;
    for (card, bytes) in cards.iter_mut().enumerate().filter(|_| run.cards > 1) {
        let values = match (run.whole_layers, card) {
            // An output that is also the embeddings is on the first card.
            (true, 0) => embd + embd,
            (true, _) => {
                let apart = has("output.weight") || resolved.hparams.nextn > 0;
                let logits = if card == last && apart { vocab } else { Saturating(0) };
                // The residual's chosen rows, what the layer before hands over, rows of an n-gram table.
                let handed = residual + four * embd + widths.ids;
                *bytes += batch * widths.token();
                residual + logits + handed
            }
            (false, 0) => widths.experts.answers,
            (false, _) => {
                *bytes += batch * widths.experts.token(embd);
                embd + widths.experts.used
            }
        };
        *bytes += batch * four * values;
    }
    Some(cards.into_iter().map(|bytes| bytes.0).collect())
}

type Values = Saturating<u64>;

/// Values that buffers have for a token.
#[derive(Default)]
struct Widths {
    embd: Values,
    vocab: Values,
    /// Of all streams.
    residual: Values,
    /// In all buffers of the layers.
    all: Values,
    /// Bytes of further forms of what products read.
    forms: Values,
    /// Chosen positions and entries.
    ids: Values,
    /// Bytes of the largest product on its way to its place.
    aside: Values,
    /// Query heads on one key head.
    group: Values,
    experts: ExpertWidths,
}

/// The buffers of routed experts.
#[derive(Clone, Copy, Default)]
struct ExpertWidths {
    used: Values,
    /// Gates, ups and what they make.
    inner: Values,
    /// A row for each expert that a token uses.
    answers: Values,
    /// Bytes of further forms of their inputs.
    forms: Values,
}

impl ExpertWidths {
    /// Bytes for a token on a card that has nothing but experts.
    fn token(&self, embd: Values) -> Values {
        Saturating(4) * (embd + self.used + self.inner + self.answers) + self.forms
    }
}

/// Bytes of all forms of `values` values in `rows` rows beside f32: rotated, each of both as bytes with a scale per
/// 32 values, and as bytes with a scale per row, padded.
fn forms(values: Values, rows: Values) -> Values {
    values * Saturating(4) + values * Saturating(5) / Saturating(2) + values + rows * Saturating(40)
}

const ONE: Values = Saturating(1);
const TWO: Values = Saturating(2);

fn size(n: usize) -> Values {
    Saturating(n as u64)
}

impl Widths {
    fn of(r: &Resolved, context: u64) -> Option<Self> {
        let (h, s) = (&r.hparams, &r.subjects);
        let embd = Saturating(h.embd?);
        let streams = s.hyper.as_ref().map_or(ONE, |hyper| size(hyper.streams));
        let mut w = Self { embd, vocab: Saturating(h.vocab?), residual: streams * embd, ..Self::default() };
        w.plain(w.residual);
        // What a layer reads, and its norm; the answers of attention and of the feed-forward.
        w.plain(embd);
        w.input(embd, ONE);
        w.plain(TWO * embd);
        w.attention(r, context)?;
        w.delta_net(r);
        w.feed_forward(r)?;
        w.streams(r, streams);
        w.ngram(r, streams);
        if h.nextn > 0 {
            // The next token, the streams before it, both side by side, and the block's own streams.
            w.plain(embd + TWO * w.residual);
            w.input(TWO * w.residual, streams);
            w.aside(Saturating(12) * w.residual);
        }
        Some(w)
    }

    /// Bytes of a token.
    fn token(&self) -> Values {
        Saturating(4) * self.all + self.forms
    }

    /// A buffer.
    fn plain(&mut self, values: Values) {
        self.all += values;
    }

    /// A buffer that products read.
    fn input(&mut self, values: Values, rows: Values) {
        self.all += values;
        self.forms += forms(values, rows);
    }

    fn aside(&mut self, bytes: Values) {
        self.aside = self.aside.max(bytes);
    }

    /// An indexer's keys, queries and weights, and what it chooses.
    fn indexer(&mut self, heads: usize, len: usize, chosen: Values) {
        self.plain(TWO * size(len) + size(heads) * size(len) + size(heads) + chosen);
        self.ids = chosen;
    }

    fn attention(&mut self, r: &Resolved, context: u64) -> Option<()> {
        let (h, s) = (&r.hparams, &r.subjects);
        let four = Saturating(4);
        let heads = Saturating(h.heads?);
        let indexer = s.indexer.as_ref().filter(|i| (i.top_k as u64) < context);
        let ratio = s.compression.as_ref().and_then(|c| c.ratios.iter().max()).copied().unwrap_or(0);
        if let Some(mla) = &s.mla {
            let [q_rank, kv_rank, key, value, rot] =
                [mla.q_rank, mla.kv_rank, mla.key_len, mla.value_len, mla.rot].map(size);
            let nope = size(mla.key_len.saturating_sub(mla.rot));
            self.group = heads;
            self.input(q_rank, ONE);
            self.plain(heads * key + kv_rank + rot + heads * (kv_rank + rot));
            self.input(heads * nope, heads);
            self.input(heads * kv_rank, heads);
            self.input(heads * value, heads);
            self.aside(four * heads * (kv_rank + nope));
            self.aside(four * heads * (kv_rank + value));
            indexer.iter().for_each(|i| self.indexer(i.heads, i.key_len, size(i.top_k)));
            return Some(());
        }
        let (key, value) = (Saturating(h.key_length?), Saturating(h.value_length?));
        if let Some(own) = &s.deepseek4 {
            let (groups, rank) = (size(own.out_groups), size(own.out_rank));
            self.group = heads;
            self.input(size(own.q_rank), ONE);
            // Queries, keys, and values and scores of entries: of twice the width where blocks overlap.
            self.plain(heads * key + key + Saturating(6) * key);
            self.input(heads * key, groups);
            self.input(groups * rank, groups);
            self.aside(four * (groups * rank + heads * key));
            if let Some(i) = indexer {
                self.plain(four * size(i.key_len));
                self.indexer(i.heads, i.key_len, size(i.top_k));
            }
            return Some(());
        }
        let heads_kv = Saturating(h.heads_kv?.max(1));
        self.group = heads / heads_kv;
        // Gated attention has a gate for each value of a query, and its queries once more.
        let queries = if s.ssm.is_some() { TWO * heads * key } else { heads * key };
        let all = queries + heads_kv * (key + value);
        self.plain(all);
        self.plain(if s.ssm.is_some() { heads * key } else { Saturating(0) });
        self.input(heads * value, ONE);
        self.aside(four * all);
        if let Some(i) = indexer.filter(|_| ratio > 0) {
            self.indexer(i.heads, i.key_len, size(i.top_k) + size(ratio));
        }
        Some(())
    }

    fn delta_net(&mut self, r: &Resolved) {
        let Some(ssm) = &r.subjects.ssm else { return };
        let values = size(ssm.dim) * size(ssm.value_heads);
        let channels = values + TWO * size(ssm.dim) * size(ssm.key_heads);
        // Queries, keys, values and gates; rates; what the convolution gives.
        self.plain(channels + values + TWO * size(ssm.value_heads) + channels);
        self.input(values, ONE);
        self.aside(Saturating(4) * (channels + values));
    }

    fn feed_forward(&mut self, r: &Resolved) -> Option<()> {
        let (h, embd) = (&r.hparams, self.embd);
        let shares = h.experts > 0 && r.arch.rules().any(|rule| rule.name == "ffn_gate_shexp.weight");
        let dense = h.experts == 0 || h.leading_dense > 0;
        for width in [h.ff.filter(|_| dense), h.expert_shared_ff.filter(|_| shares)] {
            // Gates, ups and what they make; the gate of a shared expert.
            let width = Saturating(width.unwrap_or(0));
            self.plain(TWO * width + ONE);
            self.input(width, ONE);
            self.aside(Saturating(4) * width);
        }
        if h.experts > 0 {
            let (used, ff) = (Saturating(h.experts_used), Saturating(h.expert_ff?));
            let hidden = used * ff;
            self.plain(Saturating(h.experts) + TWO * used + TWO * hidden + used * embd + embd);
            self.input(hidden, used);
            // Gates and ups with their inputs, brought together; then answers with theirs.
            self.aside(used * (Saturating(8) * ff + Saturating(8) * embd));
            self.experts = ExpertWidths {
                used,
                inner: Saturating(3) * hidden,
                answers: used * embd,
                forms: forms(embd, ONE) + forms(hidden, used),
            };
        }
        Some(())
    }

    /// What several streams are read and written through.
    fn streams(&mut self, r: &Resolved, streams: Values) {
        let Some(hyper) = &r.subjects.hyper else { return };
        self.input(self.residual, ONE);
        match hyper.rank {
            Some(rank) => {
                self.plain(self.residual + streams);
                self.input(size(rank), ONE);
            }
            None => self.plain(streams * streams * TWO + Saturating(4) * streams),
        }
    }

    /// What becomes of the rows of an n-gram table.
    fn ngram(&mut self, r: &Resolved, streams: Values) {
        if let Some(Some(_)) = &r.subjects.ple {
            self.input(self.embd, ONE);
            self.plain(self.embd + Saturating(3) * self.residual);
            self.aside(Saturating(4) * streams * self.residual);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::all;
    use super::*;

    fn run(context: u64, cards: usize, whole_layers: bool) -> Run {
        Run { context, cards, whole_layers }
    }

    #[test]
    fn a_dense_model_takes_what_its_buffers_are() {
        let sample = all().remove(0);
        let h = Hparams::read(&sample);
        assert_eq!(h.architecture, "llama");
        let [embd, ff, vocab, heads, kv, key] =
            [h.embd, h.ff, h.vocab, h.heads, h.heads_kv, h.key_length].map(Option::unwrap);
        let found = scratch(&h, &sample, run(32, 1, true), |_| true).unwrap();
        // Residual, input, norm, two answers; queries, keys, values; what attention gives; gates, ups and their product.
        let f32s = 5 * embd + heads * key + kv * 2 * key + heads * key + 3 * ff;
        let least = 32 * 4 * f32s + 16 * 4 * (vocab + embd);
        assert!(found[0] > least && found[0] < 3 * least + (64 << 10), "{found:?} for {least}");
    }

    #[test]
    fn every_architecture_has_a_bound_that_grows() {
        for sample in all() {
            let h = Hparams::read(&sample);
            let of =
                |run| scratch(&h, &sample, run, |_| true).unwrap_or_else(|| panic!("{}", h.architecture));
            let [short, long] = [8, 4096].map(|context| of(run(context, 1, true))[0]);
            assert!(0 < short && short < long, "{}", h.architecture);
            for whole_layers in [true, false] {
                let cards = of(run(256, 3, whole_layers));
                assert!(cards.len() == 3 && cards.iter().all(|bytes| *bytes > 0), "{cards:?}");
            }
        }
    }

    #[test]
    fn what_is_unknown_or_beyond_all_sizes_is_no_panic() {
        let mut sample = all().remove(0);
        sample.set("embedding_length", super::super::samples::Value::Int(u64::MAX));
        let h = Hparams::read(&sample);
        let found = scratch(&h, &sample, run(1 << 40, 2, true), |_| true);
        assert!(found.is_none_or(|cards| cards[0] == u64::MAX));
        let other = Hparams { architecture: "none".into(), ..h };
        assert_eq!(scratch(&other, &sample, run(8, 1, true), |_| true), None);
    }
}
