//! The host's processor.

mod attend;
#[cfg(feature = "cards")]
mod beside;
mod buffers;
mod cards;
mod experts;
mod links;
mod memory;
mod recur;
mod recurrent;
mod registry;
mod saved;
mod sequence;
mod shapes;
mod steps;
mod workspace;

use super::counters::Counters;
use super::ngram::{self, NgramTable};
use super::{Backend, Executable, KeptBytes, RunOptions, Sequence, Settings, Workspace, host};
use crate::load::Weights;
use crate::model::program::{CardPrograms, ExpertCheck, Kept, Matrix, Program, Step, StepKind, VectorId};
use crate::{Result, RuntimeError};
#[cfg(feature = "cards")]
pub(super) use beside::{HostCard, HostLoaded, Ways, check as check_beside};
use cards::Cards;
use gantry_formats::block::GgmlType;
use gantry_formats::layout::Layout;
use gantry_kernels::cpu::{self as kernels, Isa, MatrixView, Pool, RopeTable};
pub use links::Differ;
pub(super) use registry::reader;
use sequence::CpuSequence;
use std::collections::BTreeMap;
use std::ops::Deref;
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
        match step {
            StepKind::Ids => layout == Layout::Raw(GgmlType::I32),
            _ => registry::reader(step, layout).is_some(),
        }
    }

    fn kept_bytes(&self, kept: &Kept, settings: &Settings) -> KeptBytes {
        memory::kept(kept, settings)
    }

    fn scratch_bytes(&self, program: &Program, settings: &Settings) -> u64 {
        memory::scratch(program, settings, self.threads())
    }

    fn exchange_bytes(&self, program: &Program, settings: &Settings, cards: usize) -> Result<Vec<u64>> {
        let cut = CardPrograms::new(program, cards, ExpertCheck::Off)?;
        Ok(memory::beside(program, &cut, settings))
    }

    fn prepare(&self, program: Program, weights: Weights, run: &RunOptions) -> Result<Box<dyn Executable>> {
        let shared = Shared::new(self.isa, program, weights, run)?;
        let pools = self.pools(shared.cards.body.lists.len(), shared.cards.shares_experts());
        let shared = Arc::new(shared);
        let loaded = |(card, pool)| Arc::new(Loaded { card, pool, shared: Arc::clone(&shared) });
        let cards = pools.into_iter().enumerate().map(loaded).collect();
        Ok(Box::new(Prepared { cards, run: run.clone() }))
    }
}

impl Cpu {
    /// The threads of each card: where cards take turns all of them, which they share, else some of its own.
    fn pools(&self, cards: usize, at_once: bool) -> Vec<Arc<Pool>> {
        let all = self.pool.threads();
        let threads = |card: usize| match at_once {
            true => (all / cards + usize::from(card < all % cards)).max(1),
            false => all,
        };
        let pool = |card| match threads(card) == all {
            true => Arc::clone(&self.pool),
            false => Arc::new(Pool::new(threads(card))),
        };
        (0..cards).map(pool).collect()
    }
}

/// A card: its threads, and what it has in common with the others.
struct Loaded {
    card: usize,
    pool: Arc<Pool>,
    shared: Arc<Shared>,
}

impl Deref for Loaded {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// A program with its weights in this machine's memory.
struct Shared {
    isa: Isa,
    program: Program,
    /// The program cut for the cards.
    cards: CardPrograms,
    weights: Arc<Weights>,
    /// By [`VectorId`].
    vectors: Vec<Vec<f32>>,
    /// By rotation.
    tables: Vec<RopeTable>,
    /// By hash.
    ngrams: BTreeMap<usize, NgramTable>,
    /// How often each expert of each layer was used, where that is recorded.
    routed: Option<Counters>,
}

impl Shared {
    fn new(isa: Isa, program: Program, weights: Weights, run: &RunOptions) -> Result<Self> {
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
                vectors[id] = host::transposed(&vectors[id], shape.taps);
            }
        }
        let tables = program.rotations.iter().map(|r| host::rope_table(r, &vectors)).collect();
        let ngrams = ngram::tables(&program)?;
        let routed = run.record_routing.then(|| Counters::new(&program));
        let count = weights.arenas().len().max(1);
        let cards = CardPrograms::new(&program, count, run.check)?;
        let weights = Arc::new(weights);
        let shared = Shared { isa, program, cards, weights, vectors, tables, ngrams, routed };
        for (kind, matrix) in shared.program.tensors() {
            match kind {
                // Read as ids or from the file, not as a matrix; they lie within their segment all the same.
                StepKind::Ids | StepKind::Rows => shared.weights.check(matrix)?,
                _ => drop(view(&shared, kind, matrix)?),
            }
        }
        Ok(shared)
    }

    /// Records the experts of some tokens in a layer.
    fn count(&self, layer: usize, ids: &[u32]) {
        if let Some(counters) = &self.routed {
            counters.add(layer, ids.iter().copied());
        }
    }
}

/// All cards with their parts of a program.
struct Prepared {
    cards: Vec<Arc<Loaded>>,
    run: RunOptions,
}

impl Executable for Prepared {
    fn sequence(&self, settings: &Settings) -> Result<Box<dyn Sequence>> {
        Ok(Box::new(CpuSequence::new(&self.cards[0].program, settings)?))
    }

    fn workspace(&self, _: &Settings) -> Result<Box<dyn Workspace>> {
        Ok(Box::new(Cards::new(&self.cards, self.run.clone())))
    }

    fn routed(&self) -> Option<Vec<Vec<u64>>> {
        self.cards[0].routed.as_ref().map(Counters::counts)
    }
}

/// A matrix where it lies.
fn view<'a>(loaded: &'a Shared, kind: StepKind, matrix: &Matrix) -> Result<MatrixView<'a>> {
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
