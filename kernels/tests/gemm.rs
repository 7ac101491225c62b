//! Matrix products: every implementation against f64, and against each other bit for bit.

mod random;

use gantry_kernels::cpu::{Activations, Isa, MatrixError, MatrixView, Pool, Q8Rows, gemm};
use half::{bf16, f16};
use random::{Rng, assert_same, assert_written, poison};

const BATCHES: [usize; 7] = [1, 2, 3, 7, 8, 16, 33];

/// What the weights of a `q8_0.split` matrix look like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Ordinary,
    /// Quants of -128, ±127, 0 only.
    Extreme,
    /// Zero, subnormal, negative and largest scales.
    Scales,
    /// Infinite and NaN scales.
    NotFinite,
}

struct Q8Matrix {
    rows: usize,
    cols: usize,
    quants: Vec<u8>,
    scales: Vec<u8>,
}

impl Q8Matrix {
    fn random(rng: &mut Rng, rows: usize, cols: usize, kind: Kind) -> Self {
        let quants = (0..rows * cols)
            .map(|_| match kind {
                Kind::Extreme => [-128i8, 127, -127, 0][rng.below(4)] as u8,
                _ => rng.next() as u8,
            })
            .collect();
        let scales = (0..rows * cols / 32)
            .flat_map(|_| {
                let bits = match (kind, rng.below(6)) {
                    (Kind::Scales, 0) => 0,
                    (Kind::Scales, 1) => 1 + rng.below(0x3ff) as u16,
                    (Kind::Scales, 2) => 0x8000 | rng.below(0x400) as u16,
                    (Kind::Scales, 3) => 0x7bff,
                    (Kind::NotFinite, 0) => 0x7c00,
                    (Kind::NotFinite, 1) => 0xfe00,
                    _ => f16::from_f32(rng.unit() * 0.01).to_bits(),
                };
                bits.to_le_bytes()
            })
            .collect();
        Q8Matrix { rows, cols, quants, scales }
    }

    fn view(&self) -> MatrixView<'_> {
        MatrixView::q8_0_split(self.rows, self.cols, &self.quants, &self.scales).unwrap()
    }
}

fn q8_product(isa: Isa, pool: &Pool, w: &MatrixView<'_>, x: &[f32]) -> Vec<f32> {
    let mut q8 = Q8Rows::new();
    q8.quantize(isa, pool, x, w.cols());
    let mut y = poison(q8.rows() * w.rows());
    gemm(isa, pool, w, Activations::Q8(&q8), &mut y);
    assert_written(&y);
    y
}

/// y and Σ|terms| in f64, over the quantized operands.
fn q8_oracle(w: &Q8Matrix, x: &Q8Rows) -> Vec<(f64, f64)> {
    let blocks = w.cols / 32;
    let mut out = Vec::new();
    for token in 0..x.rows() {
        for row in 0..w.rows {
            let (mut sum, mut size) = (0f64, 0f64);
            for k in 0..w.cols {
                let at = (row * blocks + k / 32) * 2;
                let dw = f16::from_le_bytes([w.scales[at], w.scales[at + 1]]).to_f64();
                let dx = f64::from(x.scales()[token * blocks + k / 32]);
                let q =
                    f64::from(w.quants[row * w.cols + k] as i8) * f64::from(x.quants()[token * w.cols + k]);
                sum += q * dw * dx;
                size += (q * dw * dx).abs();
            }
            out.push((sum, size));
        }
    }
    out
}

#[test]
fn q8_products_lie_within_rounding_of_f64_and_agree_bit_for_bit() {
    let mut rng = Rng(1);
    let pool = Pool::new(2);
    for kind in [Kind::Ordinary, Kind::Extreme, Kind::Scales, Kind::NotFinite] {
        for rows in [1, 15, 16, 17, 100] {
            for cols in [32, 64, 96, 544, 576, 1536] {
                let w = Q8Matrix::random(&mut rng, rows, cols, kind);
                let tokens = BATCHES[rng.below(BATCHES.len())];
                let x = rng.units(tokens * cols, 3.0);
                let mut q8 = Q8Rows::new();
                q8.quantize(Isa::PORTABLE, &pool, &x, cols);
                let truth = q8_product(Isa::PORTABLE, &pool, &w.view(), &x);
                if kind != Kind::NotFinite {
                    // Each block: 3 roundings of its term; each partial sum: 1 rounding.
                    let bound = (cols / 32 + 3) as f64 * f64::from(f32::EPSILON);
                    for (y, (sum, size)) in truth.iter().zip(q8_oracle(&w, &q8)) {
                        let error = (f64::from(*y) - sum).abs();
                        assert!(error <= bound * size + 1e-40, "{kind:?} {rows}x{cols}: {y} for {sum}");
                    }
                }
                for isa in random::others() {
                    let y = q8_product(isa, &pool, &w.view(), &x);
                    assert_same(&y, &truth, &format!("{} {kind:?} {rows}x{cols} x {tokens}", isa.name()));
                }
            }
        }
    }
}

#[test]
fn a_token_alone_equals_it_in_a_batch_on_any_number_of_threads() {
    let mut rng = Rng(2);
    for (rows, cols) in [(100, 96), (17, 576), (50, 32)] {
        let w = Q8Matrix::random(&mut rng, rows, cols, Kind::Ordinary);
        let bytes: Vec<u8> = rng.units(rows * cols, 1.0).iter().flat_map(|v| v.to_le_bytes()).collect();
        let floats = MatrixView::f32(rows, cols, &bytes).unwrap();
        let x = rng.units(33 * cols, 2.0);
        for isa in Isa::available() {
            let one = Pool::new(1);
            let mut alone = (Vec::new(), Vec::new());
            for x in x.chunks(cols) {
                alone.0.extend(q8_product(isa, &one, &w.view(), x));
                alone.1.extend(float_product(isa, &one, &floats, x));
            }
            for threads in 1..=4 {
                let pool = Pool::new(threads);
                for batch in BATCHES {
                    let mut all = (Vec::new(), Vec::new());
                    for x in x.chunks(batch * cols) {
                        all.0.extend(q8_product(isa, &pool, &w.view(), x));
                        all.1.extend(float_product(isa, &pool, &floats, x));
                    }
                    let what = format!("{} {rows}x{cols}, {batch} on {threads} threads", isa.name());
                    assert_same(&all.0, &alone.0, &what);
                    assert_same(&all.1, &alone.1, &what);
                }
            }
        }
    }
}

#[test]
fn one_hot_activations_find_each_weight() {
    let mut rng = Rng(3);
    let pool = Pool::new(2);
    let (rows, cols) = (18, 96);
    let w = Q8Matrix::random(&mut rng, rows, cols, Kind::Ordinary);
    let mut row_values = vec![0f32; cols];
    for tokens in [1, 3] {
        for isa in Isa::available() {
            for k in 0..cols {
                let mut x = vec![0f32; tokens * cols];
                x[(tokens - 1) * cols + k] = 127.0;
                let y = q8_product(isa, &pool, &w.view(), &x);
                for row in 0..rows {
                    w.view().dequantize_row(row, &mut row_values);
                    assert_eq!(y[(tokens - 1) * rows + row], 127.0 * row_values[k], "{} {k}", isa.name());
                }
            }
        }
    }
}

fn float_product(isa: Isa, pool: &Pool, w: &MatrixView<'_>, x: &[f32]) -> Vec<f32> {
    let mut y = poison(x.len() / w.cols() * w.rows());
    gemm(isa, pool, w, Activations::F32(x), &mut y);
    assert_written(&y);
    y
}

#[test]
fn float_products_lie_within_rounding_of_f64_and_agree_bit_for_bit() {
    let mut rng = Rng(4);
    let pool = Pool::new(2);
    for cols in (1..=70).chain([576, 1537]) {
        for format in 0..3 {
            let rows = [1, 3, 4, 15, 16, 17, 37][rng.below(7)];
            let tokens = BATCHES[rng.below(BATCHES.len())];
            let scale = [1.0, 1e-20, 1e15][rng.below(3)];
            let values = rng.units(rows * cols, 1.0);
            // An odd offset: no alignment is asked for.
            let mut bytes = vec![0u8];
            for &v in &values {
                match format {
                    0 => bytes.extend(v.to_le_bytes()),
                    1 => bytes.extend(f16::from_f32(v).to_le_bytes()),
                    _ => bytes.extend(bf16::from_f32(v).to_le_bytes()),
                }
            }
            let w = match format {
                0 => MatrixView::f32(rows, cols, &bytes[1..]),
                1 => MatrixView::f16(rows, cols, &bytes[1..]),
                _ => MatrixView::bf16(rows, cols, &bytes[1..]),
            }
            .unwrap();
            let x = rng.units(tokens * cols, scale);
            let truth = float_product(Isa::PORTABLE, &pool, &w, &x);
            let mut weights = vec![0f32; cols];
            // A product, the additions of a lane, the tree: one rounding each.
            let bound = (cols.div_ceil(16) + 5) as f64 * f64::from(f32::EPSILON);
            for row in 0..rows {
                w.dequantize_row(row, &mut weights);
                for (token, x) in x.chunks(cols).enumerate() {
                    let terms = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                    let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
                    let y = f64::from(truth[token * rows + row]);
                    assert!((y - sum).abs() <= bound * size + 1e-40, "{format} {rows}x{cols}: {y} for {sum}");
                }
            }
            for isa in random::others() {
                let y = float_product(isa, &pool, &w, &x);
                assert_same(&y, &truth, &format!("{} {format} {rows}x{cols} x {tokens}", isa.name()));
            }
        }
    }
}

#[test]
fn float_products_at_the_borders_of_tiles_agree_bit_for_bit() {
    let mut rng = Rng(7);
    let pool = Pool::new(1);
    for rows in (1..=9).chain([15, 16, 17, 19]) {
        for tokens in (1..=13).chain([18, 19]) {
            // Every rest of 16, and blocks of columns of equal and of unequal length.
            for cols in [1 + rng.below(70), 1 + rng.below(70), 767, 768, 769 + rng.below(1600)] {
                let values = rng.units(rows * cols, 1.0);
                let x = rng.units(tokens * cols, 1.0);
                let floats: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                let halves: Vec<u8> = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
                let bfloats: Vec<u8> = values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
                for w in [
                    MatrixView::f32(rows, cols, &floats).unwrap(),
                    MatrixView::f16(rows, cols, &halves).unwrap(),
                    MatrixView::bf16(rows, cols, &bfloats).unwrap(),
                ] {
                    let truth = float_product(Isa::PORTABLE, &pool, &w, &x);
                    for isa in random::others() {
                        let y = float_product(isa, &pool, &w, &x);
                        assert_same(&y, &truth, &format!("{} {rows}x{cols} x {tokens}", isa.name()));
                    }
                }
            }
        }
    }
}

#[test]
fn every_half_and_bfloat_is_widened_exactly() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let pool = Pool::new(1);
    let halves = MatrixView::f16(1 << 16, 1, &all).unwrap();
    let bfloats = MatrixView::bf16(1 << 16, 1, &all).unwrap();
    for isa in Isa::available() {
        let y = float_product(isa, &pool, &halves, &[1.0]);
        let truth: Vec<f32> = (0..=u16::MAX).map(|b| f16::from_bits(b).to_f32() + 0.0).collect();
        assert_same(&y, &truth, isa.name());
        let y = float_product(isa, &pool, &bfloats, &[1.0]);
        let truth: Vec<f32> = (0..=u16::MAX).map(|b| bf16::from_bits(b).to_f32() + 0.0).collect();
        assert_same(&y, &truth, isa.name());
    }
}

#[test]
fn quantized_activations_agree_bit_for_bit_and_lie_within_half_a_step() {
    let mut rng = Rng(5);
    let pool = Pool::new(2);
    let mut x = rng.units(32 * 600, 1.0);
    // Blocks of extremes: zero, subnormal, the edge where 1/d overflows, huge, halfway, not finite.
    x[..32].fill(0.0);
    x[32..64].fill(-0.0);
    x[64..96].fill(1e-42);
    x[96..128].fill(3.7e-37);
    x[128..160].fill(3.8e-37);
    x[160..192].fill(f32::MAX);
    x[192..224].copy_from_slice(&std::array::from_fn::<f32, 32, _>(|i| i as f32 * 0.5 - 8.0));
    x[200] = 127.0;
    x[230] = f32::NAN;
    x[260] = f32::INFINITY;
    x[290] = f32::NEG_INFINITY;
    let mut truth = Q8Rows::new();
    truth.quantize(Isa::PORTABLE, &pool, &x, 32);
    for (b, (x, q)) in x.chunks(32).zip(truth.quants().chunks(32)).enumerate() {
        let d = truth.scales()[b];
        if x.iter().any(|x| !x.is_finite()) {
            assert!(d.is_nan() && q.iter().all(|&q| q == 0), "block {b}");
            continue;
        }
        for (x, &q) in x.iter().zip(q) {
            assert!(q != -128);
            let lost = d == 0.0 && x.abs() < 3.8e-37;
            assert!(lost || (x / d - f32::from(q)).abs() <= 0.5001, "block {b}: {x} is {q} x {d}");
        }
    }
    assert_eq!(truth.quants()[192..196], [-8, -8, -7, -6], "halves go to the even neighbour");
    for isa in random::others() {
        for cols in [32, 96, 32 * 600] {
            let mut q8 = Q8Rows::new();
            q8.quantize(isa, &Pool::new(3), &x, cols);
            assert_eq!(q8.quants(), truth.quants(), "{}", isa.name());
            assert_same(q8.scales(), truth.scales(), isa.name());
        }
    }
}

#[test]
fn wrong_lengths_are_errors_that_name_the_plane() {
    let bytes = vec![0u8; 64];
    assert_eq!(
        MatrixView::q8_0_split(2, 32, &bytes, &bytes[..3]).unwrap_err().to_string(),
        "the scales of a 2 x 32 matrix need 4 bytes, not 3"
    );
    assert_eq!(MatrixView::q8_0_split(2, 33, &bytes, &bytes).unwrap_err(), MatrixError::Columns { cols: 33 });
    assert_eq!(
        MatrixView::f32(usize::MAX, 2, &bytes).unwrap_err(),
        MatrixError::Shape { rows: usize::MAX, cols: 2 }
    );
    assert!(MatrixView::f16(0, 32, &[]).is_err());
    assert!(MatrixView::bf16(1, usize::MAX, &bytes).is_err());
    assert!(MatrixView::bf16(4, 8, &bytes).is_ok());
}

#[test]
fn a_part_of_a_matrix_multiplies_as_in_the_whole() {
    let mut rng = Rng(6);
    let pool = Pool::new(2);
    let isa = gantry_kernels::cpu::isa().unwrap();
    let w = Q8Matrix::random(&mut rng, 50, 64, Kind::Ordinary);
    let x = rng.units(64, 1.0);
    let whole = q8_product(isa, &pool, &w.view(), &x);
    let part = q8_product(isa, &pool, &w.view().row_range(7..30), &x);
    assert_same(&part, &whole[7..30], "rows 7..30");
}
