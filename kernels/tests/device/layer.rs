//! Kernels that take two products of one input, or a layer's experts with the shared one beside them: the bits of the kernels
//! that take one, which `mma` holds against their order. On a CUDA device only.

use gantry_formats::layout::{Layout, Order, Scales};

use crate::launch::{Arg, groups, launch, launch_groups, maybe, on_a_card, read, repeating, u32s, write};
use crate::matrices::{Input, Stored};
use crate::mma::{grouped, shared};
use crate::random::{Rng, assert_same, poison};

fn int8(order: Order, scales: Scales) -> Layout {
    let fits =
        |l: &Layout| matches!(l, Layout::I8 { order: o, scales: s, .. } if *o == order && *s == scales);
    Layout::all().find(fits).expect("a layout")
}

fn longs<const N: usize>(values: [usize; N]) -> [Arg<'static>; N] {
    values.map(|v| Arg::U64(v as u64))
}

#[test]
fn two_products_of_one_input_are_each_by_itself() {
    if !on_a_card() {
        return;
    }
    let mut rng = Rng(31);
    for (order, scales) in
        [(Order::NvA32, Scales::Block32), (Order::NvA32, Scales::Channel), (Order::NvA64, Scales::Channel)]
    {
        let layout = int8(order, scales);
        for (n, cols, rows) in [(1, 2560, [70, 33]), (3, 192, [16, 200]), (8, 640, [49, 1])] {
            let (firsts, widths, starts) = ([16, 32], [rows[0] + 3, rows[1] + 6], [2, 5]);
            let stored = [0, 1].map(|i| Stored::random(&mut rng, layout, firsts[i] + rows[i] + 7, cols));
            let x = rng.units(n * cols, 2.0);
            let input = Input::new(stored[0].view().activations(), &x, cols);
            let kernel = format!("gantry_decode_{}_8", stored[0].name());
            // The products that are multiplied, one or both.
            let run = |which: &[usize], threads: (usize, usize)| -> [Vec<f32>; 2] {
                let mut ys = [0, 1].map(|i| poison(n * widths[i]));
                let [a, b] = &mut ys;
                let (i, mut outputs) = (which[0], [Some(a), Some(b)]);
                let (w, y) = (&stored[i], outputs[i].take().expect("an output"));
                let more = which.get(1).map(|j| (*j, outputs[*j].take().expect("an output")));
                let mut args = vec![read(&w.bytes)];
                args.extend(input.args());
                args.extend([Arg::Null, Arg::Null, write(y)]);
                let own = more.as_ref().map_or([0; 3], |(j, _)| [firsts[*j], widths[*j], starts[*j]]);
                let count = more.as_ref().map_or(0, |(j, _)| rows[*j]);
                let planes = more.as_ref().map_or(vec![Arg::U64(0)], |(j, _)| stored[*j].planes());
                match more {
                    Some((j, y)) => args.extend([read(&stored[j].bytes), write(y)]),
                    None => args.extend([Arg::Null, Arg::Null]),
                }
                args.extend(w.planes());
                let (stored_rows, order) = w.int8().expect("int8");
                args.extend(longs([firsts[i]]));
                args.push(stored_rows);
                args.extend(longs([widths[i], starts[i]]));
                args.extend(planes);
                args.extend(longs(own));
                args.extend(u32s([n, rows[i], cols]));
                args.push(order);
                args.extend(u32s([count]));
                let across = groups(rows[i], threads.0) + groups(count, threads.0);
                launch_groups(&kernel, ([across, groups(n, 8), 1], Some(threads.1)), &mut args);
                drop(args);
                ys
            };
            for threads in shared(cols) {
                let alone = [run(&[0], threads), run(&[1], threads)];
                for both in [[0, 1], [1, 0]] {
                    let together = run(&both, threads);
                    for i in [0, 1] {
                        assert_same(
                            &together[i],
                            &alone[i][i],
                            &format!("{layout}, {n} tokens, product {i}"),
                        );
                    }
                }
            }
        }
    }
}

/// A layer: experts side by side, the shared one, and what tokens go to.
struct Layer {
    gate: Vec<Stored>,
    up: Vec<Stored>,
    down: Vec<Stored>,
    n: usize,
    used: usize,
    ids: Vec<u32>,
    /// By matrix: bytes of all experts, and where each begins; one is elsewhere.
    banks: [(Vec<u8>, Vec<u64>); 3],
    clamp: Option<f32>,
}

const FIRST: usize = 16;

impl Layer {
    /// The last of the matrices of each kind is the shared expert's.
    fn new(
        rng: &mut Rng,
        [ff, embd]: [usize; 2],
        [n, used, experts]: [usize; 3],
        clamp: Option<f32>,
    ) -> Self {
        let layout = int8(Order::NvA32, Scales::Block32);
        let mut kind = |rows: usize, cols: usize| -> Vec<Stored> {
            (0..=experts).map(|_| Stored::random(rng, layout, FIRST + rows + 8, cols)).collect()
        };
        let [gate, up, down] = [kind(ff, embd), kind(ff, embd), kind(embd, ff)];
        let bank = |all: &[Stored]| {
            let (mut bytes, mut at) = (vec![0xee; 256], Vec::new());
            for w in &all[..experts] {
                at.push(bytes.len() as u64);
                bytes.extend_from_slice(&w.bytes);
                bytes.resize(bytes.len().next_multiple_of(256), 0xee);
            }
            at[2] = u64::MAX;
            (bytes, at)
        };
        let banks = [bank(&gate), bank(&up), bank(&down)];
        let ids = (0..n * used).map(|_| rng.below(experts) as u32).collect();
        Self { gate, up, down, n, used, ids, banks, clamp }
    }

    fn experts(&self) -> usize {
        self.gate.len() - 1
    }

    /// Gates and ups of pairs and of the shared expert, the answers of both, by the kernels of one product and of one step.
    fn apart(&self, x: &[f32], lists: Option<&(Vec<u32>, Vec<u32>)>) -> [Vec<f32>; 4] {
        let (n, all, ff, embd) = (self.n, self.ids.len(), self.down[0].cols, self.gate[0].cols);
        let input = Input::new(self.gate[0].view().activations(), x, embd);
        let (mut gates, mut own) = (poison(all * 2 * ff), poison(n * 2 * ff));
        for (i, start) in [(0, 0), (1, ff)] {
            self.product(i, &input, false, lists, &mut gates, [2 * ff, start]);
            self.single([&self.gate, &self.up][i], &input, &mut own, [2 * ff, start]);
        }
        let halfway = [(&gates, all), (&own, n)].map(|(x, rows)| self.silu_mul(x, rows, ff));
        let (mut answers, mut answer) = (poison(all * embd), poison(n * embd));
        let inputs = halfway.map(|hidden| Input::new(self.down[0].view().activations(), &hidden, ff));
        self.product(2, &inputs[0], true, lists, &mut answers, [embd, 0]);
        self.single(&self.down, &inputs[1], &mut answer, [embd, 0]);
        [gates, own, answers, answer]
    }

    fn silu_mul(&self, x: &[f32], rows: usize, ff: usize) -> Vec<f32> {
        let mut y = poison(rows * ff);
        let mut args = vec![read(x), write(&mut y), Arg::Null, Arg::Null];
        args.extend(u32s([ff, self.clamp.is_some().into()]));
        args.push(Arg::F32(self.clamp.unwrap_or(0.0)));
        launch("gantry_silu_mul", [groups(ff, 1024), rows, 1], &mut args);
        drop(args);
        // What was not written is not multiplied either, but must be a number to be quantized.
        y.into_iter().map(|v| if v.is_finite() { v } else { 0.0 }).collect()
    }

    fn product(
        &self,
        which: usize,
        input: &Input,
        by_pair: bool,
        lists: Option<&(Vec<u32>, Vec<u32>)>,
        y: &mut [f32],
        [width, start]: [usize; 2],
    ) {
        let w = &[&self.gate, &self.up, &self.down][which][0];
        let (bytes, at) = &self.banks[which];
        let (rows, all) = (w.rows - FIRST - 8, self.ids.len());
        let mut args = vec![read(bytes), read(at), read(&self.ids)];
        args.extend([maybe(lists.map(|l| &l.1[..])), maybe(lists.map(|l| &l.0[..]))]);
        args.extend(input.args());
        args.extend([Arg::Null, write(y), Arg::Null, Arg::Null]);
        args.extend(w.planes());
        args.extend(longs([FIRST, 0, w.rows, 0, 0, 0, width, start]));
        args.extend(u32s([all, self.used, self.experts(), rows, w.cols, by_pair.into(), 0]));
        let (each, threads) = shared(w.cols)[0];
        let count = lists.map_or(all, |l| l.1.len() / 3);
        let grid = ([groups(rows, each), count, 1], Some(threads));
        launch_groups("gantry_decode_experts_i8_block32", grid, &mut args);
    }

    fn single(&self, of: &[Stored], input: &Input, y: &mut [f32], [width, start]: [usize; 2]) {
        let w = of.last().expect("the shared expert's");
        let rows = w.rows - FIRST - 8;
        let mut args = vec![read(&w.bytes)];
        args.extend(input.args());
        args.extend([Arg::Null, Arg::Null, write(y), Arg::Null, Arg::Null]);
        args.extend(w.planes());
        args.extend(longs([FIRST, w.rows, width, start, 0, 0, 0, 0]));
        args.extend(u32s([self.n, rows, w.cols, 0, 0]));
        let (each, threads) = shared(w.cols)[0];
        let grid = [groups(rows, each), groups(self.n, 8), 1];
        launch_groups("gantry_decode_i8_block32_8", (grid, Some(threads)), &mut args);
    }

    /// The same by the kernels of a layer, with the shared expert or without it.
    fn together(
        &self,
        x: &[f32],
        lists: Option<&(Vec<u32>, Vec<u32>)>,
        with: bool,
        each: usize,
    ) -> [Vec<f32>; 4] {
        let (n, all, ff, embd) = (self.n, self.ids.len(), self.down[0].cols, self.gate[0].cols);
        let input = Input::new(self.gate[0].view().activations(), x, embd);
        let last = |of: &[Stored]| of.last().map(|w| w.bytes.clone()).filter(|_| with);
        let [gate, up, down] = [&self.gate, &self.up, &self.down].map(|of| last(of));
        let plane = |of: &[Stored]| match of[0].planes()[0] {
            Arg::U64(at) => at as usize,
            _ => panic!("a plane of scales"),
        };
        let bound = lists.map_or(all, |l| l.1.len() / 3);
        let tokens = if with { groups(n, 8) } else { 0 };
        let listed = || [maybe(lists.map(|l| &l.1[..])), maybe(lists.map(|l| &l.0[..]))];
        let (mut gates, mut own) = (poison(all * 2 * ff), poison(n * 2 * ff));
        let (bytes, at) = &self.banks[0];
        // The kernel takes one base: ups lie behind gates.
        let ups = bytes.len() as u64;
        let both: Vec<u8> = bytes.iter().chain(&self.banks[1].0).copied().collect();
        let more_at: Vec<u64> =
            self.banks[1].1.iter().map(|a| if *a == u64::MAX { *a } else { a + ups }).collect();
        let mut args = vec![read(&both), read(at), read(&more_at), read(&self.ids)];
        args.extend(listed());
        args.extend(input.args());
        args.extend([write(&mut gates), bytes_of(&gate), bytes_of(&up), write(&mut own)]);
        args.extend(longs([plane(&self.gate), FIRST, 0, FIRST, 0, 2 * ff, 0, ff]));
        args.extend(longs([plane(&self.gate), FIRST, FIRST, 2 * ff, 0, ff]));
        args.extend(u32s([bound, all, self.used, self.experts(), ff, embd, n]));
        let (rows, threads) = shared(embd)[each % shared(embd).len()];
        let grid = [groups(ff, rows), bound + tokens, 2];
        launch_groups("gantry_decode_gates_i8_block32", (grid, Some(threads)), &mut args);
        drop(args);

        let (mut answers, mut answer) = (poison(all * embd), poison(n * embd));
        let (bytes, at) = &self.banks[2];
        let mut args = vec![read(bytes), read(at), read(&self.ids)];
        args.extend(listed());
        args.extend([read(&gates), write(&mut answers), bytes_of(&down), read(&own), write(&mut answer)]);
        args.extend(longs([plane(&self.down), FIRST, 0, embd, 0, plane(&self.down), FIRST, embd, 0]));
        args.extend(u32s([bound, all, self.used, self.experts(), embd, ff, n]));
        args.extend(u32s([self.clamp.is_some().into()]));
        args.push(Arg::F32(self.clamp.unwrap_or(0.0)));
        let (rows, threads) = shared(ff)[each % shared(ff).len()];
        let grid = [groups(embd, rows), bound + tokens, 1];
        launch_groups("gantry_decode_downs_i8_block32", (grid, Some(threads)), &mut args);
        drop(args);
        [gates, own, answers, answer]
    }
}

fn bytes_of(bytes: &Option<Vec<u8>>) -> Arg<'_> {
    bytes.as_ref().map_or(Arg::Null, |bytes| Arg::In(bytes))
}

fn layers() {
    let mut rng = Rng(32);
    for (shape, counts, clamp) in [
        ([96, 192], [1, 3, 5], None),
        ([640, 2560], [1, 4, 6], Some(0.02)),
        ([352, 320], [9, 3, 5], Some(0.01)),
        ([64, 64], [32, 2, 4], None),
    ] {
        let layer = Layer::new(&mut rng, shape, counts, clamp);
        let x = rng.units(layer.n * shape[1], 2.0);
        let lists = grouped(&layer.ids, &layer.banks[0].1, layer.used, 8);
        for lists in [(layer.n == 1).then_some(None), Some(Some(&lists))].into_iter().flatten() {
            let wanted = layer.apart(&x, lists);
            for (with, each) in [(true, 0), (true, 1), (true, 3), (false, 2)] {
                let found = layer.together(&x, lists, with, each);
                let none = [poison(wanted[1].len()), poison(wanted[3].len())];
                for (i, found) in found.iter().enumerate() {
                    let want = if with || i % 2 == 0 { &wanted[i] } else { &none[i / 2] };
                    assert_same(found, want, &format!("{shape:?}, {counts:?}, {clamp:?}, {with}, part {i}"));
                }
            }
        }
    }
}

#[test]
fn a_layers_experts_have_the_bits_of_each_step() {
    if on_a_card() {
        layers();
    }
}

#[test]
fn a_thousand_repetitions_have_the_same_bits() {
    if !on_a_card() {
        return;
    }
    let seen = repeating(1000, layers);
    for kernel in ["gantry_decode_gates_i8_block32", "gantry_decode_downs_i8_block32"] {
        assert!(seen.iter().any(|name| name == kernel), "{kernel} was not repeated: {seen:?}");
    }
}
