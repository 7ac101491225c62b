//! The steps of routed experts.

use super::buffers::Buffers;
use super::{Loaded, view};
use crate::Result;
use crate::model::program::{BufferId, ExpertProduct, StepKind};
use gantry_kernels::cpu::{Group, gemm_grouped};
use std::mem;
use std::ops::Range;

/// Working memory of [`Experts::products`].
#[derive(Default)]
pub(super) struct Experts {
    /// Each token with each expert of it, as `token · used + slot`, by expert.
    pairs: Vec<u32>,
    /// The tokens of those pairs.
    tokens: Vec<u32>,
    /// The pairs of each expert that has any.
    runs: Vec<(usize, Range<usize>)>,
    /// Products by expert, on their way to the rows of their tokens.
    aside: Vec<f32>,
}

impl Experts {
    /// Groups the tokens by expert; `ids` has `used` of `experts` for each token. Pairs that `mine` has not are left
    /// out.
    fn group(&mut self, ids: &[u32], used: usize, experts: usize, mine: impl Fn(usize, u32) -> bool) {
        let mut starts = vec![0; experts + 1];
        let own = |&(pair, &id): &(usize, &u32)| mine(pair / used, id);
        for (_, &id) in ids.iter().enumerate().filter(own) {
            starts[id as usize + 1] += 1;
        }
        self.runs.clear();
        for e in 0..experts {
            let start: usize = starts[e];
            starts[e + 1] += start;
            if starts[e + 1] > start {
                self.runs.push((e, start..starts[e + 1]));
            }
        }
        let pairs = self.runs.last().map_or(0, |(_, run)| run.end);
        self.pairs.resize(pairs, 0);
        self.tokens.resize(pairs, 0);
        for (pair, &id) in ids.iter().enumerate().filter(own) {
            let at = &mut starts[id as usize];
            self.pairs[*at] = pair as u32;
            self.tokens[*at] = (pair / used) as u32;
            *at += 1;
        }
    }

    /// Groups the experts of one token, in the order in which they were chosen; those that `mine` has not are left out.
    fn single(&mut self, ids: &[u32], mine: impl Fn(usize, u32) -> bool) {
        self.pairs.clear();
        self.pairs.extend((0..ids.len() as u32).filter(|&slot| mine(0, ids[slot as usize])));
        self.tokens.clear();
        self.tokens.resize(self.pairs.len(), 0);
        self.runs.clear();
        let experts = self.pairs.iter().map(|&slot| ids[slot as usize] as usize);
        self.runs.extend(experts.enumerate().map(|(i, expert)| (expert, i..i + 1)));
    }

    /// [`Step::Experts`](crate::model::program::Step::Experts) for `n` tokens: all products of all experts share
    /// the threads, and each expert's weights are read once for all its tokens. `positions` has each token's. With
    /// `only` a card, the rows of experts that another card computes stay as they are.
    pub(super) fn products(
        &mut self,
        loaded: &Loaded,
        buffers: &mut Buffers,
        only: Option<usize>,
        ids: Option<BufferId>,
        products: &[ExpertProduct],
        positions: &[u32],
    ) -> Result<()> {
        let n = positions.len();
        let shape = |id: BufferId| &loaded.program.buffers[id.0];
        let Some(experts) = products.iter().map(|p| p.weights.experts()).min() else { return Ok(()) };
        let used = ids.map_or(experts, |ids| shape(ids).width);
        let every: Vec<u32>;
        let ids = match ids {
            Some(ids) => &buffers.ids(ids)[..n * used],
            None => {
                every = (0..n * used).map(|i| (i % used) as u32).collect();
                &every
            }
        };
        // All matrices of an expert lie on one card, so those of the first product tell.
        let weights = &products[0].weights;
        let on = |token: usize, id: u32| weights.get(id as usize, positions[token] as usize).map(|m| m.card);
        let mine = |token: usize, id: u32| only.is_none() || on(token, id) == only;
        if n == 1 {
            self.single(ids, mine)
        } else {
            self.group(ids, used, experts, mine)
        }

        let whole = |p: &ExpertProduct| p.y.len == shape(p.y.buffer).width;
        // One token's products in the order of its experts are the rows of the buffer.
        let direct = match products {
            [p] if n == 1 && self.pairs.len() == used && whole(p) => Some(p.y.buffer),
            _ => None,
        };
        let values = products.iter().map(|p| self.pairs.len() * p.y.len).sum();
        let mut results = match direct {
            Some(y) => buffers.take(y, values),
            None => mem::take(&mut self.aside),
        };
        if results.len() < values {
            results.resize(values, 0.0);
        }
        let mut groups = Vec::with_capacity(products.len() * self.runs.len());
        let mut rest = &mut results[..values];
        for p in products {
            let rows = shape(p.x).rows;
            let x = buffers.activations(p.x, n * rows * p.weights.cols())?;
            let of = if rows == 1 { &self.tokens } else { &self.pairs };
            for (expert, run) in &self.runs {
                // The copies of an expert have the same bytes: this card's, or any.
                let Some(matrix) = p.weights.copy(*expert, loaded.card) else { continue };
                let w = view(loaded, StepKind::Experts, matrix)?;
                let (y, later) = rest.split_at_mut(run.len() * w.rows());
                rest = later;
                groups.push(Group { w, x, tokens: &of[run.clone()], y });
            }
        }
        gemm_grouped(loaded.isa, &loaded.pool, &mut groups);
        let each = products.iter().flat_map(|p| self.runs.iter().map(move |(expert, _)| (p.scale, *expert)));
        for (group, (scale, expert)) in groups.iter_mut().zip(each) {
            if let Some(scale) = scale {
                let scale = loaded.vectors[scale.0][expert];
                group.y.iter_mut().for_each(|y| *y *= scale);
            }
        }
        drop(groups);

        match direct {
            Some(y) => buffers.give(y, results),
            None => {
                self.scatter(loaded, buffers, products, &results, n * used);
                self.aside = results;
            }
        }
        Ok(())
    }

    /// Brings products by expert to the rows of their tokens, `pairs` in all.
    fn scatter(
        &self,
        loaded: &Loaded,
        buffers: &mut Buffers,
        products: &[ExpertProduct],
        results: &[f32],
        pairs: usize,
    ) {
        let mut rest = results;
        for p in products {
            let width = loaded.program.buffers[p.y.buffer.0].width;
            let mut out = buffers.take(p.y.buffer, pairs * width);
            let (own, later) = rest.split_at(self.pairs.len() * p.y.len);
            rest = later;
            for (&pair, row) in self.pairs.iter().zip(own.chunks_exact(p.y.len)) {
                out[pair as usize * width + p.y.start..][..p.y.len].copy_from_slice(row);
            }
            buffers.give(p.y.buffer, out);
        }
    }
}
