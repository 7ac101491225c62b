//! Launches of several steps at once; see [`plan`](super::plan).

use super::kernels::{Args, groups};
use super::loaded::wrong;
use super::plan::{Op, Read, wide_layout};
use super::registry;
use super::steps::{Around, EACH, Runner, no_kernel, planes};
use crate::Result;
use crate::model::program::{BufferId, Gate, Matrix, Step};
use gantry_formats::block::GgmlType;
use gantry_formats::layout::Layout;

/// Rows of weights, and of activations, that a group of `gantry_gemm_wide` takes.
const WIDE_ROWS: usize = 2;
const WIDE_TOKENS: usize = 4;
/// Values, and tokens, of a group of the kernels in `hyper.c`.
const READ_VALUES: usize = 32;
const READ_TOKENS: usize = 4;

impl Runner {
    /// Runs one operation of a plan over `steps`, for `n` rows of tokens.
    pub(super) fn op(&mut self, around: &Around<'_, '_>, steps: &[Step], op: &Op, n: usize) -> Result<()> {
        match op {
            Op::Step(i) => self.step(around, &steps[*i], n),
            Op::Read(read) => self.read(around, steps, read, n),
            Op::Wide(i, other) => self.wide(around, &steps[*i], other.map(|j| &steps[j]), n),
            Op::Pair(i, j) => match (&steps[*i], &steps[*j]) {
                (Step::Gemm { weight, x, y, .. }, Step::Gemm { weight: more, y: more_y, .. }) => {
                    self.gemm_pair(around.loaded, [(weight, *y), (more, *more_y)], *x, n)
                }
                _ => Err(other("two products")),
            },
            Op::Layer(layer) => self.layer(around, steps, layer, n),
            Op::SiluMul(i, quantize) => self.silu_mul(around, &steps[*i], quantize.map(|j| &steps[j]), n),
            Op::NormGate { norm, gate, quantize } => {
                let step = |i: &Option<usize>| i.map(|i| &steps[i]);
                self.norm_gate(around, (step(norm), &steps[*gate], step(quantize)), n)
            }
            Op::MixAdd { mix, gate, add } => match (&steps[*gate], &steps[*add]) {
                (Step::Gate { gate, .. }, Step::Add { x, .. }) => {
                    let added = [self.buffers.at(*x), self.buffers.at(gate.buffer)];
                    self.mix(around, &steps[*mix], added, n)
                }
                _ => Err(other("a gated sum")),
            },
        }
    }

    /// Where a quantizing step writes: quants, then scales; nowhere without one.
    fn quants(&self, step: Option<&Step>) -> [u64; 2] {
        match step {
            Some(Step::Quantize { y, .. }) => [self.buffers.at(*y), self.buffers.scales(*y)],
            _ => [0, 0],
        }
    }

    fn read(&self, around: &Around<'_, '_>, steps: &[Step], read: &Read, n: usize) -> Result<()> {
        let loaded = around.loaded;
        let quantize = read.quantize.map(|i| &steps[i]);
        self.stream_norm(loaded, &steps[read.norm], self.quants(quantize), n)?;
        self.wide(around, &steps[read.down], read.inject.map(|i| &steps[i]), n)?;
        let (
            Step::StreamNorm { x: streams, y: normalised, .. },
            Step::SiluScaled { x: low, scale },
            Step::Gemm { weight, .. },
            Step::StreamMix { y: m, .. },
        ) = (&steps[read.norm], &steps[read.silu], &steps[read.up], &steps[read.mix])
        else {
            return Err(other("a read of hyper-connections"));
        };
        let (packed, packed_tokens) = registry::hyper_up(loaded.context.info().at.family);
        let kernel = match weight.layout {
            Layout::Raw(GgmlType::F32) => "gantry_hyper_up_f32",
            Layout::Raw(GgmlType::F16) => "gantry_hyper_up_f16",
            Layout::Raw(GgmlType::BF16) => "gantry_hyper_up_bf16",
            Layout::Q8_0Split { .. } => packed,
            _ => return Err(no_kernel(weight)),
        };
        let tokens = if kernel == packed { packed_tokens } else { READ_TOKENS };
        let at = |id: BufferId| self.buffers.at(id);
        let [q, scales] = self.quants(read.read.map(|i| &steps[i]));
        let buffer = &loaded.program.buffers[streams.0];
        let addresses = [loaded.matrix(weight), at(*normalised), at(*low), at(*m), q, scales];
        let args = Args::at(&addresses)
            .long(&[plane(weight)?, weight.rows.start])
            .int(&[n, buffer.rows, buffer.width, weight.cols])
            .float(*scale);
        let grid = [groups(buffer.width, READ_VALUES), groups(n, tokens), 1];
        self.launch(loaded, kernel, grid, &args)
    }

    /// One product with few rows, or two.
    fn wide(&self, around: &Around<'_, '_>, step: &Step, more: Option<&Step>, n: usize) -> Result<()> {
        let loaded = around.loaded;
        let (mut addresses, mut long, mut int) = (Vec::new(), Vec::new(), vec![n]);
        let mut all = 0;
        for step in [Some(step), more] {
            let Some(Step::Gemm { weight, x, y, .. }) = step else {
                addresses.extend([0; 4]);
                long.extend([0; 4]);
                int.extend([0; 3]);
                continue;
            };
            let layout = wide_layout(weight.layout).ok_or_else(|| no_kernel(weight))?;
            let scales = self.buffers.scales(*x);
            addresses.extend([loaded.matrix(weight), self.buffers.at(*x), scales, self.buffers.at(y.buffer)]);
            long.extend([plane(weight)?, weight.rows.start, loaded.program.values(y.buffer), y.start]);
            int.extend([weight.rows.len(), weight.cols, layout]);
            all += groups(weight.rows.len(), WIDE_ROWS);
        }
        let args = Args::at(&addresses).long(&long).int(&int);
        self.launch(loaded, "gantry_gemm_wide", [all, groups(n, WIDE_TOKENS), 1], &args)
    }

    pub(super) fn silu_mul(
        &self,
        around: &Around<'_, '_>,
        step: &Step,
        quantize: Option<&Step>,
        n: usize,
    ) -> Result<()> {
        let Step::SiluMul { x, clamp, y } = step else { return Err(other("a product of gates")) };
        let buffer = &around.loaded.program.buffers[y.0];
        let [q, scales] = self.quants(quantize);
        let args = Args::at(&[self.buffers.at(*x), self.buffers.at(*y), q, scales])
            .int(&[buffer.width, clamp.is_some().into()])
            .float(clamp.map_or(0.0, |c| c.limit));
        let grid = [groups(buffer.width, 1024), n * buffer.rows, 1];
        self.launch(around.loaded, "gantry_silu_mul", grid, &args)
    }

    /// [`Step::Mix`]; `added` is where what is added and its gate are, or nowhere.
    pub(super) fn mix(&self, around: &Around<'_, '_>, step: &Step, added: [u64; 2], n: usize) -> Result<()> {
        let Step::Mix { x, weights, y } = step else { return Err(other("a mix of experts")) };
        let program = &around.loaded.program;
        let width = program.buffers[x.0].width;
        let at = |id: BufferId| self.buffers.at(id);
        let args = Args::at(&[at(*x), at(*weights), added[0], added[1], at(*y)]);
        let args = args.int(&[n, program.values(*weights), width]);
        self.launch(around.loaded, "gantry_mix", [groups(width, EACH), n, 1], &args)
    }

    fn norm_gate(
        &self,
        around: &Around<'_, '_>,
        (norm, gate, quantize): (Option<&Step>, &Step, Option<&Step>),
        n: usize,
    ) -> Result<()> {
        let loaded = around.loaded;
        let Step::Gate { act, gate, y } = gate else { return Err(other("a gate")) };
        let (weight, eps) = match norm {
            Some(Step::RmsNorm { weight, eps, .. }) => (*weight, *eps),
            _ => (None, 1.0),
        };
        let [q, scales] = self.quants(quantize);
        let at = |id: BufferId| self.buffers.at(id);
        let values = |id: BufferId| loaded.program.values(id);
        let args = Args::at(&[at(y.buffer), at(gate.buffer), loaded.vector(weight), q, scales])
            .long(&[values(y.buffer), y.start, values(gate.buffer), gate.start, gate.stride])
            .int(&[y.len, norm.is_some().into(), usize::from(*act == Gate::Silu)])
            .float(eps);
        self.launch(loaded, "gantry_norm_gate", [y.count, n, 1], &args)
    }
}

/// Where the scales of `q8_0.split` begin; 0 for layouts without.
fn plane(matrix: &Matrix) -> Result<usize> {
    match matrix.layout {
        Layout::Q8_0Split { .. } => Ok(planes(matrix)?[1]),
        _ => Ok(0),
    }
}

pub(super) fn other(expected: &str) -> crate::RuntimeError {
    wrong("program", format!("another step in place of {expected}"))
}
