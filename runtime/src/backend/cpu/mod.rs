//! The host's processor.

mod buffers;
mod execute;
mod experts;
mod registry;

use super::{Backend, Executable, KvType, Settings};
use crate::load::Arena;
use crate::model::program::{Buffer, BufferId, Columns, Matrix, Program, Rotation, Step, StepKind};
use crate::{Result, RuntimeError};
use buffers::Buffers;
use gantry_formats::arch;
use gantry_formats::layout::Layout;
use gantry_kernels::cpu::{self as kernels, Isa, MatrixView, Pool, RopeTable};
use std::sync::Arc;

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
        registry::reader(step, layout).is_some()
    }

    fn check(&self, program: &Program) -> Result<()> {
        match program.cache.iter().find(|l| l.key_len != l.value_len) {
            None => Ok(()),
            Some(l) => Err(RuntimeError::Incompatible(format!(
                "keys of {} values and values of {}: the attention kernel of this device wants them equal",
                l.key_len, l.value_len
            ))),
        }
    }

    fn cache_bytes(&self, program: &Program, kv: KvType) -> u64 {
        let element = match kv {
            KvType::F32 => 4,
            KvType::F16 => 2,
        };
        program.cache_values() as u64 * element
    }

    fn scratch_bytes(&self, program: &Program, settings: &Settings) -> u64 {
        let times = |bytes: usize, n: usize| (bytes as u64).saturating_mul(n as u64);
        let buffers = program.buffers.iter().enumerate().map(|(id, b)| {
            let tokens = if id == program.logits.0 { settings.batch.min(HEAD_ROWS) } else { settings.batch };
            times(Buffers::row_bytes(b).saturating_mul(b.rows), tokens)
        });
        // Products on their way into a part of a buffer, or from experts to tokens; and inputs of an expert's tokens,
        // brought together. The largest of them.
        let result = |y: &Columns| {
            let Buffer { rows, width, .. } = program.buffers[y.buffer.0];
            if rows == 1 && y.len == width { 0 } else { rows.saturating_mul(4 * y.len) }
        };
        let steps = program.body.iter().chain(&program.head);
        let aside = steps.map(|step| match step {
            Step::Gemm { y, .. } => result(y),
            Step::Experts { ids, products } => {
                let used = program.buffers[ids.0].width;
                let gathered = |x: BufferId| used.saturating_mul(Buffers::row_bytes(&program.buffers[x.0]));
                products
                    .iter()
                    .fold(0usize, |n, p| n.saturating_add(result(&p.y)).saturating_add(gathered(p.x)))
            }
            _ => 0,
        });
        let aside = times(aside.max().unwrap_or(0), settings.batch);
        // Each thread keeps the scores of the query heads that share a key head.
        let group = program.body.iter().find_map(|step| match step {
            Step::Attention { heads, .. } => Some(heads.query / heads.kv),
            _ => None,
        });
        let scores = times(group.unwrap_or(0) * 4 * self.threads(), settings.context);
        buffers.chain([aside, scores]).fold(0, u64::saturating_add)
    }

    fn prepare(&self, program: Program, arenas: Vec<Arena>) -> Result<Box<dyn Executable>> {
        for (kind, matrix) in program.tensors() {
            view(&arenas, kind, matrix)?;
        }
        let mut vectors = Vec::with_capacity(program.vectors.len());
        for vector in &program.vectors {
            let mut values = vec![0.0; vector.cols];
            view(&arenas, StepKind::Vector, vector)?.dequantize_row(0, &mut values);
            vectors.push(values);
        }
        let tables = program.rotations.iter().map(|r| table(r, &vectors)).collect();
        let (isa, pool) = (self.isa, Arc::clone(&self.pool));
        Ok(Box::new(Arc::new(Loaded { isa, pool, program, arenas, vectors, tables })))
    }
}

/// A program with its weights in this machine's memory.
struct Loaded {
    isa: Isa,
    pool: Arc<Pool>,
    program: Program,
    arenas: Vec<Arena>,
    /// By [`VectorId`](crate::model::program::VectorId).
    vectors: Vec<Vec<f32>>,
    /// By rotation.
    tables: Vec<RopeTable>,
}

/// A matrix where it lies.
fn view<'a>(arenas: &'a [Arena], kind: StepKind, matrix: &Matrix) -> Result<MatrixView<'a>> {
    let bad = |what: String| RuntimeError::Tensor { tensor: matrix.name.to_string(), what };
    let reader = registry::reader(kind, matrix.layout);
    let reader = reader.ok_or_else(|| bad(format!("no {kind} kernel for layout {}", matrix.layout)))?;
    let bytes = matrix.layout.bytes(matrix.stored_rows as u64, matrix.cols as u64);
    let bytes = bytes.and_then(|b| {
        let end = matrix.offset.checked_add(usize::try_from(b).ok()?)?;
        arenas.get(matrix.card)?.bytes().get(matrix.offset..end)
    });
    let bytes = bytes.ok_or_else(|| bad("it lies outside its arena".into()))?;
    let view =
        reader(matrix.layout, matrix.stored_rows, matrix.cols, bytes).map_err(|e| bad(e.to_string()))?;
    Ok(if matrix.rows == (0..matrix.stored_rows) { view } else { view.row_range(matrix.rows.clone()) })
}

fn table(rotation: &Rotation, vectors: &[Vec<f32>]) -> RopeTable {
    let scaling = match rotation.scaling {
        arch::RopeScaling::None => kernels::RopeScaling::None,
        arch::RopeScaling::Linear { factor } => {
            kernels::RopeScaling::Linear { freq_scale: (1.0 / factor) as f32 }
        }
        arch::RopeScaling::Yarn {
            factor,
            original_context,
            attn_factor,
            ext_factor,
            beta_fast,
            beta_slow,
        } => kernels::RopeScaling::Yarn {
            freq_scale: (1.0 / factor) as f32,
            original_context: u32::try_from(original_context).unwrap_or(u32::MAX),
            ext_factor: ext_factor as f32,
            attn_factor: attn_factor as f32,
            beta_fast: beta_fast as f32,
            beta_slow: beta_slow as f32,
        },
    };
    let divisors = rotation.divisors.map(|id| vectors[id.0].as_slice());
    RopeTable::new(rotation.len, rotation.base as f32, divisors, scaling)
}
