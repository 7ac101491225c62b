//! Kernels that stand for several steps. Bounds: sums of products 1e-6 of Σ|w·x| from the CPU's, what is read of streams
//! 1e-5 of the largest, norms 2e-6 of the value; quants those of the values beside them.

use gantry_formats::block::GgmlType;
use gantry_formats::layout::Layout;
use gantry_kernels::cpu::{
    Gate, Isa, Pieces, Pool, Streams, gate_pieces, gemm, rms_norm_pieces, silu_scaled, stream_mix,
};

use crate::assert_near;
use crate::launch::{Arg, groups, launch, maybe, on_a_card, read, write};
use crate::matrices::{Input, Stored, size};
use crate::quantize::Quants;
use crate::random::{Rng, assert_same, poison};

const ISA: Isa = Isa::PORTABLE;

/// Layouts of few rows, with their numbers in `product.h`.
fn layouts() -> [(Layout, u32); 4] {
    let raw = [GgmlType::F32, GgmlType::F16, GgmlType::BF16].map(Layout::Raw);
    [(raw[0], 0), (raw[1], 1), (raw[2], 2), (Layout::q8_0_split(), 5)]
}

/// One product of a launch: some rows of a matrix with n inputs.
struct Job<'a> {
    w: &'a Stored,
    layout: u32,
    rows: std::ops::Range<usize>,
    x: Input,
    values: Vec<f32>,
}

impl<'a> Job<'a> {
    fn new(rng: &mut Rng, (w, layout): (&'a Stored, u32), rows: std::ops::Range<usize>, n: usize) -> Self {
        let values = rng.units(n * w.cols, 3.0);
        let x = Input::new(w.view().activations(), &values, w.cols);
        Job { w, layout, rows, x, values }
    }

    fn addresses<'b>(&'b self, y: &'b mut [f32]) -> Vec<Arg<'b>> {
        let mut args = vec![read(&self.w.bytes)];
        args.extend(self.x.args());
        if args.len() == 2 {
            args.push(Arg::Null);
        }
        args.push(write(y));
        args
    }

    fn long(&self, width: usize, start: usize) -> Vec<Arg<'static>> {
        let mut args = self.w.planes();
        if args.is_empty() {
            args.push(Arg::U64(0));
        }
        args.extend([self.rows.start, width, start].map(|v| Arg::U64(v as u64)));
        args
    }

    fn int(&self) -> [Arg<'static>; 3] {
        [self.rows.len() as u32, self.w.cols as u32, self.layout].map(Arg::U32)
    }

    /// y has rows of `count + 5` values, the outputs from the third on.
    #[track_caller]
    fn check(&self, y: &[f32], n: usize) {
        let view = self.w.view().row_range(self.rows.clone());
        let count = self.rows.len();
        let mut truth = poison(n * count);
        gemm(ISA, &Pool::new(1), &view, self.x.cpu(), &mut truth);
        let untouched = poison(1)[0].to_bits();
        for (t, y) in y.chunks(count + 5).enumerate() {
            let beside = y[..3].iter().chain(&y[3 + count..]);
            assert!(beside.map(|v| v.to_bits()).all(|v| v == untouched), "wrote beside its columns");
            for (i, y) in y[3..3 + count].iter().enumerate() {
                let truth = truth[t * count + i];
                let size = size(&view, i, &self.values[t * self.w.cols..][..self.w.cols]) + truth.abs();
                let what = format!("{} row {i} of token {t}", self.w.layout);
                assert!((y - truth).abs() <= 1e-6 * size, "{what}: {y:e} for {truth:e}, of {size:e}");
            }
        }
    }
}

fn pair(job: &Job<'_>, more: Option<&Job<'_>>, n: usize, y: &mut [f32], more_y: &mut [f32]) -> bool {
    let none = || vec![Arg::Null, Arg::Null, Arg::Null, Arg::Null];
    let mut args = job.addresses(y);
    args.extend(more.map_or_else(none, |m| m.addresses(more_y)));
    args.extend(job.long(job.rows.len() + 5, 3));
    let zeros = || (0..4).map(|_| Arg::U64(0)).collect();
    args.extend(more.map_or_else(zeros, |m| m.long(m.rows.len() + 5, 3)));
    args.push(Arg::U32(n as u32));
    args.extend(job.int());
    args.extend(more.map_or([Arg::U32(0), Arg::U32(0), Arg::U32(0)], Job::int));
    let all = groups(job.rows.len(), 2) + more.map_or(0, |m| groups(m.rows.len(), 2));
    launch("gantry_gemm_wide", [all, groups(n, 4), 1], &mut args)
}

#[test]
fn products_with_few_rows() {
    let mut rng = Rng(1);
    for (i, first) in layouts().into_iter().enumerate() {
        for (j, second) in layouts().into_iter().enumerate() {
            let cols = [512, 1056, 10240, 96][(i + j) % 4];
            let a = Stored::random(&mut rng, first.0, 7, cols);
            let b = Stored::random(&mut rng, second.0, 5, 2560);
            let n = [1, 4, 3, 9, 2, 13][(i * 4 + j) % 6];
            let one = Job::new(&mut rng, (&a, first.1), 0..7, n);
            let other = Job::new(&mut rng, (&b, second.1), 1..5, n);
            let (mut y, mut more_y) = (poison(n * 12), poison(n * 9));
            if !pair(&one, Some(&other), n, &mut y, &mut more_y) {
                return;
            }
            one.check(&y, n);
            other.check(&more_y, n);
            // Alone, and each token alone, the same bits.
            let mut alone = poison(n * 12);
            pair(&one, None, n, &mut alone, &mut []);
            assert_same(&alone, &y, "without the other");
            for (t, y) in y.chunks(12).enumerate() {
                let values = one.values[t * cols..][..cols].to_vec();
                let x = Input::new(a.view().activations(), &values, cols);
                let single = Job { w: &a, layout: first.1, rows: 0..7, x, values };
                let mut own = poison(12);
                pair(&single, None, 1, &mut own, &mut []);
                assert_same(&own, y, &format!("token {t} alone"));
            }
        }
    }
}

#[test]
fn streams_are_read_through_gates_of_low_rank() {
    let mut rng = Rng(2);
    let pool = Pool::new(1);
    let shapes = [(4, 96, 320, 1), (4, 64, 32, 7), (1, 32, 1024, 4), (3, 160, 96, 11), (2, 64, 320, 8)];
    for (count, len, rank, n) in shapes {
        for (layout, _) in layouts() {
            let s = Streams { count, len };
            let w = Stored::random(&mut rng, layout, count * len + 3, rank);
            let x = rng.units(n * count * len, 2.0);
            let low = rng.units(n * rank, 6.0);
            let factor = 1.0 / count as f32;
            let mut gated = low.clone();
            silu_scaled(ISA, &pool, &mut gated, factor);
            let view = w.view().row_range(3..3 + count * len);
            let input = Input::new(view.activations(), &gated, rank);
            let (mut gates, mut truth) = (poison(n * count * len), poison(n * len));
            gemm(ISA, &pool, &view, input.cpu(), &mut gates);
            stream_mix(ISA, &pool, s, &x, &gates, &mut truth);
            let run = |(name, tokens): (&str, usize), n: usize, x: &[f32], low: &[f32], quantized: bool| {
                let (mut y, mut quants) = (poison(n * len), Quants::new(n * len));
                let mut args = vec![read(&w.bytes), read(x), read(low), write(&mut y)];
                args.extend(if quantized { quants.args() } else { [Arg::Null, Arg::Null] });
                args.push(w.planes().pop().unwrap_or(Arg::U64(0)));
                args.push(Arg::U64(3));
                args.extend([n, count, len, rank].map(|v| Arg::U32(v as u32)));
                args.push(Arg::F32(factor));
                let ran = launch(name, [len / 32, groups(n, tokens), 1], &mut args);
                drop(args);
                if ran && quantized {
                    quants.assert_of(&y);
                }
                ran.then_some(y)
            };
            let name = format!("gantry_hyper_up_{}", w.name());
            let mut kernels = vec![(&name[..], 4)];
            if w.name() == "q8_0_split" && on_a_card() {
                kernels.push(("gantry_mma_hyper_up", 8));
            }
            for kernel in kernels {
                let Some(y) = run(kernel, n, &x, &low, true) else { return };
                let largest = truth.iter().fold(0f32, |m, v| m.max(v.abs()));
                for (i, (y, truth)) in y.iter().zip(&truth).enumerate() {
                    let near = (y - truth).abs() <= 1e-5 * largest;
                    assert!(near, "{}, {layout} {s:?} [{i}]: {y:e} for {truth:e}", kernel.0);
                }
                for t in 0..n {
                    let (x, low) = (&x[t * count * len..][..count * len], &low[t * rank..][..rank]);
                    let own = run(kernel, 1, x, low, false).expect("a device");
                    assert_same(&own, &y[t * len..][..len], &format!("{}, token {t} alone", kernel.0));
                }
            }
        }
    }
}

#[test]
fn pieces_are_normed_and_gated() {
    let mut rng = Rng(3);
    let pool = Pool::new(1);
    for (count, len, n) in [(48, 128, 2), (1, 1024, 3), (3, 33, 2), (2, 32, 1)] {
        for (norm, weighted, gate) in
            [(true, true, Gate::Sigmoid), (true, false, Gate::Silu), (false, false, Gate::Sigmoid)]
        {
            let width = count * len;
            let gates = Pieces { row: width + 7, start: 5, stride: len, len, count };
            let pieces = Pieces { row: width, start: 0, stride: len, len, count };
            let x = rng.units(n * width, 3.0);
            let by = rng.units(n * gates.row, 5.0);
            let weight = rng.units(len, 2.0);
            let weight = weighted.then_some(&weight[..]);
            let mut truth = x.clone();
            if norm {
                rms_norm_pieces(ISA, &pool, n, None, weight, 1e-6, &mut truth, pieces);
            }
            gate_pieces(ISA, &pool, n, gate, &by, gates, &mut truth, pieces);
            let (mut y, mut quants) = (x.clone(), Quants::new(n * width));
            let whole = len % 32 == 0;
            let mut args = vec![write(&mut y), read(&by), maybe(weight)];
            args.extend(if whole { quants.args() } else { [Arg::Null, Arg::Null] });
            args.extend([width, 0, gates.row, gates.start, gates.stride].map(|v| Arg::U64(v as u64)));
            args.extend([len, norm.into(), usize::from(gate == Gate::Silu)].map(|v| Arg::U32(v as u32)));
            args.push(Arg::F32(1e-6));
            if launch("gantry_norm_gate", [count, n, 1], &mut args) {
                drop(args);
                assert_near(&y, &truth, 2e-6, 0.0, &format!("{count} pieces of {len}, norm {norm}"));
                if whole {
                    quants.assert_of(&y);
                }
            }
        }
    }
}
