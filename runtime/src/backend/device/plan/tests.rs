//! Plans of small lists of steps.

use super::*;
use crate::model::program::{Buffer, Columns, StreamWrite, VectorId};

/// Buffers by name, and steps over them: a read of four streams of 96 values, a router beside a gate, a sum of both.
pub(in crate::backend::device) struct Example {
    buffers: Vec<Buffer>,
    pub(in crate::backend::device) steps: Vec<Step>,
}

impl Example {
    pub(in crate::backend::device) fn id(
        &mut self,
        name: &'static str,
        rows: usize,
        width: usize,
        format: Format,
    ) -> BufferId {
        let found = self.buffers.iter().position(|b| b.name == name);
        BufferId(found.unwrap_or_else(|| {
            self.buffers.push(Buffer { name, rows, width, format });
            self.buffers.len() - 1
        }))
    }

    pub(in crate::backend::device) fn gemm(
        &mut self,
        rows: usize,
        cols: usize,
        layout: Layout,
        x: BufferId,
        y: Columns,
    ) {
        let matrix =
            Matrix { name: "w".into(), card: 0, offset: 0, stored_rows: rows, rows: 0..rows, cols, layout };
        self.steps.push(Step::Gemm { weight: matrix, scale: None, bias: None, x, y });
    }

    fn read(&mut self) -> BufferId {
        let x = self.id("streams", 4, 96, Format::F32);
        let n = self.id("normed", 1, 384, Format::F32);
        let nq = self.id("normed quants", 1, 384, Format::Q8);
        let low = self.id("low", 1, 64, Format::F32);
        let lq = self.id("low quants", 1, 64, Format::Q8);
        let gates = self.id("gates", 1, 384, Format::F32);
        let m = self.id("read", 1, 96, Format::F32);
        let mq = self.id("read quants", 1, 96, Format::Q8);
        let inject = self.id("inject", 1, 4, Format::F32);
        let add = self.id("sum", 1, 96, Format::F32);
        let write = Some(StreamWrite { add, inject });
        let whole = |buffer, len| Columns { buffer, start: 0, len };
        let q8 = Layout::q8_0_split();
        self.steps.push(Step::StreamNorm { write, x, gamma: VectorId(0), eps: 1e-6, y: n });
        self.steps.push(Step::Quantize { x: n, y: nq });
        self.gemm(64, 384, q8, nq, whole(low, 64));
        self.steps.push(Step::SiluScaled { x: low, scale: 0.25 });
        self.steps.push(Step::Quantize { x: low, y: lq });
        self.gemm(384, 64, q8, lq, whole(gates, 384));
        self.steps.push(Step::StreamMix { x: n, gates, y: m });
        self.gemm(4, 384, q8, nq, whole(inject, 4));
        let part = crate::model::program::Part::Experts;
        self.steps.push(Step::Begin(part));
        self.steps.push(Step::Quantize { x: m, y: mq });
        m
    }

    pub(in crate::backend::device) fn program(self) -> (Program, Vec<Step>) {
        let residual = BufferId(0);
        let logits = BufferId(self.buffers.len() - 1);
        let program =
            Program::bare(self.buffers, [self.steps.clone(), Vec::new()], [residual, residual, logits]);
        (program, self.steps)
    }
}

pub(in crate::backend::device) fn example() -> Example {
    Example { buffers: Vec::new(), steps: Vec::new() }
}

#[test]
fn a_read_of_hyper_connections_is_one_operation() {
    let mut example = example();
    example.read();
    let (program, steps) = example.program();
    let read =
        Read { norm: 0, quantize: Some(1), down: 2, inject: Some(7), silu: 3, up: 5, mix: 6, read: Some(9) };
    assert_eq!(plan(&program, &steps), [Op::Read(read), Op::Step(8)]);
}

#[test]
fn what_another_step_still_reads_is_not_left_out() {
    let mut example = example();
    example.read();
    let (gates, y) = (example.id("gates", 1, 384, Format::F32), example.id("kept", 1, 384, Format::F32));
    example.steps.push(Step::Add { x: gates, y });
    let (program, steps) = example.program();
    let ops = plan(&program, &steps);
    assert!(ops.iter().all(|op| !matches!(op, Op::Read(_))), "{ops:?}");
}

#[test]
fn products_go_together_unless_one_needs_the_other() {
    let f32 = Layout::Raw(GgmlType::F32);
    for chained in [false, true] {
        let mut example = example();
        let x = example.id("x", 1, 512, Format::F32);
        let a = example.id("a", 1, 512, Format::F32);
        let b = example.id("b", 1, 8, Format::F32);
        example.gemm(512, 512, f32, x, Columns { buffer: a, start: 0, len: 512 });
        example.gemm(8, 512, f32, if chained { a } else { x }, Columns { buffer: b, start: 0, len: 8 });
        let (program, steps) = example.program();
        let expected = match chained {
            false => vec![Op::Wide(0, Some(1))],
            true => vec![Op::Wide(0, None), Op::Wide(1, None)],
        };
        assert_eq!(plan(&program, &steps), expected);
    }
}

#[test]
fn a_mix_waits_for_the_gated_answer_that_is_added() {
    for meddled in [false, true] {
        let mut example = example();
        let answers = example.id("answers", 3, 64, Format::F32);
        let weights = example.id("weights", 1, 3, Format::F32);
        let sum = example.id("sum", 1, 64, Format::F32);
        let shared = example.id("shared", 1, 64, Format::F32);
        let by = example.id("gate", 1, 1, Format::F32);
        let all = |buffer, len| Pieces { buffer, start: 0, count: 1, len, stride: len };
        let inside = example.id("gates and ups", 1, 128, Format::F32);
        example.steps.push(Step::SiluMul { x: inside, clamp: None, y: shared });
        example.steps.push(Step::Mix { x: answers, weights, y: sum });
        if meddled {
            example.steps.push(Step::SiluScaled { x: weights, scale: 1.0 });
        }
        example.steps.push(Step::Gate { act: Gate::Sigmoid, gate: all(by, 1), y: all(shared, 64) });
        example.steps.push(Step::Add { x: shared, y: sum });
        let (program, steps) = example.program();
        let expected = match meddled {
            false => vec![Op::Step(0), Op::MixAdd { mix: 1, gate: 2, add: 3 }],
            true => (0..5).map(Op::Step).collect(),
        };
        assert_eq!(plan(&program, &steps), expected);
    }
}
