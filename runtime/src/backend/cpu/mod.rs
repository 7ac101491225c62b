//! The host's processor.

mod attend;
mod buffers;
mod experts;
mod memory;
mod recur;
mod recurrent;
mod registry;
mod saved;
mod sequence;
mod shapes;
mod steps;
mod workspace;

use super::{Backend, Executable, KeptBytes, Sequence, Settings, Workspace};
use crate::load::Weights;
use crate::model::program::{Matrix, Program, Step, StepKind, VectorId};
use crate::{Result, RuntimeError};
use gantry_formats::block::GgmlType;
use gantry_formats::layout::Layout;
use gantry_kernels::cpu::{self as kernels, Isa, MatrixView, Ngram, Pool, RopeTable};
use sequence::CpuSequence;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use workspace::Walker;

/// Most threads of a device.
pub const MAX_THREADS: usize = 1024;

/// Rows that the head computes at once where the logits of every token are wanted: enough that its weights are
/// not read for each row anew, few enough that the logits stay small.
const HEAD_ROWS: usize = 16;

/// The processor with some of its threads.
pub(super) struct Cpu {
    isa: Isa,
    pool: Arc<Pool>,
}

impl Cpu {
    pub(super) fn new(threads: usize) -> Result<Self> {
        Ok(Self { isa: kernels::isa()?, pool: Arc::new(Pool::new(threads)) })
    }
}

impl Backend for Cpu {
    fn family(&self) -> &'static str {
        "cpu"
    }

    fn describe(&self) -> String {
        format!("cpu, {} threads, {}", self.pool.threads(), self.isa.name())
    }

    fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn runs_others(&self) -> bool {
        true
    }

    fn takes(&self, step: StepKind, layout: Layout) -> bool {
        match step {
            StepKind::Ids => layout == Layout::Raw(GgmlType::I32),
            _ => registry::reader(step, layout).is_some(),
        }
    }

    fn kept_bytes(&self, program: &Program, settings: &Settings) -> KeptBytes {
        memory::kept(program, settings)
    }

    fn scratch_bytes(&self, program: &Program, settings: &Settings) -> u64 {
        memory::scratch(program, settings, self.threads())
    }

    fn prepare(&self, program: Program, weights: Weights, record: bool) -> Result<Box<dyn Executable>> {
        let mut vectors = Vec::with_capacity(program.vectors.len());
        for vector in &program.vectors {
            let mut values = vec![0.0; vector.cols];
            view_in(&weights, StepKind::Vector, vector)?.dequantize_row(0, &mut values);
            vectors.push(values);
        }
        for step in program.steps() {
            // A tap's weights of all channels together, as the kernel takes them.
            if let Step::Conv { shape, weight, .. } = step {
                let VectorId(id) = *weight;
                vectors[id] = transposed(&vectors[id], shape.taps);
            }
        }
        let tables = program.rotations.iter().map(|r| shapes::table(r, &vectors)).collect();
        let ngrams = program.ngrams.iter().map(shapes::ngram).collect();
        let routed = record.then(|| counters(&program));
        let (isa, pool) = (self.isa, Arc::clone(&self.pool));
        let loaded = Loaded { isa, pool, program, weights, vectors, tables, ngrams, routed };
        for (kind, matrix) in loaded.program.tensors() {
            match kind {
                // Read as ids or from the file, not as a matrix; they lie within their segment all the same.
                StepKind::Ids | StepKind::Rows => loaded.weights.check(matrix)?,
                _ => drop(view(&loaded, kind, matrix)?),
            }
        }
        Ok(Box::new(Arc::new(loaded)))
    }
}

/// `[n][columns]` to `[columns][n]`.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let each = |c: usize| values[c..].iter().step_by(columns).copied();
    (0..columns).flat_map(each).collect()
}

/// A count for each expert of each layer that routes.
fn counters(program: &Program) -> Vec<Vec<AtomicU64>> {
    let mut counters = Vec::new();
    for step in &program.body {
        if let Step::Route { layer, routing, .. } = step {
            counters.resize_with(counters.len().max(layer + 1), Vec::new);
            counters[*layer].resize_with(routing.experts, AtomicU64::default);
        }
    }
    counters
}

/// A program with its weights in this machine's memory.
struct Loaded {
    isa: Isa,
    pool: Arc<Pool>,
    program: Program,
    weights: Weights,
    /// By [`VectorId`].
    vectors: Vec<Vec<f32>>,
    /// By rotation.
    tables: Vec<RopeTable>,
    /// By hash.
    ngrams: Vec<Ngram>,
    /// How often each expert of each layer was used, where that is recorded.
    routed: Option<Vec<Vec<AtomicU64>>>,
}

impl Loaded {
    /// Records the experts of some tokens in a layer.
    fn count(&self, layer: usize, ids: &[u32]) {
        let Some(counters) = self.routed.as_ref().and_then(|all| all.get(layer)) else { return };
        for id in ids {
            if let Some(counter) = counters.get(*id as usize) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Executable for Arc<Loaded> {
    fn sequence(&self, settings: &Settings) -> Result<Box<dyn Sequence>> {
        Ok(Box::new(CpuSequence::new(&self.program, settings)?))
    }

    fn workspace(&self) -> Box<dyn Workspace> {
        Box::new(Walker::new(Arc::clone(self)))
    }

    fn routed(&self) -> Option<Vec<Vec<u64>>> {
        let counts = |layer: &Vec<AtomicU64>| layer.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        self.routed.as_ref().map(|all| all.iter().map(counts).collect())
    }
}

/// A matrix where it lies.
fn view<'a>(loaded: &'a Loaded, kind: StepKind, matrix: &Matrix) -> Result<MatrixView<'a>> {
    view_in(&loaded.weights, kind, matrix)
}

fn view_in<'a>(weights: &'a Weights, kind: StepKind, matrix: &Matrix) -> Result<MatrixView<'a>> {
    let bad = |what: String| RuntimeError::Tensor { tensor: matrix.name.to_string(), what };
    let reader = registry::reader(kind, matrix.layout);
    let reader = reader.ok_or_else(|| bad(format!("no {kind} kernel for layout {}", matrix.layout)))?;
    let bytes = matrix.layout.bytes(matrix.stored_rows as u64, matrix.cols as u64);
    let bytes = bytes.and_then(|b| {
        let end = matrix.offset.checked_add(usize::try_from(b).ok()?)?;
        weights.arenas().get(matrix.card)?.bytes().get(matrix.offset..end)
    });
    let bytes = bytes.ok_or_else(|| bad("it lies outside its arena".into()))?;
    let view =
        reader(matrix.layout, matrix.stored_rows, matrix.cols, bytes).map_err(|e| bad(e.to_string()))?;
    Ok(if matrix.rows == (0..matrix.stored_rows) { view } else { view.row_range(matrix.rows.clone()) })
}
