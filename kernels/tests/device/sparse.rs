//! Compressed entries and the choice among them. Bound of entries: 3e-6 of the value or of one; choices are the CPU's.

use gantry_kernels::cpu::{
    Isa, Pieces, Pool, Pooling, RopeAngles, RopeHeads, RopeScaling, RopeStyle, RopeTable, Selection, Span,
    mean_pool, rms_norm_pieces, rope, select, softmax_pool,
};
use half::f16;

use crate::assert_near;
use crate::elementwise::angle_pairs;
use crate::launch::{Arg, groups, launch, maybe, read, u32s, write};
use crate::random::{Rng, poison};

const ISA: Isa = Isa::PORTABLE;

/// A ring of f32 rows with the last of `rows` in it.
fn ring(rows: &[f32], width: usize, capacity: usize) -> Vec<u8> {
    let mut bytes = vec![0xffu8; capacity * width * 4];
    for (p, row) in rows.chunks(width).enumerate() {
        let at = p % capacity * width * 4;
        bytes[at..at + width * 4]
            .chunks_mut(4)
            .zip(row)
            .for_each(|(b, v)| b.copy_from_slice(&v.to_le_bytes()));
    }
    bytes
}

#[test]
fn blocks_of_positions_become_entries() {
    let mut rng = Rng(1);
    let pool = Pool::new(1);
    for (ratio, overlap, softmax) in [(4, true, true), (8, false, true), (4, false, false), (1, false, false)]
    {
        for half in [false, true] {
            let (len, start, n_rot) = (96, 32, 64);
            let width = if overlap { 2 * len } else { len };
            let (norm, ape) = (rng.units(len, 2.0), rng.units(ratio * width, 1.0));
            // Of two sequences, where each span starts and how long it is.
            let spans = [(0usize, 3 * ratio + 1), (5 * ratio - 1, 2 * ratio + 1)];
            let (starts, tokens) = (spans.map(|s| s.0 as u32), spans.map(|s| s.1 as u32));
            let blocks = 4;
            let capacity = 4 * ratio + 3;
            let mut states = vec![0xffu8; 64];
            let (mut row_offsets, mut score_offsets, mut entry_offsets) = ([0u64; 2], [0u64; 2], [0u64; 2]);
            let (mut truths, mut all_angles) = (Vec::new(), Vec::new());
            let size = if half { 2 } else { 4 };
            for (slot, (first, n)) in spans.into_iter().enumerate() {
                let end = first + n;
                let (rows, scores) = (rng.units(end * width, 3.0), rng.units(end * width, 6.0));
                row_offsets[slot] = states.len() as u64;
                states.extend(ring(&rows, width, capacity));
                score_offsets[slot] = states.len() as u64;
                states.extend(ring(&scores, width, capacity + 2));
                entry_offsets[slot] = states.len() as u64;
                states.extend(vec![0xffu8; 16 * len * size]);
                let range = first / ratio..end / ratio;
                let mut truth = vec![0.0; range.len() * len];
                let span = |values| Span { values, first: 0, width };
                if softmax {
                    let pooling = Pooling { ratio, overlap, len };
                    let (kv, score) = (span(&rows[..]), span(&scores[..]));
                    softmax_pool(ISA, &pool, &pooling, range.clone(), kv, score, &ape, &mut truth);
                } else {
                    mean_pool(ISA, &pool, ratio, range.clone(), span(&rows), &mut truth);
                }
                let each = Pieces { row: len, start: 0, count: 1, len, stride: len };
                rms_norm_pieces(ISA, &pool, range.len(), None, Some(&norm), 1e-6, &mut truth, each);
                let positions: Vec<u32> = (0..blocks).map(|b| ((range.start + b) * ratio) as u32).collect();
                let mut angles = RopeAngles::default();
                let table = RopeTable::new(n_rot, 10_000.0, None, RopeScaling::None);
                table.angles(&positions, &mut angles);
                all_angles.extend(angle_pairs(&angles, n_rot / 2));
                table.angles(&positions[..range.len()], &mut angles);
                let at = RopeHeads { stride: len, heads: 1, head_stride: len, start };
                rope(RopeStyle::Neox, &angles, false, &mut truth, at);
                truths.push((range, truth));
            }
            let before = states.clone();
            let mut args = vec![write(&mut states), read(&row_offsets)];
            args.push(maybe(softmax.then_some(&score_offsets[..])));
            args.extend([
                maybe(softmax.then_some(&ape[..])),
                read(&norm),
                read(&all_angles),
                read(&entry_offsets),
            ]);
            args.extend([read(&tokens), read(&starts)]);
            args.extend([capacity, capacity + 2, 16].map(|v| Arg::U64(v as u64)));
            args.extend(u32s([ratio, usize::from(overlap), len, start, n_rot / 2, 1, blocks]));
            args.push(Arg::F32(1e-6));
            let name = if half { "gantry_compress_f16" } else { "gantry_compress_f32" };
            if !launch(name, [blocks, 2, 1], &mut args) {
                return;
            }
            drop(args);
            let mut untouched = states.clone();
            for (slot, (range, truth)) in truths.iter().enumerate() {
                for (b, truth) in range.clone().zip(truth.chunks(len)) {
                    let at = entry_offsets[slot] as usize + b % 16 * len * size;
                    let entry: Vec<f32> = states[at..at + len * size]
                        .chunks(size)
                        .map(|b| match *b {
                            [a, b] => f16::from_le_bytes([a, b]).to_f32(),
                            _ => f32::from_le_bytes(b.try_into().expect("4 bytes")),
                        })
                        .collect();
                    let bound = if half { 1e-3 } else { 3e-6 };
                    assert_near(&entry, truth, bound, 1.0, &format!("{name}, ratio {ratio}, block {b}"));
                    untouched[at..at + len * size].fill(0xff);
                }
            }
            assert!(untouched == before, "{name} wrote beside the entries");
        }
    }
}

#[test]
fn the_best_entries_are_chosen() {
    let mut rng = Rng(2);
    let pool = Pool::new(1);
    for (heads, len, top, ratio, expand) in [
        (1, 1, 1, 1, false),
        (64, 128, 16, 1, false),
        (5, 33, 7, 4, true),
        (12, 64, 300, 2, false),
        (2, 8, 3, 3, true),
    ] {
        let shape = Selection { heads, len, top, ratio, expand };
        for ties in [false, true] {
            let n = 13;
            let first = 1000;
            let entries = (first + n) / ratio;
            let mut keys = rng.units(entries * len, 1.0);
            let (q_row, w_row) = (heads * len + 5, heads + 2);
            let mut q = rng.units(n * q_row, 1.0);
            let mut w = rng.units(n * w_row, 1.0);
            if ties {
                // Sums of small integers are exact in any order.
                for x in keys.iter_mut().chain(&mut q).chain(&mut w) {
                    *x = (*x * 2.0).round();
                }
                keys[0] = f32::NAN;
            }
            for weighted in [false, true] {
                let weights = weighted.then_some(&w[..]);
                let per_token = shape.per_token();
                // From where a token sees all, to where it does not.
                for first in [0, (top * ratio).saturating_sub(4).min(first), first] {
                    let mut truth = vec![7u32; n * per_token];
                    let cpu_weights = weights.map(|w| (&w[1..], w_row));
                    select(ISA, &pool, &shape, &keys, first, &q[3..], q_row, cpu_weights, &mut truth);
                    let positions: Vec<u32> = (first..first + n).map(|p| p as u32).collect();
                    let slots = vec![1u32; n];
                    let states: Vec<u8> =
                        [0xff; 64].into_iter().chain(keys.iter().flat_map(|k| k.to_le_bytes())).collect();
                    let score_row = entries + 3;
                    let mut scores = poison(n * score_row);
                    let mut args = vec![read(&q), maybe(weights), read(&states), read(&[0u64, 64])];
                    args.extend([read(&positions), read(&slots), write(&mut scores)]);
                    args.extend([q_row, 3, w_row, 1, entries, score_row].map(|v| Arg::U64(v as u64)));
                    args.extend(u32s([heads, len, ratio]));
                    let most = ((first + n) / ratio).max(1);
                    if !launch("gantry_select_scores", [groups(most, 32), n, 1], &mut args) {
                        return;
                    }
                    drop(args);
                    let mut ids = vec![7u32; n * per_token];
                    let mut args = vec![read(&scores), read(&positions), write(&mut ids)];
                    args.push(Arg::U64(score_row as u64));
                    args.extend(u32s([top, ratio, usize::from(expand)]));
                    launch("gantry_select", [n, 1, 1], &mut args);
                    drop(args);
                    let what = format!("{shape:?} from {first}, ties: {ties}, weighted: {weighted}");
                    for (t, (ids, truth)) in ids.chunks(per_token).zip(truth.chunks(per_token)).enumerate() {
                        assert_eq!(ids, truth, "{what}: token {t}");
                    }
                }
            }
        }
    }
}
