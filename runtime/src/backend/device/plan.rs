//! Which steps go together into one launch where few tokens are computed.
//!
//! A token's time is then that of its launches: each has to read what the one before it wrote, and weights are a few
//! megabytes. Fused kernels write the same bits as the steps that they stand for, but for sums, which have an order of
//! their own; so that a token has the same bits whatever its company, batches of up to [`FEW`] tokens always go by the
//! plan, and larger ones step by step.

use super::layer::Layer;
use crate::model::program::{BufferId, Format, Gate, Matrix, Pieces, Program, Step};
use gantry_formats::block::GgmlType;
use gantry_formats::layout::Layout;
use std::ops::Range;

/// Most tokens of a batch that goes by the plan.
pub(super) const FEW: usize = 32;

/// Most rows of a matrix whose columns a whole group shares, and fewest columns: others have rows or columns enough.
const WIDE_ROWS: usize = 1024;
const WIDE_COLS: usize = 256;

/// What the kernel of [`Op::Read`] takes: streams, and values of a row of gates.
const READ_STREAMS: usize = 4;
const READ_RANK: usize = 1024;
/// Longest stream that is normalised and quantized at once.
const NORM_QUANTIZED: usize = 4096;
/// Longest piece that is normalised and gated at once.
const GATED: usize = 1024;

/// How far ahead a step is looked for that can be done now.
const AHEAD: usize = 48;

/// What is launched at once; steps are named by their index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// A step by itself.
    Step(usize),
    /// A read of hyper-connections: three launches.
    Read(Read),
    /// One or two products with few rows.
    Wide(usize, Option<usize>),
    /// Two products of one input.
    Pair(usize, usize),
    /// A layer's experts: two launches.
    Layer(Layer),
    /// [`Step::SiluMul`], and the step that quantizes its result.
    SiluMul(usize, Option<usize>),
    /// [`Step::RmsNorm`] where there is one, [`Step::Gate`] of the same pieces, and the step that quantizes them.
    NormGate { norm: Option<usize>, gate: usize, quantize: Option<usize> },
    /// [`Step::Mix`], and [`Step::Add`] of what [`Step::Gate`] multiplied before by one value of a token.
    MixAdd { mix: usize, gate: usize, add: usize },
}

impl Op {
    /// The steps that it stands for.
    fn steps(&self) -> impl Iterator<Item = usize> {
        let all = match self {
            Self::Step(i) => vec![Some(*i)],
            Self::Read(r) => {
                let some = [r.norm, r.down, r.silu, r.up, r.mix].map(Some);
                some.into_iter().chain([r.quantize, r.inject, r.read]).collect()
            }
            Self::Wide(i, other) | Self::SiluMul(i, other) => vec![Some(*i), *other],
            Self::Pair(i, j) => vec![Some(*i), Some(*j)],
            Self::Layer(layer) => layer.steps().into_iter().map(Some).collect(),
            Self::NormGate { norm, gate, quantize } => vec![*norm, Some(*gate), *quantize],
            Self::MixAdd { mix, gate, add } => [mix, gate, add].map(|i| Some(*i)).to_vec(),
        };
        all.into_iter().flatten()
    }
}

/// The steps of a read of hyper-connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Read {
    /// [`Step::StreamNorm`], and what quantizes the streams.
    pub(super) norm: usize,
    pub(super) quantize: Option<usize>,
    /// The product of low rank, and that with the gates of the write.
    pub(super) down: usize,
    pub(super) inject: Option<usize>,
    /// [`Step::SiluScaled`], the product back, [`Step::StreamMix`].
    pub(super) silu: usize,
    pub(super) up: usize,
    pub(super) mix: usize,
    /// What quantizes what was read.
    pub(super) read: Option<usize>,
}

/// The operations of a list of steps, in order.
pub(super) fn plan(program: &Program, steps: &[Step]) -> Vec<Op> {
    let mut planner =
        Planner { program, steps, done: vec![false; steps.len()], waits: vec![false; steps.len()] };
    let mixes: Vec<Op> = (0..steps.len()).filter_map(|i| planner.mix_add(i)).collect();
    for op in &mixes {
        planner.mark(op);
        planner.waits = planner.done.clone();
    }
    let mut ops = Vec::new();
    for i in 0..steps.len() {
        // A mix waits for what is added to it.
        if let Some(op) = mixes.iter().find(|op| matches!(op, Op::MixAdd { add, .. } if *add == i)) {
            ops.push(op.clone());
            op.steps().for_each(|step| planner.waits[step] = false);
        }
        if planner.done[i] {
            continue;
        }
        let op = planner.fused(i).unwrap_or(Op::Step(i));
        planner.mark(&op);
        ops.push(op);
    }
    ops
}

/// A list of steps, and what became of them so far.
pub(super) struct Planner<'a> {
    pub(super) program: &'a Program,
    pub(super) steps: &'a [Step],
    /// By step: whether an operation before has it.
    done: Vec<bool>,
    /// By step: whether it is done where another stands.
    waits: Vec<bool>,
}

impl Planner<'_> {
    fn fused(&self, i: usize) -> Option<Op> {
        match &self.steps[i] {
            Step::StreamNorm { .. } => self.read(i).map(Op::Read),
            Step::Gemm { weight, .. } if is_wide(weight) && self.plain(i) => {
                let other = |step: &Step| matches!(step, Step::Gemm { weight, .. } if is_wide(weight));
                let other = self
                    .later(i, other)
                    .filter(|j| self.plain(*j) && !self.touches(*j, i) && !self.touches(i, *j));
                Some(Op::Wide(i, other))
            }
            Step::Gemm { .. } => self.pair(i),
            Step::Experts { .. } => self.layer(i).map(Op::Layer),
            Step::SiluMul { y, .. } => self.quantized(i, *y).map(|q| Op::SiluMul(i, Some(q))),
            Step::RmsNorm { x, y, .. } if x == y => {
                let gate = self.next(i)?;
                let Step::Gate { y: gated, .. } = &self.steps[gate] else { return None };
                let fits = gated == y && self.gates(gate) && self.one_weight(i);
                fits.then(|| Op::NormGate { norm: Some(i), gate, quantize: self.quantized_pieces(gate, y) })
            }
            Step::Gate { y, .. } if self.gates(i) => {
                let quantize = self.quantized_pieces(i, y);
                Some(Op::NormGate { norm: None, gate: i, quantize })
            }
            _ => None,
        }
    }

    fn mark(&mut self, op: &Op) {
        op.steps().for_each(|i| self.done[i] = true);
        // What a read makes of its low rank is read by none but itself.
        if let Op::Read(read) = op {
            self.low_quantized(read).into_iter().for_each(|i| self.done[i] = true);
        }
    }

    /// The product `i` and a later one of the same input, of which kernels for few tokens may take both.
    fn pair(&self, i: usize) -> Option<Op> {
        let Step::Gemm { weight, x, .. } = &self.steps[i] else { return None };
        let alike = |step: &Step| matches!(step, Step::Gemm { weight: w, x: from, .. } if from == x && w.layout == weight.layout && w.cols == weight.cols);
        if !matches!(weight.layout, Layout::I8 { .. }) || !self.plain(i) {
            return None;
        }
        let other = self.later(i, alike)?;
        let apart = !self.touches(other, i) && !self.touches(i, other);
        (self.plain(other) && apart).then_some(Op::Pair(i, other))
    }

    /// The mix of experts `mix`, where it can be done when another expert's answer is added to it.
    fn mix_add(&self, mix: usize) -> Option<Op> {
        let Step::Mix { y, .. } = &self.steps[mix] else { return None };
        let end = self.steps.len().min(mix + 1 + AHEAD);
        let add = (mix + 1..end).find(|j| self.touches(*j, mix) || self.touches(mix, *j))?;
        let Step::Add { x: more, y: sum } = &self.steps[add] else { return None };
        let gate = (mix + 1..add).rev().find(|j| !matches!(self.steps[*j], Step::Begin(_)))?;
        let Step::Gate { act: Gate::Sigmoid, gate: by, y: gated } = &self.steps[gate] else { return None };
        let one = (by.count, by.len, by.start) == (1, 1, 0) && self.program.values(by.buffer) == 1;
        let whole = gated.start == 0
            && gated.buffer == *more
            && gated.count * gated.len == self.program.values(*more);
        (sum == y && one && whole && self.is_dead(*more, add)).then_some(Op::MixAdd { mix, gate, add })
    }

    /// The next step that computes something.
    pub(super) fn next(&self, i: usize) -> Option<usize> {
        let counts = |j: &usize| !self.done[*j] || self.waits[*j];
        let next = (i + 1..self.steps.len()).find(|j| counts(j) && !matches!(self.steps[*j], Step::Begin(_)));
        next.filter(|j| !self.waits[*j])
    }

    /// Whether an operation has step `i` already.
    pub(super) fn is_done(&self, i: usize) -> bool {
        self.done[i]
    }

    /// The first step after `i` that is `wanted`, where it can be done together with step `i`.
    pub(super) fn later(&self, i: usize, wanted: impl Fn(&Step) -> bool) -> Option<usize> {
        let end = self.steps.len().min(i + 1 + AHEAD);
        let j = (i + 1..end).find(|j| !self.done[*j] && wanted(&self.steps[*j]))?;
        self.may_come(j, i, &[]).then_some(j)
    }

    /// Whether step `j` may be done where step `i` stands, before it: nothing that is done between them, but `others`, has to do
    /// with it.
    pub(super) fn may_come(&self, j: usize, i: usize, others: &[usize]) -> bool {
        // Steps that are done were done before `i`, but for those that wait: a mix before `i` may be done after it.
        let start = (i + 1).saturating_sub(AHEAD);
        let waiting = (start..i).filter(|k| self.waits[*k]);
        let mut between = waiting.chain((i + 1..j).filter(|k| !self.done[*k] || self.waits[*k]));
        between.all(|k| others.contains(&k) || !self.touches(j, k) && !self.touches(k, j))
    }

    /// Whether step `a` reads or writes a buffer that step `b` writes; columns side by side are not the same.
    pub(super) fn touches(&self, a: usize, b: usize) -> bool {
        let buffers = &self.program.buffers;
        let (a, b) = (&self.steps[a], &self.steps[b]);
        let meets = |x: &Range<usize>, y: &Range<usize>| x.start < y.end && y.start < x.end;
        a.reads().iter().chain(&a.writes()).any(|x| {
            b.writes().iter().filter(|y| x.buffer() == y.buffer()).any(|y| {
                let ys = y.ranges(buffers);
                x.ranges(buffers).iter().any(|x| ys.iter().any(|y| meets(x, y)))
            })
        })
    }

    /// Whether a product is nothing but the product.
    pub(super) fn plain(&self, i: usize) -> bool {
        matches!(&self.steps[i], Step::Gemm { scale: None, bias: None, .. })
    }

    /// The step that quantizes all of `x`, written by step `i`, per 32.
    pub(super) fn quantized(&self, i: usize, x: BufferId) -> Option<usize> {
        let q = self.later(i, |step| matches!(step, Step::Quantize { x: from, .. } if *from == x))?;
        let Step::Quantize { y, .. } = &self.steps[q] else { return None };
        let buffer = |id: BufferId| &self.program.buffers[id.0];
        let whole = buffer(x).width.is_multiple_of(32) && buffer(x).width == buffer(*y).width;
        (whole && buffer(*y).format == Format::Q8).then_some(q)
    }

    /// The same where the pieces are all that the buffer has.
    fn quantized_pieces(&self, i: usize, y: &Pieces) -> Option<usize> {
        let all = y.start == 0 && y.count * y.len == self.program.values(y.buffer);
        self.quantized(i, y.buffer).filter(|_| all && y.len.is_multiple_of(32))
    }

    /// Whether a gate is one that a fused kernel takes: a value for each of a piece.
    fn gates(&self, i: usize) -> bool {
        let Step::Gate { gate, y, .. } = &self.steps[i] else { return false };
        (gate.count, gate.len, y.stride) == (y.count, y.len, y.len) && y.len <= GATED
    }

    /// Whether a norm has the same weight for all pieces.
    fn one_weight(&self, i: usize) -> bool {
        let Step::RmsNorm { weight, y, .. } = &self.steps[i] else { return false };
        weight.is_none_or(|w| self.program.vectors[w.0].cols == y.len)
    }

    /// Whether what is in a buffer after step `i` is read by none but steps up to it.
    pub(super) fn is_dead(&self, buffer: BufferId, i: usize) -> bool {
        // Whether steps read some of it before they have written all of it.
        let first = |steps: &[Step]| {
            let mut written: Vec<Range<usize>> = Vec::new();
            for step in steps {
                if step.reads().iter().any(|a| a.buffer() == buffer) {
                    return true;
                }
                let parts = step.writes().into_iter().filter(|a| a.buffer() == buffer);
                written.extend(parts.flat_map(|a| a.ranges(&self.program.buffers)));
                written.sort_by_key(|r| r.start);
                let end = written.iter().fold(0, |end, r| if r.start <= end { r.end.max(end) } else { end });
                if end >= self.program.values(buffer) {
                    return false;
                }
            }
            false
        };
        let draft = self.program.draft.iter().flat_map(|d| [&d.body[..], &d.head[..]]);
        !first(&self.steps[i + 1..])
            && ![&self.program.body[..], &self.program.head].into_iter().chain(draft).any(first)
    }

    /// The quantizing step between the halves of a read.
    fn low_quantized(&self, read: &Read) -> Option<usize> {
        let j = self.next(read.silu)?;
        matches!(self.steps[j], Step::Quantize { .. }).then_some(j)
    }

    fn read(&self, norm: usize) -> Option<Read> {
        let Step::StreamNorm { x, y: n, .. } = &self.steps[norm] else { return None };
        let buffer = |id: BufferId| &self.program.buffers[id.0];
        let (count, len) = (buffer(*x).rows, buffer(*x).width);
        let mut down = self.next(norm)?;
        let mut quantize = None;
        let mut inputs = vec![*n];
        if let Step::Quantize { x: from, y } = &self.steps[down]
            && from == n
            && buffer(*y).format == Format::Q8
            && len.is_multiple_of(32)
            && len <= NORM_QUANTIZED
        {
            inputs.push(*y);
            quantize = Some(down);
            down = self.next(down)?;
        }
        let Step::Gemm { weight, x: down_x, y: low, .. } = &self.steps[down] else { return None };
        let silu = self.next(down)?;
        let Step::SiluScaled { x: scaled, .. } = &self.steps[silu] else { return None };
        let rank = self.program.values(low.buffer);
        let fits = self.plain(down) && is_wide(weight) && inputs.contains(down_x) && *scaled == low.buffer;
        if !fits || low.len != rank || !rank.is_multiple_of(32) || rank > READ_RANK {
            return None;
        }
        let mut up = self.next(silu)?;
        if let Step::Quantize { x, .. } = &self.steps[up] {
            if *x != low.buffer {
                return None;
            }
            up = self.next(up)?;
        }
        let Step::Gemm { weight, x: up_x, y: gates, .. } = &self.steps[up] else { return None };
        let mix = self.next(up)?;
        let Step::StreamMix { x: mixed, gates: by, y: m } = &self.steps[mix] else { return None };
        let fits = self.plain(up) && takes_read(weight) && weight.rows.len() == count * len;
        if !fits || count > READ_STREAMS || !len.is_multiple_of(32) || gates.buffer != *by || mixed != n {
            return None;
        }
        if ![*by, low.buffer, *up_x].into_iter().all(|b| self.is_dead(b, mix)) {
            return None;
        }
        let injects =
            |s: &Step| matches!(s, Step::Gemm { weight, x, .. } if is_wide(weight) && inputs.contains(x));
        let apart = |j: &usize| !self.touches(*j, down) && !self.touches(down, *j);
        let inject = self.later(mix, injects).filter(|j| self.plain(*j)).filter(apart);
        Some(Read { norm, quantize, down, inject, silu, up, mix, read: self.quantized(mix, *m) })
    }
}

/// Whether the kernel of [`Op::Wide`] takes a matrix.
fn is_wide(matrix: &Matrix) -> bool {
    matrix.rows.len() <= WIDE_ROWS && matrix.cols >= WIDE_COLS && wide_layout(matrix.layout).is_some()
}

/// The number of a layout in `kernels/device/product.h`, for those that [`Op::Wide`] takes.
pub(super) fn wide_layout(layout: Layout) -> Option<usize> {
    Some(match layout {
        Layout::Raw(GgmlType::F32) => 0,
        Layout::Raw(GgmlType::F16) => 1,
        Layout::Raw(GgmlType::BF16) => 2,
        Layout::Q8_0Split { .. } => 5,
        _ => return None,
    })
}

fn takes_read(matrix: &Matrix) -> bool {
    matrix.cols <= READ_RANK && wide_layout(matrix.layout).is_some()
}

#[cfg(test)]
pub(super) mod tests;
