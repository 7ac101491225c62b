//! Every layout that the CPU takes, through every step that reads it.

mod cards;

use super::builder::Builder;
use super::program::{BufferId, ExpertMatrices, Format, Gating, Matrix, Program, Routing, Step, StepKind};
use crate::backend::{KvType, Part, RunOptions, Settings, Wanted};
use crate::load::Weights;
use crate::{Device, Result};
use gantry_formats::block::GgmlType;
use gantry_formats::layout::Layout;
use gantry_formats::rotation;

/// One of the large blocks; more rows than a tile has.
const COLS: usize = 256;
const ROWS: usize = 32;
const TOKENS: usize = 9;
const EXPERTS: usize = 5;
const USED: usize = 3;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as u32
    }
}

/// Matrices in one arena.
struct Stored {
    bytes: Vec<u8>,
    random: Random,
}

impl Stored {
    fn new() -> Self {
        Self { bytes: Vec::new(), random: Random(5) }
    }

    /// A matrix of these bytes.
    fn add(&mut self, layout: Layout, rows: usize, bytes: impl Iterator<Item = u8>) -> Matrix {
        let offset = self.bytes.len();
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(256), 0);
        Matrix { name: "m".into(), card: 0, offset, stored_rows: rows, rows: 0..rows, cols: COLS, layout }
    }

    /// A matrix of bytes below 0x3c: as a scale of any format they are finite and positive.
    fn weights(&mut self, layout: Layout) -> Matrix {
        let len = layout.bytes(ROWS as u64, COLS as u64).unwrap() as usize;
        let bytes: Vec<u8> = (0..len).map(|_| (self.random.next() % 0x3c) as u8).collect();
        self.add(layout, ROWS, bytes.into_iter())
    }

    /// Whole numbers: with a largest magnitude of 127 in each block of 32 quantizing loses nothing of them.
    fn inputs(&mut self) -> (Matrix, Vec<f32>) {
        let mut value =
            |i: usize| if i.is_multiple_of(32) { 127.0 } else { (self.random.next() % 255) as f32 - 127.0 };
        let values: Vec<f32> = (0..TOKENS * COLS).map(&mut value).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        (self.add(Layout::Raw(GgmlType::F32), TOKENS, bytes.into_iter()), values)
    }

    /// What a program gives for the tokens 0 to `tokens`: `body` looks up `table`, `head` makes the result of it.
    fn run(
        &self,
        device: &Device,
        table: &Matrix,
        (tokens, batch): (usize, usize),
        head: impl FnOnce(&mut Builder, BufferId) -> BufferId,
    ) -> Vec<f32> {
        let mut b = Builder::default();
        let residual = b.buffer("inputs", table.cols, Format::F32);
        b.push(Step::Embed { table: table.clone(), y: residual });
        let body = b.take_steps();
        let chosen = b.buffer("chosen inputs", table.cols, Format::F32);
        let logits = head(&mut b, chosen);
        let steps = [body, b.take_steps()];
        let program = Program::bare(b.buffers, steps, [residual, chosen, logits]);
        let weights = Weights::of(std::slice::from_ref(&self.bytes)).unwrap();
        Self::run_program(device, program, weights, &RunOptions::default(), (tokens, batch)).unwrap()
    }

    /// Logits of the tokens 0 to `tokens`.
    fn run_program(
        device: &Device,
        program: Program,
        weights: Weights,
        run: &RunOptions,
        (tokens, batch): (usize, usize),
    ) -> Result<Vec<f32>> {
        let loaded = device.backend().prepare(program, weights, run)?;
        let settings = Settings { context: tokens, batch, kv: KvType::F32, window: 0 };
        let mut sequence = loaded.sequence(&settings).unwrap();
        let mut workspace = loaded.workspace(&settings)?;
        let mut out = Vec::new();
        let ids: Vec<u32> = (0..tokens as u32).collect();
        for ids in ids.chunks(batch) {
            let mut sink = |_: usize, rows: &[f32]| out.extend_from_slice(rows);
            let part = Part { sequence: &mut *sequence, tokens: ids, wanted: Wanted::All, drafting: false };
            workspace.run(&mut [part], &mut sink)?;
        }
        Ok(out)
    }

    /// The rows of a matrix; of a rotated one those of W·Q, which are what its bytes say.
    fn rows(&self, device: &Device, matrix: &Matrix) -> Vec<f32> {
        let layout = match matrix.layout {
            Layout::E8Block98 { .. } => Layout::E8Block98 { rotated: false },
            Layout::E8Planar { plane_align, .. } => Layout::E8Planar { rotated: false, plane_align },
            other => other,
        };
        self.run(device, &Matrix { layout, ..matrix.clone() }, (ROWS, ROWS), |_, x| x)
    }
}

/// The layouts that `step` takes.
fn layouts(device: &Device, step: StepKind) -> Vec<Layout> {
    Layout::all().filter(|l| device.backend().takes(step, *l)).collect()
}

#[test]
fn a_product_is_that_of_the_rows_as_they_are_looked_up() {
    let device = Device::cpu(Some(2)).unwrap();
    let taken = layouts(&device, StepKind::Gemm);
    assert!(taken.len() > 40, "{}", taken.len());
    for layout in taken {
        let mut stored = Stored::new();
        let (weight, (table, inputs)) = (stored.weights(layout), stored.inputs());
        let got = stored.run(&device, &table, (TOKENS, TOKENS), |b, x| {
            let y = b.buffer("products", ROWS, Format::F32);
            b.gemm(weight.clone(), x, b.whole(y));
            y
        });
        let rows = stored.rows(&device, &weight);
        let rotated = layout.is_rotated();
        // A rotated input is of no whole numbers, and rounded.
        let bound = if rotated { 1e-2 } else { 1e-5 };
        for (token, input) in inputs.chunks(COLS).enumerate() {
            let mut input = input.to_vec();
            if rotated {
                rotation::rotate(&mut input).unwrap();
            }
            for (row, weights) in rows.chunks(COLS).enumerate() {
                let terms = || weights.iter().zip(&input).map(|(w, x)| f64::from(*w) * f64::from(*x));
                let (want, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                let got = f64::from(got[token * ROWS + row]);
                assert!((got - want).abs() <= bound * size, "{layout} [{token}][{row}]: {got}, {want}");
            }
        }
    }
}

#[test]
fn experts_give_the_bits_of_single_products_for_any_batch() {
    let device = Device::cpu(Some(3)).unwrap();
    for layout in layouts(&device, StepKind::Experts) {
        let mut stored = Stored::new();
        let experts: Vec<Matrix> = (0..EXPERTS).map(|_| stored.weights(layout)).collect();
        let (table, _) = stored.inputs();
        let router = stored.weights(Layout::Raw(GgmlType::BF16));
        let router = Matrix { rows: 0..EXPERTS, ..router };
        let bank = ExpertMatrices::new(experts.iter().map(|m| vec![m.clone()]).collect()).unwrap();
        let run = |batch: usize, only: Option<usize>| {
            stored.run(&device, &table, (TOKENS, batch), |b, x| {
                let logits = b.buffer("logits", EXPERTS, Format::F32);
                b.gemm(router.clone(), x, b.whole(logits));
                let ids = b.buffer("ids", USED, Format::Ids);
                let weights = b.buffer("weights", USED, Format::F32);
                let routing = Routing {
                    experts: EXPERTS,
                    used: USED,
                    gating: Gating::Softmax,
                    groups: 1,
                    groups_used: 1,
                    normalize: true,
                    scale: 1.0,
                };
                b.push(Step::Route { routing, layer: 0, logits, bias: None, given: None, ids, weights });
                let answers = b.rows("answers", USED, ROWS, Format::F32);
                match only {
                    None => b.experts(Some(ids), vec![(bank.clone(), None, x, b.whole(answers))]),
                    // The same matrix for every expert: each answer is its product.
                    Some(e) => {
                        let same = ExpertMatrices::new(vec![vec![experts[e].clone()]; EXPERTS]).unwrap();
                        b.experts(Some(ids), vec![(same, None, x, b.whole(answers))]);
                    }
                }
                let y = b.buffer("mixed", ROWS, Format::F32);
                b.push(Step::Mix { x: answers, weights, y });
                y
            })
        };
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let whole = bits(run(TOKENS, None));
        for batch in [1, 2, 5] {
            assert!(bits(run(batch, None)) == whole, "{layout}, batches of {batch}");
        }
        // Weights sum to 1, so one matrix for all gives about its product.
        let single = stored.run(&device, &table, (TOKENS, 4), |b, x| {
            let y = b.buffer("products", ROWS, Format::F32);
            b.gemm(experts[2].clone(), x, b.whole(y));
            y
        });
        for (got, want) in run(4, Some(2)).iter().zip(single) {
            assert!((got - want).abs() <= 1e-5 * want.abs(), "{layout}: {got}, {want}");
        }
    }
}
