//! Products for Intel's matrix instructions, which are done over local memory where there are none: the bits of the
//! generic kernels, for every number of tokens, and every weight found where it belongs.

use gantry_formats::layout::{Layout, Order, Scales};
use gantry_kernels::cpu::{Isa, Pool, gemm};

use crate::launch::{Arg, groups, launch, maybe, read, write};
use crate::matrices::{Input, Stored};
use crate::random::{Rng, assert_same, poison};

/// The orders, with rows of a tile.
const ORDERS: [(Order, usize); 2] = [(Order::Vnni16, 16), (Order::Vnni8, 8)];

/// Groups and name of a product.
enum By {
    Generic,
    /// Groups for so many tokens.
    Tiles(usize),
}

/// y by one kernel, rows of `width` with the outputs from `start` on; `None` where there is no device.
fn product(
    by: &By,
    w: &Stored,
    (first, rows): (usize, usize),
    x: &Input,
    n: usize,
    (scale, bias): (Option<f32>, Option<&[f32]>),
) -> Option<Vec<f32>> {
    let Layout::I8 { order, .. } = w.layout else { panic!("{} is no int8", w.layout) };
    let lanes = ORDERS.iter().find(|(o, _)| *o == order).expect("an order of these").1;
    let (name, grid) = match by {
        By::Generic => (format!("gantry_gemm_{}", w.name()), [groups(rows, 16), groups(n, 8), 1]),
        By::Tiles(tokens) => (
            format!("gantry_vnni{lanes}_{}_by{tokens}", w.name()),
            [groups(rows, lanes), groups(n, *tokens), 1],
        ),
    };
    let (width, start) = (rows + 5, 3);
    let mut y = poison(n * width);
    let scale = scale.map(|s| [s]);
    let mut args = vec![read(&w.bytes)];
    args.extend(x.args());
    args.extend([maybe(scale.as_ref().map(|s| &s[..])), maybe(bias), write(&mut y)]);
    args.extend(w.planes());
    args.push(Arg::U64(first as u64));
    let (stored, order) = w.int8()?;
    args.push(stored);
    args.extend([width, start].map(|v| Arg::U64(v as u64)));
    args.extend([n, rows, w.cols].map(|v| Arg::U32(v as u32)));
    args.push(order);
    launch(&name, grid, &mut args).then_some(y)
}

/// Whether these kernels are on the device at all: CUDA's has none.
fn has_them() -> bool {
    std::env::var_os("GANTRY_DEVICE").is_none_or(|v| v != "cuda")
}

fn layouts() -> impl Iterator<Item = Layout> {
    let of = |(order, _)| {
        [Scales::Block32, Scales::Channel].map(|scales| Layout::i8(order, scales).expect("both"))
    };
    ORDERS.into_iter().flat_map(of)
}

#[test]
fn products_have_the_bits_of_the_generic_kernels() {
    if !has_them() {
        return;
    }
    let mut rng = Rng(51);
    for layout in layouts() {
        for (rows, cols) in [(16, 32), (48, 1024), (33, 2080), (9, 1056), (200, 96), (17, 5120)] {
            let w = Stored::random(&mut rng, layout, rows, cols);
            let kind = w.view().activations();
            for n in [1, 2, 7, 8, 9, 16, 25, 32] {
                let x = Input::new(kind, &rng.units(n * cols, 2.0), cols);
                let bias = rng.units(rows, 0.5);
                let with = if n % 2 == 0 { (None, None) } else { (Some(0.37), Some(&bias[..])) };
                let Some(truth) = product(&By::Generic, &w, (0, rows), &x, n, with) else { return };
                for by in [By::Tiles(8), By::Tiles(32)] {
                    let y = product(&by, &w, (0, rows), &x, n, with).expect("the same device");
                    assert_same(&y, &truth, &format!("{layout} {rows} x {cols} by {n}"));
                }
                let first = rows / 2 / 16 * 16;
                let part =
                    product(&By::Tiles(8), &w, (first, rows - first), &x, n, (None, None)).expect("the same");
                let truth =
                    product(&By::Generic, &w, (first, rows - first), &x, n, (None, None)).expect("the same");
                assert_same(&part, &truth, &format!("{layout} rows {first} .. {rows} by {n}"));
            }
        }
    }
}

/// All values as far from zero as they can be, whose sums have the most bits.
#[test]
fn extreme_values_do_not_overflow() {
    if !has_them() {
        return;
    }
    let mut rng = Rng(52);
    for layout in layouts() {
        let (rows, cols) = (32, 8192);
        let mut w = Stored::random(&mut rng, layout, rows, cols);
        w.bytes[..rows * cols].fill(0x80);
        let x = Input::new(w.view().activations(), &vec![-1.0; 3 * cols], cols);
        let mut truth = vec![0.0; 3 * rows];
        gemm(Isa::PORTABLE, &Pool::new(1), &w.view(), x.cpu(), &mut truth);
        let Some(y) = product(&By::Tiles(8), &w, (0, rows), &x, 3, (None, None)) else { return };
        for (y, truth) in y.chunks(rows + 5).flat_map(|y| &y[3..3 + rows]).zip(&truth) {
            assert!((y - truth).abs() <= 1e-6 * truth.abs(), "{layout}: {y:e} for {truth:e}");
        }
    }
}

/// One weight and one activation are not zero: exactly one output is not, in its place, for every place in a tile.
#[test]
fn one_hot_weights_are_found_where_they_belong() {
    if !has_them() {
        return;
    }
    let mut rng = Rng(53);
    for layout in layouts() {
        let Layout::I8 { order, .. } = layout else { continue };
        let (rows, cols, n) = (16, 64, 64);
        let mut w = Stored::random(&mut rng, layout, rows, cols);
        let values: Vec<f32> =
            (0..n * cols).map(|i| if i / cols == i % cols { 127.0 } else { 0.0 }).collect();
        let x = Input::new(w.view().activations(), &values, cols);
        for row in 0..rows {
            for k in (0..cols).filter(|k| (k * 7 + row) % 5 == 0) {
                w.bytes[..rows * cols].fill(0);
                w.bytes[order.offset(row as u64, k as u64, rows as u64, cols as u64) as usize] = 3;
                let Some(y) = product(&By::Tiles(32), &w, (0, rows), &x, n, (None, None)) else { return };
                for (token, y) in y.chunks(rows + 5).enumerate() {
                    for (at, y) in y[3..3 + rows].iter().enumerate() {
                        assert_eq!(
                            *y != 0.0,
                            (token, at) == (k, row),
                            "{layout} [{row}][{k}]: output [{token}][{at}]"
                        );
                    }
                }
            }
        }
    }
}
