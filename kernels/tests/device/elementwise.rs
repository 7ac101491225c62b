//! Embeddings, norms, rope, stores and what is done value by value. Bounds: norms 2e-6 of the largest value a row can
//! have, all others the CPU's bits.

use gantry_kernels::cpu::{
    self as cpu, ExpertOutputs, Gate, Isa, MatrixView, Pieces, Pool, RopeAngles, RopeHeads, RopeScaling,
    RopeStyle, RopeTable, add, copy_pieces, gate_pieces, layer_norm, rms_norm_pieces, rope, silu_mul,
    silu_scaled, weighted_sum,
};
use half::{bf16, f16};

use crate::launch::{Arg, groups, launch, maybe, read, u32s, write};
use crate::quantize::Quants;
use crate::random::{Rng, assert_same, assert_written, poison};
use crate::{assert_near, mixed};

const ISA: Isa = Isa::PORTABLE;

fn of_pieces(p: &Pieces) -> [Arg<'static>; 3] {
    [p.row, p.start, p.stride].map(|v| Arg::U64(v as u64))
}

#[test]
fn embeddings_are_the_rows_of_the_table() {
    let mut rng = Rng(1);
    let (stored, first, width, rows) = (9, 2, 96, 3);
    let tokens = [0u32, 5, 6, 3, 3];
    let values = mixed(&mut rng, stored * width, 2.0);
    let blocks = stored * width / 32;
    let quants: Vec<u8> = (0..stored * width).map(|_| rng.next() as u8).collect();
    let scales: Vec<u8> = (0..blocks).flat_map(|i| [(i * 37 % 256) as u8, (i * 11 % 124) as u8]).collect();
    let ggml: Vec<u8> = scales.chunks(2).zip(quants.chunks(32)).flat_map(|(d, q)| [d, q].concat()).collect();
    let f32s: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let f16s: Vec<u8> = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
    let bf16s: Vec<u8> = values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
    let split = [&quants[..], &[0; 160], &scales].concat();
    let split_at = quants.len() + 160;
    let q8_0 = gantry_formats::block::GgmlType::Q8_0;
    let cases = [
        ("f32", &f32s, MatrixView::f32(stored, width, &f32s)),
        ("f16", &f16s, MatrixView::f16(stored, width, &f16s)),
        ("bf16", &bf16s, MatrixView::bf16(stored, width, &bf16s)),
        ("q8_0", &ggml, MatrixView::block(q8_0, stored, width, &ggml)),
        ("q8_0_split", &split, MatrixView::q8_0_split(stored, width, &quants, &split[split_at..])),
    ];
    for (name, bytes, view) in cases {
        let view = view.unwrap();
        let mut truth = Vec::new();
        let mut row = vec![0.0; width];
        for token in tokens {
            view.dequantize_row(first + token as usize, &mut row);
            (0..rows).for_each(|_| truth.extend_from_slice(&row));
        }
        let mut y = poison(truth.len());
        let mut args = vec![read(bytes), read(&tokens), write(&mut y), Arg::U64(first as u64)];
        if name == "q8_0_split" {
            args.push(Arg::U64(split_at as u64));
        }
        args.extend(u32s([tokens.len(), rows, width]));
        if launch(&format!("gantry_embed_{name}"), [groups(width, 256), tokens.len(), 1], &mut args) {
            assert_same(&y, &truth, name);
        }
    }
}

#[test]
fn every_half_is_widened_exactly() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let widen: [fn(u16) -> f32; 2] = [|b| f16::from_bits(b).to_f32(), |b| bf16::from_bits(b).to_f32()];
    for (name, wide) in ["gantry_embed_f16", "gantry_embed_bf16"].into_iter().zip(widen) {
        let mut y = poison(1 << 16);
        let mut args = vec![read(&all), read(&[0u32]), write(&mut y), Arg::U64(0)];
        args.extend(u32s([1, 1, 1 << 16]));
        if launch(name, [256, 1, 1], &mut args) {
            let truth: Vec<f32> = all.iter().map(|&b| wide(b)).collect();
            assert_same(&y, &truth, name);
        }
    }
}

#[test]
fn norms_of_pieces() {
    let mut rng = Rng(2);
    let pool = Pool::new(1);
    for (n, count, len) in [(1, 1, 1), (3, 4, 31), (2, 1, 2560), (5, 8, 128)] {
        for weights in 0..3 {
            let from = Pieces { row: count * (len + 5) + 3, start: 2, count, len, stride: len + 5 };
            let to = Pieces { row: count * (len + 2) + 9, start: 4, count, len, stride: len + 2 };
            let x = rng.units(n * from.row, 3.0);
            let weight = match weights {
                0 => None,
                1 => Some(rng.units(len, 2.0)),
                _ => Some(rng.units(count * len, 2.0)),
            };
            let weight = weight.as_deref();
            let mut truth = rng.units(n * to.row, 1.0);
            let mut y = truth.clone();
            rms_norm_pieces(ISA, &pool, n, Some((&x, from)), weight, 1e-6, &mut truth, to);
            let mut args = vec![read(&x), maybe(weight), write(&mut y)];
            args.extend(of_pieces(&from));
            args.extend(of_pieces(&to));
            args.extend(u32s([len, usize::from(weights == 2)]));
            args.push(Arg::F32(1e-6));
            if launch("gantry_rms_norm", [count, n, 1], &mut args) {
                assert_near(&y, &truth, 2e-6, 0.0, &format!("{n} x {count} x {len}"));
            }
        }
    }
    let (n, len) = (4, 777);
    let mut x = rng.units(n * len, 3.0);
    x[len..2 * len].iter_mut().for_each(|x| *x = 1000.0 + *x * 0.01);
    x[2 * len..3 * len].fill(0.5);
    let (weight, bias) = (rng.units(len, 2.0), rng.units(len, 2.0));
    let (mut truth, mut y) = (poison(n * len), poison(n * len));
    layer_norm(ISA, &pool, &x, &weight, &bias, 1e-5, &mut truth);
    let mut args = vec![read(&x), read(&weight), read(&bias), write(&mut y)];
    args.extend(u32s([len]));
    args.push(Arg::F32(1e-5));
    if launch("gantry_layer_norm", [n, 1, 1], &mut args) {
        assert_written(&y);
        assert_near(&y, &truth, 2e-6, 8.0, "a layer norm");
    }
}

#[test]
fn copies_and_gates() {
    let mut rng = Rng(3);
    let pool = Pool::new(1);
    let (n, count, len) = (3, 5, 77);
    let to = Pieces { row: count * 80 + 3, start: 2, count, len, stride: 80 };
    let froms = [
        Pieces { row: count * len + 1, start: 1, count, len, stride: len },
        Pieces { row: 9, start: 2, count, len: 1, stride: 1 },
        Pieces { row: 3, start: 1, count: 1, len: 1, stride: 1 },
    ];
    for (i, from) in froms.into_iter().enumerate() {
        let x = if i == 0 { mixed(&mut rng, n * from.row, 20.0) } else { rng.units(n * from.row, 20.0) };
        let start = mixed(&mut rng, n * to.row, 2.0);
        let grid = [groups(count * len, 256), n, 1];
        if i == 0 {
            let (mut truth, mut y) = (start.clone(), start.clone());
            copy_pieces(ISA, &pool, n, &x, from, &mut truth, to);
            let mut args = vec![read(&x), write(&mut y)];
            args.extend(of_pieces(&from).into_iter().chain(of_pieces(&to)));
            args.extend(u32s([n, count, len]));
            if launch("gantry_copy", grid, &mut args) {
                assert_same(&y, &truth, "a copy");
            }
        }
        for (code, act) in [(0, Gate::Sigmoid), (1, Gate::Silu)] {
            let (mut truth, mut y) = (start.clone(), start.clone());
            gate_pieces(ISA, &pool, n, act, &x, from, &mut truth, to);
            let mut args = vec![read(&x), write(&mut y)];
            args.extend(of_pieces(&from).into_iter().chain(of_pieces(&to)));
            args.extend(u32s([n, count, len, from.count, from.len, code]));
            if launch("gantry_gate", grid, &mut args) {
                assert_same(&y, &truth, &format!("gates {from:?} {act:?}"));
            }
        }
    }
}

#[test]
fn activations_and_sums() {
    let mut rng = Rng(4);
    let pool = Pool::new(1);
    for (n, width, limit) in [(4, 300, None), (3, 1300, Some(7.0f32)), (2, 640, Some(1.0)), (5, 1056, None)] {
        let x = mixed(&mut rng, n * 2 * width, 30.0);
        let (mut truth, mut y) = (poison(n * width), poison(n * width));
        silu_mul(ISA, &pool, &x, width, limit, &mut truth);
        let mut quants = Quants::new(n * width);
        let whole = width % 32 == 0;
        let mut args = vec![read(&x), write(&mut y)];
        args.extend(if whole { quants.args() } else { [Arg::Null, Arg::Null] });
        args.extend(u32s([width, usize::from(limit.is_some())]));
        args.push(Arg::F32(limit.unwrap_or(0.0)));
        if launch("gantry_silu_mul", [groups(width, 1024), n, 1], &mut args) {
            drop(args);
            assert_same(&y, &truth, &format!("silu(g) · u, limit {limit:?}"));
            if whole {
                quants.assert_of(&y);
            }
        }
    }
    let x = mixed(&mut rng, 1000, 30.0);
    let (mut truth, mut y) = (x.clone(), x.clone());
    silu_scaled(ISA, &pool, &mut truth, 0.25);
    let args = &mut [write(&mut y), Arg::U64(1000), Arg::F32(0.25)];
    if launch("gantry_silu_scaled", [4, 1, 1], args) {
        assert_same(&y, &truth, "silu(x · scale)");
    }
    let start = mixed(&mut rng, 1000, 3.0);
    let (mut truth, mut y) = (start.clone(), start);
    add(ISA, &mut truth, &x);
    if launch("gantry_add", [4, 1, 1], &mut [read(&x), write(&mut y), Arg::U64(1000)]) {
        assert_same(&y, &truth, "a sum");
    }
    let used = 6;
    let (n, width) = (4, 300);
    let (x, weights) = (rng.units(n * used * width, 2.0), rng.units(n * used, 1.0));
    let (mut truth, mut y) = (poison(n * width), poison(n * width));
    let outputs = ExpertOutputs { x: &x, weights: &weights, used, n: width };
    weighted_sum(ISA, &pool, &outputs, &mut truth);
    let (more, gates) = (rng.units(n * width, 2.0), rng.units(n, 5.0));
    let mut gated = more.clone();
    let of = |width, len| Pieces { row: width, start: 0, stride: width, len, count: 1 };
    gate_pieces(ISA, &pool, n, Gate::Sigmoid, &gates, of(1, 1), &mut gated, of(width, width));
    for (added, by, with) in
        [(None, None, None), (Some(&more), None, Some(&more)), (Some(&more), Some(&gates), Some(&gated))]
    {
        let mut truth = truth.clone();
        if let Some(with) = with {
            add(ISA, &mut truth, with);
        }
        let mut args =
            vec![read(&x), read(&weights), maybe(added.map(|x| &x[..])), maybe(by.map(|x| &x[..]))];
        args.push(write(&mut y));
        args.extend(u32s([n, used, width]));
        if launch("gantry_mix", [groups(width, 256), n, 1], &mut args) {
            drop(args);
            assert_same(&y, &truth, "a sum over slots");
        }
    }
}

/// cos and sin of positions, as the kernels take them: read off the CPU's by rotating (1, 0).
pub(crate) fn angle_pairs(angles: &RopeAngles, pairs: usize) -> Vec<f32> {
    let mut x: Vec<f32> = (0..angles.len() * pairs).flat_map(|_| [1.0, 0.0]).collect();
    let at = RopeHeads { stride: 2 * pairs, heads: 1, head_stride: 2 * pairs, start: 0 };
    rope(RopeStyle::Norm, angles, false, &mut x, at);
    x
}

#[test]
fn rope_turns_every_head() {
    let mut rng = Rng(5);
    let positions = [0u32, 1, 77, 100_000];
    for n_rot in [2, 64, 100] {
        let mut angles = RopeAngles::default();
        RopeTable::new(n_rot, 10_000.0, None, RopeScaling::None).angles(&positions, &mut angles);
        let table = angle_pairs(&angles, n_rot / 2);
        for (heads, start) in [(1, 0), (5, 7)] {
            let stride = n_rot + start + 3;
            let at = RopeHeads { stride: heads * stride + 11, heads, head_stride: stride, start };
            let x = rng.units(positions.len() * at.stride, 3.0);
            for (style, neox) in [(RopeStyle::Norm, 0), (RopeStyle::Neox, 1)] {
                for inverse in [false, true] {
                    let (mut truth, mut y) = (x.clone(), x.clone());
                    rope(style, &angles, inverse, &mut truth, at);
                    let mut args = vec![write(&mut y), read(&table)];
                    args.extend([at.stride, start, stride].map(|v| Arg::U64(v as u64)));
                    args.extend(u32s([positions.len(), heads, n_rot / 2, neox, usize::from(inverse)]));
                    let grid = [groups(heads * n_rot / 2, 256), positions.len(), 1];
                    if launch("gantry_rope", grid, &mut args) {
                        assert_same(&y, &truth, &format!("{style:?} {n_rot} of {heads} heads"));
                    }
                }
            }
        }
    }
}

#[test]
fn stores_go_to_the_rings_of_their_sequences() {
    let mut rng = Rng(6);
    let (capacity, keys) = (5, 12);
    let (positions, slots) = ([3u32, 4, 5, 0, 11], [1u32, 1, 1, 0, 2]);
    for values in [0, 8] {
        for half in [false, true] {
            let row = 40;
            let mut x = mixed(&mut rng, positions.len() * row, 1e4);
            // What becomes of the rest of a NaN is no one's promise.
            x.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = 65519.9);
            let size = if half { 2 } else { 4 };
            let bytes = capacity * (keys + values) * size;
            let offsets: Vec<u64> = [2 * bytes + 64, 16, bytes + 32].map(|v| v as u64).to_vec();
            let before = vec![0x7fu8; 3 * bytes + 64];
            let mut truth = before.clone();
            for (t, (&position, &slot)) in positions.iter().zip(&slots).enumerate() {
                let ring = position as usize % capacity;
                let mut put = |at: usize, from: &[f32]| {
                    let bytes: Vec<u8> = match half {
                        true => from.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
                        false => from.iter().flat_map(|v| v.to_le_bytes()).collect(),
                    };
                    truth[offsets[slot as usize] as usize + at * size..][..bytes.len()]
                        .copy_from_slice(&bytes);
                };
                put(ring * keys, &x[t * row + 3..][..keys]);
                put(capacity * keys + ring * values, &x[t * row + 20..][..values]);
            }
            let mut y = before.clone();
            let name = if half { "gantry_store_f16" } else { "gantry_store_f32" };
            let mut args = vec![read(&x), write(&mut y), read(&offsets), read(&positions), read(&slots)];
            args.extend([row, 3, 20, capacity].map(|v| Arg::U64(v as u64)));
            args.extend(u32s([positions.len(), keys, values]));
            if launch(name, [1, positions.len(), 1], &mut args) {
                let at = y.iter().zip(&truth).position(|(a, b)| a != b);
                assert_eq!(at, None, "{name} with {values} values");
            }
        }
    }
}

/// The exponential that every activation uses, over its whole range.
#[test]
fn silu_has_the_bits_of_the_cpu_over_all_exponents() {
    let pool = Pool::new(1);
    let x: Vec<f32> = (0..1 << 16).map(|i: u32| f32::from_bits(i << 16 | 0x1234)).collect();
    let (mut truth, mut y) = (x.clone(), x);
    cpu::silu_scaled(ISA, &pool, &mut truth, 1.0);
    let args = &mut [write(&mut y), Arg::U64(1 << 16), Arg::F32(1.0)];
    if launch("gantry_silu_scaled", [256, 1, 1], args) {
        assert_same(&y, &truth, "silu");
    }
}
