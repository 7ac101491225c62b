//! Experts. Bound: 1e-6 of Σ|w·x| from the CPU's product of the same row; int8 with a scale per row: its bits.

use gantry_formats::layout::{Layout, Scales};
use gantry_kernels::cpu::{Gating, Isa, Pool, Routing, gemm, route, route_given};

use crate::assert_near;
use crate::launch::{Arg, groups, launch, maybe, read, u32s, write};
use crate::matrices::{Input, Stored, layouts, size};
use crate::random::{Rng, poison};

/// Pairs by expert and their tiles, as the device groups them.
#[allow(clippy::too_many_arguments)] // Each is one of the kernel's.
pub(crate) fn grouped(
    ids: Option<&[u32]>,
    positions: &[u32],
    at: &[u64],
    turns: Option<&[u32]>,
    n: usize,
    used: usize,
) -> Option<(Vec<u32>, Vec<u32>)> {
    let (all, experts) = (n * used, at.len());
    let bound = all.min(all / 8 + experts);
    let (mut pairs, mut tiles) = (vec![u32::MAX; all], vec![u32::MAX; 3 * bound]);
    let mut ranks = vec![0u32; all];
    let mut args = vec![maybe(ids), read(positions), read(at), maybe(turns), write(&mut ranks)];
    args.extend([write(&mut pairs), write(&mut tiles)]);
    args.extend(u32s([n, used, experts, bound]));
    let ran = launch("gantry_experts_group", [1, 1, 1], &mut args);
    drop(args);
    ran.then_some((pairs, tiles))
}

#[test]
fn pairs_are_grouped_by_expert_in_order() {
    let mut rng = Rng(1);
    for (n, used, experts) in [(1, 1, 1), (1, 10, 512), (40, 4, 5), (300, 8, 257), (33, 6, 1024)] {
        for turning in [false, true] {
            let ids: Vec<u32> = (0..n * used).map(|_| rng.below(experts) as u32).collect();
            let positions: Vec<u32> = (0..n).map(|_| rng.below(1000) as u32).collect();
            let at: Vec<u64> = (0..experts).map(|_| if rng.below(4) == 0 { u64::MAX } else { 256 }).collect();
            let turns: Vec<u32> = (0..experts).flat_map(|_| [[1, 0], [3, 2], [2, 0]][rng.below(3)]).collect();
            let turns = turning.then_some(&turns[..]);
            let Some((pairs, tiles)) = grouped(Some(&ids), &positions, &at, turns, n, used) else { return };
            let mine = |pair: usize| {
                let id = ids[pair] as usize;
                let turn = |t: &[u32]| positions[pair / used] % t[2 * id] == t[2 * id + 1];
                at[id] != u64::MAX && turns.is_none_or(turn)
            };
            let mut tile = tiles.chunks(3);
            let mut seen = 0;
            for expert in 0..experts {
                let own: Vec<u32> = (0..n * used)
                    .filter(|&p| ids[p] as usize == expert && mine(p))
                    .map(|p| p as u32)
                    .collect();
                assert_eq!(pairs[seen..seen + own.len()], own, "expert {expert}");
                for part in own.chunks(8) {
                    assert_eq!(tile.next(), Some(&[expert as u32, seen as u32, part.len() as u32][..]));
                    seen += part.len();
                }
            }
            assert!(tile.all(|t| t[2] == 0), "tiles after the last");
        }
    }
}

/// Matrices of some experts side by side, the bytes of all and where each starts.
pub(crate) fn bank(stored: &[Stored]) -> (Vec<u8>, Vec<u64>) {
    let mut bytes = vec![0xee; 256];
    let mut at = Vec::new();
    for w in stored {
        at.push(bytes.len() as u64);
        bytes.extend_from_slice(&w.bytes);
        bytes.resize(bytes.len().next_multiple_of(256), 0xee);
    }
    (bytes, at)
}

#[test]
fn products_of_experts_of_every_layout() {
    let mut rng = Rng(2);
    let pool = Pool::new(1);
    for layout in layouts() {
        for (n, used, x_per_pair, by_pair) in [(1, 3, false, true), (9, 3, false, false), (4, 5, true, false)]
        {
            let (experts, rows, first, stored_rows) = (5, 18, 16, 40);
            let cols = layout.block_len().max(32) as usize * if layout.block_len() == 1 { 3 } else { 1 };
            let stored: Vec<Stored> =
                (0..experts).map(|_| Stored::random(&mut rng, layout, stored_rows, cols)).collect();
            let (bytes, mut at) = bank(&stored);
            at[2] = u64::MAX;
            let ids: Vec<u32> = (0..n * used).map(|_| rng.below(experts) as u32).collect();
            let all = n * used;
            let x_rows = if x_per_pair { all } else { n };
            let x = rng.units(x_rows * cols, 2.0);
            // The last rows of an int8 matrix are cut at a tile.
            let rows = if stored[0].int8().is_some() { 24 } else { rows };
            let view = |e: usize| stored[e].view().row_range(first..first + rows);
            let kind = view(0).activations();
            let input = Input::new(kind, &x, cols);
            let scale = rng.units(experts, 1.0);
            let scale = (n == 9).then_some(&scale[..]);
            let (width, start) = (rows + 4, 2);
            let mut y = poison(all * width);
            let groups_of = grouped(Some(&ids), &vec![0; n], &at, None, n, used);
            let Some((pairs, tiles)) = groups_of else { return };
            let (pairs, tiles) = if by_pair { (None, None) } else { (Some(&pairs[..]), Some(&tiles[..])) };
            let mut args = vec![read(&bytes), read(&at)];
            args.extend(stored[0].codebook());
            args.extend([read(&ids), maybe(tiles), maybe(pairs)]);
            args.extend(input.args());
            args.extend([maybe(scale), write(&mut y)]);
            args.extend(stored[0].planes());
            args.extend([first, 0].map(|v| Arg::U64(v as u64)));
            let order = stored[0].int8().map(|(rows, order)| {
                args.push(rows);
                order
            });
            args.extend([width, start].map(|v| Arg::U64(v as u64)));
            args.extend(u32s([all, used, experts, rows, cols, usize::from(x_per_pair)]));
            args.extend(order);
            let grid = [groups(rows, 16), tiles.map_or(all, |t| t.len() / 3), 1];
            launch(&format!("gantry_experts_{}", stored[0].name()), grid, &mut args);
            drop(args);
            let untouched = poison(1)[0].to_bits();
            for (pair, y) in y.chunks(width).enumerate() {
                let e = ids[pair] as usize;
                let what = format!("{layout}, {n} tokens, pair {pair} of expert {e}");
                let row = if x_per_pair { pair } else { pair / used };
                let x = &x[row * cols..][..cols];
                let mut truth = vec![0.0; rows];
                gemm(Isa::PORTABLE, &pool, &view(e), Input::new(kind, x, cols).cpu(), &mut truth);
                let exact = matches!(layout, Layout::I8 { scales: Scales::Channel, .. });
                for (i, y) in y.iter().enumerate() {
                    let inside = (start..start + rows).contains(&i) && at[e] != u64::MAX;
                    if !inside {
                        assert_eq!(y.to_bits(), untouched, "{what}: wrote beside its outputs");
                        continue;
                    }
                    let truth = truth[i - start] * scale.map_or(1.0, |s| s[e]);
                    let size = size(&view(e), i - start, x);
                    let bound = if exact { 0.0 } else { 1e-6 * size };
                    assert!((y - truth).abs() <= bound, "{what}: [{i}] {y:e} for {truth:e}");
                }
            }
        }
    }
}

#[test]
fn experts_stacked_in_one_matrix() {
    let mut rng = Rng(3);
    let (experts, rows, cols, n, used) = (4, 16, 64, 3, 2);
    let w = Stored::random(&mut rng, Layout::q8_0_split(), experts * rows, cols);
    let x = rng.units(n * cols, 1.0);
    let input = Input::new(w.view().activations(), &x, cols);
    let mut y = poison(n * used * rows);
    let mut args = vec![read(&w.bytes), read(&[0u64; 4]), Arg::Null, Arg::Null, Arg::Null];
    args.extend(input.args());
    args.extend([Arg::Null, write(&mut y)]);
    args.extend(w.planes());
    args.extend([0, rows, rows, 0].map(|v| Arg::U64(v as u64)));
    args.extend(u32s([n * used, used, experts, rows, cols, 0]));
    if !launch("gantry_experts_q8_0_split", [1, n * used, 1], &mut args) {
        return;
    }
    drop(args);
    let mut truth = vec![0.0; n * experts * rows];
    gemm(Isa::PORTABLE, &Pool::new(1), &w.view(), input.cpu(), &mut truth);
    for (pair, y) in y.chunks(rows).enumerate() {
        let truth = &truth[(pair / used * experts + pair % used) * rows..][..rows];
        assert_near(y, truth, 1e-6, 10.0, "stacked experts");
    }
}

#[test]
pub(crate) fn routes_of_every_kind() {
    let mut rng = Rng(4);
    let pool = Pool::new(1);
    let gatings = [Gating::Softmax, Gating::Sigmoid, Gating::SqrtSoftplus, Gating::SoftmaxWeight];
    for (code, gating) in gatings.into_iter().enumerate() {
        let shapes =
            [(1, 1, 1, 1), (8, 2, 1, 1), (64, 6, 8, 3), (512, 10, 1, 1), (256, 8, 8, 4), (12, 3, 12, 5)];
        for (experts, used, groups, groups_used) in shapes {
            for round in 0..4 {
                let (normalize, scale) = (round % 2 == 1, [0.0, 2.5, 1.0, 0.5][round]);
                let routing = Routing { experts, used, gating, groups, groups_used, normalize, scale };
                let n = 7;
                let mut logits = rng.units(n * experts, 8.0);
                // Ties, and values that are not numbers.
                logits[..2 * experts].iter_mut().for_each(|x| *x = (*x / 4.0).round());
                logits[2 * experts] = f32::NEG_INFINITY;
                if gating != Gating::Softmax && round == 3 {
                    logits[3 * experts] = f32::NAN;
                }
                let bias = rng.units(experts, 0.3);
                let bias = (round >= 2).then_some(&bias[..]);
                let (mut ids, mut weights) = (vec![0u32; n * used], vec![0f32; n * used]);
                route(Isa::PORTABLE, &pool, &routing, &logits, bias, &mut ids, &mut weights);
                let what = format!("{routing:?}, bias {}", bias.is_some());
                for given in [false, true] {
                    if given && round > 1 {
                        continue;
                    }
                    let tokens: Vec<u32> = (0..n as u32).rev().collect();
                    let table: Vec<u32> = (0..(n + 2) * used).map(|_| rng.below(experts) as u32).collect();
                    if given {
                        for (ids, &token) in ids.chunks_mut(used).zip(&tokens) {
                            ids.copy_from_slice(&table[(2 + token as usize) * used..][..used]);
                        }
                        route_given(Isa::PORTABLE, &pool, &routing, &logits, &ids, &mut weights);
                    }
                    let (mut own_ids, mut own_weights) = (vec![u32::MAX; n * used], poison(n * used));
                    let mut args = vec![read(&logits), maybe(bias), maybe(given.then_some(&table[..]))];
                    args.extend([read(&tokens), write(&mut own_ids), write(&mut own_weights), Arg::U64(2)]);
                    args.extend(u32s([experts, used, code, groups, groups_used, usize::from(normalize)]));
                    args.push(Arg::F32(scale));
                    if launch("gantry_route", [n, 1, 1], &mut args) {
                        drop(args);
                        assert_eq!(own_ids, ids, "{what}");
                        assert_near(&own_weights, &weights, 1e-6, 1e-30, &what);
                    }
                }
            }
        }
    }
}
