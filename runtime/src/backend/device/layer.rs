//! A layer's experts in two launches where tokens are few: gates and ups, then downs, with the expert that all tokens share
//! beside those that they were sent to (`kernels/cuda/decode_layer.cu`).

use super::fused::other;
use super::kernels::{Args, Group, groups};
use super::loaded::wrong;
use super::plan::{FEW, Planner};
use super::products::{Pairs, goes_along};
use super::registry;
use super::steps::{Around, Runner, planes};
use crate::Result;
use crate::model::program::{BufferId, Clamp, Columns, ExpertProduct, Matrix, Step};

/// Most columns of downs, and most experts, that the kernels take; pairs of a tile.
const HIDDEN: usize = 2048;
const EXPERTS: usize = 1024;
const TILE: usize = 8;

/// The steps of a layer's experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    /// [`Step::Experts`] of gates and ups, what is between, and that of downs.
    gates: usize,
    silu: usize,
    quantize: usize,
    down: usize,
    shared: Option<Shared>,
}

/// The steps of the expert that all tokens share.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shared {
    gate: usize,
    up: usize,
    silu: usize,
    quantize: usize,
    down: usize,
}

impl Shared {
    fn steps(&self) -> [usize; 5] {
        [self.gate, self.up, self.silu, self.quantize, self.down]
    }
}

impl Layer {
    /// All of them.
    pub(super) fn steps(&self) -> Vec<usize> {
        let own = [self.gates, self.silu, self.quantize, self.down];
        own.into_iter().chain(self.shared.iter().flat_map(Shared::steps)).collect()
    }
}

/// The matrices of a product without factors that these kernels take: one of them stands for all.
fn taken(product: &ExpertProduct) -> Option<&Matrix> {
    let first = product.weights.copy(0, 0)?;
    let fits = product.scale.is_none() && registry::takes_layer(first.layout);
    (fits && product.weights.experts() <= EXPERTS).then_some(first)
}

/// What lies between gates and downs: silu, from where, to where, and where that goes quantized.
struct Between {
    silu: usize,
    quantize: usize,
    from: BufferId,
    to: BufferId,
    quants: BufferId,
    clamp: Option<Clamp>,
}

impl Planner<'_> {
    /// The layer whose gates and ups are step `i`.
    pub(super) fn layer(&self, i: usize) -> Option<Layer> {
        let Step::Experts { ids: Some(ids), only, products } = &self.steps[i] else { return None };
        let [gate, up] = &products[..] else { return None };
        let (first, second) = (taken(gate)?, taken(up)?);
        let ff = first.rows.len();
        let halves = gate.y.buffer == up.y.buffer && (gate.y.start, up.y.start) == (0, ff);
        let one_input = gate.x == up.x && self.program.buffers[gate.x.0].rows == 1;
        if !one_input || !halves || !goes_along(first, second) || ff > HIDDEN {
            return None;
        }
        let between = self.between(i, gate.y.buffer, ff)?;
        let down = self.next(between.quantize)?;
        let Step::Experts { ids: Some(same), only: alike, products } = &self.steps[down] else { return None };
        let [last] = &products[..] else { return None };
        let matrix = taken(last)?;
        let fits = same == ids && alike == only && last.x == between.quants && matrix.cols == ff;
        if !fits || !self.dead(&between, down) {
            return None;
        }
        let layer = Layer { gates: i, silu: between.silu, quantize: between.quantize, down, shared: None };
        let shared = self.shared(&layer, gate, [first, matrix], between.clamp);
        Some(Layer { shared, ..layer })
    }

    /// What follows `ff` gates and as many ups in rows of `from`, written by step `i`.
    fn between(&self, i: usize, from: BufferId, ff: usize) -> Option<Between> {
        let silu = self.next(i).filter(|_| self.program.buffers[from.0].width == 2 * ff)?;
        let Step::SiluMul { x, clamp, y } = &self.steps[silu] else { return None };
        let quantize = self.quantized(silu, *y).filter(|q| self.next(silu) == Some(*q))?;
        let Step::Quantize { y: quants, .. } = &self.steps[quantize] else { return None };
        (*x == from).then_some(Between { silu, quantize, from, to: *y, quants: *quants, clamp: *clamp })
    }

    /// Whether none but step `down` reads what is between.
    fn dead(&self, between: &Between, down: usize) -> bool {
        [between.from, between.to, between.quants].into_iter().all(|b| self.is_dead(b, down))
    }

    /// The shared expert of the same input and shapes, if it may go along with a layer.
    fn shared(
        &self,
        layer: &Layer,
        gates: &ExpertProduct,
        [expert, down_expert]: [&Matrix; 2],
        clamp: Option<Clamp>,
    ) -> Option<Shared> {
        let product = |j: usize, x: BufferId, like: &Matrix| match &self.steps[j] {
            Step::Gemm { weight, x: from, y, .. } if *from == x && goes_along_single(weight, like) => {
                self.plain(j).then_some((weight, *y))
            }
            _ => None,
        };
        let gate = (layer.down + 1..self.steps.len())
            .take(8)
            .find(|j| !self.is_done(*j) && product(*j, gates.x, expert).is_some())?;
        let up = self.next(gate)?;
        let ((first, gate_y), (second, up_y)) =
            (product(gate, gates.x, expert)?, product(up, gates.x, expert)?);
        let between = self.between(up, gate_y.buffer, expert.rows.len())?;
        let down = self.next(between.quantize)?;
        product(down, between.quants, down_expert)?;
        let halves = gate_y.buffer == up_y.buffer && (gate_y.start, up_y.start) == (0, expert.rows.len());
        let halves = halves && self.program.buffers[gate_y.buffer.0].rows == 1;
        if !halves || !goes_along(first, second) || between.clamp != clamp || !self.dead(&between, down) {
            return None;
        }
        let shared = Shared { gate, up, silu: between.silu, quantize: between.quantize, down };
        let (own, all) = (shared.steps(), layer.steps());
        let others: Vec<usize> = all.iter().chain(&own).copied().collect();
        let apart = own.iter().all(|j| all.iter().all(|k| !self.touches(*j, *k) && !self.touches(*k, *j)));
        (apart && own.iter().all(|j| self.may_come(*j, layer.gates, &others))).then_some(shared)
    }
}

/// Whether a matrix can be multiplied beside those of experts: they differ in where planes begin.
fn goes_along_single(a: &Matrix, b: &Matrix) -> bool {
    (a.layout, a.rows.len(), a.cols) == (b.layout, b.rows.len(), b.cols)
}

/// A product of the shared expert.
fn single(steps: &[Step], i: usize) -> Result<(&Matrix, Columns)> {
    match &steps[i] {
        Step::Gemm { weight, y, .. } => Ok((weight, *y)),
        _ => Err(other("a product of the shared expert")),
    }
}

impl Runner {
    /// Both launches of a layer's experts.
    pub(super) fn layer(
        &self,
        around: &Around<'_, '_>,
        steps: &[Step],
        layer: &Layer,
        n: usize,
    ) -> Result<()> {
        let loaded = around.loaded;
        let (
            Step::Experts { ids: Some(ids), only, products },
            Step::Experts { products: downs, .. },
            Step::SiluMul { clamp, .. },
        ) = (&steps[layer.gates], &steps[layer.down], &steps[layer.silu])
        else {
            return Err(other("a layer's experts"));
        };
        let ([gate, up], [down]) = (&products[..], &downs[..]) else { return Err(other("gates and ups")) };
        debug_assert!(n <= FEW, "{n} tokens");
        let none = || wrong("program", "a layer without experts".into());
        let first = |p: &ExpertProduct| p.weights.copy(0, 0).ok_or_else(none).cloned();
        let (gates, ups, last) = (first(gate)?, first(up)?, first(down)?);
        let experts = gate.weights.experts().min(up.weights.experts()).min(down.weights.experts());
        let buffer = |id: BufferId| &loaded.program.buffers[id.0];
        let values = |id: BufferId| loaded.program.values(id);
        let at = |id: BufferId| self.buffers.at(id);
        let (used, all) = (buffer(*ids).width, n * buffer(*ids).width);
        let held = [gate, up, down].map(|p| loaded.experts(&p.weights, *only));
        let [own, more, below] = held;
        let (own, more, below) = (own?, more?, below?);
        let Pairs { tiles, pairs, count } = self.group(around, at(*ids), (&own, experts), [n, used, TILE])?;
        let card = loaded.context.info();
        let shared = layer.shared.as_ref();
        let tokens = if shared.is_some() { groups(n, TILE) } else { 0 };

        let mut to_shared = ([0; 3], [0; 6]);
        if let Some(shared) = shared {
            let ((gate, y), (up, more_y)) = (single(steps, shared.gate)?, single(steps, shared.up)?);
            let starts = [values(y.buffer), y.start, more_y.start];
            to_shared.0 = [loaded.matrix(gate), loaded.matrix(up), at(y.buffer)];
            to_shared.1 = [planes(gate)?[1], gate.rows.start, up.rows.start, starts[0], starts[1], starts[2]];
        }
        let addresses = [0, own.at, more.at, at(*ids), tiles, pairs, at(gate.x), self.buffers.scales(gate.x)];
        let args = Args::at(&addresses).and_at(&[at(gate.y.buffer)]).and_at(&to_shared.0);
        let args = args
            .long(&[planes(&gates)?[1], gates.rows.start, own.step, ups.rows.start, more.step])
            .long(&[buffer(gate.y.buffer).width, gate.y.start, up.y.start])
            .long(&to_shared.1)
            .int(&[count, all, used, experts, gates.rows.len(), gates.cols, n]);
        let shape = [gates.rows.len(), gates.cols];
        let (rows, threads) = registry::share(shape, (count + tokens) * 2, card);
        let grid = [groups(shape[0], rows), count + tokens, 2];
        self.launch_groups(loaded, "gantry_decode_gates_i8_block32", (grid, Group::of(threads)), &args)?;

        let mut to_shared = ([0; 3], [0; 4]);
        if let Some(shared) = shared {
            let ((_, from), (matrix, y)) = (single(steps, shared.gate)?, single(steps, shared.down)?);
            to_shared.0 = [loaded.matrix(matrix), at(from.buffer), at(y.buffer)];
            to_shared.1 = [planes(matrix)?[1], matrix.rows.start, values(y.buffer), y.start];
        }
        let addresses = [0, below.at, at(*ids), tiles, pairs, at(gate.y.buffer), at(down.y.buffer)];
        let args = Args::at(&addresses).and_at(&to_shared.0);
        let args = args
            .long(&[planes(&last)?[1], last.rows.start, below.step])
            .long(&[buffer(down.y.buffer).width, down.y.start])
            .long(&to_shared.1)
            .int(&[count, all, used, experts, last.rows.len(), last.cols, n, clamp.is_some().into()])
            .float(clamp.map_or(0.0, |c| c.limit));
        let shape = [last.rows.len(), last.cols];
        let (rows, threads) = registry::share(shape, count + tokens, card);
        let grid = [groups(shape[0], rows), count + tokens, 1];
        self.launch_groups(loaded, "gantry_decode_downs_i8_block32", (grid, Group::of(threads)), &args)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::example;
    use super::super::plan::{Op, plan};
    use super::*;
    use crate::model::program::{ExpertMatrices, Format};
    use gantry_formats::layout::{Layout, Order, Scales};

    const USED: usize = 3;

    fn int8(order: Order) -> Layout {
        let fits =
            |l: &Layout| matches!(l, Layout::I8 { order: o, scales: Scales::Block32, .. } if *o == order);
        Layout::all().find(fits).expect("a layout")
    }

    fn bank(rows: usize, cols: usize, layout: Layout) -> ExpertMatrices {
        let one = |expert: usize| Matrix {
            name: "experts".into(),
            card: 0,
            offset: 0,
            stored_rows: 5 * rows,
            rows: expert * rows..(expert + 1) * rows,
            cols,
            layout,
        };
        ExpertMatrices::new((0..5).map(|e| vec![one(e)]).collect()).expect("experts")
    }

    /// Experts of 96 values inside, of which a token has three, and the shared one, of `shared` values inside; with `kept`
    /// somebody reads later what is between.
    fn operations(order: Order, shared: usize, kept: bool) -> Vec<Op> {
        let layout = int8(order);
        let mut e = example();
        let x = e.id("x", 1, 64, Format::Q8);
        let ids = e.id("ids", 1, USED, Format::Ids);
        let both = e.id("gates and ups", USED, 192, Format::F32);
        let hidden = e.id("hidden", USED, 96, Format::F32);
        let quants = e.id("hidden quants", USED, 96, Format::Q8);
        let answers = e.id("answers", USED, 64, Format::F32);
        let half = |start| Columns { buffer: both, start, len: 96 };
        let product = |weights, x, y| ExpertProduct { weights, x, scale: None, y };
        let gates = [0, 96].map(|start| product(bank(96, 64, layout), x, half(start)));
        e.steps.push(Step::Experts { ids: Some(ids), only: None, products: gates.into() });
        e.steps.push(Step::SiluMul { x: both, clamp: None, y: hidden });
        e.steps.push(Step::Quantize { x: hidden, y: quants });
        let whole = Columns { buffer: answers, start: 0, len: 64 };
        let down = vec![product(bank(64, 96, layout), quants, whole)];
        e.steps.push(Step::Experts { ids: Some(ids), only: None, products: down });
        let both = e.id("shared gates and ups", 1, 2 * shared, Format::F32);
        let own = e.id("shared hidden", 1, shared, Format::F32);
        let own_quants = e.id("shared hidden quants", 1, shared, Format::Q8);
        let answer = e.id("answer", 1, 64, Format::F32);
        for start in [0, shared] {
            e.gemm(shared, 64, layout, x, Columns { buffer: both, start, len: shared });
        }
        e.steps.push(Step::SiluMul { x: both, clamp: None, y: own });
        e.steps.push(Step::Quantize { x: own, y: own_quants });
        e.gemm(64, shared, layout, own_quants, Columns { buffer: answer, start: 0, len: 64 });
        if kept {
            e.steps.push(Step::Add { x: hidden, y: answers });
        }
        let (program, steps) = e.program();
        plan(&program, &steps)
    }

    #[test]
    fn room_is_what_the_kernels_have() {
        let text = include_str!("../../../../kernels/cuda/decode_layer.cu");
        assert!(text.contains(&format!("constexpr uint EXPERTS = {EXPERTS}, HIDDEN = {HIDDEN};")));
        let few = include_str!("../../../../kernels/cuda/few.cuh");
        assert!(few.contains(&format!("constexpr uint UNIT = 4, TOKENS = {TILE};")));
    }

    #[test]
    fn a_layers_experts_are_one_operation_with_the_shared_one_of_their_shape() {
        let layer = |shared| Op::Layer(Layer { gates: 0, silu: 1, quantize: 2, down: 3, shared });
        let shared = Shared { gate: 4, up: 5, silu: 6, quantize: 7, down: 8 };
        assert_eq!(operations(Order::NvA32, 96, false), [layer(Some(shared))]);
        let others = [Op::Pair(4, 5), Op::SiluMul(6, Some(7)), Op::Step(8)];
        let apart: Vec<Op> = std::iter::once(layer(None)).chain(others.clone()).collect();
        assert_eq!(operations(Order::NvA32, 64, false), apart);
        // What somebody else reads is written, and other orders have no such kernels.
        for (order, kept) in [(Order::NvA32, true), (Order::Vnni16, false)] {
            let steps = [Op::Step(0), Op::SiluMul(1, Some(2)), Op::Step(3)].into_iter().chain(others.clone());
            let steps: Vec<Op> = steps.chain(kept.then_some(Op::Step(9))).collect();
            assert_eq!(operations(order, 96, kept), steps);
        }
    }
}
