//! The kernels for AMD's and Hygon's matrix instructions, with the instructions emulated by the lane maps of `kernels/hip/mma.h`:
//! the bits of the kernels that multiply without them. What is run is the source that is compiled for the cards.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use gantry_formats::layout::{Layout, Order, Scales};

use crate::launch::{Arg, groups, launch, maybe, read, run, source_files, sources, u32s, write};
use crate::matrices::{Input, Stored};
use crate::opencl::{OpenCl, alone};
use crate::random::{Rng, assert_same, poison};

/// Instructions as `mma.h` names them, and the orders whose kernels use them.
const INSTRUCTIONS: [(&str, &[Order]); 5] = [
    ("MMA_CDNA2", &[Order::Slot8]),
    ("MMA_CDNA3", &[Order::Slot8, Order::Slot16, Order::Ck16]),
    ("MMA_GFX928", &[Order::Slot8, Order::NMajor]),
    ("MMA_RDNA3", &[Order::Rdna3]),
    ("MMA_RDNA4", &[Order::Rdna4]),
];

/// Runs a kernel with an instruction emulated; `false` where there is no OpenCL device.
#[track_caller]
fn emulated(instruction: &'static str, kernel: &str, grid: [usize; 3], args: &mut [Arg<'_>]) -> bool {
    static DEVICES: OnceLock<Mutex<BTreeMap<&'static str, OpenCl>>> = OnceLock::new();
    let _alone = alone();
    let mut devices = DEVICES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if !devices.contains_key(instruction) {
        let folder = sources().with_file_name("hip");
        let mut files = source_files(&folder);
        // Kernels for waves of 64 alone; a program without any is an error to OpenCL.
        files.retain(|file| !instruction.starts_with("MMA_RDNA") || !file.ends_with("kmajor.c"));
        match OpenCl::of(&files, &format!("-D{instruction} -I {}", folder.display())) {
            Ok(device) => drop(devices.insert(instruction, device)),
            Err(why) => {
                let required = std::env::var_os("GANTRY_REQUIRE_OPENCL").is_some_and(|v| v == "1");
                assert!(!required, "no OpenCL device: {why}");
                eprintln!("{kernel} was not run, there is no OpenCL device: {why}");
                return false;
            }
        }
    }
    run(&devices[instruction], kernel, (grid, None), args);
    true
}

/// A kernel for few tokens: its name, and the tokens of a group.
fn decoders(layout: Layout) -> [(String, usize); 2] {
    let Layout::I8 { order, scales, .. } = layout else { panic!("{layout}") };
    let order = order.name().rsplit('.').next().expect("a name");
    [16, 32].map(|tokens| (format!("gantry_decode_{order}_{scales}_{tokens}"), tokens))
}

/// Every instruction with the layouts that its kernels take.
fn layouts() -> Vec<(&'static str, Layout)> {
    let all = INSTRUCTIONS.iter().flat_map(|(instruction, orders)| {
        let scaled =
            |order: &Order| [Scales::Channel, Scales::Block32].map(|scales| Layout::i8(*order, scales));
        orders.iter().flat_map(scaled).flatten().map(|layout| (*instruction, layout))
    });
    let all: Vec<_> = all.collect();
    assert_eq!(all.len(), 15);
    all
}

/// A product's rows, what it is scaled by and what is added.
struct Case<'a> {
    first: usize,
    rows: usize,
    n: usize,
    scale: Option<f32>,
    bias: Option<&'a [f32]>,
}

/// y of the kernel that takes these, rows of `rows + 5` with the outputs from 3 on.
fn product(
    w: &Stored,
    x: &Input,
    case: &Case<'_>,
    run: impl FnOnce(&mut [Arg<'_>]) -> bool,
) -> Option<Vec<f32>> {
    let width = case.rows + 5;
    let mut y = poison(case.n * width);
    let scale = case.scale.map(|s| [s]);
    let mut args = vec![read(&w.bytes)];
    args.extend(x.args());
    args.extend([maybe(scale.as_ref().map(|s| &s[..])), maybe(case.bias), write(&mut y)]);
    args.extend(w.planes());
    args.push(Arg::U64(case.first as u64));
    let (stored_rows, order) = w.int8().expect("an int8 layout");
    args.extend([stored_rows, Arg::U64(width as u64), Arg::U64(3)]);
    args.extend(u32s([case.n, case.rows, w.cols]));
    args.push(order);
    let ran = run(&mut args);
    drop(args);
    ran.then_some(y)
}

/// Holds both kernels for few tokens against the plain one.
fn check(instruction: &'static str, w: &Stored, x: &Input, case: &Case<'_>) {
    let Layout::I8 { scales, .. } = w.layout else { panic!("{}", w.layout) };
    let plain = format!("gantry_gemm_i8_{scales}");
    let grid = [groups(case.rows, 16), groups(case.n, 8), 1];
    let Some(truth) = product(w, x, case, |args| launch(&plain, grid, args)) else { return };
    for (kernel, tokens) in decoders(w.layout) {
        let grid = [groups(case.rows, 16), groups(case.n, tokens), 1];
        let Some(y) = product(w, x, case, |args| emulated(instruction, &kernel, grid, args)) else { return };
        let what =
            format!("{kernel} by {instruction}, {} rows of {} columns, {} tokens", case.rows, w.cols, case.n);
        assert_same(&y, &truth, &what);
    }
}

#[test]
fn few_tokens_by_instructions_have_the_bits_of_plain_products() {
    let mut rng = Rng(31);
    for (instruction, layout) in layouts() {
        for (rows, cols, n) in [(16, 128, 16), (33, 1152, 5), (40, 2176, 1), (17, 1024, 31), (64, 384, 40)] {
            let w = Stored::random(&mut rng, layout, rows, cols);
            let x = rng.units(n * cols, 3.0);
            let x = Input::new(w.view().activations(), &x, cols);
            let bias = rng.units(rows, 0.5);
            let with = rng.below(2) == 0;
            let case =
                Case { first: 0, rows, n, scale: with.then_some(0.37), bias: (!with).then_some(&bias[..]) };
            check(instruction, &w, &x, &case);
            if rows > 32 {
                check(instruction, &w, &x, &Case { first: 16, rows: rows - 16, n, scale: None, bias: None });
            }
        }
    }
}

/// One activation of each token is one: each weight is found where it belongs, and nothing else.
#[test]
fn one_hot_tokens_find_each_weight_by_instructions() {
    let mut rng = Rng(32);
    for (instruction, layout) in layouts() {
        let cols = 128;
        let w = Stored::random(&mut rng, layout, 16, cols);
        let mut x = vec![0f32; cols * cols];
        (0..cols).for_each(|k| x[k * cols + k] = 127.0);
        let input = Input::new(w.view().activations(), &x, cols);
        let case = Case { first: 0, rows: 16, n: cols, scale: None, bias: None };
        let mut weights = vec![0f32; cols];
        for (kernel, tokens) in decoders(layout) {
            let grid = [1, groups(cols, tokens), 1];
            let y = product(&w, &input, &case, |args| emulated(instruction, &kernel, grid, args));
            let Some(y) = y else { return };
            for row in 0..16 {
                w.view().dequantize_row(row, &mut weights);
                for k in 0..cols {
                    let (y, truth) = (y[k * 21 + 3 + row], 127.0 * weights[k]);
                    assert!(
                        (y - truth).abs() <= 1e-6 * truth.abs(),
                        "{kernel} [{row}][{k}]: {y:e} for {truth:e}"
                    );
                }
            }
        }
    }
}

/// The largest sums that there are.
#[test]
fn the_lowest_weights_by_instructions() {
    let mut rng = Rng(33);
    for (instruction, layout) in layouts() {
        let (rows, cols, n) = (16, 4224, 2);
        let mut w = Stored::random(&mut rng, layout, rows, cols);
        w.bytes[..rows * cols].fill(0x80);
        let x: Vec<f32> = (0..n * cols).map(|i| if i < cols { -1.0 } else { 1.0 }).collect();
        let x = Input::new(w.view().activations(), &x, cols);
        check(instruction, &w, &x, &Case { first: 0, rows, n, scale: None, bias: None });
    }
}

/// Columns split over groups, whose last one adds them up, whatever counters held before.
#[test]
fn split_columns_have_the_bits_of_plain_products() {
    let mut rng = Rng(35);
    let layout = Layout::i8(Order::KMajor, Scales::Channel).expect("a layout");
    for instruction in ["MMA_CDNA2", "MMA_CDNA3", "MMA_GFX928"] {
        for (rows, cols, n, splits) in [(40, 192, 3, 2), (130, 1024, 16, 6), (16, 64, 17, 1), (64, 448, 1, 7)]
        {
            let w = Stored::random(&mut rng, layout, 16 + rows, cols);
            let x = rng.units(n * cols, 3.0);
            let x = Input::new(w.view().activations(), &x, cols);
            let bias = rng.units(rows, 0.5);
            let case = Case { first: 16, rows, n, scale: Some(0.37), bias: Some(&bias[..]) };
            let grid = [groups(rows, 16), groups(n, 8), 1];
            let plain = |args: &mut [Arg<'_>]| launch("gantry_gemm_i8_channel", grid, args);
            let Some(truth) = product(&w, &x, &case, plain) else { return };
            let grid = [groups(rows, 64), groups(n, 16), splits];
            let mut counters: Vec<u32> = (0..grid[0] * grid[1]).map(|_| rng.next() as u32).collect();
            let mut planes = vec![0u32; splits * grid[1] * 16 * grid[0] * 64];
            for tag in [7u32, 8, 8] {
                planes.iter_mut().for_each(|word| *word = rng.next() as u32);
                let width = rows + 5;
                let mut y = poison(n * width);
                let tag = [tag];
                let mut args = vec![read(&w.bytes)];
                args.extend(x.args());
                args.extend([read(&[0.37f32]), read(&bias), write(&mut y), write(&mut planes)]);
                args.extend([write(&mut counters), read(&tag)]);
                args.extend(w.planes());
                let (stored_rows, _) = w.int8().expect("an int8 layout");
                args.extend([Arg::U64(16), stored_rows, Arg::U64(width as u64), Arg::U64(3)]);
                args.extend(u32s([n, rows, cols, splits]));
                if !emulated(instruction, "gantry_split_kmajor_channel_16", grid, &mut args) {
                    return;
                }
                drop(args);
                assert_same(
                    &y,
                    &truth,
                    &format!("{rows} rows of {cols} columns in {splits}, by {instruction}"),
                );
                assert!(counters.iter().all(|counter| *counter == 0), "{counters:x?}");
            }
        }
    }
}
