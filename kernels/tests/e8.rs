//! Products with E8 weights: every implementation against f64 and against each other bit for bit, the decoder
//! against ggml's.

mod random;

use gantry_formats::block::{GgmlType, dequantize, iq3xxs_grid};
use gantry_kernels::cpu::{Activations, Isa, MatrixError, MatrixView, Pool, Q8Rows, gemm};
use half::f16;
use random::{Rng, assert_same, assert_written, poison};

/// What the super-scales look like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scales {
    Ordinary,
    /// Zero, subnormal, negative and largest.
    Extreme,
    /// Infinite and NaN.
    NotFinite,
}

/// The same blocks in both layouts, at an odd address.
struct E8 {
    rows: usize,
    cols: usize,
    /// One byte, then 98 for each block.
    blocks: Vec<u8>,
    /// One byte, then the planes.
    planes: [Vec<u8>; 3],
}

impl E8 {
    fn random(rng: &mut Rng, rows: usize, cols: usize, kind: Scales) -> Self {
        let blocks = (0..rows * cols / 256).flat_map(|_| {
            let mut block: [u8; 98] = std::array::from_fn(|_| rng.next() as u8);
            let scale = match (kind, rng.below(6)) {
                (Scales::Extreme, 0) => [0, 0x8000][rng.below(2)],
                (Scales::Extreme, 1) => 1 + rng.below(0x3ff) as u16,
                (Scales::Extreme, 2) => 0x8000 | rng.below(0x400) as u16,
                (Scales::Extreme, 3) => 0x7bff,
                (Scales::NotFinite, 0) => 0x7c00,
                (Scales::NotFinite, 1) => 0xfe00,
                _ => f16::from_f32(rng.unit() * 0.01).to_bits(),
            };
            block[96..].copy_from_slice(&scale.to_le_bytes());
            block
        });
        Self::new(rows, cols, [0].into_iter().chain(blocks).collect())
    }

    fn new(rows: usize, cols: usize, blocks: Vec<u8>) -> Self {
        let plane = |range: std::ops::Range<usize>| {
            let parts = blocks[1..].chunks_exact(98).flat_map(|block| &block[range.clone()]);
            [0].iter().chain(parts).copied().collect()
        };
        let planes = [plane(0..64), plane(64..96), plane(96..98)];
        E8 { rows, cols, planes, blocks }
    }

    fn views(&self) -> [MatrixView<'_>; 2] {
        let [indices, words, scales] = self.planes.each_ref().map(|plane| &plane[1..]);
        [
            MatrixView::e8_block98(self.rows, self.cols, &self.blocks[1..]).unwrap(),
            MatrixView::e8_planar(self.rows, self.cols, indices, words, scales).unwrap(),
        ]
    }

    /// Weight k of a row as the format defines it, in f64.
    fn weight(&self, row: usize, k: usize) -> f64 {
        let block = &self.blocks[1 + (row * self.cols + k) / 256 * 98..][..98];
        let k = k % 256;
        let word = u32::from_le_bytes(block[64 + k / 32 * 4..][..4].try_into().unwrap());
        let d = f16::from_le_bytes([block[96], block[97]]).to_f64();
        let seven = word >> (k % 32 / 8 * 7) & 0x7f;
        let negative = if k % 8 == 7 { seven.count_ones() % 2 == 1 } else { seven >> (k % 8) & 1 == 1 };
        let grid = f64::from(iq3xxs_grid()[usize::from(block[k / 4])][k % 4]);
        let value = d * (0.5 + f64::from(word >> 28)) * 0.5 * grid * 0.5;
        if negative { -value } else { value }
    }
}

fn product(isa: Isa, pool: &Pool, w: &MatrixView<'_>, x: &[f32]) -> Vec<f32> {
    let mut q8 = Q8Rows::new();
    q8.quantize(isa, pool, x, w.cols());
    let mut y = poison(q8.rows() * w.rows());
    gemm(isa, pool, w, Activations::Q8(&q8), &mut y);
    assert_written(&y);
    y
}

#[test]
fn products_lie_within_rounding_of_f64_and_agree_bit_for_bit() {
    let mut rng = Rng(1);
    let pool = Pool::new(2);
    for kind in [Scales::Ordinary, Scales::Extreme, Scales::NotFinite] {
        for rows in [1, 2, 7, 8, 9, 15, 16, 17, 33] {
            for tokens in 1..=9 {
                let cols = 256 * (1 + rng.below(5));
                let w = E8::random(&mut rng, rows, cols, kind);
                let x = rng.units(tokens * cols, 3.0);
                let truth = product(Isa::PORTABLE, &pool, &w.views()[0], &x);
                let mut q8 = Q8Rows::new();
                q8.quantize(Isa::PORTABLE, &pool, &x, cols);
                for (i, y) in truth.iter().enumerate().filter(|_| kind != Scales::NotFinite) {
                    let (token, row) = (i / rows, i % rows);
                    let terms = (0..cols).map(|k| {
                        let at = token * cols + k;
                        let x = f64::from(q8.quants()[at]) * f64::from(q8.scales()[at / 32]);
                        w.weight(row, k) * x
                    });
                    let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t: f64| (s + t, a + t.abs()));
                    let error = (f64::from(*y) - sum).abs();
                    // Each block: 3 roundings of its term; each partial sum: 1 rounding.
                    let bound = ((cols / 32 + 3) as f64 * f64::from(f32::EPSILON)).min(1e-5);
                    assert!(error <= bound * size + 1e-40, "{kind:?} {rows}x{cols}: {y} for {sum}");
                }
                for isa in Isa::available() {
                    for (view, layout) in w.views().iter().zip(["block98", "planar"]) {
                        let y = product(isa, &pool, view, &x);
                        let what = format!("{} {layout} {kind:?} {rows}x{cols} x {tokens}", isa.name());
                        assert_same(&y, &truth, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn a_token_alone_equals_it_in_a_batch_on_any_number_of_threads() {
    let mut rng = Rng(2);
    let (rows, cols) = (100, 512);
    let w = E8::random(&mut rng, rows, cols, Scales::Ordinary);
    let x = rng.units(17 * cols, 2.0);
    for isa in Isa::available() {
        let one = Pool::new(1);
        let alone: Vec<f32> = x.chunks(cols).flat_map(|x| product(isa, &one, &w.views()[1], x)).collect();
        for threads in 1..=4 {
            let pool = Pool::new(threads);
            for batch in [1, 2, 3, 4, 5, 8, 17] {
                let all: Vec<f32> =
                    x.chunks(batch * cols).flat_map(|x| product(isa, &pool, &w.views()[1], x)).collect();
                assert_same(&all, &alone, &format!("{}, {batch} on {threads} threads", isa.name()));
            }
        }
    }
}

#[test]
fn every_entry_with_every_sign_is_found() {
    // Row i: indices i, i + 1, …; the signs of its eights run through all 128; one-hot activations read each weight.
    let mut rng = Rng(3);
    let mut blocks = vec![0];
    for row in 0..256u32 {
        blocks.extend((0..64).map(|k| (row + k) as u8));
        for sub in 0..8 {
            let signs = |l: u32| (row * 32 + sub * 4 + l) % 128;
            let word = (0..4).fold((row % 16) << 28, |word, l| word | signs(l) << (7 * l));
            blocks.extend(word.to_le_bytes());
        }
        blocks.extend(f16::from_f32(0.0078125 * (1.0 + row as f32)).to_le_bytes());
    }
    let w = E8::new(256, 256, blocks);
    let pool = Pool::new(2);
    let mut values = vec![0f32; 256];
    for tokens in [1, 2, 4] {
        for isa in Isa::available() {
            for k in 0..256 {
                let mut x = vec![0f32; tokens * 256];
                x[(tokens - 1) * 256 + k] = 127.0;
                let y = product(isa, &pool, &w.views()[rng.below(2)], &x);
                for row in 0..256 {
                    w.views()[1].dequantize_row(row, &mut values);
                    let want = (127.0 * w.weight(row, k)) as f32;
                    assert_eq!(y[(tokens - 1) * 256 + row], want, "{} row {row} {k}", isa.name());
                    assert_eq!(f64::from(values[k]), w.weight(row, k), "row {row} {k}");
                }
            }
        }
    }
}

#[test]
fn decoding_is_ggmls_of_the_same_block_with_half_the_scale() {
    let mut rng = Rng(4);
    for kind in [Scales::Ordinary, Scales::Extreme, Scales::NotFinite] {
        let mut w = E8::random(&mut rng, 50, 1024, kind);
        for block in w.blocks[1..].chunks_exact_mut(98) {
            // Half of a scale of the two lowest exponents is subnormal: exact if the scale is even.
            block[96] &= if block[97] & 0x78 == 0 { 0xfe } else { 0xff };
        }
        let w = E8::new(w.rows, w.cols, w.blocks);
        let mut values = vec![0f32; 1024];
        for row in 0..50 {
            let blocks = w.blocks[1 + row * 4 * 98..][..4 * 98].chunks_exact(98);
            let ggml: Vec<u8> = blocks
                .flat_map(|block| {
                    let d = f16::from_le_bytes([block[96], block[97]]).to_f32();
                    f16::from_f32(d * 0.5).to_le_bytes().into_iter().chain(block[..96].iter().copied())
                })
                .collect();
            let mut want = vec![0f32; 1024];
            dequantize(GgmlType::IQ3_XXS, &ggml, &mut want).unwrap();
            for view in w.views() {
                view.dequantize_row(row, &mut values);
                assert_same(&values, &want, &format!("{kind:?} row {row}"));
            }
        }
    }
}

#[test]
fn the_published_block_decodes() {
    let hex = "e159cb31dc31dc5f68526875406b126b59f131dc5fb284b2524075126b1b6b1bf131dc5fb284b2bc9fbc7bd459cb31dc\
               31dc5fb2849ebc9ebc59e159cb31dc314badd422160bad44a5562b2de9e5524b52a9c522345aa925ad567a294bad562a\
               d725";
    let bytes: Vec<u8> = (0..98).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
    let mut values = vec![0f32; 256];
    MatrixView::e8_block98(1, 256, &bytes).unwrap().dequantize_row(0, &mut values);
    assert_eq!(values[..4], [-0.8839607, -0.17108917, 0.28514862, -0.7413864]);
}

#[test]
fn a_part_of_a_matrix_multiplies_and_decodes_as_in_the_whole() {
    let mut rng = Rng(6);
    let pool = Pool::new(2);
    let w = E8::random(&mut rng, 50, 512, Scales::Ordinary);
    let x = rng.units(512, 1.0);
    let isa = gantry_kernels::cpu::isa().unwrap();
    let (mut a, mut b) = (vec![0f32; 512], vec![0f32; 512]);
    for view in w.views() {
        let whole = product(isa, &pool, &view, &x);
        for range in [7..30, 0..50, 49..50] {
            let part = view.row_range(range.clone());
            assert_same(&product(isa, &pool, &part, &x), &whole[range.clone()], "rows");
            view.dequantize_row(range.end - 1, &mut a);
            part.dequantize_row(range.len() - 1, &mut b);
            assert_same(&a, &b, "the last row");
        }
    }
}

#[test]
fn wrong_lengths_are_errors_that_name_the_plane() {
    let bytes = [0u8; 128];
    let planar = |cols, [indices, words, scales]: [usize; 3]| {
        MatrixView::e8_planar(2, cols, &bytes[..indices], &bytes[..words], &bytes[..scales])
            .map(|view| view.cols())
            .map_err(|error| error.to_string())
    };
    assert_eq!(planar(256, [128, 64, 4]), Ok(256));
    for (lengths, plane) in [
        ([127, 64, 4], "indices of a 2 x 256 matrix need 128 bytes, not 127"),
        ([128, 63, 4], "words of a 2 x 256 matrix need 64 bytes, not 63"),
        ([128, 64, 5], "scales of a 2 x 256 matrix need 4 bytes, not 5"),
    ] {
        assert_eq!(planar(256, lengths).unwrap_err(), format!("the {plane}"));
    }
    assert_eq!(
        planar(640, [0; 3]).unwrap_err(),
        "640 columns are not a multiple of 256, the weights of an E8 super-block"
    );
    let block98 = |rows, cols| MatrixView::e8_block98(rows, cols, &bytes[..98]).map(|view| view.rows());
    assert_eq!(block98(1, 256), Ok(1));
    assert_eq!(block98(1, 257), Err(MatrixError::SuperBlocks { cols: 257 }));
    assert_eq!(
        block98(2, 256),
        Err(MatrixError::Length { plane: "blocks", rows: 2, cols: 256, need: 196, have: 98 })
    );
    assert_eq!(block98(0, 256), Err(MatrixError::Shape { rows: 0, cols: 256 }));
    assert_eq!(block98(usize::MAX, 256), Err(MatrixError::Shape { rows: usize::MAX, cols: 256 }));
}

#[test]
#[should_panic(expected = "the kind of the activations")]
fn float_activations_are_refused() {
    let w = E8::random(&mut Rng(7), 1, 256, Scales::Ordinary);
    gemm(Isa::PORTABLE, &Pool::new(1), &w.views()[0], Activations::F32(&[0.0; 256]), &mut [0.0]);
}
