//! Products with matrices, one or those of experts, and routing.

use super::driver::TensorMap;
use super::experts::Held;
use super::kernels::{Args, Group, groups};
use super::loaded::{Loaded, wrong};
use super::registry;
use super::steps::{Around, Runner, no_kernel, planes};
use crate::Result;
use crate::model::program::{
    BufferId, Columns, ExpertProduct, Format, Gating, Matrix, Step, VectorId, activations_for,
};
use gantry_formats::layout::{Layout, Order};

/// Columns of a stage of resident kernels: `SPAN` of `kernels/cuda/resident.cuh`.
const SPAN: u32 = 128;

/// What kernels of a layout take beside others: addresses before the activations, 64-bit numbers before the first row
/// and after it, 32-bit numbers at the end.
struct Form {
    codebook: bool,
    planes: Vec<usize>,
    stored_rows: Option<usize>,
    order: Option<usize>,
}

fn form(matrix: &Matrix) -> Result<Form> {
    let none = Form { codebook: false, planes: Vec::new(), stored_rows: None, order: None };
    Ok(match matrix.layout {
        Layout::Q8_0Split { .. } => Form { planes: planes(matrix)?[1..2].to_vec(), ..none },
        Layout::I8 { order, .. } => Form {
            planes: planes(matrix)?[1..2].to_vec(),
            stored_rows: Some(matrix.stored_rows),
            order: Order::ALL.iter().position(|o| *o == order),
            ..none
        },
        Layout::E8Planar { .. } => Form { codebook: true, planes: planes(matrix)?[1..3].to_vec(), ..none },
        Layout::E8Block98 { .. } => Form { codebook: true, ..none },
        _ => none,
    })
}

impl Runner {
    /// Where activations are: values, or quants and scales.
    fn activations(&self, x: BufferId, layout: Layout) -> Vec<u64> {
        match activations_for(layout) {
            Format::F32 => vec![self.buffers.at(x)],
            _ => vec![self.buffers.at(x), self.buffers.scales(x)],
        }
    }

    pub(super) fn gemm(
        &self,
        loaded: &Loaded,
        weight: &Matrix,
        vectors: [Option<VectorId>; 2],
        x: BufferId,
        y: Columns,
        n: usize,
    ) -> Result<()> {
        let product =
            registry::gemm(weight.layout, [weight.rows.len(), weight.cols], n, loaded.context.info());
        let product = product.ok_or_else(|| no_kernel(weight))?;
        self.multiply(loaded, &product, ((weight, y), None), vectors, x, n)
    }

    /// Two products of one input, by one launch where there are kernels that take two.
    pub(super) fn gemm_pair(
        &self,
        loaded: &Loaded,
        [first, second]: [(&Matrix, Columns); 2],
        x: BufferId,
        n: usize,
    ) -> Result<()> {
        let shape = [first.0.rows.len() + second.0.rows.len(), first.0.cols];
        match registry::gemm(first.0.layout, shape, n, loaded.context.info()).filter(|p| p.pairs) {
            Some(product) => self.multiply(loaded, &product, (first, Some(second)), [None; 2], x, n),
            None => [first, second]
                .into_iter()
                .try_for_each(|(weight, y)| self.gemm(loaded, weight, [None; 2], x, y, n)),
        }
    }

    /// One product, or two where the kernel takes two.
    fn multiply(
        &self,
        loaded: &Loaded,
        product: &registry::Product,
        ((weight, y), more): ((&Matrix, Columns), Option<(&Matrix, Columns)>),
        [scale, bias]: [Option<VectorId>; 2],
        x: BufferId,
        n: usize,
    ) -> Result<()> {
        let more_rows = more.as_ref().map_or(0, |(m, _)| m.rows.len());
        let form_of = form(weight)?;
        let mut addresses = vec![loaded.matrix(weight)];
        addresses.extend(form_of.codebook.then(|| loaded.codebook()));
        let mut maps = Vec::new();
        match product.resident {
            true => {
                maps = self.maps(loaded, weight, product, x, n)?;
                addresses.push(self.buffers.scales(x));
            }
            false => addresses.extend(self.activations(x, weight.layout)),
        }
        addresses.extend([loaded.vector(scale), loaded.vector(bias), self.buffers.at(y.buffer)]);
        let mut long = form_of.planes;
        long.push(weight.rows.start);
        long.extend(form_of.stored_rows);
        long.extend([loaded.program.values(y.buffer), y.start]);
        let mut int = vec![n, weight.rows.len(), weight.cols];
        int.extend(form_of.order);
        if product.pairs {
            let (mut bytes, mut own) = ([0; 2], vec![0; 4]);
            if let Some((matrix, y)) = &more {
                bytes = [loaded.matrix(matrix), self.buffers.at(y.buffer)];
                own = form(matrix)?.planes;
                own.extend([matrix.rows.start, loaded.program.values(y.buffer), y.start]);
            }
            addresses.extend(bytes);
            long.extend(own);
            int.push(more_rows);
        }
        let across = product
            .spread
            .unwrap_or_else(|| groups(weight.rows.len(), product.rows) + groups(more_rows, product.rows));
        let mut grid = [across, groups(n, product.tokens), 1];
        if product.resident {
            grid = [(grid[0] * grid[1]).min(registry::processors(loaded.context.info())), 1, 1];
        }
        let args = Args::maps(&maps).and_at(&addresses).long(&long).int(&int);
        self.launch_groups(loaded, product.kernel, (grid, product.group), &args)
    }

    /// What resident kernels (`kernels/cuda/resident.cuh`) are told of weights and of activations.
    fn maps(
        &self,
        loaded: &Loaded,
        weight: &Matrix,
        product: &registry::Product,
        x: BufferId,
        n: usize,
    ) -> Result<Vec<TensorMap>> {
        let (rows, cols, first) = (weight.rows.len(), weight.cols, weight.rows.start * weight.cols);
        // 16 rows lie side by side.
        let weights = (loaded.matrix(weight) + first as u64, [rows.div_ceil(16), 16 * cols]);
        let tiles = [[product.rows as u32 / 16, 16 * SPAN], [product.tokens as u32, SPAN]];
        let context = &loaded.context;
        let weights = TensorMap::new(context, weights.0, weights.1, tiles[0], false)?;
        Ok(vec![weights, TensorMap::new(context, self.buffers.at(x), [n, cols], tiles[1], true)?])
    }

    pub(super) fn route(&self, around: &Around<'_, '_>, step: &Step, n: usize) -> Result<()> {
        let Step::Route { routing, layer, logits, bias, given, ids, weights } = step else { return Ok(()) };
        let loaded = around.loaded;
        let gating = match routing.gating {
            Gating::Softmax => 0,
            Gating::Sigmoid => 1,
            Gating::SqrtSoftplus => 2,
            Gating::SoftmaxWeight => 3,
        };
        let at = |id: &BufferId| self.buffers.at(*id);
        let given_at = given.as_ref().map_or(0, |m| loaded.matrix(m));
        let addresses =
            [at(logits), loaded.vector(*bias), given_at, around.batch.tokens(), at(ids), at(weights)];
        let args = Args::at(&addresses)
            .long(&[given.as_ref().map_or(0, |m| m.rows.start)])
            .int(&[routing.experts, routing.used, gating, routing.groups, routing.groups_used])
            .int(&[routing.normalize.into()])
            .float(routing.scale);
        self.launch(loaded, "gantry_route", [n, 1, 1], &args)?;
        if let Some(counters) = &loaded.routed {
            let mut bytes = vec![0; n * routing.used * 4];
            self.buffers.read(*ids, 0, &mut bytes, &self.stream)?;
            counters.add(*layer, bytes.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)));
        }
        Ok(())
    }

    /// Sorts the pairs of `n` tokens that have `used` experts each by expert, into tiles of at most `most`; a single token's
    /// stay as they are.
    pub(super) fn group(
        &self,
        around: &Around<'_, '_>,
        ids: u64,
        (held, experts): (&Held, usize),
        [n, used, most]: [usize; 3],
    ) -> Result<Pairs> {
        let all = n * used;
        if n <= 1 && held.turns == 0 {
            return Ok(Pairs { tiles: 0, pairs: 0, count: all });
        }
        let count = all.min(all / most + experts);
        let list = (all as u64 * 4).next_multiple_of(256);
        let ranks = self.partial.address();
        let (pairs, tiles) = (ranks + list, ranks + 2 * list);
        let args = Args::at(&[ids, around.batch.positions(), held.at, held.turns, ranks, pairs, tiles]);
        let args = args.int(&[n, used, experts, count]);
        match most {
            8 => self.launch(around.loaded, "gantry_experts_group", [1, 1, 1], &args)?,
            _ => self.launch(around.loaded, "gantry_experts_group_tiles", [1, 1, 1], &args.int(&[most]))?,
        }
        Ok(Pairs { tiles, pairs, count })
    }

    pub(super) fn experts(
        &self,
        around: &Around<'_, '_>,
        (ids, only): (Option<BufferId>, Option<usize>),
        products: &[ExpertProduct],
        n: usize,
    ) -> Result<()> {
        let loaded = around.loaded;
        let buffer = |id: BufferId| &loaded.program.buffers[id.0];
        let Some(experts) = products.iter().map(|p| p.weights.experts()).min() else { return Ok(()) };
        let used = ids.map_or(experts, |ids| buffer(ids).width);
        let ids = ids.map_or(0, |ids| self.buffers.at(ids));
        let all = n * used;
        // The first product's matrices tell which experts are here, and whose turn it is where there are copies.
        let Some(first) = products.first() else { return Ok(()) };
        let none = || wrong("program", "a layer without experts".into());
        // Products that share tiles share a kind of kernels: where one has no larger tiles, none has.
        let kernels = |n: usize| -> Result<Vec<registry::Product>> {
            let kernel = |p: &ExpertProduct| {
                let first = p.weights.copy(0, 0).ok_or_else(none)?;
                registry::experts(first.layout, first.cols, n, loaded.context.info())
                    .ok_or_else(|| no_kernel(first))
            };
            products.iter().map(kernel).collect()
        };
        let mut chosen = kernels(n)?;
        if chosen.iter().any(|k| k.tokens != chosen[0].tokens) {
            chosen = kernels(n.min(super::plan::FEW))?;
        }
        let held = loaded.experts(&first.weights, only)?;
        let Pairs { tiles, pairs, count } =
            self.group(around, ids, (&held, experts), [n, used, chosen[0].tokens])?;
        let mut rest = products.iter().zip(&chosen).peekable();
        while let Some((product, chosen)) = rest.next() {
            let first = product.weights.copy(0, 0).ok_or_else(none)?;
            let form = form(first)?;
            let held = loaded.experts(&product.weights, only)?;
            let mut addresses = vec![0, held.at];
            addresses.extend(form.codebook.then(|| loaded.codebook()));
            addresses.extend([ids, tiles, pairs]);
            addresses.extend(self.activations(product.x, first.layout));
            addresses.extend([loaded.vector(product.scale), self.buffers.at(product.y.buffer)]);
            let mut long = form.planes;
            long.extend([first.rows.start, held.step]);
            long.extend(form.stored_rows);
            let mut both = 1;
            if chosen.pairs {
                // Another product of the same input goes along: gates and ups.
                let other = rest.next_if(|(p, _)| {
                    let (x, y) = (p.x == product.x, p.y.buffer == product.y.buffer);
                    x && y && p.weights.copy(0, 0).is_some_and(|m| goes_along(m, first))
                });
                match other {
                    Some((other, _)) => {
                        both = 2;
                        let matrix = other.weights.copy(0, 0).ok_or_else(none)?;
                        let held = loaded.experts(&other.weights, only)?;
                        addresses.extend([held.at, loaded.vector(other.scale)]);
                        long.extend([matrix.rows.start, held.step, other.y.start]);
                    }
                    None => {
                        addresses.extend([0; 2]);
                        long.extend([0; 3]);
                    }
                }
            }
            long.extend([buffer(product.y.buffer).width, product.y.start]);
            let per_pair = buffer(product.x).rows > 1;
            let mut int = vec![all, used, experts, first.rows.len(), first.cols, per_pair.into()];
            int.extend(form.order);
            let shape = [first.rows.len(), first.cols];
            let (rows, group) =
                match chosen.shares.then(|| registry::share(shape, count * both, loaded.context.info())) {
                    Some((rows, threads)) => (rows, Group::of(threads)),
                    None => (chosen.rows, chosen.group),
                };
            // Groups that share all rows are told of both; others are one after another.
            let grid = match chosen.spread {
                Some(groups) => {
                    int.push(both);
                    [groups, 1, 1]
                }
                None => [groups(first.rows.len(), rows), count, both],
            };
            let args = Args::at(&addresses).long(&long).int(&int);
            self.launch_groups(loaded, chosen.kernel, (grid, group), &args)?;
        }
        Ok(())
    }
}

/// Where pairs of tokens and experts are listed: tiles of one expert's, which there are at most `count` of; nowhere where each is
/// by itself.
pub(super) struct Pairs {
    pub(super) tiles: u64,
    pub(super) pairs: u64,
    pub(super) count: usize,
}

/// Whether matrices can be multiplied by one launch.
pub(super) fn goes_along(a: &Matrix, b: &Matrix) -> bool {
    (a.layout, a.rows.len(), a.cols, a.stored_rows) == (b.layout, b.rows.len(), b.cols, b.stored_rows)
}

/// Bytes of lists of experts for batches of `tokens`.
pub(super) fn list_bytes(step: &Step, buffers: &[crate::model::program::Buffer], tokens: usize) -> u64 {
    let Step::Experts { ids, products, .. } = step else { return 0 };
    let experts = products.iter().map(|p| p.weights.experts()).min().unwrap_or(0);
    let used = ids.map_or(experts, |ids| buffers[ids.0].width);
    let all = (used as u64).saturating_mul(tokens as u64);
    let list = all.saturating_mul(4).checked_next_multiple_of(256).unwrap_or(u64::MAX);
    list.saturating_mul(2).saturating_add(all.saturating_add(experts as u64).saturating_mul(12))
}
