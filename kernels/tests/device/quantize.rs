//! Int8 activations and the rotation: the CPU's bytes and bits.

use gantry_formats::rotation;
use gantry_kernels::cpu::{I8Rows, Isa, Pool, Q8Rows, rotate};

use crate::launch::{Arg, groups, launch, read, write};
use crate::mixed;
use crate::random::{Rng, assert_same, poison};

/// What a kernel writes that quantizes its result per 32 as well.
pub(crate) struct Quants {
    q: Vec<i8>,
    scales: Vec<f32>,
}

impl Quants {
    /// Of `values` values, poisoned.
    pub(crate) fn new(values: usize) -> Self {
        Quants { q: vec![-128; values], scales: poison(values / 32) }
    }

    pub(crate) fn args(&mut self) -> [Arg<'_>; 2] {
        [write(&mut self.q), write(&mut self.scales)]
    }

    /// They are those of `values`.
    #[track_caller]
    pub(crate) fn assert_of(&self, values: &[f32]) {
        let mut truth = Q8Rows::new();
        truth.quantize(Isa::PORTABLE, &Pool::new(1), values, 32);
        assert_same(&self.scales, truth.scales(), "scales");
        assert_eq!(self.q, truth.quants());
    }
}

/// Rows of `cols` with zero, subnormal, huge and halfway values in them.
fn rows(rng: &mut Rng, n: usize, cols: usize) -> Vec<f32> {
    let mut x = rng.units(n * cols, 3.0);
    let fills = [0.0, -0.0, 1e-42, 3.7e-37, 3.8e-37, f32::MAX, 1e-38];
    for (row, fill) in x.chunks_mut(cols).step_by(2).zip(fills) {
        row.fill(fill);
    }
    for (i, x) in x.iter_mut().rev().take(cols).enumerate() {
        *x = i as f32 * 0.5 - 8.0;
    }
    let last = x.len() - 1;
    x[last] = 127.0;
    x
}

#[test]
fn q8_rows_are_those_of_the_cpu() {
    let mut rng = Rng(1);
    let pool = Pool::new(1);
    for (n, cols) in [(1, 32), (15, 32), (16, 96), (7, 640), (3, 4096)] {
        for values in [rows(&mut rng, n, cols), mixed(&mut rng, n * cols, 1.0)] {
            let mut truth = Q8Rows::new();
            truth.quantize(Isa::PORTABLE, &pool, &values, cols);
            let blocks = n * cols / 32;
            let (mut q, mut scales) = (vec![-128i8; n * cols], poison(blocks));
            let args = &mut [read(&values), write(&mut q), write(&mut scales), Arg::U64(blocks as u64)];
            if launch("gantry_quantize_q8", [groups(blocks, 32), 1, 1], args) {
                assert_same(&scales, truth.scales(), "scales");
                assert_eq!(q, truth.quants(), "{n} x {cols}");
            }
        }
    }
}

#[test]
fn i8_rows_are_those_of_the_cpu() {
    let mut rng = Rng(2);
    let pool = Pool::new(1);
    for (n, cols) in [(1, 1), (15, 33), (16, 96), (7, 640), (3, 4097)] {
        for values in [rows(&mut rng, n, cols), mixed(&mut rng, n * cols, 1.0)] {
            let mut truth = I8Rows::new();
            truth.quantize(Isa::PORTABLE, &pool, &values, cols);
            let (mut q, mut scales) = (vec![-128i8; n * cols], poison(n));
            let args = &mut [read(&values), write(&mut q), write(&mut scales), Arg::U32(cols as u32)];
            if launch("gantry_quantize_i8", [n, 1, 1], args) {
                assert_same(&scales, truth.scales(), "scales");
                let quants: Vec<i8> = (0..n).flat_map(|row| truth.quants(row).to_vec()).collect();
                assert_eq!(q, quants, "{n} x {cols}");
            }
        }
    }
}

#[test]
fn rotated_rows_are_those_of_the_cpu() {
    let mut rng = Rng(3);
    let pool = Pool::new(1);
    for cols in [256, 512, 768, 1536, 2560, 6144, 8192 + 256] {
        let n = 3;
        let x = rng.units(n * cols, 2.0);
        let mut truth = x.clone();
        rotate(Isa::PORTABLE, &pool, &mut truth, cols);
        let blocks: Vec<usize> = rotation::blocks(cols).expect("a whole row").collect();
        let signs: Vec<u8> = blocks.iter().flat_map(|&block| rotation::signs(block)).collect();
        let mut y = poison(n * cols);
        let args = &mut [read(&x), read(&signs), write(&mut y), Arg::U32(cols as u32)];
        if launch("gantry_rotate", [blocks.len(), n, 1], args) {
            assert_same(&y, &truth, &format!("{cols} columns"));
        }
    }
}
