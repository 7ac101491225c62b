//! Steps on several residual streams.

use super::kernels::{Args, Group, groups, members};
use super::loaded::Loaded;
use super::look_back::unsupported;
use super::steps::{EACH, Runner};
use crate::Result;
use crate::model::program::{BufferId, Step};

impl Runner {
    /// [`Step::StreamNorm`]; `quants` is where its result goes quantized, quants and scales, or nowhere.
    pub(super) fn stream_norm(&self, loaded: &Loaded, step: &Step, quants: [u64; 2], n: usize) -> Result<()> {
        let Step::StreamNorm { write, x, gamma, eps, y } = step else { return Ok(()) };
        let at = |id: BufferId| self.buffers.at(id);
        let (add, inject) = write.map_or((0, 0), |w| (at(w.add), at(w.inject)));
        let inject_row = write.map_or(0, |w| loaded.program.values(w.inject));
        let buffer = &loaded.program.buffers[x.0];
        let [q, scales] = quants;
        let addresses = [at(*x), add, inject, loaded.vector(Some(*gamma)), at(*y), q, scales];
        let args = Args::at(&addresses).long(&[inject_row]).int(&[buffer.rows, buffer.width]).float(*eps);
        let group = Group::of(members(buffer.width.div_ceil(4)));
        self.launch_groups(loaded, "gantry_stream_norm", ([buffer.rows, n, 1], group), &args)
    }

    pub(super) fn streams(&self, loaded: &Loaded, step: &Step, n: usize) -> Result<()> {
        let at = |id: &BufferId| self.buffers.at(*id);
        let values = |id: &BufferId| loaded.program.values(*id);
        let width = |id: &BufferId| loaded.program.buffers[id.0].width;
        let rows = |id: &BufferId| loaded.program.buffers[id.0].rows;
        match step {
            Step::StreamNorm { .. } => self.stream_norm(loaded, step, [0, 0], n),
            Step::StreamWrite { write, x } => {
                let addresses = [at(x), at(&write.add), at(&write.inject)];
                let args = Args::at(&addresses).long(&[values(&write.inject)]).int(&[rows(x), width(x)]);
                let grid = [groups(width(x), EACH), n * rows(x), 1];
                self.launch(loaded, "gantry_stream_write", grid, &args)
            }
            Step::StreamMix { x, gates, y } => {
                let len = values(y);
                let args = Args::at(&[at(x), at(gates), at(y)]).int(&[values(x) / len, len]);
                self.launch(loaded, "gantry_stream_mix", [groups(len, EACH), n, 1], &args)
            }
            Step::SinkhornRead { hyper, x, mixes, scale, base, y, post, comb } => {
                let vectors = [loaded.vector(Some(*scale)), loaded.vector(Some(*base))];
                let count = rows(x);
                let args = Args::at(&[at(x), at(mixes), vectors[0], vectors[1], at(y)]);
                let args = args.long(&[values(mixes)]).int(&[count, width(x)]).float(hyper.eps);
                self.launch(loaded, "gantry_sinkhorn_read", [groups(width(x), EACH), n, 1], &args)?;
                let args = Args::at(&[at(mixes), vectors[0], vectors[1], at(post), at(comb)]);
                let args = args.int(&[count, hyper.iterations]).float(hyper.eps);
                self.launch(loaded, "gantry_sinkhorn_factors", [n, 1, 1], &args)
            }
            Step::SinkhornWrite { x, add, post, comb } => {
                let args = Args::at(&[at(x), at(add), at(post), at(comb)]).int(&[rows(x), width(x)]);
                self.launch(loaded, "gantry_sinkhorn_write", [groups(width(x), EACH), n, 1], &args)
            }
            Step::SinkhornHead { hyper, x, mixes, scale, base, y } => {
                let vectors = [loaded.vector(Some(*scale)), loaded.vector(Some(*base))];
                let args = Args::at(&[at(x), at(mixes), vectors[0], vectors[1], at(y)]);
                let args = args.long(&[values(mixes)]).int(&[rows(x), width(x)]).float(hyper.eps);
                self.launch(loaded, "gantry_sinkhorn_read", [groups(width(x), EACH), n, 1], &args)
            }
            Step::NgramGate { key, query, value, y } => {
                let args = Args::at(&[at(key), at(query), at(value), at(y)]).int(&[rows(y), width(y)]);
                self.launch(loaded, "gantry_ngram_gate", [rows(y), n, 1], &args)
            }
            _ => Err(unsupported(step)),
        }
    }
}
