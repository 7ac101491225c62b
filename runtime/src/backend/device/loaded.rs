//! A program on a card: its weights, and what kernels need beside them.

use super::driver::{CardError, Context, DeviceMemory, Stream};
use super::experts::{Experts, Held};
use super::kernels::Kernels;
use super::registry;
use super::tables::{Placed, TableId, Tables};
use crate::backend::counters::Counters;
use crate::backend::host;
use crate::backend::ngram::{self, NgramTable};
use crate::load::Weights;
use crate::model::program::{ExpertMatrices, Holders, Matrix, Program, Step, StepKind, VectorId};
use crate::{Result, RuntimeError};
use gantry_formats::block::iq3xxs_grid;
use gantry_formats::rotation;
use gantry_kernels::cpu::{Pool, RopeTable};
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

/// A program with its weights on a card, or on several of which this is one.
pub(super) struct Loaded {
    /// Which of them.
    pub(super) card: usize,
    pub(super) context: Arc<Context>,
    pub(super) kernels: Kernels,
    /// For what is done once, and what sequences do by themselves.
    pub(super) aside: Arc<Stream>,
    pub(super) program: Program,
    /// What stays in its file.
    pub(super) weights: Arc<Weights>,
    /// Of all cards.
    arenas: Arc<Vec<DeviceMemory>>,
    /// Runs share it; who writes to the arena has it alone.
    pub(super) used: RwLock<()>,
    tables: Placed,
    /// By [`VectorId`].
    vectors: Vec<TableId>,
    codebook: TableId,
    /// Sign streams by width.
    signs: BTreeMap<usize, TableId>,
    experts: Experts,
    /// By rotation.
    pub(super) angles: Vec<RopeTable>,
    /// By hash.
    pub(super) ngrams: BTreeMap<usize, NgramTable>,
    /// Threads that read their rows.
    pub(super) pool: Arc<Pool>,
    /// How often each expert of each layer was used, where that is recorded.
    pub(super) routed: Option<Arc<Counters>>,
}

impl Loaded {
    /// What card `card` of those whose arenas these are needs to run its share of `program`.
    pub(super) fn new(
        card: usize,
        program: Program,
        (weights, arenas, host): (Arc<Weights>, Arc<Vec<DeviceMemory>>, bool),
        (routed, pool): (Option<Arc<Counters>>, Arc<Pool>),
    ) -> Result<Self> {
        let contexts = arenas.iter().map(DeviceMemory::context);
        let streams = contexts.map(Stream::new).collect::<Result<Vec<_>, CardError>>()?;
        let none = || RuntimeError::Placement("weights that were not brought to a card".into());
        let context = Arc::clone(arenas.get(card).ok_or_else(none)?.context());
        let kernels = Kernels::new(&context)?;
        // The card beyond these is the host's, where there is one; only experts are there.
        let own = |kind: StepKind, matrix: &Matrix| {
            kind != StepKind::Rows && !(host && kind == StepKind::Experts && matrix.card == arenas.len())
        };
        for (kind, matrix) in program.tensors().filter(|(kind, matrix)| own(*kind, matrix)) {
            check(arenas.get(matrix.card), kind, matrix)?;
        }
        let mut tables = Tables::default();
        let mut values = Vec::with_capacity(program.vectors.len());
        for vector in &program.vectors {
            // It lies on the card that uses it; angles of rotations are the host's matter.
            let place = arenas.get(vector.card).zip(streams.get(vector.card));
            let (arena, stream) = place.ok_or_else(|| wrong(&vector.name, "it lies on no card".into()))?;
            values.push(read_vector(arena, vector, stream)?);
        }
        for step in program.steps() {
            // A tap's weights of all channels together, as the kernel takes them.
            if let Step::Conv { shape, weight: VectorId(id), .. } = step {
                values[*id] = host::transposed(&values[*id], shape.taps);
            }
        }
        let angles = program.rotations.iter().map(|r| host::rope_table(r, &values)).collect();
        let vectors = values.iter().map(|v| tables.floats(v.iter().copied())).collect();
        let codebook = tables.add(iq3xxs_grid().as_flattened().iter().copied());
        let mut signs = BTreeMap::new();
        for step in program.steps() {
            if let Step::Rotate { y, .. } = step {
                let width = program.buffers[y.0].width;
                let blocks = rotation::blocks(width).map_err(|e| wrong("program", e.to_string()))?;
                signs.entry(width).or_insert_with(|| tables.add(blocks.flat_map(rotation::signs)));
            }
        }
        // Nothing of the host's card is reached from here.
        let starts = arenas.iter().map(DeviceMemory::address).chain(host.then_some(0));
        let starts: Vec<u64> = starts.collect();
        let experts = Experts::new(&program, card, &starts, &mut tables)?;
        let aside = streams.into_iter().nth(card).ok_or_else(none)?;
        let tables = Placed::new(&tables, &context, &aside)?;
        let ngrams = ngram::tables(&program)?;
        Ok(Self {
            card,
            context,
            kernels,
            aside: Arc::new(aside),
            program,
            weights,
            arenas,
            used: RwLock::default(),
            tables,
            vectors,
            codebook,
            signs,
            experts,
            angles,
            ngrams,
            pool,
            routed,
        })
    }

    /// This card's arena.
    pub(super) fn arena(&self) -> &DeviceMemory {
        &self.arenas[self.card]
    }

    /// Where a matrix begins.
    pub(super) fn matrix(&self, matrix: &Matrix) -> u64 {
        self.arenas[matrix.card].address() + matrix.offset as u64
    }

    /// Where a vector is; 0 for none.
    pub(super) fn vector(&self, id: Option<VectorId>) -> u64 {
        id.map_or(0, |id| self.tables.at(self.vectors[id.0]))
    }

    /// The values of a small vector of this card, as they are stored.
    pub(super) fn vector_values(&self, id: VectorId) -> Result<Vec<f32>> {
        read_vector(self.arena(), &self.program.vectors[id.0], &self.aside)
    }

    /// The codebook of E8.
    pub(super) fn codebook(&self) -> u64 {
        self.tables.at(self.codebook)
    }

    /// The signs that rows of `width` are rotated with.
    pub(super) fn signs(&self, width: usize) -> u64 {
        self.signs.get(&width).map_or(0, |id| self.tables.at(*id))
    }

    /// Where the matrices of experts are, of those alone that this card computes where `only` says so.
    pub(super) fn experts(&self, weights: &ExpertMatrices, only: Option<usize>) -> Result<Held> {
        self.experts.held(weights, only.is_some(), |id| self.tables.at(id))
    }

    /// Of each expert of a layer how many copies there are on all cards, and which is that of card `of`: 1 and 1 for one
    /// that it has not.
    pub(super) fn turns(&self, holders: &Holders, of: usize) -> Result<u64> {
        self.experts.turns(holders, of, |id| self.tables.at(id))
    }
}

/// What is wrong with a tensor.
pub(super) fn wrong(tensor: &str, what: String) -> RuntimeError {
    RuntimeError::Tensor { tensor: tensor.into(), what }
}

/// Refuses a matrix that does not lie within its arena, or that no kernel reads.
fn check(arena: Option<&DeviceMemory>, kind: StepKind, matrix: &Matrix) -> Result<()> {
    let bytes = matrix.layout.bytes(matrix.stored_rows as u64, matrix.cols as u64);
    let end = bytes.and_then(|b| (matrix.offset as u64).checked_add(b));
    if !registry::takes(kind, matrix.layout) {
        return Err(wrong(&matrix.name, format!("no {kind} kernel for layout {}", matrix.layout)));
    }
    let fits = end.zip(arena).is_some_and(|(end, arena)| end <= arena.bytes());
    match fits && matrix.rows.end <= matrix.stored_rows {
        true => Ok(()),
        false => Err(wrong(&matrix.name, "it lies outside its arena".into())),
    }
}

/// A vector's values.
fn read_vector(arena: &DeviceMemory, vector: &Matrix, stream: &Stream) -> Result<Vec<f32>> {
    let bytes = vector.layout.bytes(vector.stored_rows as u64, vector.cols as u64).unwrap_or(0);
    let mut stored = vec![0; bytes as usize];
    arena.read(vector.offset as u64, &mut stored, stream)?;
    host::vector(vector, &stored)
}
