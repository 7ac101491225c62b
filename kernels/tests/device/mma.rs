//! Matrix instructions, on a CUDA device only. Int8 with a scale per row: the CPU's bits; with a scale per 32, `q8_0.split`
//! and E8: the bits of the order that `kernels/cuda/mma.cuh` states, or for few tokens by E8 `decode_e8.cuh`, which are
//! within 1e-6 of Σ|w·x| of the CPU's.

use gantry_formats::block::iq3xxs_grid;
use gantry_formats::layout::{Layout, Order, Scales};
use gantry_kernels::cpu::{Isa, Pool, gemm};
use half::f16;

use crate::launch::{
    Arg, Tiles, generation, groups, launch, launch_groups, maybe, on_a_card, read, u32s, write,
};
use crate::matrices::{Input, Stored, layouts, size};
use crate::random::{Rng, assert_same, poison};

/// Kernels of a layout, the rows and the tokens of their groups.
fn kernels(layout: Layout) -> Vec<(&'static str, usize, usize)> {
    let mut all = all_kernels(layout);
    all.retain(|(name, ..)| generation() == 90 || !is_resident(name));
    all
}

/// Those for Hopper, whose groups stay on their multiprocessors, and are told by maps what they copy by tiles.
fn is_resident(kernel: &str) -> bool {
    kernel.starts_with("gantry_warpgroups_")
}

fn all_kernels(layout: Layout) -> Vec<(&'static str, usize, usize)> {
    match layout {
        Layout::Q8_0Split { .. } => vec![("gantry_tiles_q8_0_split", 128, 64)],
        // Those for few tokens have any number of groups.
        Layout::E8Planar { .. } => vec![
            ("gantry_decode_e8_planar_1", 40, 1),
            ("gantry_decode_e8_planar_2", 16, 2),
            ("gantry_decode_e8_planar_4", 70, 4),
            ("gantry_decode_e8_planar_8", 16, 8),
            ("gantry_tiles_e8_planar", 128, 64),
        ],
        Layout::I8 { order: Order::NvA32, scales: Scales::Block32, .. } => vec![
            ("gantry_decode_i8_block32_8", 16, 8),
            ("gantry_decode_i8_block32_16", 16, 16),
            ("gantry_decode_i8_block32_16_many", 32, 16),
            ("gantry_decode_i8_block32_32", 16, 32),
            ("gantry_tiles_i8_block32", 128, 64),
        ],
        Layout::I8 { order, scales: Scales::Channel, .. } if matches!(order, Order::NvA32 | Order::NvA64) => {
            let tiles = [
                ("gantry_tiles_i8_channel_a32", 128, 128),
                ("gantry_warpgroups_i8_channel_a32_64", 128, 64),
                ("gantry_warpgroups_i8_channel_a32_128", 128, 128),
                ("gantry_warpgroups_i8_channel_a32_256", 128, 256),
                ("gantry_tiles_i8_channel_a64", 128, 128),
                ("gantry_warpgroups_i8_channel_a64_64", 128, 64),
                ("gantry_warpgroups_i8_channel_a64_128", 128, 128),
                ("gantry_warpgroups_i8_channel_a64_256", 128, 256),
            ];
            let own = if order == Order::NvA32 { "_a32" } else { "_a64" };
            let own = tiles.into_iter().filter(|(name, ..)| name.contains(own));
            let few = [
                ("gantry_decode_i8_channel_8", 16, 8),
                ("gantry_decode_i8_channel_16", 16, 16),
                ("gantry_decode_i8_channel_32", 16, 32),
                ("gantry_decode_i8_channel_32_many", 32, 32),
            ];
            few.into_iter().chain(own).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether a kernel is one of those for up to 8 tokens, which may take another product of the same input.
fn takes_two(kernel: &str) -> bool {
    kernel.starts_with("gantry_decode_i8") && kernel.ends_with("_8")
}

/// Rows and threads of groups of the kernels for few tokens, which share `cols` columns in several ways.
pub(crate) fn shared(cols: usize) -> Vec<(usize, usize)> {
    let blocks = cols / 32;
    let chunks = blocks.div_ceil(blocks.div_ceil(64) * 4);
    let tiles = 16 / chunks;
    (1..=16 / tiles)
        .filter(|each| [1, 2, 3, 7, 16 / tiles].contains(each))
        .map(|w| (16 * tiles, 32 * tiles * w))
        .collect()
}

/// Layouts with matrix instructions, and the unit of their columns.
fn instructed() -> Vec<(Layout, usize)> {
    let unit = |layout: &Layout| match layout {
        Layout::I8 { order: Order::NvA64, .. } => 64,
        _ => layout.block_len().max(32) as usize,
    };
    let all: Vec<_> =
        layouts().into_iter().filter(|l| !kernels(*l).is_empty()).map(|l| (l, unit(&l))).collect();
    assert!(all.len() >= 5, "{all:?}");
    all
}

/// The quants of block `b` of a row, and their scale, of layouts with a scale per 32.
fn block(w: &Stored, row: usize, b: usize) -> ([i32; 32], f32) {
    let planes = w.layout.planes(w.rows as u64, w.cols as u64).expect("planes");
    let blocks = w.cols / 32;
    let at = row * blocks + b;
    let plane = |i: usize| &w.bytes[planes[i].offset as usize..][..planes[i].bytes as usize];
    let half = |i: usize, at: usize| f16::from_le_bytes([plane(i)[2 * at], plane(i)[2 * at + 1]]).to_f32();
    let mut q = [0; 32];
    match w.layout {
        Layout::E8Planar { .. } => {
            let word = u32::from_le_bytes(plane(1)[4 * at..][..4].try_into().expect("four bytes"));
            for (i, q) in q.iter_mut().enumerate() {
                let seven = word >> (7 * (i / 8)) & 127;
                let signs = seven | (seven.count_ones() & 1) << 7;
                let size = i32::from(iq3xxs_grid()[plane(0)[8 * at + i / 4] as usize][i % 4]);
                *q = if signs >> (i % 8) & 1 == 1 { -size } else { size };
            }
            (q, half(2, at / 8) * (0.5 + (word >> 28) as f32) * 0.5 * 0.5)
        }
        Layout::I8 { order, .. } => {
            let rows = w.rows.next_multiple_of(16) as u64;
            for (i, q) in q.iter_mut().enumerate() {
                let at = order.offset(row as u64, (b * 32 + i) as u64, rows, w.cols as u64);
                *q = i32::from(plane(0)[at as usize] as i8);
            }
            (q, half(1, at))
        }
        _ => {
            q.iter_mut().zip(&plane(0)[at * 32..]).for_each(|(q, byte)| *q = i32::from(*byte as i8));
            (q, half(1, at))
        }
    }
}

/// Whether a kernel adds in the order of those for few tokens by E8.
fn few_e8(kernel: &str) -> bool {
    kernel.contains("decode") && kernel.contains("e8_planar")
}

/// An output in the order that `decode_e8.cuh` states.
fn in_pairs(w: &Stored, row: usize, input: &Input, token: usize) -> f32 {
    let (quants, scales) = input.q8();
    let (blocks, units) = (w.cols / 32, w.cols / 256);
    let fits = |chunk: &usize| units.next_multiple_of(*chunk) * 8 <= units * 9;
    let chunk = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
    let scaled = |b: usize| {
        let (q, d) = block(w, row, b);
        let x = &quants[(token * blocks + b) * 32..][..32];
        let whole: i32 = q.iter().zip(x).map(|(q, x)| q * i32::from(*x)).sum();
        // Exact in f64, then rounded once.
        ((f64::from(whole) * f64::from(d)) as f32, scales[token * blocks + b])
    };
    let mut total = 0f32;
    for first in (0..units).step_by(chunk) {
        let mut sums = [0f32; 4];
        for unit in first..units.min(first + chunk) {
            for (t, sum) in sums.iter_mut().enumerate() {
                let [(p0, x0), (p1, x1)] = [0, 1].map(|j| scaled(8 * unit + 2 * t + j));
                *sum += p1.mul_add(x1, p0 * x0);
            }
        }
        total += (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    total
}

/// An output in the order that the other kernels state.
fn in_order(w: &Stored, row: usize, input: &Input, token: usize) -> f32 {
    let (quants, scales) = input.q8();
    let blocks = w.cols / 32;
    let chunk = blocks.div_ceil(64) * 4;
    let (mut total, mut sum) = (0f32, 0f32);
    for b in 0..blocks {
        let (q, d) = block(w, row, b);
        let x = &quants[(token * blocks + b) * 32..][..32];
        let whole: i32 = q.iter().zip(x).map(|(q, x)| q * i32::from(*x)).sum();
        // Exact in f64, then rounded once.
        let scaled = (f64::from(whole) * f64::from(d)) as f32;
        sum = scaled.mul_add(scales[token * blocks + b], sum);
        if (b + 1) % chunk == 0 || b + 1 == blocks {
            total += sum;
            sum = 0.0;
        }
    }
    total
}

/// What a kernel shall give: rows `first` and on of the matrix, for each token.
fn truth(kernel: &str, w: &Stored, (first, rows): (usize, usize), input: &Input, n: usize) -> Vec<f32> {
    if matches!(w.layout, Layout::I8 { scales: Scales::Channel, .. }) {
        // The CPU takes whole tiles, or rows to the end.
        let all = w.rows - first;
        let mut y = poison(n * all);
        gemm(Isa::PORTABLE, &Pool::new(1), &w.view().row_range(first..w.rows), input.cpu(), &mut y);
        return y.chunks(all).flat_map(|y| y[..rows].to_vec()).collect();
    }
    let output = if few_e8(kernel) { in_pairs } else { in_order };
    (0..n * rows).map(|i| output(w, first + i % rows, input, i / rows)).collect()
}

/// y of a kernel, rows of `width` with the outputs from `start` on.
fn product(
    ((kernel, group_rows, group_tokens), threads): ((&str, usize, usize), Option<usize>),
    w: &Stored,
    (first, rows): (usize, usize),
    (input, n): (&Input, usize),
    (scale, bias): (Option<f32>, Option<&[f32]>),
    (width, start): (usize, usize),
) -> Vec<f32> {
    let scale = scale.map(|s| [s]);
    let mut y = poison(n * width);
    let mut args = Vec::new();
    let mut activations = input.args();
    if is_resident(kernel) {
        let Arg::In(quants) = activations.remove(0) else { panic!("activations in a buffer") };
        // 16 rows lie side by side.
        let weights = Tiles {
            rows: rows.div_ceil(16),
            width: 16 * w.cols,
            tile: [group_rows as u32 / 16, 2048],
            swapped: false,
        };
        let tokens = Tiles { rows: n, width: w.cols, tile: [group_tokens as u32, 128], swapped: true };
        args.push(Arg::Tiles(&w.bytes[first * w.cols..], weights));
        args.push(Arg::Tiles(quants, tokens));
    }
    args.push(read(&w.bytes));
    args.extend(w.codebook());
    args.extend(activations);
    args.extend([maybe(scale.as_ref().map(|s| &s[..])), maybe(bias), write(&mut y)]);
    // Another product may go along, of no rows here.
    let pairs = takes_two(kernel);
    args.extend(pairs.then_some([Arg::Null, Arg::Null]).into_iter().flatten());
    args.extend(w.planes());
    args.push(Arg::U64(first as u64));
    let order = w.int8().map(|(rows, order)| {
        args.push(rows);
        order
    });
    args.extend([width, start].map(|v| Arg::U64(v as u64)));
    args.extend(pairs.then_some([0; 4].map(Arg::U64)).into_iter().flatten());
    args.extend([n, rows, w.cols].map(|v| Arg::U32(v as u32)));
    args.extend(order);
    args.extend(pairs.then_some(Arg::U32(0)));
    let mut grid = [groups(rows, group_rows), groups(n, group_tokens), 1];
    if is_resident(kernel) {
        // Fewer than there are tiles.
        grid = [(grid[0] * grid[1]).min(3), 1, 1];
    }
    launch_groups(kernel, (grid, threads), &mut args);
    drop(args);
    y
}

/// The product of rows from `first` on with n tokens, by each kernel of the layout.
fn check(w: &Stored, (first, rows): (usize, usize), x: &[f32], n: usize, with: bool) {
    let input = Input::new(w.view().activations(), x, w.cols);
    let bias: Vec<f32> = (0..rows).map(|i| i as f32 / 7.0 - 3.0).collect();
    let (scale, bias) = if with { (Some(0.37), Some(&bias[..])) } else { (None, None) };
    let wanted = |kernel: &str| {
        let mut want = truth(kernel, w, (first, rows), &input, n);
        for (i, y) in want.iter_mut().enumerate() {
            *y = scale.map_or(*y, |s| *y * s);
            *y = bias.map_or(*y, |b| *y + b[i % rows]);
        }
        want
    };
    let (width, start) = (rows + 5, 3);
    let untouched = poison(1)[0].to_bits();
    let ways = kernels(w.layout).into_iter().flat_map(|(name, own, tokens)| match takes_two(name) {
        true => shared(w.cols).into_iter().map(|(own, t)| ((name, own, tokens), Some(t))).collect(),
        false => vec![((name, own, tokens), None)],
    });
    let (mut want, mut of) = (Vec::new(), None);
    for (kernel, threads) in ways {
        if of != Some(few_e8(kernel.0)) {
            (want, of) = (wanted(kernel.0), Some(few_e8(kernel.0)));
        }
        let y = product((kernel, threads), w, (first, rows), (&input, n), (scale, bias), (width, start));
        let what = format!(
            "{} {} x {}, rows {first} and {rows} on, {n} tokens, {threads:?} threads",
            kernel.0, w.rows, w.cols
        );
        let mut found = Vec::new();
        for y in y.chunks(width) {
            let around = y[..start].iter().chain(&y[start + rows..]);
            assert!(around.map(|v| v.to_bits()).all(|v| v == untouched), "{what}: wrote beside its columns");
            found.extend_from_slice(&y[start..start + rows]);
        }
        assert_same(&found, &want, &what);
    }
}

#[test]
fn products_have_the_bits_of_their_order_for_any_number_of_tokens() {
    if !on_a_card() {
        return;
    }
    let mut rng = Rng(11);
    for (layout, unit) in instructed() {
        for (i, n) in [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 64, 100, 512].into_iter().enumerate() {
            let cols = unit * [1, 3, 5, 11][i % 4];
            let (first, rows) = (16 * (i % 3), 1 + rng.below(if n > 64 { 40 } else { 150 }));
            let w = Stored::random(&mut rng, layout, first + rows + 9, cols);
            let x = rng.units(n * cols, 3.0);
            check(&w, (first, rows), &x, n, i % 2 == 0);
        }
        // Several chunks of the columns.
        let w = Stored::random(&mut rng, layout, 33, 2560);
        let x = rng.units(9 * 2560, 1.0);
        check(&w, (0, 33), &x, 9, false);
    }
}

#[test]
fn the_order_of_sums_is_near_the_processors() {
    let mut rng = Rng(12);
    let layouts = [Layout::q8_0_split(), Layout::e8_planar(false)].into_iter();
    let blocks = layouts.chain(
        instructed()
            .into_iter()
            .map(|(l, _)| l)
            .filter(|l| matches!(l, Layout::I8 { scales: Scales::Block32, .. })),
    );
    for layout in blocks {
        let w = Stored::random(&mut rng, layout, 5, 2560);
        let x = rng.units(2560, 1.0);
        let input = Input::new(w.view().activations(), &x, 2560);
        let mut y = poison(5);
        gemm(Isa::PORTABLE, &Pool::new(1), &w.view(), input.cpu(), &mut y);
        for (row, y) in y.into_iter().enumerate() {
            let few = layout.is_e8().then(|| in_pairs(&w, row, &input, 0));
            for own in few.into_iter().chain([in_order(&w, row, &input, 0)]) {
                assert!(
                    (own - y).abs() <= 1e-6 * size(&w.view(), row, &x),
                    "{layout} [{row}]: {own:e} for {y:e}"
                );
            }
        }
    }
}

#[test]
fn extreme_weights_and_scales() {
    if !on_a_card() {
        return;
    }
    let mut rng = Rng(13);
    for (layout, _) in instructed() {
        let (rows, cols) = (45, 768);
        for case in 0..4 {
            let mut w = Stored::random(&mut rng, layout, rows, cols);
            let planes = layout.planes(rows as u64, cols as u64).expect("planes");
            let last = planes.last().expect("a plane");
            let quants = planes[0].bytes as usize;
            let scales = &mut w.bytes[last.offset as usize..];
            match case {
                // All of the smallest int8; E8 has none.
                0 if !layout.is_e8() => w.bytes[..quants].fill(0x80),
                1 => scales.fill(0),
                // Subnormal scales, as fp16 or, with the upper half zero, as f32.
                2 => scales.chunks_exact_mut(2).enumerate().for_each(|(i, b)| {
                    let wide = matches!(layout, Layout::I8 { scales: Scales::Channel, .. });
                    let bits = if wide && i % 2 == 1 { 0 } else { rng.below(0x400) as u16 };
                    b.copy_from_slice(&bits.to_le_bytes());
                }),
                _ => {}
            }
            for n in [3, 40, 130] {
                let mut x = rng.units(n * cols, 2.0);
                match case {
                    0 => x.fill(-1.5),
                    // One activation of each token, another for each.
                    3 => x.iter_mut().enumerate().for_each(|(i, x)| {
                        *x = if i % cols == i / cols * 7 % cols { 127.0 } else { 0.0 };
                    }),
                    _ => {}
                }
                check(&w, (0, rows), &x, n, false);
            }
        }
    }
}

#[test]
fn a_thousand_repetitions_have_the_same_bits() {
    if !on_a_card() {
        return;
    }
    let mut rng = Rng(14);
    for (layout, _) in instructed() {
        let (rows, cols, n) = (200, 2560, 33);
        let w = Stored::random(&mut rng, layout, rows, cols);
        let x = rng.units(n * cols, 1.0);
        let input = Input::new(w.view().activations(), &x, cols);
        for kernel in kernels(layout) {
            let run = || product((kernel, None), &w, (0, rows), (&input, n), (None, None), (rows, 0));
            let first = run();
            for _ in 0..1000 {
                assert_same(&run(), &first, kernel.0);
            }
        }
    }
}

/// Pairs by expert, and their tiles of up to `most`.
pub(crate) fn grouped(ids: &[u32], at: &[u64], used: usize, most: usize) -> (Vec<u32>, Vec<u32>) {
    let (all, experts) = (ids.len(), at.len());
    let bound = all.min(all / most + experts);
    let (mut pairs, mut tiles) = (vec![u32::MAX; all], vec![u32::MAX; 3 * bound]);
    let (mut ranks, positions) = (vec![0u32; all], vec![0u32; all / used]);
    let mut args = vec![read(ids), read(&positions), read(at), Arg::Null, write(&mut ranks)];
    args.extend([write(&mut pairs), write(&mut tiles)]);
    args.extend(u32s([all / used, used, experts, bound, most]));
    launch("gantry_experts_group_tiles", [1, 1, 1], &mut args);
    drop(args);
    (pairs, tiles)
}

#[test]
fn pairs_are_grouped_into_larger_tiles() {
    if !on_a_card() {
        return;
    }
    let mut rng = Rng(15);
    for (n, used, experts, most) in [(1, 1, 1, 64), (40, 4, 5, 32), (300, 8, 257, 64), (513, 10, 1024, 64)] {
        let ids: Vec<u32> = (0..n * used).map(|_| rng.below(experts) as u32).collect();
        let at: Vec<u64> = (0..experts).map(|_| if rng.below(4) == 0 { u64::MAX } else { 256 }).collect();
        let (pairs, tiles) = grouped(&ids, &at, used, most);
        let mut tile = tiles.chunks(3);
        let mut seen = 0;
        for expert in (0..experts).filter(|e| at[*e] != u64::MAX) {
            let own = (0..n * used).filter(|&p| ids[p] as usize == expert).map(|p| p as u32);
            let own: Vec<u32> = own.collect();
            assert_eq!(pairs[seen..seen + own.len()], own, "expert {expert}");
            for part in own.chunks(most) {
                assert_eq!(tile.next(), Some(&[expert as u32, seen as u32, part.len() as u32][..]));
                seen += part.len();
            }
        }
        assert!(tile.all(|t| t[2] == 0), "tiles after the last");
    }
}

#[test]
fn experts_have_the_bits_of_their_order() {
    if !on_a_card() {
        return;
    }
    let mut rng = Rng(16);
    for (layout, unit) in instructed() {
        for (n, used, x_per_pair) in [(3, 3, false), (150, 3, false), (60, 5, true)] {
            // The second has several chunks.
            let columns = if n == 150 { 2560 } else { 3 * unit };
            let (experts, rows, first, cols) = (4, 136, 16, columns);
            let stored: Vec<Stored> =
                (0..experts).map(|_| Stored::random(&mut rng, layout, first + rows + 8, cols)).collect();
            let (mut bytes, mut at) = (vec![0xee; 256], Vec::new());
            for w in &stored {
                at.push(bytes.len() as u64);
                bytes.extend_from_slice(&w.bytes);
                bytes.resize(bytes.len().next_multiple_of(256), 0xee);
            }
            at[2] = u64::MAX;
            let all = n * used;
            let ids: Vec<u32> = (0..all).map(|_| rng.below(experts) as u32).collect();
            let x_rows = if x_per_pair { all } else { n };
            let x = rng.units(x_rows * cols, 2.0);
            let input = Input::new(stored[0].view().activations(), &x, cols);
            let scale = rng.units(experts, 1.0);
            let (pairs, tiles) = grouped(&ids, &at, used, 64);
            let (width, start) = (2 * rows + 4, 2);
            let end = match layout {
                Layout::I8 { order: Order::NvA64, .. } => "_a64",
                Layout::I8 { scales: Scales::Channel, .. } => "_a32",
                _ => "",
            };
            // In tiles of many; of few tokens each pair alone, or tiles of 8 and another product of the same input, of rows 0 on.
            let few = grouped(&ids, &at, used, 8);
            let e8 = layout.is_e8();
            let mut runs = vec![("tiles", "", Some((&tiles, &pairs)), false)];
            if e8 {
                runs.extend([("decode", "_1", None, true), ("decode", "_4", None, false)]);
                runs.push(("decode", "_4", Some((&few.1, &few.0)), true));
            } else if stored[0].int8().is_some() {
                runs.extend([("decode", "", None, false), ("decode", "", Some((&few.1, &few.0)), true)]);
            }
            for (kind, of, lists, both) in runs {
                let kernel = format!("gantry_{kind}_experts_{}{end}{of}", stored[0].name());
                let [wants, others] = [first, 0].map(|first| {
                    let truth = |w| truth(&kernel, w, (first, rows), &input, x_rows);
                    stored.iter().map(truth).collect::<Vec<_>>()
                });
                let mut y = poison(all * width);
                let mut args = vec![read(&bytes), read(&at)];
                args.extend(stored[0].codebook());
                args.extend([read(&ids), maybe(lists.map(|l| &l.0[..])), maybe(lists.map(|l| &l.1[..]))]);
                args.extend(input.args());
                args.extend([read(&scale), write(&mut y)]);
                let decodes = kind == "decode";
                if decodes {
                    args.extend(if both { [read(&at), read(&scale)] } else { [Arg::Null, Arg::Null] });
                }
                args.extend(stored[0].planes());
                args.extend([first, 0].map(|v| Arg::U64(v as u64)));
                let order = stored[0].int8().map(|(rows, order)| {
                    args.push(rows);
                    order
                });
                if decodes {
                    args.extend([0, 0, start + rows].map(|v| Arg::U64(v as u64)));
                }
                args.extend([width, start].map(|v| Arg::U64(v as u64)));
                args.extend(u32s([all, used, experts, rows, cols, usize::from(x_per_pair)]));
                args.extend(order);
                let (products, count) = (1 + usize::from(both), lists.map_or(all, |l| l.0.len() / 3));
                if decodes && e8 {
                    args.extend(u32s([products]));
                    launch(&kernel, [5, 1, 1], &mut args);
                } else {
                    let (each, threads) = match decodes {
                        true => shared(cols).first().map(|(rows, threads)| (*rows, Some(*threads))),
                        false => Some((128, None)),
                    }
                    .expect("a way to share");
                    launch_groups(&kernel, ([groups(rows, each), count, products], threads), &mut args);
                }
                drop(args);
                for (pair, y) in y.chunks(width).enumerate() {
                    let e = ids[pair] as usize;
                    let row = if x_per_pair { pair } else { pair / used };
                    let mut want = poison(width);
                    if at[e] != u64::MAX {
                        let parts =
                            [(start, &wants)].into_iter().chain(both.then_some((start + rows, &others)));
                        for (start, wants) in parts {
                            let own = &wants[e][row * rows..][..rows];
                            want[start..start + rows]
                                .iter_mut()
                                .zip(own)
                                .for_each(|(w, y)| *w = y * scale[e]);
                        }
                    }
                    assert_same(y, &want, &format!("{kernel}, {n} tokens, pair {pair} of expert {e}"));
                }
            }
        }
    }
}
