//! Matrix instructions on BF16 weights with f32 activations, on a CUDA device only: within 5e-7 of Σ|w·x| of the exact sums, and the
//! same bits alone and in company.

use gantry_formats::block::GgmlType;
use gantry_formats::layout::Layout;
use half::bf16;

use crate::launch::{Arg, groups, launch, maybe, on_a_card, read, u32s, write};
use crate::matrices::Stored;
use crate::mma::grouped;
use crate::random::{Rng, assert_same, poison};

const LAYOUT: Layout = Layout::Raw(GgmlType::BF16);

/// Kernels whose groups share all rows, and the tokens of a group: a token has the same bits with each of them.
const DECODE: [(&str, usize); 3] =
    [("gantry_decode_bf16_4", 8), ("gantry_decode_bf16_8", 8), ("gantry_decode_bf16_16", 16)];
const TILES: &str = "gantry_tiles_bf16";

/// Of an error, what of Σ|w·x| it is at most.
const BOUND: f64 = 5e-7;
/// What is lost of an activation at most, where it is very small.
const LOST: f64 = 9.2e-41;

fn weight(w: &Stored, row: usize, column: usize) -> f64 {
    let at = 2 * (row * w.cols + column);
    bf16::from_le_bytes([w.bytes[at], w.bytes[at + 1]]).to_f64()
}

/// The exact sum of an output, how far from it an output may be, and whether all its terms are finite.
fn exact(w: &Stored, row: usize, x: &[f32]) -> (f64, f64, bool) {
    let (mut sum, mut near, mut finite) = (0.0, 0.0, true);
    for (k, x) in x.iter().enumerate() {
        let (w, x) = (weight(w, row, k), f64::from(*x));
        sum += w * x;
        near += BOUND * (w * x).abs() + LOST * w.abs();
        finite &= w.is_finite() && x.is_finite();
    }
    (sum, near, finite)
}

struct Case<'a> {
    w: &'a Stored,
    first: usize,
    rows: usize,
    x: &'a [f32],
    scale: Option<f32>,
    bias: Option<&'a [f32]>,
}

impl Case<'_> {
    fn tokens(&self) -> usize {
        self.x.len() / self.w.cols
    }

    /// y of a kernel, in a grid of `grid` by whatever the tokens need; nothing beside its columns was written.
    fn run(&self, kernel: &str, grid: usize, tokens: usize) -> Vec<f32> {
        let (n, width, start) = (self.tokens(), self.rows + 5, 3);
        let scale = self.scale.map(|s| [s]);
        let mut y = poison(n * width);
        let mut args = vec![read(&self.w.bytes), read(self.x), maybe(scale.as_ref().map(|s| &s[..]))];
        args.extend([maybe(self.bias), write(&mut y)]);
        args.extend([self.first, width, start].map(|v| Arg::U64(v as u64)));
        args.extend([n, self.rows, self.w.cols].map(|v| Arg::U32(v as u32)));
        launch(kernel, [grid, groups(n, tokens), 1], &mut args);
        drop(args);
        let untouched = poison(1)[0].to_bits();
        let mut found = Vec::new();
        for y in y.chunks(width) {
            let mut around = y[..start].iter().chain(&y[start + self.rows..]);
            assert!(around.all(|v| v.to_bits() == untouched), "{kernel} wrote beside its columns");
            found.extend_from_slice(&y[start..start + self.rows]);
        }
        found
    }

    fn tiles(&self) -> Vec<f32> {
        self.run(TILES, groups(self.rows, 128), 64)
    }

    fn check(&self, y: &[f32], what: &str) {
        let (rows, cols) = (self.rows, self.w.cols);
        for (i, y) in y.iter().enumerate() {
            let (row, token) = (i % rows, i / rows);
            let (sum, near, finite) = exact(self.w, self.first + row, &self.x[token * cols..][..cols]);
            let (scale, bias) = (self.scale.unwrap_or(1.0), self.bias.map_or(0.0, |b| b[row]));
            let (scale, bias) = (f64::from(scale), f64::from(bias));
            let truth = sum * scale + bias;
            let near = near * scale.abs() + BOUND * (truth.abs() + bias.abs());
            let right = if finite { (f64::from(*y) - truth).abs() <= near } else { !y.is_finite() };
            assert!(right, "{what}, {} x {cols}: row {row}, token {token}: {y:e} for {truth:e}", self.w.rows);
        }
    }

    /// All kernels, the first three with the same bits.
    fn all(&self, what: &str) {
        let first = self.run(DECODE[0].0, 1, DECODE[0].1);
        self.check(&first, what);
        for (kernel, tokens) in DECODE {
            for grid in [1, 3, 132] {
                assert_same(
                    &self.run(kernel, grid, tokens),
                    &first,
                    &format!("{what}: {kernel}, {grid} groups"),
                );
            }
        }
        self.check(&self.tiles(), &format!("{what}: tiles"));
    }
}

#[test]
fn products_are_near_the_exact_sums() {
    if !on_a_card() {
        return;
    }
    let mut rng = Rng(21);
    let cols = [8, 64, 72, 248, 264, 640, 1032, 2568, 5000];
    for (i, n) in [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 65, 130].into_iter().enumerate() {
        let cols = cols[i % cols.len()];
        let (first, rows) = (3 * (i % 3), 1 + rng.below(if cols > 1000 { 40 } else { 150 }));
        let w = Stored::random(&mut rng, LAYOUT, first + rows + 9, cols);
        let x = rng.units(n * cols, 3.0);
        let bias: Vec<f32> = (0..rows).map(|i| i as f32 / 7.0 - 3.0).collect();
        let (scale, bias) = if i % 2 == 0 { (Some(0.37), Some(&bias[..])) } else { (None, None) };
        Case { w: &w, first, rows, x: &x, scale, bias }.all(&format!("{n} tokens"));
    }
}

#[test]
fn a_token_has_the_same_bits_alone_and_in_company() {
    if !on_a_card() {
        return;
    }
    let mut rng = Rng(22);
    for (rows, cols, n) in [(77, 1600, 40), (300, 4104, 17)] {
        let w = Stored::random(&mut rng, LAYOUT, rows, cols);
        let x = rng.units(n * cols, 1.0);
        let case = |x| Case { w: &w, first: 0, rows, x, scale: None, bias: None };
        let together = case(&x).run(DECODE[2].0, 7, DECODE[2].1);
        let tiles = case(&x).tiles();
        for (t, x) in x.chunks(cols).enumerate() {
            let own = t * rows..(t + 1) * rows;
            let what = format!("token {t} of {n}");
            assert_same(&case(x).run(DECODE[0].0, 5, DECODE[0].1), &together[own.clone()], &what);
            assert_same(&case(x).tiles(), &tiles[own], &what);
        }
    }
}

#[test]
fn extreme_activations_and_weights() {
    if !on_a_card() {
        return;
    }
    let mut rng = Rng(23);
    let (rows, cols) = (45, 328);
    let specials =
        [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-42, -0.0];
    for kind in 0..4 {
        let mut w = Stored::random(&mut rng, LAYOUT, rows, cols);
        let n = specials.len();
        let mut x = rng.units(n * cols, 1.0);
        match kind {
            // One of each token is special.
            0 => specials.iter().enumerate().for_each(|(t, s)| x[t * cols + rng.below(cols)] = *s),
            // Small ones, down to subnormal, and large ones.
            1 => x
                .iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x *= [1e-38, 1e-41, 1e-44, 1e-30, 1e30, 1e35, 0.0, 1e-36][i / cols]),
            // Rows that are infinite or not a number, zero, subnormal.
            2 => {
                let mut set = |row: usize, column: usize, bits: u16| {
                    w.bytes[2 * (row * cols + column)..][..2].copy_from_slice(&bits.to_le_bytes());
                };
                set(3, 77, 0x7f80);
                set(20, 300, 0x7fc0);
                (0..cols).for_each(|k| set(7, k, 0));
                (0..cols).for_each(|k| set(8, k, (k % 128) as u16));
            }
            // One activation of each token.
            _ => x.iter_mut().enumerate().for_each(|(i, x)| {
                *x = if i % cols == i / cols * 41 % cols { 1.234_567_9 } else { 0.0 };
            }),
        }
        Case { w: &w, first: 0, rows, x: &x, scale: None, bias: None }.all(&format!("extremes {kind}"));
    }
}

#[test]
fn a_thousand_repetitions_have_the_same_bits() {
    if !on_a_card() {
        return;
    }
    let mut rng = Rng(24);
    let (rows, cols, n) = (600, 2560, 33);
    let w = Stored::random(&mut rng, LAYOUT, rows, cols);
    let x = rng.units(n * cols, 1.0);
    let case = Case { w: &w, first: 0, rows, x: &x, scale: None, bias: None };
    for (kernel, tokens, grid) in DECODE.into_iter().map(|(k, t)| (k, t, 13)).chain([(TILES, 64, 5)]) {
        let first = case.run(kernel, grid, tokens);
        for _ in 0..1000 {
            assert_same(&case.run(kernel, grid, tokens), &first, kernel);
        }
    }
}

#[test]
fn experts_are_near_the_exact_sums() {
    if !on_a_card() {
        return;
    }
    let mut rng = Rng(25);
    for (n, used, cols, x_per_pair) in [(3, 3, 72, false), (70, 3, 200, false), (12, 5, 1096, true)] {
        let (experts, rows, first) = (4, 137, 5);
        let stored: Vec<Stored> =
            (0..experts).map(|_| Stored::random(&mut rng, LAYOUT, first + rows + 8, cols)).collect();
        let (mut bytes, mut at) = (vec![0xee; 256], Vec::new());
        for w in &stored {
            at.push(bytes.len() as u64);
            bytes.extend_from_slice(&w.bytes);
            bytes.resize(bytes.len().next_multiple_of(256), 0xee);
        }
        at[2] = u64::MAX;
        let all = n * used;
        let ids: Vec<u32> = (0..all).map(|_| rng.below(experts) as u32).collect();
        let x = rng.units(if x_per_pair { all } else { n } * cols, 2.0);
        let scale = rng.units(experts, 1.0);
        let (width, start) = (2 * rows + 4, 2);
        let [many, few] = [64, 8].map(|most| grouped(&ids, &at, used, most));
        // The last: each pair alone, and another product of the same input, of rows 0 on.
        let runs = [
            ("gantry_tiles_experts_bf16", Some(&many), false),
            ("gantry_decode_experts_bf16", Some(&few), true),
            ("gantry_decode_experts_bf16", None, true),
        ];
        let mut alone = Vec::new();
        for (kernel, lists, both) in runs {
            let mut y = poison(all * width);
            let mut args = vec![read(&bytes), read(&at), read(&ids)];
            args.extend([maybe(lists.map(|l| &l.1[..])), maybe(lists.map(|l| &l.0[..]))]);
            args.extend([read(&x), read(&scale), write(&mut y)]);
            let longs = if both {
                args.extend([read(&at), read(&scale)]);
                vec![first, 0, 0, 0, start + rows, width, start]
            } else {
                vec![first, 0, width, start]
            };
            args.extend(longs.into_iter().map(|v| Arg::U64(v as u64)));
            args.extend(u32s([all, used, experts, rows, cols, usize::from(x_per_pair)]));
            let grid = [groups(rows, if both { 16 } else { 128 }), lists.map_or(all, |l| l.1.len() / 3)];
            launch(kernel, [grid[0], grid[1], 1 + usize::from(both)], &mut args);
            drop(args);
            let untouched = poison(1)[0].to_bits();
            for (pair, y) in y.chunks(width).enumerate() {
                let e = ids[pair] as usize;
                let token = if x_per_pair { pair } else { pair / used };
                for (i, y) in y.iter().enumerate() {
                    let what = format!("{kernel}, {n} tokens, pair {pair} of expert {e}: [{i}]");
                    let row = match i {
                        _ if at[e] == u64::MAX => None,
                        _ if (start..start + rows).contains(&i) => Some(first + i - start),
                        _ if both && (start + rows..start + 2 * rows).contains(&i) => Some(i - start - rows),
                        _ => None,
                    };
                    let Some(row) = row else {
                        assert_eq!(y.to_bits(), untouched, "{what} was written");
                        continue;
                    };
                    let (sum, near, _) = exact(&stored[e], row, &x[token * cols..][..cols]);
                    let (truth, near) = (sum * f64::from(scale[e]), 1.01 * near * f64::from(scale[e].abs()));
                    assert!(
                        (f64::from(*y) - truth).abs() <= near + 1e-7 * truth.abs(),
                        "{what}: {y:e} for {truth:e}"
                    );
                }
            }
            alone.push(y);
        }
        assert_same(&alone[1], &alone[2], "pairs alone and in company");
    }
}
