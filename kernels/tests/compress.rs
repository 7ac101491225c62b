//! Pooling of blocks against f64, and bit for bit.

mod random;

use std::ops::Range;

use gantry_kernels::cpu::*;
use random::{Rng, assert_same, assert_written, poison};

/// Rows from position `first` to before `end`, `width` apart; the last lacks what is not read.
fn rows(rng: &mut Rng, first: usize, end: usize, width: usize, read: usize, size: f32) -> Vec<f32> {
    rng.units((end - first - 1) * width + read, size)
}

/// The candidates of a block: (position, first column).
fn candidates(shape: &Pooling, block: usize) -> Vec<(usize, usize)> {
    let Pooling { ratio, overlap, len } = *shape;
    let own = block * ratio..(block + 1) * ratio;
    if !overlap {
        return own.map(|p| (p, 0)).collect();
    }
    let before = if block == 0 { 0..0 } else { (block - 1) * ratio..block * ratio };
    before.map(|p| (p, 0)).chain(own.map(|p| (p, len))).collect()
}

struct Case {
    shape: Pooling,
    first: usize,
    kv: (Vec<f32>, usize),
    score: (Vec<f32>, usize),
    ape: Vec<f32>,
}

impl Case {
    /// Rows that start `early` positions before the first candidate of `blocks`.
    fn new(rng: &mut Rng, shape: Pooling, blocks: &Range<usize>, early: usize, size: f32) -> Case {
        let width = if shape.overlap { 2 * shape.len } else { shape.len };
        let from = if shape.overlap { blocks.start.saturating_sub(1) } else { blocks.start } * shape.ratio;
        let (first, end) = (from.saturating_sub(early), blocks.end * shape.ratio);
        Case {
            shape,
            first,
            kv: (rows(rng, first, end, width + 5, width, 3.0), width + 5),
            score: (rows(rng, first, end, width, width, size), width),
            ape: rng.units(shape.ratio * width, 2.0),
        }
    }

    fn run(&self, isa: Isa, threads: usize, blocks: Range<usize>) -> Vec<f32> {
        let mut out = poison(blocks.len() * self.shape.len);
        let kv = Span { values: &self.kv.0, first: self.first, width: self.kv.1 };
        let score = Span { values: &self.score.0, first: self.first, width: self.score.1 };
        softmax_pool(isa, &Pool::new(threads), &self.shape, blocks, kv, score, &self.ape, &mut out);
        out
    }

    fn reference(&self, block: usize, d: usize) -> f64 {
        let width = if self.shape.overlap { 2 * self.shape.len } else { self.shape.len };
        let at = |(values, stride): &(Vec<f32>, usize), p: usize, column: usize| {
            f64::from(values[(p - self.first) * stride + column])
        };
        let of = candidates(&self.shape, block);
        let logits: Vec<f64> = of
            .iter()
            .map(|&(p, column)| {
                let ape = self.ape[p % self.shape.ratio * width + column + d];
                at(&self.score, p, column + d) + f64::from(ape)
            })
            .collect();
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|x| (x - max).exp()).sum();
        of.iter().zip(&logits).map(|(&(p, c), x)| (x - max).exp() / sum * at(&self.kv, p, c + d)).sum()
    }
}

fn shapes() -> impl Iterator<Item = Pooling> {
    [(1, 1), (4, 16), (4, 128), (3, 70), (128, 33), (2, 512), (5, 15), (8, 65)]
        .into_iter()
        .flat_map(|(ratio, len)| [false, true].map(|overlap| Pooling { ratio, overlap, len }))
}

#[test]
fn softmax_pool_matches_f64_and_agrees_bit_for_bit() {
    let mut rng = Rng(1);
    for shape in shapes() {
        for (blocks, early) in [(0..1, 0), (0..7, 0), (1..3, 0), (1..2, 100), (5..10, 3)] {
            // Sharp softmaxes too.
            for size in [1.0, 30.0] {
                let case = Case::new(&mut rng, shape, &blocks, early, size);
                let truth = case.run(Isa::PORTABLE, 1, blocks.clone());
                assert_written(&truth);
                for (i, &y) in truth.iter().enumerate() {
                    let exact = case.reference(blocks.start + i / shape.len, i % shape.len);
                    let error = (f64::from(y) - exact).abs();
                    // A logit near 32 carries 2e-6 of rounding into its weight.
                    assert!(error <= 4e-5, "{shape:?} {blocks:?} [{i}]: {y} for {exact}");
                }
                for isa in Isa::available() {
                    for threads in [1, 3] {
                        let what = format!("{} on {threads} {shape:?}", isa.name());
                        assert_same(&case.run(isa, threads, blocks.clone()), &truth, &what);
                        let alone: Vec<f32> =
                            blocks.clone().flat_map(|b| case.run(isa, threads, b..b + 1)).collect();
                        assert_same(&alone, &truth, &format!("{what}, a block alone"));
                    }
                }
            }
        }
    }
}

#[test]
fn the_halves_and_offsets_of_an_overlapping_block() {
    // Columns of kv tell the half and the position; an offset of 100 lets one candidate win.
    let shape = Pooling { ratio: 4, overlap: true, len: 1 };
    let kv: Vec<f32> = (0..12).flat_map(|p| [p as f32, 100.0 + p as f32]).collect();
    let score = vec![0.0; 24];
    for (row, half) in (0..4).flat_map(|row| [(row, 0), (row, 1)]) {
        let mut ape = vec![0.0; 8];
        ape[row * 2 + half] = 200.0;
        for isa in Isa::available() {
            let mut out = poison(3);
            let span = |values| Span { values, first: 0, width: 2 };
            softmax_pool(isa, &Pool::new(1), &shape, 0..3, span(&kv), span(&score), &ape, &mut out);
            let row = row as f32;
            let truth = if half == 0 {
                // Block 0 has nobody before it: the mean of 100..=103.
                [101.5, row, 4.0 + row]
            } else {
                [100.0 + row, 104.0 + row, 108.0 + row]
            };
            assert_eq!(out, truth, "{} offset at {row} half {half}", isa.name());
        }
    }
}

#[test]
fn positions_at_minus_infinity_take_no_part() {
    let shape = Pooling { ratio: 3, overlap: false, len: 2 };
    let low = f32::NEG_INFINITY;
    let kv = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let score = [low, 0.0, 7.0, low, low, f32::NAN];
    for isa in Isa::available() {
        let mut out = poison(2);
        let span = |values| Span { values, first: 6, width: 2 };
        softmax_pool(isa, &Pool::new(1), &shape, 2..3, span(&kv), span(&score), &[0.0; 6], &mut out);
        assert!(out[0] == 3.0 && out[1].is_nan(), "{}: {out:?}", isa.name());
        softmax_pool(isa, &Pool::new(1), &shape, 2..3, span(&kv), span(&[low; 6]), &[0.0; 6], &mut out);
        assert!(out.iter().all(|y| y.is_nan()), "{}: {out:?}", isa.name());
    }
}

#[test]
fn mean_pool_matches_f64_and_agrees_bit_for_bit() {
    let mut rng = Rng(2);
    for Pooling { ratio, len, .. } in shapes().filter(|shape| !shape.overlap) {
        for (blocks, early) in [(0..1, 0), (0..9, 0), (3..5, 2)] {
            let first = (blocks.start * ratio).saturating_sub(early);
            let width = len + 7;
            let x = rows(&mut rng, first, blocks.end * ratio, width, len, 2.0);
            let run = |isa, threads, blocks: Range<usize>| {
                let mut out = poison(blocks.len() * len);
                let rows = Span { values: &x, first, width };
                mean_pool(isa, &Pool::new(threads), ratio, blocks, rows, &mut out);
                out
            };
            let truth = run(Isa::PORTABLE, 1, blocks.clone());
            assert_written(&truth);
            for (i, &y) in truth.iter().enumerate() {
                let (block, d) = (blocks.start + i / len, i % len);
                let of = (block * ratio..(block + 1) * ratio).map(|p| f64::from(x[(p - first) * width + d]));
                let exact = of.sum::<f64>() / ratio as f64;
                assert!((f64::from(y) - exact).abs() <= 2e-6, "{ratio} of {len} [{i}]: {y} for {exact}");
            }
            for isa in Isa::available() {
                for threads in [1, 3] {
                    assert_same(&run(isa, threads, blocks.clone()), &truth, isa.name());
                    let alone: Vec<f32> = blocks.clone().flat_map(|b| run(isa, threads, b..b + 1)).collect();
                    assert_same(&alone, &truth, &format!("{}, a block alone", isa.name()));
                }
            }
        }
    }
}

#[test]
fn no_blocks_are_no_work_and_missing_rows_are_refused() {
    let pool = Pool::new(1);
    let shape = Pooling { ratio: 2, overlap: true, len: 3 };
    let none = Span { values: &[], first: 40, width: 6 };
    softmax_pool(Isa::PORTABLE, &pool, &shape, 3..3, none, none, &[0.0; 12], &mut []);
    mean_pool(Isa::PORTABLE, &pool, 2, 3..3, none, &mut []);
    let values = [0.0; 24];
    let refused = |first: usize, n: usize, block: usize| {
        let call = || {
            let span = Span { values: &values[..n], first, width: 6 };
            softmax_pool(
                Isa::PORTABLE,
                &pool,
                &shape,
                block..block + 1,
                span,
                span,
                &[0.0; 12],
                &mut [0.0; 3],
            );
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
    };
    assert!(!refused(2, 24, 2) && !refused(0, 12, 0));
    assert!(refused(3, 24, 2) && refused(2, 23, 2) && refused(0, 11, 0) && refused(0, 24, usize::MAX / 2));
}
