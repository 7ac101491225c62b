//! Int8 layouts: every order and kind of scales against the definition and against `q8_0.split`, bit for bit.

mod random;

use gantry_formats::layout::{Order, Scales};
use gantry_kernels::cpu::*;
use half::f16;
use random::{Rng, assert_same, assert_written, poison};

/// An int8 matrix in natural order, and its planes in another.
struct Int8 {
    rows: usize,
    cols: usize,
    /// `[rows][cols]`.
    values: Vec<i8>,
    /// `[rows][cols/32]`, or `[rows]`.
    scales: Vec<f32>,
    kind: Scales,
}

/// Planes at an odd address.
struct Planes {
    order: Order,
    quants: Vec<u8>,
    scales: Vec<u8>,
}

impl Int8 {
    fn new(
        rng: &mut Rng,
        kind: Scales,
        rows: usize,
        cols: usize,
        mut value: impl FnMut(usize) -> i8,
    ) -> Self {
        let scales = match kind {
            Scales::Channel => rng.units(rows, 0.01),
            Scales::Block32 => {
                rng.units(rows * cols / 32, 0.01).iter().map(|&s| f16::from_f32(s).to_f32()).collect()
            }
        };
        Int8 { rows, cols, values: (0..rows * cols).map(&mut value).collect(), scales, kind }
    }

    fn random(rng: &mut Rng, kind: Scales, rows: usize, cols: usize) -> Self {
        let mut values = Rng(rng.next());
        Self::new(rng, kind, rows, cols, |_| values.next() as i8)
    }

    fn pack(&self, order: Order) -> Planes {
        let rows = self.rows.next_multiple_of(16);
        let cols = self.cols.next_multiple_of(order.col_tile() as usize);
        let mut quants = vec![0u8; 1 + rows * cols];
        for (i, &q) in self.values.iter().enumerate() {
            let (n, k) = ((i / self.cols) as u64, (i % self.cols) as u64);
            quants[1 + order.offset(n, k, rows as u64, cols as u64) as usize] = q as u8;
        }
        let mut scales = vec![0u8];
        for row in 0..rows {
            let of = |i: usize| self.scales.get(i).copied().filter(|_| row < self.rows).unwrap_or(0.0);
            match self.kind {
                Scales::Channel => scales.extend(of(row).to_le_bytes()),
                Scales::Block32 => scales.extend((0..cols / 32).flat_map(|b| {
                    let blocks = self.cols / 32;
                    let scale = if b < blocks { of(row * blocks + b) } else { 0.0 };
                    f16::from_f32(scale).to_le_bytes()
                })),
            }
        }
        Planes { order, quants, scales }
    }

    fn view<'a>(&self, planes: &'a Planes) -> MatrixView<'a> {
        let (quants, scales) = (&planes.quants[1..], &planes.scales[1..]);
        MatrixView::i8(planes.order, self.kind, self.rows, self.cols, quants, scales).unwrap()
    }

    /// y over the quantized operands: exact for a scale per row, f64 and Σ|terms| for one per 32.
    fn check(&self, x: &[f32], y: &[f32], what: &str) {
        let pool = Pool::new(1);
        let (mut q8, mut i8s) = (Q8Rows::new(), I8Rows::new());
        match self.kind {
            Scales::Block32 => q8.quantize(Isa::PORTABLE, &pool, x, self.cols),
            Scales::Channel => i8s.quantize(Isa::PORTABLE, &pool, x, self.cols),
        }
        for (i, &y) in y.iter().enumerate() {
            let (token, row) = (i / self.rows, i % self.rows);
            let w = &self.values[row * self.cols..][..self.cols];
            if self.kind == Scales::Channel {
                let sum: i64 =
                    w.iter().zip(i8s.quants(token)).map(|(&w, &x)| i64::from(w) * i64::from(x)).sum();
                let truth = i32::try_from(sum).unwrap() as f32 * i8s.scales()[token] * self.scales[row];
                assert_eq!(y.to_bits(), truth.to_bits(), "{what}: [{i}] {y} is not {truth}");
                continue;
            }
            let blocks = self.cols / 32;
            let (mut sum, mut size) = (0f64, 0f64);
            for (k, &w) in w.iter().enumerate() {
                let (b, x) = (k / 32, q8.quants()[token * self.cols + k]);
                let scales =
                    f64::from(self.scales[row * blocks + b]) * f64::from(q8.scales()[token * blocks + b]);
                let term = f64::from(w) * f64::from(x) * scales;
                (sum, size) = (sum + term, size + term.abs());
            }
            assert!((f64::from(y) - sum).abs() <= 1e-5 * size.max(1e-30), "{what}: [{i}] {y} is not {sum}");
        }
    }
}

fn product(isa: Isa, pool: &Pool, w: &MatrixView<'_>, x: &[f32]) -> Vec<f32> {
    let tokens = x.len() / w.cols();
    let mut y = poison(tokens * w.rows());
    let (mut q8, mut i8s) = (Q8Rows::new(), I8Rows::new());
    let x = match w.activations() {
        ActivationKind::F32 => Activations::F32(x),
        ActivationKind::Q8 => {
            q8.quantize(isa, pool, x, w.cols());
            Activations::Q8(&q8)
        }
        ActivationKind::I8 => {
            i8s.quantize(isa, pool, x, w.cols());
            Activations::I8(&i8s)
        }
    };
    gemm(isa, pool, w, x, &mut y);
    assert_written(&y);
    y
}

fn forms() -> impl Iterator<Item = (Order, Scales)> {
    Order::ALL.into_iter().flat_map(|order| {
        [Scales::Channel, Scales::Block32]
            .into_iter()
            .filter(move |&scales| order.takes(scales))
            .map(move |scales| (order, scales))
    })
}

#[test]
fn every_order_gives_the_product_over_the_quantized_operands() {
    let mut rng = Rng(1);
    let pool = Pool::new(2);
    for (order, scales) in forms() {
        for rows in [1, 15, 16, 17, 33] {
            for cols in [32, 64, 96, 128, 160] {
                let w = Int8::random(&mut rng, scales, rows, cols);
                let planes = w.pack(order);
                let tokens = 1 + rng.below(9);
                let x = rng.units(tokens * cols, 3.0);
                let what = format!("{order} {scales} {rows}x{cols} x {tokens}");
                let truth = product(Isa::PORTABLE, &pool, &w.view(&planes), &x);
                w.check(&x, &truth, &what);
                for isa in random::others() {
                    let y = product(isa, &pool, &w.view(&planes), &x);
                    assert_same(&y, &truth, &format!("{} {what}", isa.name()));
                }
            }
        }
    }
}

#[test]
fn a_scale_per_row_allows_any_number_of_columns() {
    let mut rng = Rng(2);
    let pool = Pool::new(2);
    for order in Order::ALL {
        for cols in [1, 3, 31, 33, 63, 65, 100] {
            let w = Int8::random(&mut rng, Scales::Channel, 18, cols);
            let mut planes = w.pack(order);
            let x = rng.units(3 * cols, 1.0);
            for isa in Isa::available() {
                w.check(&x, &product(isa, &pool, &w.view(&planes), &x), &format!("{order} {cols}"));
            }
            // What the padding holds does not matter.
            let real: Vec<usize> = {
                let (n, k) = (32, cols.next_multiple_of(order.col_tile() as usize) as u64);
                (0..18 * cols)
                    .map(|i| 1 + order.offset((i / cols) as u64, (i % cols) as u64, n, k) as usize)
                    .collect()
            };
            let mut dirty = vec![0x5a; planes.quants.len()];
            real.iter().for_each(|&at| dirty[at] = planes.quants[at]);
            planes.quants = dirty;
            for isa in Isa::available() {
                w.check(&x, &product(isa, &pool, &w.view(&planes), &x), &format!("{order} {cols}, dirty"));
            }
        }
    }
}

#[test]
fn block32_is_q8_0_split_bit_for_bit() {
    let mut rng = Rng(3);
    let pool = Pool::new(2);
    for (order, scales) in forms().filter(|(_, scales)| *scales == Scales::Block32) {
        for (rows, cols) in [(33, 96), (100, 544), (17, 576), (48, 1056)] {
            let w = Int8::random(&mut rng, scales, rows, cols);
            let planes = w.pack(order);
            let quants: Vec<u8> = w.values.iter().map(|&q| q as u8).collect();
            let halves: Vec<u8> = w.scales.iter().flat_map(|&s| f16::from_f32(s).to_le_bytes()).collect();
            let split = MatrixView::q8_0_split(rows, cols, &quants, &halves).unwrap();
            for tokens in 1..=9 {
                let x = rng.units(tokens * cols, 2.0);
                for isa in Isa::available() {
                    let what = format!("{} {order} {rows}x{cols} x {tokens}", isa.name());
                    assert_same(
                        &product(isa, &pool, &w.view(&planes), &x),
                        &product(isa, &pool, &split, &x),
                        &what,
                    );
                }
            }
        }
    }
}

#[test]
fn extremes_do_not_saturate() {
    let mut rng = Rng(4);
    let pool = Pool::new(2);
    for (order, scales) in forms() {
        let cols = if order == Order::Vnni16 && scales == Scales::Channel { 131_071 } else { 160 };
        let w = Int8::new(&mut rng, scales, 17, cols, |_| -128);
        let planes = w.pack(order);
        for sign in [1.0, -1.0] {
            let x = vec![sign; 3 * cols];
            for isa in Isa::available() {
                w.check(&x, &product(isa, &pool, &w.view(&planes), &x), &format!("{} {order}", isa.name()));
            }
        }
    }
}

#[test]
fn one_hot_finds_each_weight_and_dequantizing_gives_it() {
    let pool = Pool::new(1);
    for (order, scales) in forms() {
        let (rows, cols) = (32, 128);
        for n in (0..rows).step_by(5) {
            for k in (0..cols).step_by(3) {
                let w = Int8::new(&mut Rng(5), scales, rows, cols, |i| (i == n * cols + k) as i8 * 100);
                let planes = w.pack(order);
                let mut x = vec![0f32; cols];
                x[k] = 127.0;
                for isa in Isa::available() {
                    let y = product(isa, &pool, &w.view(&planes), &x);
                    let found: Vec<usize> = (0..rows).filter(|&row| y[row] != 0.0).collect();
                    assert_eq!(found, [n], "{} {order} {scales} ({n}, {k})", isa.name());
                }
                let mut row = vec![1f32; cols];
                w.view(&planes).dequantize_row(n, &mut row);
                let scale = w.scales[if scales == Scales::Channel { n } else { n * (cols / 32) + k / 32 }];
                let at = |i: usize| if i == k { scale * 100.0 } else { 0.0 };
                assert!(row.iter().enumerate().all(|(i, &v)| v == at(i)), "{order} {scales} ({n}, {k})");
            }
        }
    }
}

#[test]
fn a_token_alone_equals_it_in_a_batch_on_any_number_of_threads() {
    let mut rng = Rng(6);
    for scales in [Scales::Channel, Scales::Block32] {
        for order in [Order::Vnni16, Order::Slot16] {
            let w = Int8::random(&mut rng, scales, 100, 224);
            let planes = w.pack(order);
            let x = rng.units(33 * 224, 2.0);
            for isa in Isa::available() {
                let one = Pool::new(1);
                let alone: Vec<f32> =
                    x.chunks(224).flat_map(|x| product(isa, &one, &w.view(&planes), x)).collect();
                for threads in 1..=4 {
                    let pool = Pool::new(threads);
                    for batch in [1, 2, 3, 5, 8, 9, 16, 31, 33] {
                        let all: Vec<f32> = x
                            .chunks(batch * 224)
                            .flat_map(|x| product(isa, &pool, &w.view(&planes), x))
                            .collect();
                        assert_same(&all, &alone, &format!("{} {order} {scales} {batch}", isa.name()));
                    }
                }
            }
        }
    }
}

#[test]
fn a_part_of_whole_tiles_multiplies_as_in_the_whole() {
    let mut rng = Rng(7);
    let pool = Pool::new(2);
    for (order, scales) in forms() {
        let w = Int8::random(&mut rng, scales, 75, 96);
        let planes = w.pack(order);
        let x = rng.units(96, 1.0);
        for isa in Isa::available() {
            let whole = product(isa, &pool, &w.view(&planes), &x);
            for range in [0..16, 16..48, 32..75, 64..75] {
                let part = w.view(&planes).row_range(range.clone());
                assert_same(
                    &product(isa, &pool, &part, &x),
                    &whole[range.clone()],
                    &format!("{order} {range:?}"),
                );
                let (mut a, mut b) = ([0f32; 96], [0f32; 96]);
                part.dequantize_row(1, &mut a);
                w.view(&planes).dequantize_row(range.start + 1, &mut b);
                assert_same(&a, &b, "a row of the part");
            }
            // A part of a part.
            let part = w.view(&planes).row_range(16..75).row_range(16..59);
            assert_same(&product(isa, &pool, &part, &x), &whole[32..75], "a part of a part");
        }
    }
}

#[test]
#[should_panic(expected = "not whole tiles")]
fn a_part_that_starts_inside_a_tile_is_refused() {
    let w = Int8::random(&mut Rng(8), Scales::Channel, 48, 32);
    let planes = w.pack(Order::Vnni16);
    w.view(&planes).row_range(8..48);
}

#[test]
fn quantized_rows_follow_the_definition_in_every_implementation() {
    let mut rng = Rng(9);
    let pool = Pool::new(3);
    for cols in [1, 5, 16, 31, 32, 100, 640] {
        let mut x = rng.units(9 * cols, 4.0);
        x[..cols].fill(0.0);
        x[cols..2 * cols].fill(-1e-42);
        x[2 * cols] = f32::NAN;
        x[3 * cols] = f32::NEG_INFINITY;
        // amax 127 makes d exactly 1, so halves stay halves.
        for (i, x) in x[4 * cols..5 * cols].iter_mut().enumerate() {
            *x = i as f32 % 200.0 - 100.5;
        }
        x[5 * cols - 1] = -127.0;
        x[5 * cols..6 * cols].fill(f32::MAX);
        for isa in Isa::available() {
            let mut rows = I8Rows::new();
            rows.quantize(isa, &pool, &x, cols);
            for (row, x) in x.chunks(cols).enumerate() {
                let (d, q) = (rows.scales()[row], rows.quants(row));
                if x.iter().any(|x| !x.is_finite()) {
                    assert!(d.is_nan() && q.iter().all(|&q| q == 0));
                    continue;
                }
                let amax = x.iter().fold(0f32, |a, x| a.max(x.abs()));
                let (truth, by) = match 1.0 / (amax / 127.0) {
                    by if by.is_finite() => (amax / 127.0, by),
                    _ => (0.0, 0.0),
                };
                assert_eq!(d.to_bits(), truth.to_bits(), "{} row {row} of {cols}", isa.name());
                let expected: Vec<i8> = x.iter().map(|x| (x * by).round() as i8).collect();
                assert_eq!(q, expected, "{} row {row} of {cols}", isa.name());
            }
        }
    }
}

#[test]
fn what_is_no_such_matrix_is_an_error() {
    let bytes = vec![0u8; 4096];
    let new = |order, scales, rows, cols, quants: usize, plane: usize| {
        MatrixView::i8(order, scales, rows, cols, &bytes[..quants], &bytes[..plane])
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    assert_eq!(new(Order::Vnni16, Scales::Channel, 17, 33, 32 * 64, 128), Ok(()));
    assert_eq!(
        new(Order::Vnni16, Scales::Channel, 17, 33, 17 * 33, 128).unwrap_err(),
        "the quants of a 17 x 33 matrix need 2048 bytes, not 561"
    );
    assert_eq!(
        new(Order::Slot16, Scales::Block32, 17, 32, 32 * 64, 64).unwrap_err(),
        "the scales of a 17 x 32 matrix need 128 bytes, not 64"
    );
    assert_eq!(
        new(Order::Ck16, Scales::Block32, 16, 64, 1024, 64).unwrap_err(),
        "i8.frag.ck16 does not take block32 scales"
    );
    assert!(new(Order::NMajor, Scales::Block32, 16, 33, 0, 0).unwrap_err().contains("multiple of 32"));
    assert!(new(Order::NMajor, Scales::Channel, 16, 131_072, 0, 0).unwrap_err().contains("131072 columns"));
    for (rows, cols) in [(0, 32), (16, 0), (usize::MAX, 32), (usize::MAX / 32, 64)] {
        assert!(new(Order::NMajor, Scales::Channel, rows, cols, 0, 0).unwrap_err().starts_with("no "));
    }
}
