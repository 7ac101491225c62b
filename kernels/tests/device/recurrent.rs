//! Convolutions, the CPU's bits; delta nets, 3e-6 of the largest value of a head, of a state or (since a query and a key
//! may be orthogonal) of the output of a state of ones.

use gantry_kernels::cpu::{
    ConvShape, DeltaInput, DeltaShape, Isa, KeyHeads, Pieces, Pool, causal_conv, delta_net,
};

use crate::launch::{Arg, groups, launch, read, u32s, write};
use crate::random::{Rng, assert_same, assert_written, poison};

/// Tokens of two sequences in batches: rows, tokens and starts of each batch's spans, by slot.
struct Spans {
    row: [u32; 2],
    tokens: [u32; 2],
    start: [u32; 2],
}

impl Spans {
    fn n(&self) -> usize {
        (self.tokens[0] + self.tokens[1]) as usize
    }

    /// The second sequence's rows come first.
    fn new(tokens: [u32; 2], start: [u32; 2]) -> Self {
        Spans { row: [tokens[1], 0], tokens, start }
    }

    fn slots(&self) -> Vec<u32> {
        [vec![1; self.tokens[1] as usize], vec![0; self.tokens[0] as usize]].concat()
    }

    fn positions(&self) -> Vec<u32> {
        let of = |slot: usize| self.start[slot]..self.start[slot] + self.tokens[slot];
        of(1).chain(of(0)).collect()
    }

    fn rows(&self, slot: usize) -> std::ops::Range<usize> {
        let row = self.row[slot] as usize;
        row..row + self.tokens[slot] as usize
    }
}

#[test]
fn convolutions_over_batches_of_two_sequences() {
    let mut rng = Rng(1);
    let pool = Pool::new(1);
    for (channels, taps, dilation) in [(1, 1, 1), (300, 4, 1), (70, 3, 3), (16, 4, 2)] {
        let shape = ConvShape { channels, taps, dilation };
        let weight = rng.units(taps * channels, 1.0);
        let capacity = (shape.history() + 2).max(1);
        let size = capacity * channels * 4;
        let mut states = vec![0xffu8; 2 * size + 64];
        let offsets = [size as u64 + 32, 16];
        let mut histories = [0, 1].map(|_| vec![0f32; shape.history() * channels]);
        let mut start = [0u32; 2];
        for (round, tokens) in
            [[1, 3], [5, 0], [1, 1], [1, 1], [2, 9], [0, 1], [20, 1]].into_iter().enumerate()
        {
            let keep = tokens.iter().all(|n| *n <= 1);
            let spans = Spans::new(tokens, start);
            let (n, x_row, x_start) = (spans.n(), channels + 5, 3);
            let x = rng.units(n * x_row, 4.0);
            let silu = round % 2 == 0;
            let mut truth = poison(n * channels);
            for (slot, history) in histories.iter_mut().enumerate() {
                let rows = spans.rows(slot);
                let y = &mut truth[rows.start * channels..rows.end * channels];
                let x = &x[(rows.start * x_row + x_start).min(x.len())..];
                causal_conv(Isa::PORTABLE, &pool, shape, &weight, rows.len(), x, x_row, history, silu, y);
            }
            let (slots, positions) = (spans.slots(), spans.positions());
            let mut y = poison(n * channels);
            let mut args = vec![read(&x), read(&weight)];
            args.extend([if keep { write(&mut states) } else { read(&states) }, read(&offsets)]);
            args.extend([read(&positions), read(&slots), read(&spans.row), write(&mut y)]);
            args.extend([x_row, x_start, capacity].map(|v| Arg::U64(v as u64)));
            args.extend(u32s([n, channels, taps, dilation, silu.into(), keep.into()]));
            if !launch("gantry_conv", [groups(channels, 256), n, 1], &mut args) {
                return;
            }
            drop(args);
            assert_same(&y, &truth, &format!("{shape:?}, round {round}"));
            let mut args = vec![read(&x), write(&mut states), read(&offsets), read(&positions), read(&slots)];
            args.extend([read(&spans.row), read(&spans.tokens)]);
            args.extend([x_row, x_start, capacity].map(|v| Arg::U64(v as u64)));
            args.extend(u32s([n, channels]));
            if !keep {
                launch("gantry_conv_keep", [groups(channels, 256), n, 1], &mut args);
            }
            (0..2).for_each(|slot| start[slot] += tokens[slot]);
        }
    }
}

#[test]
pub(crate) fn delta_nets_over_batches_of_two_sequences() {
    let mut rng = Rng(2);
    let pool = Pool::new(1);
    for (key_heads, value_heads, dim) in [(1, 1, 1), (2, 4, 128), (1, 2, 40), (2, 2, 256), (3, 3, 33)] {
        for keys in [KeyHeads::Tiled, KeyHeads::Grouped] {
            let shape = DeltaShape { key_heads, value_heads, dim, keys, eps: 1e-6 };
            let width = (2 * key_heads + value_heads) * dim;
            let (decay, dt) = (rng.units(value_heads, 0.5), rng.units(value_heads, 1.0));
            let decay: Vec<f32> = decay.iter().map(|d| -d.abs()).collect();
            let size = shape.state() * 4;
            let mut states = vec![0xffu8; 2 * size + 64];
            let offsets = [size as u64 + 32, 16];
            let mut truths = [0, 1].map(|_| vec![0f32; shape.state()]);
            let mut start = [0u32; 2];
            for (round, tokens) in [[1, 3], [5, 0], [1, 1], [2, 40]].into_iter().enumerate() {
                let spans = Spans::new(tokens, start);
                let n = spans.n();
                let qkv = rng.units(n * width, 2.0);
                let pieces =
                    Pieces { row: 2 * value_heads + 3, start: 1, count: value_heads, len: 1, stride: 2 };
                let rates = rng.units(n * pieces.row, 3.0);
                let alpha = Pieces { start: 2, ..pieces };
                let mut truth = poison(n * value_heads * dim);
                for (slot, state) in truths.iter_mut().enumerate() {
                    let rows = spans.rows(slot);
                    let input = DeltaInput {
                        qkv: &qkv[rows.start * width..rows.end * width],
                        beta: (&rates[rows.start * pieces.row..], pieces),
                        alpha: (&rates[rows.start * pieces.row..], alpha),
                        decay: &decay,
                        dt: &dt,
                    };
                    let y = &mut truth[rows.start * value_heads * dim..rows.end * value_heads * dim];
                    delta_net(Isa::PORTABLE, &pool, &shape, rows.len(), &input, state, y);
                }
                let mut qk = poison(n * 2 * key_heads * dim);
                let mut gates = poison(n * 2 * value_heads);
                let mut args = vec![read(&qkv), read(&rates), read(&rates), read(&decay), read(&dt)];
                args.extend([write(&mut qk), write(&mut gates)]);
                for p in [pieces, alpha] {
                    args.extend([p.row, p.start, p.stride].map(|v| Arg::U64(v as u64)));
                }
                args.extend(u32s([key_heads, value_heads, dim, 1, 1]));
                args.push(Arg::F32(1e-6));
                if !launch("gantry_delta_prepare", [2 * key_heads + 1, n, 1], &mut args) {
                    return;
                }
                drop(args);
                let mut y = poison(n * value_heads * dim);
                let mut args = vec![read(&qk), read(&gates), read(&qkv), write(&mut states)];
                args.extend([read(&offsets), read(&offsets), read(&spans.row), read(&spans.tokens)]);
                args.extend([read(&spans.start), write(&mut y)]);
                args.extend(u32s([key_heads, value_heads, dim, usize::from(keys == KeyHeads::Grouped)]));
                launch("gantry_delta_net", [dim.div_ceil(32), value_heads, 2], &mut args);
                drop(args);
                assert_written(&y);
                let what = format!("{shape:?}, round {round}");
                for (y, truth) in y.chunks(dim).zip(truth.chunks(dim)) {
                    near(y, truth, 1.0 / (dim as f32).sqrt(), &what);
                }
                for (slot, truth) in
                    truths.iter().enumerate().filter(|(slot, _)| start[*slot] + tokens[*slot] > 0)
                {
                    let bytes = &states[offsets[slot] as usize..][..size];
                    let state: Vec<f32> =
                        bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes"))).collect();
                    near(&state, truth, 0.0, &format!("{what}, the state of {slot}"));
                }
                (0..2).for_each(|slot| start[slot] += tokens[slot]);
            }
        }
    }
}

#[track_caller]
fn near(y: &[f32], truth: &[f32], least: f32, what: &str) {
    let largest = truth.iter().fold(least, |most, x| most.max(x.abs()));
    for (i, (y, truth)) in y.iter().zip(truth).enumerate() {
        assert!((y - truth).abs() <= 3e-6 * largest, "{what}: [{i}] {y:e} for {truth:e}, of {largest:e}");
    }
}
