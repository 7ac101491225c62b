//! GGUF blocks, and products of several matrices in one step, against `gemm` bit for bit.

mod random;

use gantry_formats::block::{GgmlType, dequantize};
use gantry_formats::layout::{Order, Scales};
use gantry_kernels::cpu::*;
use half::f16;
use random::{Rng, assert_same, assert_written, poison};

/// Random blocks with scales that are numbers: a byte that may belong to an fp16 scale is kept small.
fn blocks(rng: &mut Rng, ty: GgmlType, values: usize) -> Vec<u8> {
    loop {
        let bytes: Vec<u8> =
            (0..ty.bytes_for(values as u64).unwrap()).map(|_| rng.next() as u8 & 0x3b).collect();
        let mut out = vec![0f32; values];
        dequantize(ty, &bytes, &mut out).unwrap();
        if out.iter().all(|v| v.is_finite()) {
            return bytes;
        }
    }
}

fn quantized() -> impl Iterator<Item = GgmlType> {
    GgmlType::ALL.iter().copied().filter(|ty| ty.is_quantized())
}

fn le(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Activations of every kind.
struct Rows {
    floats: Vec<f32>,
    q8: Q8Rows,
    i8s: I8Rows,
}

impl Rows {
    fn new(floats: Vec<f32>, cols: usize) -> Self {
        let (pool, mut q8, mut i8s) = (Pool::new(1), Q8Rows::new(), I8Rows::new());
        if cols.is_multiple_of(32) {
            q8.quantize(Isa::PORTABLE, &pool, &floats, cols);
        }
        i8s.quantize(Isa::PORTABLE, &pool, &floats, cols);
        Rows { floats, q8, i8s }
    }

    fn of(&self, kind: ActivationKind) -> Activations<'_> {
        match kind {
            ActivationKind::F32 => Activations::F32(&self.floats),
            ActivationKind::Q8 => Activations::Q8(&self.q8),
            ActivationKind::I8 => Activations::I8(&self.i8s),
        }
    }
}

#[test]
fn blocks_multiply_as_the_floats_that_they_hold() {
    let mut rng = Rng(1);
    let pool = Pool::new(2);
    let mut types = 0;
    for ty in quantized() {
        for (rows, blocks_per_row) in [(1, 1), (17, 2), (33, 3)] {
            let cols = blocks_per_row * ty.block_len() as usize;
            let bytes = blocks(&mut rng, ty, rows * cols);
            let mut values = vec![0f32; rows * cols];
            dequantize(ty, &bytes, &mut values).unwrap();
            let floats = le(&values);
            let floats = MatrixView::f32(rows, cols, &floats).unwrap();
            let w = MatrixView::block(ty, rows, cols, &bytes).unwrap();
            assert_eq!(w.activations(), ActivationKind::F32);
            for tokens in [1, 2, 5, 9] {
                let x = rng.units(tokens * cols, 1.0);
                for isa in Isa::available() {
                    let (mut y, mut truth) = (poison(tokens * rows), poison(tokens * rows));
                    gemm(isa, &pool, &w, Activations::F32(&x), &mut y);
                    gemm(isa, &pool, &floats, Activations::F32(&x), &mut truth);
                    assert_same(&y, &truth, &format!("{} {ty} {rows}x{cols} x {tokens}", isa.name()));
                }
            }
            let part = w.row_range(rows / 2..rows);
            let mut row = vec![0f32; cols];
            part.dequantize_row(0, &mut row);
            assert_same(&row, &values[rows / 2 * cols..][..cols], "a row of a part");
        }
        types += 1;
    }
    assert!(types >= 25, "only {types} types");
}

#[test]
fn what_are_no_such_blocks_is_an_error() {
    let error =
        |ty, rows, cols, bytes: &[u8]| MatrixView::block(ty, rows, cols, bytes).unwrap_err().to_string();
    assert_eq!(error(GgmlType::F32, 1, 1, &[0; 4]), "F32 is no block type; use the view of its float format");
    assert_eq!(
        error(GgmlType::Q4_K, 1, 128, &[0; 72]),
        "128 columns are no whole number of Q4_K blocks of 256"
    );
    assert_eq!(
        error(GgmlType::Q8_0, 2, 32, &[0; 67]),
        "the weights of a 2 x 32 matrix need 68 bytes, not 67"
    );
    assert_eq!(error(GgmlType::Q8_0, 0, 32, &[]), "no 0 x 32 matrix");
}

/// The bytes of one expert in each kind of matrix: `[rows][cols]` of int8, scales, floats, blocks.
struct Expert {
    rows: usize,
    cols: usize,
    quants: Vec<u8>,
    halves: Vec<u8>,
    floats: Vec<u8>,
    row_scales: Vec<u8>,
    blocks: Vec<u8>,
    supers: Vec<u8>,
}

impl Expert {
    fn new(rng: &mut Rng, rows: usize, cols: usize) -> Self {
        let padded = rows.next_multiple_of(16);
        let half = |rng: &mut Rng| f16::from_f32(rng.unit()).to_le_bytes();
        Expert {
            rows,
            cols,
            quants: (0..padded * cols).map(|_| rng.next() as u8).collect(),
            halves: (0..padded * cols / 32).flat_map(|_| half(rng)).collect(),
            floats: le(&rng.units(rows * cols, 1.0)),
            row_scales: le(&rng.units(padded, 1.0)),
            blocks: blocks(rng, GgmlType::Q4_0, rows * cols),
            // The scale comes last in these; any bytes of this kind are small numbers.
            supers: (0..rows * cols / 256 * 98).map(|_| rng.next() as u8 & 0x3b).collect(),
        }
    }

    fn views(&self) -> [MatrixView<'_>; 7] {
        let (rows, cols) = (self.rows, self.cols);
        let int8 =
            |order, scales, plane| MatrixView::i8(order, scales, rows, cols, &self.quants, plane).unwrap();
        [
            MatrixView::q8_0_split(rows, cols, &self.quants[..rows * cols], &self.halves[..rows * cols / 16])
                .unwrap(),
            int8(Order::Vnni16, Scales::Block32, &self.halves),
            int8(Order::Vnni16, Scales::Channel, &self.row_scales),
            int8(Order::NvA32, Scales::Channel, &self.row_scales),
            MatrixView::f32(rows, cols, &self.floats).unwrap(),
            MatrixView::block(GgmlType::Q4_0, rows, cols, &self.blocks).unwrap(),
            MatrixView::e8_block98(rows, cols, &self.supers).unwrap(),
        ]
    }
}

#[test]
fn groups_give_the_bits_of_gemm_on_their_rows() {
    let mut rng = Rng(2);
    let cols = 256;
    // Experts of several sizes, so that ranges of tiles begin and end inside groups.
    let experts: Vec<Expert> =
        [40, 16, 1, 33, 160].into_iter().map(|rows| Expert::new(&mut rng, rows, cols)).collect();
    let x = Rows::new(rng.units(12 * cols, 2.0), cols);
    let tokens: [&[u32]; 5] = [&[3], &[], &[0, 1, 2, 3, 4], &[7, 2, 2, 11, 0], &[5, 6]];
    for kind in 0..7 {
        for isa in Isa::available() {
            let mut truth = Vec::new();
            for (expert, tokens) in experts.iter().zip(tokens) {
                let w = expert.views()[kind];
                for &token in tokens {
                    let row = &x.floats[token as usize * cols..][..cols];
                    let mut y = poison(w.rows());
                    let alone = Rows::new(row.to_vec(), cols);
                    gemm(isa, &Pool::new(1), &w, alone.of(w.activations()), &mut y);
                    truth.extend(y);
                }
            }
            for threads in 1..=3 {
                let mut y = poison(truth.len());
                let mut rest = &mut y[..];
                let mut groups = Vec::new();
                for (expert, tokens) in experts.iter().zip(tokens) {
                    let w = expert.views()[kind];
                    let (y, after) = rest.split_at_mut(tokens.len() * w.rows());
                    rest = after;
                    groups.push(Group { w, x: x.of(w.activations()), tokens, y });
                }
                gemm_grouped(isa, &Pool::new(threads), &mut groups);
                assert_written(&y);
                assert_same(&y, &truth, &format!("{} kind {kind} on {threads} threads", isa.name()));
            }
        }
    }
}

#[test]
fn groups_of_several_kinds_share_a_step() {
    let mut rng = Rng(3);
    let expert = Expert::new(&mut rng, 48, 256);
    let x = Rows::new(rng.units(256, 2.0), 256);
    let isa = *Isa::available().last().unwrap();
    let mut y = poison(7 * 48);
    let mut groups: Vec<Group<'_>> = expert
        .views()
        .into_iter()
        .zip(y.chunks_mut(48))
        .map(|(w, y)| Group { w, x: x.of(w.activations()), tokens: &[0], y })
        .collect();
    gemm_grouped(isa, &Pool::new(2), &mut groups);
    for (w, y) in expert.views().iter().zip(y.chunks(48)) {
        let mut truth = poison(48);
        gemm(isa, &Pool::new(1), w, x.of(w.activations()), &mut truth);
        assert_same(y, &truth, "one of several kinds");
    }
    gemm_grouped(isa, &Pool::new(2), &mut []);
}

#[test]
#[should_panic(expected = "a token of 1")]
fn a_token_that_is_no_row_is_refused() {
    let expert = Expert::new(&mut Rng(4), 16, 256);
    let x = Rows::new(vec![1.0; 256], 256);
    let mut y = [0f32; 16];
    let mut groups = [Group { w: expert.views()[0], x: x.of(ActivationKind::Q8), tokens: &[1], y: &mut y }];
    gemm_grouped(Isa::PORTABLE, &Pool::new(1), &mut groups);
}

#[test]
#[should_panic(expected = "the kind of the activations")]
fn activations_of_another_kind_are_refused() {
    let expert = Expert::new(&mut Rng(5), 16, 256);
    let x = Rows::new(vec![1.0; 256], 256);
    let w = expert.views()[2];
    gemm(Isa::PORTABLE, &Pool::new(1), &w, x.of(ActivationKind::Q8), &mut [0.0; 16]);
}
