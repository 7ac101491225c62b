//! Products. Bound: 1e-6 of Σ|w·x| from the CPU's; int8 with a scale per row: its bits.

use gantry_formats::layout::{Layout, Scales};
use gantry_kernels::cpu::{ActivationKind, Isa, Pool, gemm};

use crate::launch::{Arg, groups, launch, maybe, read, write};
use crate::matrices::{Input, Stored, layouts, size};
use crate::random::{Rng, assert_same, poison};

const BOUND: f32 = 1e-6;

/// y of the device, rows of `width` with the outputs from `start` on, and whether it ran.
fn product(
    w: &Stored,
    (first, rows): (usize, usize),
    x: &Input,
    n: usize,
    (scale, bias): (Option<f32>, Option<&[f32]>),
    y: &mut [f32],
    (width, start): (usize, usize),
) -> bool {
    let scale = scale.map(|s| [s]);
    let mut args = vec![read(&w.bytes)];
    args.extend(w.codebook());
    args.extend(x.args());
    args.extend([maybe(scale.as_ref().map(|s| &s[..])), maybe(bias), write(y)]);
    args.extend(w.planes());
    args.push(Arg::U64(first as u64));
    let int8 = w.int8();
    let order = int8.map(|(rows, order)| {
        args.push(rows);
        order
    });
    args.extend([width, start].map(|v| Arg::U64(v as u64)));
    args.extend([n, rows, w.cols].map(|v| Arg::U32(v as u32)));
    args.extend(order);
    launch(&format!("gantry_gemm_{}", w.name()), [groups(rows, 16), groups(n, 8), 1], &mut args)
}

/// The product of some rows with n tokens, compared with the CPU's.
fn check(rng: &mut Rng, w: &Stored, rows: std::ops::Range<usize>, n: usize, with: (bool, bool)) {
    let view = w.view().row_range(rows.clone());
    let x = rng.units(n * w.cols, 3.0);
    let input = Input::new(view.activations(), &x, w.cols);
    let count = rows.len();
    let mut truth = poison(n * count);
    gemm(Isa::PORTABLE, &Pool::new(1), &view, input.cpu(), &mut truth);
    let scale = with.0.then_some(0.37f32);
    let bias = rng.units(count, 0.5);
    let bias = with.1.then_some(&bias[..]);
    for (i, y) in truth.iter_mut().enumerate() {
        *y = scale.map_or(*y, |s| *y * s) + bias.map_or(0.0, |b| b[i % count]);
    }
    let (width, start) = (count + 5, 3);
    let mut y = poison(n * width);
    if !product(w, (rows.start, count), &input, n, (scale, bias), &mut y, (width, start)) {
        return;
    }
    let what = format!("{} {} x {} rows {rows:?} by {n}", w.layout, w.rows, w.cols);
    let untouched = poison(1)[0].to_bits();
    let mut found = Vec::new();
    for y in y.chunks(width) {
        let around = y[..start].iter().chain(&y[start + count..]);
        assert!(around.map(|v| v.to_bits()).all(|v| v == untouched), "{what}: wrote beside its columns");
        found.extend_from_slice(&y[start..start + count]);
    }
    if matches!(w.layout, Layout::I8 { scales: Scales::Channel, .. }) {
        return assert_same(&found, &truth, &what);
    }
    for (i, (y, truth)) in found.iter().zip(&truth).enumerate() {
        let size = size(&view, i % count, &x[i / count * w.cols..][..w.cols]) + truth.abs();
        assert!((y - truth).abs() <= BOUND * size, "{what}: [{i}] {y:e} for {truth:e}, of {size:e}");
    }
}

#[test]
fn products_of_every_layout() {
    let mut rng = Rng(1);
    for layout in layouts() {
        let unit = layout.block_len() as usize;
        for (rows, cols) in [(1, 1), (33, 9), (50, 3)] {
            let w = Stored::random(&mut rng, layout, rows, cols * unit);
            let n = [1, 3, 8, 9, 17][rng.below(5)];
            check(&mut rng, &w, 0..rows, n, (rows == 33, rows != 1));
            let first = rows / 2 / 16 * 16;
            check(&mut rng, &w, first..rows, 1, (false, false));
        }
    }
}

#[test]
fn wide_products() {
    let mut rng = Rng(2);
    for layout in layouts() {
        let cols = if layout.block_len() == 1 { 2051 } else { 2560 };
        for cols in [cols, 2560] {
            let w = Stored::random(&mut rng, layout, 20, cols);
            check(&mut rng, &w, 0..20, 5, (false, true));
        }
    }
}

#[test]
fn a_token_alone_has_the_bits_that_it_has_in_a_batch() {
    let mut rng = Rng(3);
    for layout in layouts() {
        let cols = 768;
        let w = Stored::random(&mut rng, layout, 19, cols);
        let kind = w.view().activations();
        let x = rng.units(11 * cols, 1.0);
        let mut all = poison(11 * 19);
        let input = Input::new(kind, &x, cols);
        if !product(&w, (0, 19), &input, 11, (None, None), &mut all, (19, 0)) {
            return;
        }
        for (x, all) in x.chunks(cols).zip(all.chunks(19)) {
            let mut y = poison(19);
            product(&w, (0, 19), &Input::new(kind, x, cols), 1, (None, None), &mut y, (19, 0));
            assert_same(&y, all, &layout.to_string());
        }
    }
}

/// One activation is one, the others zero: every weight is found where it belongs.
#[test]
fn one_hot_activations_find_each_weight() {
    let mut rng = Rng(4);
    for layout in layouts() {
        let cols = if layout.block_len() == 256 { 256 } else { 128 };
        let w = Stored::random(&mut rng, layout, 17, cols);
        let view = w.view();
        let kind = view.activations();
        let mut x = vec![0f32; cols * cols];
        (0..cols).for_each(|k| x[k * cols + k] = 127.0);
        let mut y = poison(cols * 17);
        if !product(&w, (0, 17), &Input::new(kind, &x, cols), cols, (None, None), &mut y, (17, 0)) {
            return;
        }
        let mut weights = vec![0f32; cols];
        for row in 0..17 {
            view.dequantize_row(row, &mut weights);
            for k in 0..cols {
                let (y, truth) = (y[k * 17 + row], 127.0 * weights[k]);
                let rounded = kind == ActivationKind::I8 && (y - truth).abs() <= 1e-6 * truth.abs();
                assert!(y == truth || rounded, "{layout} [{row}][{k}]: {y:e} for {truth:e}");
            }
        }
    }
}
