//! Steps, one by one: each is a launch or a few.
#![allow(unsafe_code, reason = "launches; why they are sound is said once, at `Runner::launch`")]

use super::batch::Batch;
use super::buffers::Buffers;
use super::driver::{DeviceMemory, Stream};
use super::exchange::Exchange;
use super::gather::Gathered;
use super::kernels::{Args, Group, groups, members};
use super::loaded::{Loaded, wrong};
use super::registry;
use super::sequence::CardSequence;
use super::watch::Watch;
use crate::Result;
use crate::model::program::{BufferId, Format, Gate, Matrix, Pieces, Step};
use gantry_formats::arch::RopeType;
use gantry_formats::layout::Layout;
use std::sync::Arc;

/// What runs steps: buffers of batches, on the card of `loaded`.
pub(super) struct Runner {
    /// First to go, so that it is idle before what it works on goes.
    pub(super) stream: Arc<Stream>,
    pub(super) buffers: Buffers,
    /// Partial results on their way: of attention, of delta nets, lists of experts.
    pub(super) partial: DeviceMemory,
    /// Rows of n-gram tables on their way.
    pub(super) gathered: Gathered,
    /// What it gives other cards and gets from them, where there are some.
    pub(super) exchange: Option<Arc<dyn Exchange>>,
    /// Who looks at launches.
    pub(super) watch: Watch,
}

/// What a step sees.
pub(super) struct Around<'a, 's> {
    pub(super) loaded: &'a Loaded,
    pub(super) batch: &'a Batch,
    pub(super) sequences: &'a [&'s mut CardSequence],
}

/// Threads of a group of elementwise kernels.
pub(super) const EACH: usize = 256;

impl Runner {
    /// Launches a kernel.
    pub(super) fn launch(
        &self,
        loaded: &Loaded,
        name: &'static str,
        grid: [usize; 3],
        args: &Args,
    ) -> Result<()> {
        self.launch_groups(loaded, name, (grid, Group::default()), args)
    }

    /// Launches groups that are not as the kernel was compiled.
    pub(super) fn launch_groups(
        &self,
        loaded: &Loaded,
        name: &'static str,
        (grid, group): ([usize; 3], Group),
        args: &Args,
    ) -> Result<()> {
        self.watch.around((&loaded.kernels, &self.stream), name, || {
            // SAFETY: kernels state their arguments, in `kernels/device` and `kernels/cuda`. Matrices lie within the
            // arena (checked when the program was prepared), tables are as long as the batch or the model they describe,
            // and buffers hold the largest batch, which runs do not exceed; all of it outlives the stream's work, for it
            // is freed only after the context is idle.
            unsafe { loaded.kernels.launch(&self.stream, name, grid, group, args) }
        })?;
        Ok(())
    }

    /// Runs one step for `n` rows of tokens.
    pub(super) fn step(&mut self, around: &Around<'_, '_>, step: &Step, n: usize) -> Result<()> {
        let loaded = around.loaded;
        let values = |id: BufferId| loaded.program.values(id);
        let width = |id: BufferId| loaded.program.buffers[id.0].width;
        let rows = |id: BufferId| loaded.program.buffers[id.0].rows;
        let at = |id: BufferId| self.buffers.at(id);
        let place = |p: &Pieces| [values(p.buffer), p.start, p.stride];
        let elements = |n: usize| [groups(n, EACH), 1, 1];
        match step {
            Step::Begin(_) => Ok(()),
            Step::Embed { table, y } => {
                let kernel = registry::embed(table.layout).ok_or_else(|| no_kernel(table))?;
                let args = Args::at(&[loaded.matrix(table), around.batch.tokens(), at(*y)])
                    .long(&[table.rows.start]);
                let args = match table.layout {
                    Layout::Q8_0Split { .. } => args.long(&planes(table)?[1..2]),
                    _ => args,
                };
                let args = args.int(&[n, rows(*y), width(*y)]);
                self.launch(loaded, kernel, [groups(width(*y), EACH), n, 1], &args)
            }
            Step::Ngram { hash, y, .. } => self.ngram(around, *hash, *y, n),
            Step::RmsNorm { x, weight, eps, y } => {
                let per_piece = weight.is_some_and(|w| loaded.program.vectors[w.0].cols > y.len);
                let args = Args::at(&[at(x.buffer), loaded.vector(*weight), at(y.buffer)]);
                let args = args.long(&place(x)).long(&place(y)).int(&[y.len, per_piece.into()]).float(*eps);
                let group = Group::of(members(y.len.div_ceil(4)));
                self.launch_groups(loaded, "gantry_rms_norm", ([y.count, n, 1], group), &args)
            }
            Step::LayerNorm { x, weight, bias, eps, y } => {
                let vectors = [loaded.vector(Some(*weight)), loaded.vector(Some(*bias))];
                let args = Args::at(&[at(*x), vectors[0], vectors[1], at(*y)]).int(&[values(*y)]).float(*eps);
                self.launch(loaded, "gantry_layer_norm", [n, 1, 1], &args)
            }
            Step::Quantize { x, y } => {
                let places = [at(*x), at(*y), self.buffers.scales(*y)];
                let all = n * values(*y);
                match loaded.program.buffers[y.0].format {
                    Format::I8 => {
                        let args = Args::at(&places).int(&[width(*y)]);
                        self.launch(loaded, "gantry_quantize_i8", [all / width(*y), 1, 1], &args)
                    }
                    _ => {
                        let args = Args::at(&places).long(&[all / 32]);
                        self.launch(loaded, "gantry_quantize_q8", [groups(all / 32, 32), 1, 1], &args)
                    }
                }
            }
            Step::Rotate { x, y } => {
                let (cols, lines) = (width(*y), n * rows(*y));
                let blocks =
                    gantry_formats::rotation::blocks(cols).map_err(|e| wrong("program", e.to_string()))?;
                let args = Args::at(&[at(*x), loaded.signs(cols), at(*y)]).int(&[cols]);
                self.launch(loaded, "gantry_rotate", [blocks.count(), lines, 1], &args)
            }
            Step::Gemm { weight, scale, bias, x, y } => self.gemm(loaded, weight, [*scale, *bias], *x, *y, n),
            Step::Rope { rotation, x, start, inverse } => {
                let shape = &loaded.program.rotations[*rotation];
                let (pairs, neox) = (shape.len / 2, shape.pairs != RopeType::Norm);
                let args = Args::at(&[at(x.buffer), around.batch.angles(*rotation)])
                    .long(&[values(x.buffer), x.start + start, x.stride])
                    .int(&[n, x.count, pairs, neox.into(), (*inverse).into()]);
                self.launch(loaded, "gantry_rope", [groups(x.count * pairs, EACH), n, 1], &args)
            }
            Step::Store { .. } | Step::Attention { .. } | Step::Compress { .. } | Step::Select { .. } => {
                self.look_back(around, step, n)
            }
            Step::Conv { .. } | Step::DeltaNet { .. } => self.recur(around, step, n),
            Step::Copy { x, y } => {
                let args = Args::at(&[at(x.buffer), at(y.buffer)]).long(&place(x)).long(&place(y));
                let args = args.int(&[n, y.count, y.len]);
                self.launch(loaded, "gantry_copy", [groups(y.count * y.len, EACH), n, 1], &args)
            }
            Step::Gate { act, gate, y } => {
                let act = usize::from(*act == Gate::Silu);
                let args = Args::at(&[at(gate.buffer), at(y.buffer)]).long(&place(gate)).long(&place(y));
                let args = args.int(&[n, y.count, y.len, gate.count, gate.len, act]);
                self.launch(loaded, "gantry_gate", [groups(y.count * y.len, EACH), n, 1], &args)
            }
            Step::SiluMul { .. } => self.silu_mul(around, step, None, n),
            Step::SiluScaled { x, scale } => {
                let all = n * values(*x);
                let args = Args::at(&[at(*x)]).long(&[all]).float(*scale);
                self.launch(loaded, "gantry_silu_scaled", elements(all), &args)
            }
            Step::Add { x, y } => {
                let all = n * values(*y);
                let args = Args::at(&[at(*x), at(*y)]).long(&[all]);
                self.launch(loaded, "gantry_add", elements(all), &args)
            }
            Step::StreamNorm { .. }
            | Step::StreamWrite { .. }
            | Step::StreamMix { .. }
            | Step::SinkhornRead { .. }
            | Step::SinkhornWrite { .. }
            | Step::SinkhornHead { .. }
            | Step::NgramGate { .. } => self.streams(loaded, step, n),
            Step::Route { .. } => self.route(around, step, n),
            Step::Experts { ids, products, only } => self.experts(around, (*ids, *only), products, n),
            Step::Mix { .. } => self.mix(around, step, [0, 0], n),
            Step::Send { .. } | Step::Receive { .. } | Step::Return { .. } | Step::Collect { .. } => {
                let exchange = self.exchange.as_ref();
                let exchange = exchange.ok_or_else(|| wrong("program", "cards that exchange rows".into()))?;
                exchange.step(self, around, step, n)
            }
        }
    }
}

pub(super) fn no_kernel(matrix: &Matrix) -> crate::RuntimeError {
    wrong(&matrix.name, format!("no kernel for layout {}", matrix.layout))
}

/// Where the planes of a stored matrix begin.
pub(super) fn planes(matrix: &Matrix) -> Result<Vec<usize>> {
    let planes = matrix.layout.planes(matrix.stored_rows as u64, matrix.cols as u64);
    let planes = planes.ok_or_else(|| no_kernel(matrix))?;
    Ok(planes.iter().map(|p| p.offset as usize).collect())
}
