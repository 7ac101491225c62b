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
    /// Groups the tokens by expert; `ids` has `used` of `experts` for each token.
    fn group(&mut self, ids: &[u32], used: usize, experts: usize) {
        let mut starts = vec![0; experts + 1];
        for &id in ids {
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
        self.pairs.resize(ids.len(), 0);
        self.tokens.resize(ids.len(), 0);
        for (pair, &id) in ids.iter().enumerate() {
            let at = &mut starts[id as usize];
            self.pairs[*at] = pair as u32;
            self.tokens[*at] = (pair / used) as u32;
            *at += 1;
        }
    }

    /// Groups the experts of one token, in the order in which they were chosen.
    fn single(&mut self, ids: &[u32]) {
        self.pairs.clear();
        self.pairs.extend(0..ids.len() as u32);
        self.tokens.clear();
        self.tokens.resize(ids.len(), 0);
        self.runs.clear();
        self.runs.extend(ids.iter().enumerate().map(|(slot, &id)| (id as usize, slot..slot + 1)));
    }

    /// [`Step::Experts`](crate::model::program::Step::Experts) for `n` tokens: all products of all experts share
    /// the threads, and each expert's weights are read once for all its tokens.
    pub(super) fn products(
        &mut self,
        loaded: &Loaded,
        buffers: &mut Buffers,
        ids: Option<BufferId>,
        products: &[ExpertProduct],
        n: usize,
    ) -> Result<()> {
        let shape = |id: BufferId| &loaded.program.buffers[id.0];
        let Some(experts) = products.iter().map(|p| p.weights.iter().len()).min() else { return Ok(()) };
        let used = ids.map_or(experts, |ids| shape(ids).width);
        let every: Vec<u32>;
        let ids = match ids {
            Some(ids) => &buffers.ids(ids)[..n * used],
            None => {
                every = (0..n * used).map(|i| (i % used) as u32).collect();
                &every
            }
        };
        if n == 1 {
            self.single(ids)
        } else {
            self.group(ids, used, experts)
        }

        let whole = |p: &ExpertProduct| p.y.len == shape(p.y.buffer).width;
        // One token's products in the order of its experts are the rows of the buffer.
        let direct = match products {
            [p] if n == 1 && whole(p) => Some(p.y.buffer),
            _ => None,
        };
        let values = products.iter().map(|p| n * used * p.y.len).sum();
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
                let Some(matrix) = p.weights.get(*expert) else { continue };
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
            let (own, later) = rest.split_at(pairs * p.y.len);
            rest = later;
            for (&pair, row) in self.pairs.iter().zip(own.chunks_exact(p.y.len)) {
                out[pair as usize * width + p.y.start..][..p.y.len].copy_from_slice(row);
            }
            buffers.give(p.y.buffer, out);
        }
    }
}
